package journal_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

func TestSaveThenLoadGivesTheSame(t *testing.T) {
	t.Parallel()

	file := journal.Open(filepath.Join(t.TempDir(), "made", "on", "demand"))
	now := time.Date(2026, 11, 29, 19, 0, 0, 0, time.UTC)
	state := journal.State{
		Format: 1,
		Attempt: &journal.Attempt{
			ID: "a1", Digest: "sha256:1", ArmIntent: "boot", StartedAt: now, ReadyAt: &now,
			End: &journal.End{Phase: v1alpha1.PhaseSucceeded, At: now},
		},
		Tries:   map[string]int{"sha256:1": 2},
		History: []v1alpha1.AttemptRecord{{ID: "a0", Phase: v1alpha1.PhaseRolledBack}},
	}

	if err := file.Save(state); err != nil {
		t.Fatal(err)
	}

	got, lost, err := file.Load()
	if err != nil || lost {
		t.Fatalf("lost %v, error %v", lost, err)
	}

	if !reflect.DeepEqual(got, state) {
		t.Fatalf("got %+v\nwant %+v", got, state)
	}

	if !reflect.DeepEqual(got.Clone(), state) {
		t.Fatal("the clone differs")
	}
}

func TestAbsentJournalIsLost(t *testing.T) {
	t.Parallel()

	_, lost, err := journal.Open(t.TempDir()).Load()
	if err != nil || !lost {
		t.Fatalf("lost %v, error %v", lost, err)
	}
}

// Whatever prefix of a journal is left on the disk, it is the whole journal or counts as lost, never something between.
func TestDamagedJournalIsLostAndKept(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	file := journal.Open(dir)

	if err := file.Save(journal.State{Attempt: &journal.Attempt{ID: "a1"}}); err != nil {
		t.Fatal(err)
	}

	whole, err := os.ReadFile(file.Path())
	if err != nil {
		t.Fatal(err)
	}

	rapid.Check(t, func(t *rapid.T) {
		broken := append([]byte(nil), whole[:rapid.IntRange(0, len(whole)-1).Draw(t, "length")]...)
		if err := os.WriteFile(file.Path(), broken, 0o600); err != nil {
			t.Fatal(err)
		}

		state, lost, err := file.Load()
		if err != nil || !lost || state.Attempt != nil {
			t.Fatalf("got %+v, lost %v, error %v", state, lost, err)
		}

		if kept, err := os.ReadFile(file.Path() + ".damaged"); err != nil || string(kept) != string(broken) {
			t.Fatalf("the damaged journal was not kept: %q, %v", kept, err)
		}
	})
}

func TestJournalOfAnotherFormatIsLost(t *testing.T) {
	t.Parallel()

	file := journal.Open(t.TempDir())
	if err := os.WriteFile(file.Path(), []byte(`{"format":2,"attempt":{"id":"x"}}`), 0o600); err != nil {
		t.Fatal(err)
	}

	state, lost, err := file.Load()
	if err != nil || !lost || state.Attempt != nil {
		t.Fatalf("got %+v, lost %v, error %v", state, lost, err)
	}
}

func TestRememberKeepsTheNewestFiveOnceEach(t *testing.T) {
	t.Parallel()

	var state journal.State
	for i := range 8 {
		state.Remember(v1alpha1.AttemptRecord{ID: strconv.Itoa(i)})
	}

	state.Remember(v1alpha1.AttemptRecord{ID: "5", Message: "again"})

	var ids strings.Builder
	for _, record := range state.History {
		ids.WriteString(record.ID)
	}

	if ids.String() != "57643" || state.Record("5").Message != "again" || state.Record("0") != nil {
		t.Fatalf("got %s, %+v", ids.String(), state.History)
	}
}

func TestSaveBoundsWhatIsRemembered(t *testing.T) {
	t.Parallel()

	file := journal.Open(t.TempDir())
	state := journal.State{
		Attempt: &journal.Attempt{ID: "a", Digest: "d3"},
		Tries:   map[string]int{}, Images: map[string]string{},
		History: []v1alpha1.AttemptRecord{{ID: "b", Digest: "d7"}},
	}

	for i := range 40 {
		state.Tries["d"+strconv.Itoa(i)] = i
		state.Images["h"+strconv.Itoa(i)] = "d" + strconv.Itoa(i)
	}

	if err := file.Save(state); err != nil {
		t.Fatal(err)
	}

	got, _, err := file.Load()
	if err != nil {
		t.Fatal(err)
	}

	if !reflect.DeepEqual(got.Tries, map[string]int{"d3": 3, "d7": 7}) || len(got.Images) != 2 {
		t.Fatalf("got %+v", got)
	}
}
