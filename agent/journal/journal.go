package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/stayput-dev/stayput/agent/durable"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

const (
	// FileName is the journal's name in the state directory.
	FileName = "journal.json"
	// damagedSuffix is added to the name of a journal that could not be read.
	damagedSuffix = ".damaged"
	// format is the number of the present format. A file of another format counts as lost.
	format = 1
	// maxSize bounds what is read, in bytes; a journal is a few KiB.
	maxSize = 1 << 20

	// MaxHistory is how many ended attempts are kept.
	MaxHistory = 5
	// maxRemembered bounds Tries and Images, by dropping all but what the history and the present attempt name.
	maxRemembered = 16
)

// State is the journal's contents.
type State struct {
	Format int `json:"format"`
	// Attempt is the attempt that was taken up last; nil before the first.
	Attempt *Attempt `json:"attempt,omitempty"`
	// Tries counts how often a digest was armed.
	Tries map[string]int `json:"tries,omitempty"`
	// Images maps the root hash of what was written into a slot to the digest of its image.
	Images map[string]string `json:"images,omitempty"`
	// Downloaded and Written count bytes for the life of the journal.
	Downloaded int64 `json:"downloaded"`
	Written    int64 `json:"written"`
	// History holds the attempts that ended, newest first.
	History []v1alpha1.AttemptRecord `json:"history,omitempty"`
}

// Attempt is the memory of one attempt.
type Attempt struct {
	ID      string                  `json:"id"`
	Image   string                  `json:"image"`
	Digest  string                  `json:"digest"`
	Version string                  `json:"version"`
	Reboot  v1alpha1.RebootSettings `json:"reboot"`
	Health  v1alpha1.HealthSettings `json:"health"`
	// Verification is which signatures the NodeUpdate wants to see; nil for none.
	Verification *v1alpha1.NodeVerification `json:"verification,omitempty"`
	// Generation is that of the spec that was taken up.
	Generation int64     `json:"generation"`
	StartedAt  time.Time `json:"startedAt"`

	// Config is the image's, once it was read. It is kept because nothing is fetched after the drain.
	Config *osimage.Config `json:"config,omitempty"`
	// RootHash is what the slot of the image carries; known without Config when it comes from the trial file.
	RootHash string `json:"rootHash,omitempty"`
	// Signature is what was found of the image's signatures, nil when none were asked for.
	Signature *Signature `json:"signature,omitempty"`
	// StagedAt is when every byte had been read back, and Staging what that took.
	StagedAt *time.Time         `json:"stagedAt,omitempty"`
	Staging  *v1alpha1.Progress `json:"staging,omitempty"`

	// ReadyAt is when the agent took ReadyForUpdate up; BytesAtReady is Downloaded+Written at that time.
	ReadyAt      *time.Time `json:"readyAt,omitempty"`
	BytesAtReady int64      `json:"bytesAtReady,omitempty"`
	// Dialect is the one in which the agent was asked.
	Dialect string `json:"dialect,omitempty"`

	// ArmIntent is the boot ID under which the decision to arm was made. It is stored before anything is armed.
	ArmIntent string `json:"armIntent,omitempty"`
	// ArmedEntry is the boot entry's file name as it was observed after arming, counters included.
	ArmedEntry string `json:"armedEntry,omitempty"`
	// RebootedAt is when the first reboot was asked for. RebootBoot is the boot ID under which the last was asked for,
	// RebootSince and RebootAskedAt are when that was for the first and the last time in that boot. All are stored before
	// asking.
	RebootedAt    *time.Time `json:"rebootedAt,omitempty"`
	RebootSince   *time.Time `json:"rebootSince,omitempty"`
	RebootAskedAt *time.Time `json:"rebootAskedAt,omitempty"`
	RebootBoot    string     `json:"rebootBoot,omitempty"`
	// PassedBy counts how often the boot loader did not try the new slot and the machine was rebooted for it.
	PassedBy int `json:"passedBy,omitempty"`
	// BackAt is when the agent first ran in the boot BackBoot, the last one after a reboot.
	BackAt   *time.Time `json:"backAt,omitempty"`
	BackBoot string     `json:"backBoot,omitempty"`

	// End is how the attempt ended. It is stored before the traces on the disk are cleaned up.
	End *End `json:"end,omitempty"`
	// Disarmed tells that the spare slot was made unbootable after a fallback.
	Disarmed bool `json:"disarmed,omitempty"`
	// PodsDeleted tells that the pods of the node were deleted after the commit.
	PodsDeleted bool `json:"podsDeleted,omitempty"`
	// Reported tells that the Node was given the result.
	Reported bool `json:"reported,omitempty"`
	// SettledAt is when the attempt went into the history; nothing but the answer is left to be done for it.
	SettledAt *time.Time `json:"settledAt,omitempty"`
	// Recovered tells that the attempt was taken up by an agent that found no journal.
	Recovered bool `json:"recovered,omitempty"`
}

