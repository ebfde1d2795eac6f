package dps

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

var (
	errNotTrial  = errors.New("the running boot entry has no boot counter")
	errRename    = errors.New("the boot partition did not keep the new name of the boot entry; check it with fsck.fat")
	errNotFirst  = errors.New("the new boot entry does not come first")
	errNoTries   = errors.New("a trial needs at least one try")
	errStillThat = errors.New("the boot entry is still there; check the boot partition with fsck.fat")
)

// Staged tells whether the spare slot holds the image, by reading it back in full. It does not matter whether the image
// is armed.
func (s *Scheme) Staged(ctx context.Context, image osimage.Config) (bool, error) {
	staged := false

	err := s.withView(ctx, "looking for "+image.Label()+" in the spare slot", func(v *view) error {
		if err := firstRefusal(
			func() error { return s.checkImage(v, image) },
			func() error { return checkSizes(v, image) },
		); err != nil {
			return err
		}

		uki := stagedUKI
		if armed, ok := v.armedEntry(image); ok {
			uki = armed.path
		}

		bad, err := s.readBack(ctx, v, image, uki)
		staged = bad == "" && err == nil

		return err
	})

	return staged, err
}

// armedEntry is the boot entry on trial that starts the image, when there is one and the spare slot has its UUIDs.
func (v *view) armedEntry(image osimage.Config) (entry, bool) {
	if v.layout.spare.rootHash() != image.RootHash {
		return entry{}, false
	}

	for _, e := range v.ofHash(image.RootHash) {
		if e.name.Same(entryName(image, 0)) && e.assessment() == slots.Trial {
			return e, true
		}
	}

	return entry{}, false
}

// Arm makes the spare slot the next boot, on trial. It changes names only: part UUIDs, labels, and the UKI's. It is safe
// to repeat; an entry that is already armed keeps the tries that it has left.
func (s *Scheme) Arm(ctx context.Context, image osimage.Config, tries int) error {
	if tries < 1 {
		return fmt.Errorf("arming %s with %d tries: %w", image.Label(), tries, errNoTries)
	}

	return s.withView(ctx, "arming "+image.Label(), func(v *view) error {
		if err := firstRefusal(
			func() error { return s.checkImage(v, image) },
			func() error { return checkSlots(v) },
			func() error { return checkVersion(v, image) },
			func() error { return checkOrder(v, image) },
			func() error { return checkSizes(v, image) },
		); err != nil {
			return err
		}

		if _, armed := v.armedEntry(image); !armed {
			if err := s.arm(ctx, v, image, tries); err != nil {
				return err
			}
		}

		return s.checkArmed(ctx, v, image)
	})
}

func (s *Scheme) arm(ctx context.Context, v *view, image osimage.Config, tries int) error {
	// An entry of that name that does not start the slot, or has no tries left, is in the way of the new one.
	for _, e := range v.entries {
		if v.ofSpare(e, image) {
			return fmt.Errorf("boot entry %s is in the way: %w", e.file(), slots.ErrNotStaged)
		}
	}

	if err := s.ensureVerified(ctx, v, image); err != nil {
		return err
	}

	data, verity := halves(image.RootHash)
	if v.layout.spare.rootHash() != image.RootHash || v.layout.spare.data.Name != image.Label() {
		if err := s.rename(ctx, v, image.Label(), data, verity); err != nil {
			return err
		}
	}

	if err := v.files.Rename(stagedUKI, path.Join(linuxDir, entryName(image, tries).String())); err != nil {
		return fmt.Errorf("naming the boot entry: %w", err)
	}

	return nil
}

// ensureVerified makes sure that the slot's bytes were read back, and that the UKI still is what it was. The note tells
// that for the partitions, as long as nobody gave them other UUIDs since; without it they are read back now.
func (s *Scheme) ensureVerified(ctx context.Context, v *view, image osimage.Config) error {
	n, err := s.loadNote()
	if err != nil {
		return err
	}

	spare := v.layout.spare
	named := spare.rootHash() == image.RootHash // an earlier Arm came that far
	untouched := n.Data == spare.data.GUID && n.Verity == spare.verity.GUID

	if !n.Verified || n.Image != imageKey(image) || !named && !untouched {
		bad, err := s.readBack(ctx, v, image, stagedUKI)
		if err != nil {
			return err
		}

		if bad != "" {
			return fmt.Errorf("content %s: %w", bad, slots.ErrNotStaged)
		}
	}

	uki, _ := image.Content(osimage.RoleUKI)

	digest, err := fileDigest(ctx, v.files, stagedUKI, uki.RawSize)
	if err != nil {
		return err
	}

	if digest != uki.RawDigest {
		return fmt.Errorf("content %s: %w", osimage.RoleUKI, slots.ErrNotStaged)
	}

	return checkUKI(v.files, stagedUKI, image)
}

