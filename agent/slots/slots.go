package slots

import (
	"context"
	"io"

	"github.com/stayput-dev/stayput/osimage"
)

// Slot is a place on disk that holds one bootable OS, as it was observed.
type Slot struct {
	// Name is "a" or "b": the order of the data partitions on the disk.
	Name string
	// Version is the version of the OS in it, "" when it is empty or was never finished.
	Version string
	// RootHash is the verity root hash that its partitions carry as part UUIDs, lower-case hex, "" when there is none.
	RootHash string
	// Staged is the root hash of the image that Stage has put there and that Arm has not named yet, "" when there is none.
	// Nothing boots it.
	Staged string
	// Entry is the file name of its boot entry, with counters, "" when it has none.
	Entry string
	// Boot is what the boot entry's counter says.
	Boot Assessment
}

// Assessment is the state of a boot entry (Automatic Boot Assessment, systemd.io).
type Assessment string

// The states.
const (
	// NoEntry: nothing boots the slot.
	NoEntry Assessment = "none"
	// Good: no counter; the slot is committed.
	Good Assessment = "good"
	// Trial: tries are left.
	Trial Assessment = "trial"
	// Bad: no tries are left. During the last try the running slot is Bad and State.TrialBoot is true.
	Bad Assessment = "bad"
)

// State is what a scheme observes.
type State struct {
	// Running is the slot that runs now, Spare the other one.
	Running, Spare Slot
	// TrialBoot tells whether this boot was started from an entry with a counter and is not committed yet.
	TrialBoot bool
	// Problems are the findings that take a rung of the fallback away, in words for a person: a boot counter that the
	// firmware failed to write, a second ESP that wins, a foreign LoaderEntryDefault.
	Problems []string
}

// KnownGood is the committed slot that the machine returns to, nil when there is none.
func (s State) KnownGood() *Slot {
	switch {
	case s.Running.Boot == Good:
		return &s.Running
	case s.Spare.Boot == Good:
		return &s.Spare
	default:
		return nil
	}
}

// Source gives the raw bytes of an image's contents, from an offset. A reader that begins at 0 returns an error of
// osimage instead of io.EOF when the bytes do not match the raw digest.
type Source interface {
	Config() osimage.Config
	Open(ctx context.Context, role osimage.Role, offset int64) (io.ReadCloser, error)
}

// Progress is called often with how far staging is, of the whole image. What is to be read and to be fetched grows with
// each content that is begun.
type Progress func(progress osimage.Progress)

// Scheme knows how one kind of machine keeps two operating systems. Every method is safe to repeat after a crash.
//
// Errors that a retry cannot mend are *Refusal; all others are transient.
type Scheme interface {
	// Name is the scheme's name in NodeUpdate status, such as "dps".
	Name() string
	// Observe reads the slots and boot entries. It changes nothing.
	Observe(ctx context.Context) (State, error)
	// Check tells whether the image can be staged here. It changes nothing.
	Check(ctx context.Context, image osimage.Config) error
	// Stage makes the spare slot unbootable, writes the image into it, and reads everything back. It goes on where an
	// earlier call stopped. When it returns nil the spare slot holds the image and nothing boots it.
	Stage(ctx context.Context, image Source, progress Progress) error
	// Staged tells whether the spare slot holds the image, by reading it back in full.
	Staged(ctx context.Context, image osimage.Config) (bool, error)
	// Arm makes the spare slot the next boot, on trial, with that many tries. It changes only names.
	Arm(ctx context.Context, image osimage.Config, tries int) error
	// Disarm undoes Arm: nothing boots the spare slot. Calling it when nothing is armed is fine.
	Disarm(ctx context.Context) error
	// MarkBad takes the tries away from the running trial boot, so that the next boot is the known-good slot.
	MarkBad(ctx context.Context) error
}