// Settled tells whether nothing but the answer is left to be done for the attempt.
func (a *Attempt) Settled() bool { return a.SettledAt != nil }

// Signature is the verdict on an image's signatures.
type Signature struct {
	// Verified tells whether all who asked for a signature found one that they trust.
	Verified bool `json:"verified"`
	// Message says which key signed, or what was found instead.
	Message string `json:"message"`
}

// End is how an attempt ended.
type End struct {
	Phase   v1alpha1.Phase  `json:"phase"`
	Reason  v1alpha1.Reason `json:"reason"`
	Message string          `json:"message,omitempty"`
	Rung    v1alpha1.Rung   `json:"rung,omitempty"`
	At      time.Time       `json:"at"`
}

// Clone is a deep copy.
func (s *State) Clone() State {
	data, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("journal state does not marshal: %v", err)) // Plain data: cannot happen.
	}

	var clone State
	if err := json.Unmarshal(data, &clone); err != nil {
		panic(fmt.Sprintf("journal state does not unmarshal: %v", err)) // Plain data: cannot happen.
	}

	return clone
}

// Remember puts a record at the head of the history, once for each attempt.
func (s *State) Remember(record v1alpha1.AttemptRecord) {
	history := []v1alpha1.AttemptRecord{record}

	for _, old := range s.History {
		if old.ID != record.ID && len(history) < MaxHistory {
			history = append(history, old)
		}
	}

	s.History = history
}

// Record is the ended attempt with that ID, nil when it is not remembered.
func (s *State) Record(id string) *v1alpha1.AttemptRecord {
	for i := range s.History {
		if s.History[i].ID == id {
			return &s.History[i]
		}
	}

	return nil
}

// File is a journal on disk.
type File struct{ path string }

// Open names the journal in a state directory. It touches nothing.
func Open(stateDir string) *File { return &File{path: filepath.Join(stateDir, FileName)} }

// Path is the file's.
func (f *File) Path() string { return f.path }

// Peek reads the journal without changing anything, nil when there is none.
func (f *File) Peek() (*State, error) {
	data, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // "none" is an answer.
	}

	if err != nil {
		return nil, fmt.Errorf("reading the journal: %w", err)
	}

	var state State
	if err := json.Unmarshal(data, &state); err != nil {
		return nil, fmt.Errorf("decoding the journal %s: %w", f.path, err)
	}

	return &state, nil
}

// Load reads the journal. Lost is true when there is none, or none that can be understood; the state is then empty and
// a damaged file has been moved aside.
func (f *File) Load() (state State, lost bool, err error) {
	file, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{Format: format}, true, nil
	}

	if err != nil {
		return State{}, false, fmt.Errorf("opening the journal: %w", err)
	}

	var data bytes.Buffer

	_, err = data.ReadFrom(&limitedFile{file: file, left: maxSize})

	if closeErr := file.Close(); err == nil {
		err = closeErr
	}

	if err != nil {
		return State{}, false, fmt.Errorf("reading the journal %s: %w", f.path, err)
	}

	if json.Unmarshal(data.Bytes(), &state) != nil || state.Format != format {
		if err := os.Rename(f.path, f.path+damagedSuffix); err != nil {
			return State{}, false, fmt.Errorf("moving the damaged journal aside: %w", err)
		}

		return State{Format: format}, true, nil
	}

	return state, false, nil
}

// Save replaces the journal. When it returns nil the new contents survive a power cut.
func (f *File) Save(state State) error {
	state.Format = format
	state.forgetOld()

	data, err := json.MarshalIndent(state, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the journal: %w", err)
	}

	if err := durable.WriteFile(f.path, data); err != nil {
		return fmt.Errorf("storing the journal: %w", err)
	}

	return nil
}

func (s *State) forgetOld() {
	keep := map[string]bool{}
	if s.Attempt != nil {
		keep[s.Attempt.Digest] = true
	}

	for _, record := range s.History {
		keep[record.Digest] = true
	}

	if len(s.Tries) > maxRemembered {
		for digest := range s.Tries {
			if !keep[digest] {
				delete(s.Tries, digest)
			}
		}
	}

	if len(s.Images) > maxRemembered {
		for hash, digest := range s.Images {
			if !keep[digest] {
				delete(s.Images, hash)
			}
		}
	}
}

// limitedFile ends in an error, not in silence, when a file is too large.
type limitedFile struct {
	file *os.File
	left int
}

var errTooLarge = errors.New("larger than a journal can be")

func (l *limitedFile) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errTooLarge
	}

	n, err := l.file.Read(p[:min(len(p), l.left)])
	l.left -= n

	return n, err //nolint:wrapcheck // io.EOF must stay what it is.
}