// checkArmed looks again and makes sure that the boot loader is going to start the entry, and that its bytes are right.
// Otherwise the entry is taken away.
func (s *Scheme) checkArmed(ctx context.Context, v *view, image osimage.Config) error {
	if err := s.lookAtBoot(v); err != nil {
		return err
	}

	uki, _ := image.Content(osimage.RoleUKI)
	armed, ok := v.armedEntry(image)

	if !ok {
		return errors.Join(errRename, s.disarm(v))
	}

	digest, err := fileDigest(ctx, v.files, armed.path, uki.RawSize)
	if err != nil {
		return err
	}

	staged, err := fileDigest(ctx, v.files, stagedUKI, uki.RawSize)
	if err != nil {
		return err
	}

	switch {
	case digest != uki.RawDigest:
		return errors.Join(errRename, s.disarm(v))
	case staged != "":
		// Both names after a rename share their clusters; removing one of them would damage the other.
		return errors.Join(errRename, s.disarm(v))
	case v.entries[0] != armed:
		return errors.Join(fmt.Errorf("%s comes before it: %w", v.entries[0].file(), errNotFirst), s.disarm(v))
	default:
		return nil
	}
}

// Disarm takes the boot entries on trial, or without tries, of the spare slot away. A committed entry stays: the slot is
// not armed then. It is safe to repeat.
func (s *Scheme) Disarm(ctx context.Context) error {
	return s.withView(ctx, "disarming the spare slot", func(v *view) error { return s.disarm(v) })
}

func (s *Scheme) disarm(v *view) error {
	removed := map[string]bool{}

	for _, e := range v.ofHash(v.layout.spare.rootHash()) {
		if e.assessment() == slots.Good {
			continue
		}

		if err := v.files.Remove(e.path); err != nil {
			return fmt.Errorf("taking boot entry %s away: %w", e.file(), err)
		}

		removed[e.path] = true
	}

	if len(removed) == 0 {
		return nil
	}

	if err := s.lookAtBoot(v); err != nil {
		return err
	}

	for _, e := range v.entries {
		if removed[e.path] {
			return fmt.Errorf("taking boot entry %s away: %w", e.file(), errStillThat)
		}
	}

	return nil
}

// MarkBad takes the tries away from the running trial boot, so that the boot loader starts the known-good slot next. It
// goes by the boot loader's own word for what it started, so it needs the partition table only to find the boot
// partition. It is safe to repeat, and refuses a boot that is committed.
func (s *Scheme) MarkBad(ctx context.Context) error {
	return s.withView(ctx, "marking the running slot bad", s.markBad)
}

func (s *Scheme) markBad(v *view) error {
	counted, err := s.variables.Text(boot.LoaderBootCountPath)
	if err != nil {
		return fmt.Errorf("looking for the boot counter: %w", err)
	}

	name := boot.ParseEntryName(fileOf(counted))

	from, err := v.countedEntry(name)
	if err != nil || from == "" {
		return err
	}

	bad := boot.ParseEntryName(path.Base(from))
	bad.Left = 0
	target := path.Join(path.Dir(from), bad.String())

	if err := v.files.Rename(from, target); err != nil {
		return fmt.Errorf("renaming boot entry %s: %w", from, err)
	}

	if err := s.lookAtBoot(v); err != nil {
		return err
	}

	for _, e := range v.entries {
		if strings.EqualFold(e.path, from) || e.name.Same(name) && !e.bad() {
			return fmt.Errorf("renaming boot entry %s: %w", from, errRename)
		}
	}

	return nil
}

// countedEntry is the path of the entry of that name that has tries left, "" when it is bad already.
func (v *view) countedEntry(name boot.EntryName) (string, error) {
	from, bad := "", false

	for _, e := range v.entries {
		switch {
		case !e.name.Same(name):
		case !e.name.Counted:
			return "", slots.Refuse(v1alpha1.ReasonNoSpareSlot, "boot entry %s is committed; it is not marked bad", e.file())
		case e.name.Left == 0:
			bad = true
		default:
			from = e.path
		}
	}

	if from == "" && !bad {
		return "", fmt.Errorf("looking for %s: %w", name, errNotTrial)
	}

	return from, nil
}

// StagedCommandLine is the kernel command line of the UKI that is staged or armed, "" when there is none.
func (s *Scheme) StagedCommandLine(ctx context.Context) (boot.CommandLine, error) {
	var line boot.CommandLine

	err := s.withView(ctx, "reading the staged command line", func(v *view) error {
		file := stagedUKI

		for _, e := range v.ofHash(v.layout.spare.rootHash()) {
			if e.assessment() == slots.Trial {
				file = e.path
			}
		}

		uki, err := readUKI(v.files, file)
		if err == nil {
			line = uki.CommandLine
		}

		if isAbsent(err) {
			return nil
		}

		return err
	})

	return line, err
}

// CheckBootPartition tells why the boot partition cannot be written, nil when it can.
func (s *Scheme) CheckBootPartition(ctx context.Context) error {
	return s.withView(ctx, "opening the boot partition", func(*view) error { return nil })
}
