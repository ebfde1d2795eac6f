package dps_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/agent/slots/dps"
	"github.com/stayput-dev/stayput/agent/slots/dps/faulty"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

func TestObserveFreshMachine(t *testing.T) {
	t.Parallel()

	state := newBench(t).state(t)
	if got := state.Running; got.Name != "a" || got.Version != "1.0.0" || got.Boot != slots.Good || got.Entry != oldEntry {
		t.Errorf("running slot: %+v", got)
	}

	if got := state.Spare; got != (slots.Slot{Name: "b", Boot: slots.NoEntry}) {
		t.Errorf("spare slot: %+v", got)
	}

	if state.TrialBoot || len(state.Problems) > 0 || state.KnownGood() == nil {
		t.Errorf("state: %+v", state)
	}
}

// Two updates in a row, so that each slot is the spare one once.
func TestTwoUpdates(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	must(t, b.scheme.Check(t.Context(), b.next.Config()))

	var (
		written, verified []int64
		last              osimage.Progress
	)

	must(t, b.scheme.Stage(t.Context(), b.next, func(now osimage.Progress) {
		written, verified, last = append(written, now.Written), append(verified, now.Verified), now
	}))

	total := int64(0)
	for _, content := range b.next.Config().Contents {
		total += content.RawSize
	}

	if !slices.IsSorted(written) || !slices.IsSorted(verified) || last.Written != total || last.Verified != total ||
		last.Total != total || last.Stage != osimage.Verifying || b.written != total {
		t.Errorf("written %v, verified %v, in the end %+v; %d bytes written, want up to %d", written, verified, last, b.written, total)
	}

	if got := b.state(t); got.Spare.Boot != slots.NoEntry || got.Spare.Version != "" {
		t.Errorf("a staged slot looks like %+v", got.Spare)
	}

	b.boot(t, "1.0.0")

	staged, err := b.scheme.Staged(t.Context(), b.next.Config())
	if err != nil || !staged {
		t.Fatalf("Staged() = %v, %v", staged, err)
	}

	b.arm(t, b.next)

	if b.written != total {
		t.Errorf("arming wrote %d bytes", b.written-total)
	}

	if got := b.state(t).Spare; got.Entry != "labos_1.1.0+3.efi" || got.Boot != slots.Trial || got.Version != "1.1.0" {
		t.Errorf("an armed slot looks like %+v", got)
	}

	b.boot(t, "1.1.0")

	if got := b.state(t); !got.TrialBoot || got.Running.Name != "b" || got.Running.Entry != "labos_1.1.0+2-1.efi" ||
		got.KnownGood().Name != "a" || len(got.Problems) > 0 {
		t.Errorf("a trial boot looks like %+v", got)
	}

	wantRefusal(t, b.scheme.Check(t.Context(), faulty.NewImage("labos", "1.2.0").Config()), v1alpha1.ReasonNoSpareSlot)

	b.machine.Bless()

	if got := b.state(t); got.TrialBoot || got.Running.Boot != slots.Good || got.Spare.Boot != slots.Good {
		t.Errorf("a committed boot looks like %+v", got)
	}

	third := faulty.NewImage("labos", "1.2.0")
	b.machine.Know(third)
	b.stage(t, third)
	b.arm(t, third)
	b.boot(t, "1.2.0")
}

func TestArmIsSafeToRepeat(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.stage(t, b.next)
	b.arm(t, b.next)
	b.arm(t, b.next)

	if staged, err := b.scheme.Staged(t.Context(), b.next.Config()); err != nil || !staged {
		t.Errorf("Staged() of an armed slot = %v, %v", staged, err)
	}

	b.boot(t, "1.1.0")
}

func TestObserveTellsAStagedSlotFromAnEmptyOne(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	if got := b.state(t).Spare; got.Staged != "" {
		t.Errorf("before staging the spare slot looks like %+v", got)
	}

	b.stage(t, b.next)

	want := b.next.Config().RootHash
	if got := b.state(t).Spare; got.Staged != want || got.RootHash != "" || got.Version != "" || got.Boot != slots.NoEntry {
		t.Errorf("a staged slot looks like %+v, want Staged %s and nothing that boots it", got, want)
	}

	b.arm(t, b.next)

	if got := b.state(t).Spare; got.Staged != "" || got.RootHash != want {
		t.Errorf("an armed slot looks like %+v", got)
	}
}

