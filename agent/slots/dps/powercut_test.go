package dps_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/agent/slots/dps"
	"github.com/stayput-dev/stayput/agent/slots/dps/faulty"
	"github.com/stayput-dev/stayput/osimage"
)

// A start is a machine before the update. Each has another reason why staging has to take something away first.
func starts() map[string]func(t fataler, b *bench) {
	return map[string]func(t fataler, b *bench){
		"empty spare slot": func(fataler, *bench) {},
		"older system in the spare slot": func(t fataler, b *bench) {
			t.Helper()
			must(t, b.machine.Install(faulty.NewImage("labos", "0.9.0"), 1, "labos_0.9.0.efi"))
		},
		"failed try of the same image": func(t fataler, b *bench) {
			t.Helper()
			must(t, b.machine.Install(b.next, 1, "labos_1.1.0+0-3.efi"))
		},
		"armed already": func(t fataler, b *bench) {
			t.Helper()
			b.stage(t, b.next)
			b.arm(t, b.next)
		},
		"both names left": func(t fataler, b *bench) {
			t.Helper()
			b.stage(t, b.next)
			b.arm(t, b.next)
			b.machine.LinkFile("EFI/Linux/labos_1.1.0+3.efi", dps.StagedUKI)
		},
		"first partition table damaged": func(_ fataler, b *bench) {
			b.machine.Scribble(faulty.SectorSize, make([]byte, faulty.SectorSize))
		},
	}
}

// update is what an agent does. After a crash it begins again; an image that is no longer staged is staged again.
func (b *bench) update(t fataler) error {
	if err := b.scheme.Stage(contextOf(t), b.next, nil); err != nil {
		return err
	}

	if b.staged != nil {
		b.staged()
	}

	return b.scheme.Arm(contextOf(t), b.next.Config(), 3)
}

// resume is what an agent does that had stored that it was arming.
func (b *bench) resume(t fataler) error {
	err := b.scheme.Arm(contextOf(t), b.next.Config(), 3)
	if errors.Is(err, slots.ErrNotStaged) {
		return b.update(t)
	}

	return err
}

// TestPowerCutAtEveryStep cuts the power in the middle of each write, sync, rename and removal of an update, with every
// fate of what was not synced. After each, the running slot and its entry are what they were, nothing boots but whole
// images, and going on finishes the update.
func TestPowerCutAtEveryStep(t *testing.T) {
	t.Parallel()

	for start, prepare := range starts() {
		for seed := range uint64(5) {
			name := fmt.Sprintf("some kept %d", seed)
			fate := func() faulty.Fate { return faulty.KeepSome(seed) }

			switch seed {
			case 0:
				name, fate = "nothing kept", func() faulty.Fate { return faulty.KeepNothing }
			case 1:
				name, fate = "everything kept", func() faulty.Fate { return faulty.KeepEverything }
			}

			t.Run(start+"/"+name, func(t *testing.T) {
				t.Parallel()

				for cut := 1; cutOnce(t, prepare, cut, fate(), cut%2 == 0); cut++ {
					if cut > 1000 {
						t.Fatal("the update never ends")
					}
				}
			})
		}
	}
}

// cutOnce cuts at one step; it is false when the update has fewer.
func cutOnce(t *testing.T, prepare func(fataler, *bench), cut int, fate faulty.Fate, loseNote bool) bool {
	t.Helper()

	b := newBenchIn(t, mkdir(t))
	prepare(t, b)

	protected, err := b.machine.Protect(b.old, 0, oldEntry)
	must(t, err)
	b.machine.Power.CutAfter(cut)

	armed := false
	b.staged = func() { armed = true }

	if err := b.update(t); err == nil {
		return false
	}

	if !b.machine.Power.Off() {
		t.Fatalf("step %d: the update failed before the power was cut", cut)
	}

	b.recover(t, protected, fate, loseNote, fmt.Sprintf("step %d (arming: %v)", cut, armed))

	if armed {
		finish(t, b, b.resume, fmt.Sprintf("step %d", cut))
	} else {
		finish(t, b, b.update, fmt.Sprintf("step %d", cut))
	}

	if err := b.machine.Judge(protected); err != nil {
		t.Fatalf("step %d, finished: %v", cut, err)
	}

	b.boot(t, "1.1.0")

	return true
}

// finish goes on until the update is armed. It is asked for a few times: a file system that was damaged by the power cut
// is an error once.
func finish(t fataler, b *bench, update func(fataler) error, where string) {
	t.Helper()

	const asks = 4

	var err error

	for range asks {
		if err = update(t); err == nil {
			return
		}
	}

	t.Fatalf("%s: going on fails: %v; files %v", where, err, b.machine.Files())
}