func TestArmWithoutStagingFails(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	if err := b.scheme.Arm(t.Context(), b.next.Config(), 3); !errors.Is(err, slots.ErrNotStaged) {
		t.Errorf("Arm() = %v, want ErrNotStaged", err)
	}

	b.boot(t, "1.0.0")
}

// Without the note the bytes are read back before anything gets a name.
func TestArmWithoutNoteReadsBack(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.stage(t, b.next)
	must(t, os.Remove(filepath.Join(b.stateDir, "dps-staging.json")))
	must(t, b.machine.FlipByte(faulty.PartitionDataB, 20_000))

	if err := b.scheme.Arm(t.Context(), b.next.Config(), 3); !errors.Is(err, slots.ErrNotStaged) {
		t.Errorf("Arm() = %v, want ErrNotStaged", err)
	}

	must(t, b.machine.FlipByte(0, 0))
	b.arm(t, b.next)
	b.boot(t, "1.1.0")
}

// Everything was written, but the medium gave back something else.
func TestArmAfterFailedReadBack(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	must(t, b.machine.FlipByte(faulty.PartitionDataB, 7))

	if err := b.scheme.Stage(t.Context(), b.next, nil); err == nil {
		t.Fatal("wrong bytes were staged")
	}

	if err := b.scheme.Arm(t.Context(), b.next.Config(), 3); !errors.Is(err, slots.ErrNotStaged) {
		t.Errorf("Arm() = %v, want ErrNotStaged", err)
	}
}

func TestMarkBadFallsBack(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	if err := b.scheme.MarkBad(t.Context()); err == nil {
		t.Error("a boot without a counter was marked bad")
	}

	b.stage(t, b.next)
	b.arm(t, b.next)
	b.boot(t, "1.1.0")
	must(t, b.scheme.MarkBad(t.Context()))
	must(t, b.scheme.MarkBad(t.Context()))

	if got := b.state(t).Running; got.Boot != slots.Bad || got.Entry != "labos_1.1.0+0-1.efi" {
		t.Errorf("a bad slot looks like %+v", got)
	}

	b.boot(t, "1.0.0")

	if got := b.state(t); got.Spare.Boot != slots.Bad || got.TrialBoot {
		t.Errorf("after the fallback: %+v", got)
	}

	must(t, b.scheme.Disarm(t.Context()))
	must(t, b.scheme.Disarm(t.Context()))

	if got := b.state(t).Spare; got.Boot != slots.NoEntry {
		t.Errorf("a disarmed slot looks like %+v", got)
	}

	b.stage(t, b.next)
	b.arm(t, b.next)
	b.boot(t, "1.1.0")
}

func TestMarkBadRefusesACommittedBoot(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.stage(t, b.next)
	b.arm(t, b.next)
	b.boot(t, "1.1.0")
	b.machine.Bless()

	if _, refused := slots.AsRefusal(b.scheme.MarkBad(t.Context())); !refused {
		t.Error("a committed boot was marked bad")
	}

	b.boot(t, "1.1.0")
}

func TestDisarmLeavesTheKnownGoodSlot(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.stage(t, b.next)
	b.arm(t, b.next)
	b.boot(t, "1.1.0")
	must(t, b.scheme.Disarm(t.Context()))

	if !slices.Contains(b.machine.Files(), "EFI/Linux/"+oldEntry) {
		t.Error("the known-good entry is gone")
	}
}

func TestAllTriesUsedUp(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.stage(t, b.next)
	b.arm(t, b.next)

	for range 3 {
		b.boot(t, "1.1.0")
	}

	if got := b.state(t); !got.TrialBoot || got.Running.Boot != slots.Bad {
		t.Errorf("during the last try: %+v", got)
	}

	b.boot(t, "1.0.0")
}