// recover brings the machine back after a power cut and judges it.
func (b *bench) recover(t fataler, protected faulty.Protected, fate faulty.Fate, loseNote bool, where string) {
	t.Helper()

	if loseNote {
		if err := os.Remove(filepath.Join(b.stateDir, "dps-staging.json")); err != nil && !os.IsNotExist(err) {
			t.Fatalf("%s: %v", where, err)
		}
	}

	b.use(b.machine.Crash(fate))

	if err := b.machine.Judge(protected); err != nil {
		t.Fatalf("%s: %v; files %v", where, err, b.machine.Files())
	}

	if _, err := b.scheme.Observe(contextOf(t)); err != nil {
		t.Fatalf("%s: observing: %v", where, err)
	}
}

// TestPowerCutsInARow cuts again and again, at any step and with any fate, and also while going on.
func TestPowerCutsInARow(t *testing.T) {
	t.Parallel()

	names := []string{
		"empty spare slot", "older system in the spare slot", "failed try of the same image", "armed already",
		"both names left", "first partition table damaged",
	}
	root := mkdir(t)

	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(root, "run") //nolint:usetesting // one for each run of the property
		must(t, err)

		b := newBenchIn(t, dir)
		starts()[rapid.SampledFrom(names).Draw(t, "start")](t, b)

		protected, err := b.machine.Protect(b.old, 0, oldEntry)
		must(t, err)

		for range rapid.IntRange(1, 5).Draw(t, "cuts") {
			b.machine.Power.CutAfter(rapid.IntRange(1, 70).Draw(t, "cut"))

			update := b.update
			if rapid.Bool().Draw(t, "resume") {
				update = b.resume
			}

			if err := update(t); err == nil {
				b.machine.Power.CutAfter(0)

				continue
			}

			if !b.machine.Power.Off() {
				b.machine.Power.CutAfter(0)

				continue
			}

			fate := faulty.KeepSome(rapid.Uint64().Draw(t, "fate"))
			b.recover(t, protected, fate, rapid.Bool().Draw(t, "lose note"), "after a cut")
		}

		finish(t, b, b.update, "at the end")
		b.boot(t, "1.1.0")
	})
}

// TestPowerCutInMarkBad: afterwards the entry has its tries or none, and in the end the old system runs.
func TestPowerCutInMarkBad(t *testing.T) {
	t.Parallel()

	for seed := range uint64(8) {
		for cut := 1; ; cut++ {
			b := newBenchIn(t, mkdir(t))
			b.stage(t, b.next)
			b.arm(t, b.next)
			b.boot(t, "1.1.0")
			b.machine.Power.CutAfter(cut)

			if err := b.scheme.MarkBad(t.Context()); err == nil {
				break
			}

			b.use(b.machine.Crash(faulty.KeepSome(seed)))

			if err := b.machine.JudgeSlot(b.old, 0, oldEntry); err != nil {
				t.Fatalf("step %d, seed %d: %v", cut, seed, err)
			}

			for version := ""; version != "1.0.0"; {
				var err error

				version, err = b.machine.Boot()
				must(t, err)

				if version == "1.1.0" {
					if err := b.scheme.MarkBad(t.Context()); err != nil {
						t.Logf("step %d, seed %d: %v", cut, seed, err)
					}
				}
			}
		}
	}
}

// The judge has to see what it is there for.
func TestJudgeSeesDamage(t *testing.T) {
	t.Parallel()

	for name, damage := range map[string]func(b *bench){
		"running entry gone": func(b *bench) { b.machine.RemoveFile("EFI/Linux/" + oldEntry) },
		"half an entry":      func(b *bench) { b.machine.PutFile("EFI/Linux/labos_1.1.0+3.efi", []byte("MZ")) },
		"entry of an empty slot": func(b *bench) {
			b.machine.PutFile("EFI/Linux/labos_1.1.0+3.efi", b.next.Content(osimage.RoleUKI))
		},
		"running slot written": func(b *bench) {
			b.machine.Scribble((64+16)*faulty.SectorSize+5, []byte("not what it was"))
		},
	} {
		b := newBench(t)

		protected, err := b.machine.Protect(b.old, 0, oldEntry)
		must(t, err)
		must(t, b.machine.Judge(protected))
		damage(b)

		if b.machine.Judge(protected) == nil {
			t.Errorf("%s: the judge saw nothing", name)
		}
	}
}

// mkdir makes a directory in memory where the system has such a place: thousands of updates store their notes, each
// with an fsync.
func mkdir(t *testing.T) string {
	t.Helper()

	dir, err := os.MkdirTemp("/dev/shm", "stayput-test-") //nolint:usetesting // in memory
	if err != nil {
		return t.TempDir()
	}

	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // what is left there is gone with the next boot

	return dir
}