// The twin of systemd issue 33504: with it a good boot would end as bad.
func TestStageTakesTwinsAway(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.machine.PutFile("EFI/Linux/LABOS_1.1.0.EFI", []byte("left by an interrupted copy"))
	b.machine.PutFile("EFI/Linux/labos_1.1.0+0-3.efi", b.next.Content(osimage.RoleUKI))
	b.stage(t, b.next)
	b.arm(t, b.next)
	b.boot(t, "1.1.0")
	b.machine.Bless()

	if got := b.state(t).Running; got.Boot != slots.Good {
		t.Errorf("after blessing: %+v, files %v", got, b.machine.Files())
	}
}

func TestBrokenTransferResumes(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.next.BreakAfter = 10_000

	if err := b.scheme.Stage(t.Context(), b.next, nil); !errors.Is(err, faulty.ErrBroken) {
		t.Fatalf("Stage() = %v", err)
	}

	b.next.BreakAfter, b.next.Opened = 0, nil
	b.use(b.machine)

	var told []int64
	if err := b.scheme.Stage(t.Context(), b.next, func(now osimage.Progress) { told = append(told, now.Written) }); err != nil {
		t.Fatal(err)
	}

	if told[0] != 10_000 {
		t.Errorf("progress began at %d bytes, want what was there", told[0])
	}

	if got := b.next.Opened[0]; got.Role != osimage.RoleUSR || got.Offset != 10_000 {
		t.Errorf("the transfer went on with %+v", got)
	}

	b.arm(t, b.next)
	b.boot(t, "1.1.0")
}

// Another program wrote the spare slot while staging was interrupted: the note is worth nothing then.
func TestResumeDoesNotTrustARenamedSlot(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.next.BreakAfter = 10_000

	if err := b.scheme.Stage(t.Context(), b.next, nil); !errors.Is(err, faulty.ErrBroken) {
		t.Fatalf("Stage() = %v", err)
	}

	must(t, b.machine.Install(faulty.NewImage("labos", "0.9.0"), 1, ""))

	b.next.BreakAfter, b.next.Opened = 0, nil
	b.stage(t, b.next)

	if got := b.next.Opened[0]; got.Offset != 0 {
		t.Errorf("the transfer went on with %+v", got)
	}
}

func TestMediumThatForgets(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	must(t, b.machine.FlipByte(faulty.PartitionVerityB, 100))

	err := b.scheme.Stage(t.Context(), b.next, nil)
	if err == nil || !strings.Contains(err.Error(), "usr-verity") || !strings.Contains(err.Error(), "replace the disk") {
		t.Fatalf("Stage() = %v", err)
	}

	must(t, b.machine.FlipByte(0, 0))

	b.next.Opened = nil
	b.stage(t, b.next)

	if len(b.next.Opened) != 2 || b.next.Opened[0].Role != osimage.RoleUSRVerity || b.next.Opened[1].Role != osimage.RoleUKI {
		t.Errorf("staging anew opened %+v, want only the content that was wrong, and what comes after it", b.next.Opened)
	}
}

func TestSourceThatLies(t *testing.T) {
	t.Parallel()

	for _, role := range []osimage.Role{osimage.RoleUSR, osimage.RoleUSRVerity, osimage.RoleUKI} {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()

			b := newBench(t)
			b.next.Content(role)[5] ^= 1

			wantRefusal(t, b.scheme.Stage(t.Context(), b.next, nil), v1alpha1.ReasonImageInvalid)
			wantRefusal(t, b.scheme.Stage(t.Context(), b.next, nil), v1alpha1.ReasonImageInvalid) // and when asked again

			if err := b.scheme.Arm(t.Context(), b.next.Config(), 3); !errors.Is(err, slots.ErrNotStaged) {
				t.Errorf("Arm() = %v, want ErrNotStaged", err)
			}

			b.boot(t, "1.0.0")
		})
	}
}

// A source cannot verify what it gives from an offset on; what is read back tells, and all is fetched once more.
func TestSourceThatLiesAfterABrokenTransfer(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.next.BreakAfter = 10_000

	if err := b.scheme.Stage(t.Context(), b.next, nil); !errors.Is(err, faulty.ErrBroken) {
		t.Fatalf("Stage() = %v", err)
	}

	b.next.BreakAfter = 0
	b.next.Content(osimage.RoleUSR)[15_000] ^= 1

	wantRefusal(t, b.scheme.Stage(t.Context(), b.next, nil), v1alpha1.ReasonImageInvalid)
	b.boot(t, "1.0.0")
}

// FAT drivers have been seen to lose a rename and say nothing.
func TestRenameThatDidNothing(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.stage(t, b.next)
	b.machine.LieOnRename(true)

	if err := b.scheme.Arm(t.Context(), b.next.Config(), 3); err == nil || !strings.Contains(err.Error(), "fsck.fat") {
		t.Errorf("Arm() = %v", err)
	}

	b.boot(t, "1.0.0")
	b.machine.LieOnRename(false)
	b.arm(t, b.next)
	b.boot(t, "1.1.0")
	b.machine.LieOnRename(true)

	if err := b.scheme.MarkBad(t.Context()); err == nil || !strings.Contains(err.Error(), "fsck.fat") {
		t.Errorf("MarkBad() = %v", err)
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		make func(t *testing.T, b *bench)
		want string
	}{
		"counter that firmware did not write": {func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.RemoveFile("EFI/Linux/" + oldEntry)
			b.machine.PutFile("EFI/Linux/labos_1.0.0+3.efi", b.old.Content(osimage.RoleUKI))
		}, "tries are not counted"},
		"default entry": {func(t *testing.T, b *bench) {
			t.Helper()
			must(t, b.machine.SetVariable(boot.LoaderEntryDefault, "labos_1.0.0.efi"))
		}, "LoaderEntryDefault"},
		"loader.conf": {func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.PutFile("loader/loader.conf", []byte("timeout 0\ndefault\tlabos_*\n"))
		}, "default labos_*"},
		"other entry selected": {func(t *testing.T, b *bench) {
			t.Helper()
			must(t, b.machine.SetVariable(boot.LoaderEntrySelected, "other.efi"))
		}, "other.efi"},
		"twins": {func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.PutFile("EFI/Linux/labos_1.0.0+2-1.efi", b.old.Content(osimage.RoleUKI))
		}, "several boot entries"},
		"no image": {func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.PutFile("EFI/Linux/half.efi", []byte("MZ"))
		}, "half.efi"},
		"first table": {func(t *testing.T, b *bench) {
			t.Helper()
			b.machine.Scribble(faulty.SectorSize, make([]byte, faulty.SectorSize))
		}, "first copy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := newBench(t)
			tt.make(t, b)

			if got := strings.Join(b.state(t).Problems, "\n"); !strings.Contains(got, tt.want) {
				t.Errorf("problems %q, want one with %q", got, tt.want)
			}
		})
	}
}

func TestSelectedEntrySpellings(t *testing.T) {
	t.Parallel()

	for _, selected := range []string{"labos_1.0.0.efi", "labos_1.0.0", "labos_1.0.0.efi@1", "LABOS_1.0.0+2-1.efi", "labos_1.0.0+2-1"} {
		b := newBench(t)
		must(t, b.machine.SetVariable(boot.LoaderEntrySelected, selected))

		if problems := b.state(t).Problems; len(problems) > 0 {
			t.Errorf("%s: %v", selected, problems)
		}
	}
}

var _ dps.Host = (*faulty.Machine)(nil)

// misled is a source that took wrong bytes for those of the running UKI.
type misled struct{ *faulty.Image }

func (m misled) OpenSeeded(
	ctx context.Context, role osimage.Role, seeds []osimage.Seed, _ func(osimage.Progress),
) (io.ReadCloser, error) {
	if len(seeds) == 0 {
		return m.Open(ctx, role, 0)
	}

	return io.NopCloser(io.MultiReader(strings.NewReader("wrong"), iotest.ErrReader(osimage.ErrWrongDigest))), nil
}

// What the running UKI seemed to have is no fault of the image: all of it is fetched then.
func TestUKIOfWrongSeeds(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	must(t, b.scheme.Stage(t.Context(), misled{b.next}, nil))
	b.arm(t, b.next)
	b.boot(t, "1.1.0")
}
