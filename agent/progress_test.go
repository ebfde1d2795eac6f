package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/stayput-dev/stayput/agent"
	"github.com/stayput-dev/stayput/agent/agenttest"
	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/journal"
	agentslots "github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/agent/slots/dps"
	"github.com/stayput-dev/stayput/agent/slots/dps/faulty"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// steppedScheme tells of each of its steps, and goes on when it is let.
type steppedScheme struct {
	agentslots.Scheme

	steps []osimage.Progress
	let   chan struct{}
	took  chan struct{}
}

func (s *steppedScheme) Stage(ctx context.Context, image agentslots.Source, progress agentslots.Progress) error {
	for _, step := range s.steps {
		<-s.let
		progress(step)
		s.took <- struct{}{}
	}

	<-s.let

	return s.Scheme.Stage(ctx, image, func(osimage.Progress) {})
}

const mib = 1 << 20

// anUpdate is the progress of three contents, of which each is surveyed and then written, a MiB at a time.
func anUpdate() []osimage.Progress {
	const total = 200 * mib

	var steps []osimage.Progress

	now := osimage.Progress{Total: total}
	tell := func(stage osimage.Stage) {
		now.Stage = stage
		steps = append(steps, now)
	}

	for _, content := range []struct{ read, raw, fetch, reused int64 }{{600, 180, 20, 150}, {9, 3, 3, 0}, {17, 17, 0, 17}} {
		now.ToSurvey += content.read * mib
		tell(osimage.Surveying)

		for range content.read {
			now.Surveyed += mib
			tell(osimage.Surveying)
		}

		now.ToFetch += content.fetch*mib + 1000
		now.Fetched += 1000
		now.Reused += content.reused * mib
		tell(osimage.Writing)

		for number := range content.raw {
			now.Written += mib
			now.Verified = max(now.Verified, now.Written-10*mib)

			if number < content.fetch {
				now.Fetched += mib
			}

			tell(osimage.Writing)
		}

		now.Verified = now.Written
		tell(osimage.Verifying)
	}

	return steps
}

// stage plays the staging of an attempt, with a pass after each step, a second apart.
func (b *bench) stage(scheme *steppedScheme, after func(number int)) {
	b.Helper()

	for number := range scheme.steps {
		scheme.let <- struct{}{}

		<-scheme.took
		b.machine.Clock.Step(time.Second)
		b.pass()
		after(number)
	}

	scheme.let <- struct{}{}

	g := NewWithT(b.T)
	g.Eventually(func() v1alpha1.Phase { b.pass(); return b.cluster.Status().Phase }).Should(Equal(v1alpha1.PhaseStaged))
}

// finishUpdate drains the node of what is staged, and lets the new version boot, prove itself and be committed.
func (b *bench) finishUpdate() {
	b.Helper()
	b.cluster.Drain(true)
	b.pass()
	b.boot()

	for range 5 {
		b.machine.Tick()
		b.pass()
	}

	b.wantPhase(v1alpha1.PhaseSucceeded, v1alpha1.ReasonCommitted)
}

// newStepped is a bench whose staging takes steps, at its beginning.
func newStepped(t *testing.T, steps []osimage.Progress) (*bench, *steppedScheme) {
	t.Helper()

	b := newBench(t)
	scheme := &steppedScheme{Scheme: b.machine, steps: steps, let: make(chan struct{}), took: make(chan struct{})}
	b.options.Scheme, b.options.Spawn = scheme, nil
	b.restart()
	b.registry.Signature = &journal.Signature{Verified: true, Message: "by key x"}
	b.cluster.Ask("a1", newVersion)
	b.pass()

	g := NewWithT(t)
	g.Eventually(func() *osimage.Config { // the config was read, and is stored
		b.pass()

		state, _, err := b.machine.Load()
		if err != nil || state.Attempt == nil {
			return nil
		}

		return state.Attempt.Config
	}).ShouldNot(BeNil())

	return b, scheme
}

// The whole update, with all that staging tells, costs what it may cost. An hour of staging costs no more.
func TestProgressCostsFewWrites(t *testing.T) {
	t.Parallel()

	b, scheme := newStepped(t, anUpdate())
	b.stage(scheme, func(int) {})

	// The beginning, what is to be done, four fifths between, and the end.
	if staging := b.cluster.Writes; staging != 7 {
		t.Errorf("%d writes until it was staged, want 7", staging)
	}

	b.finishUpdate()

	if b.cluster.Writes > budget {
		for _, status := range b.cluster.Statuses {
			t.Logf("%s/%s %+v %s", status.Phase, status.Reason, status.Progress, status.Message)
		}

		t.Errorf("%d writes, want at most %d", b.cluster.Writes, budget)
	}

	// What it took is told until the next attempt, whoever asks.
	if got := b.cluster.Status().Progress; got == nil || got.BytesDone != 1000 || got.BytesTotal != 1000 ||
		got.BytesFetched != 23*mib+3000 || got.BytesToFetch != 23*mib+3000 || got.BytesReused != 167*mib || got.EstimatedEnd != nil {
		t.Errorf("after the update: %+v", got)
	}
}

func TestWhatIsShownOfStaging(t *testing.T) {
	t.Parallel()

	b, scheme := newStepped(t, anUpdate())
	shown := 0
	seen := map[v1alpha1.Reason]bool{}

	b.stage(scheme, func(number int) {
		if len(b.cluster.Statuses) == shown {
			return
		}

		shown = len(b.cluster.Statuses)
		status, step := b.cluster.Status(), scheme.steps[number]
		seen[status.Reason] = true

		got := status.Progress
		if got == nil || got.BytesRead != step.Surveyed || got.BytesToRead != step.ToSurvey || got.BytesDone != step.Verified ||
			got.BytesTotal != step.Total || got.BytesFetched != step.Fetched || got.BytesToFetch != step.ToFetch ||
			got.BytesReused != step.Reused {
			t.Errorf("after step %d, %+v: shown %+v", number, step, got)
		}

		reason, words := v1alpha1.ReasonDownloading, "writing version 1.1.0 into the spare slot: "+step.String()
		if step.Stage == osimage.Surveying {
			reason, words = v1alpha1.ReasonReadingSlots, "staging version 1.1.0: "+step.String()
		}

		if status.Reason != reason || !strings.HasPrefix(status.Message, words) {
			t.Errorf("after step %d: shown %s: %s, want %s: %s…", number, status.Reason, status.Message, reason, words)
		}

		// It goes at a MiB a second, and a pass comes a second after each step.
		ends := got != nil && got.EstimatedEnd != nil
		if ends != (step.Stage == osimage.Writing && step.Written > 3*mib) {
			t.Errorf("after step %d, %+v: an end at %v", number, step, got.EstimatedEnd)
		}

		if left := (step.Total - step.Written) / mib; ends {
			if in := int64(got.EstimatedEnd.Sub(b.machine.Clock.Now()).Seconds()); in < left || in > left+left/10 {
				t.Errorf("after step %d: it ends in %d s, want %d s or a little more", number, in, left)
			}
		}
	})

	if !seen[v1alpha1.ReasonReadingSlots] || !seen[v1alpha1.ReasonDownloading] {
		t.Errorf("seen were %v only", seen)
	}
}

// Numbers in a message are no news: staging that hardly moves costs nothing.
func TestSlowStagingCostsNothing(t *testing.T) {
	t.Parallel()

	b, scheme := newStepped(t, []osimage.Progress{
		{Stage: osimage.Writing, Total: 100 * mib}, {Stage: osimage.Writing, Written: mib, Total: 100 * mib},
	})
	writes := 0

	b.stage(scheme, func(number int) {
		if number == 0 {
			writes = b.cluster.Writes

			return
		}

		for range 300 {
			b.machine.Clock.Step(time.Minute)
			b.pass()
		}

		if b.cluster.Writes != writes {
			t.Errorf("%d writes in five hours", b.cluster.Writes-writes)
		}
	})
}

func TestTheVerdictOnTheSignatures(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		found *journal.Signature
		want  string
	}{
		"nobody asked": {nil, ""},
		"signed":       {&journal.Signature{Verified: true, Message: "by key x"}, "True Verified by key x"},
		"only warned":  {&journal.Signature{Message: "not signed"}, "False ImageUntrusted not signed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := newBench(t)
			b.registry.Signature = test.found
			b.cluster.Ask("a1", newVersion)

			want := func(when string) {
				t.Helper()

				got := ""
				if condition := meta.FindStatusCondition(b.cluster.Status().Conditions, v1alpha1.ConditionReleaseVerified); condition != nil {
					got = string(condition.Status) + " " + condition.Reason + " " + condition.Message
				}

				if got != test.want {
					t.Errorf("%s: %q, want %q", when, got, test.want)
				}
			}

			b.pass()
			b.pass()
			b.wantPhase(v1alpha1.PhaseStaged, v1alpha1.ReasonWaitingForReady)
			want("staged")

			b.finishUpdate() // in another process, which asks the registry for nothing
			want("after the update")

			b.registry.Signature = nil
			b.cluster.Release()
			b.cluster.Ask("a2", "1.2.0")
			b.pass()
			b.pass()

			if test.want = ""; b.cluster.Status().Attempt != "a2" {
				t.Fatalf("attempt %s", b.cluster.Status().Attempt)
			}

			want("in the next attempt")
		})
	}
}

// realImages opens an image in a folder.
type realImages struct{ dir string }

func (r realImages) Image(ctx context.Context, _ string, _ *v1alpha1.NodeVerification) (agent.Image, error) {
	image, err := osimage.OpenLayout(ctx, r.dir, "")
	if err != nil {
		return agent.Image{}, err
	}

	return agent.Image{Source: image}, nil
}

// slowHost has a spare slot that is read only when it is let.
type slowHost struct {
	dps.Host

	let chan struct{}
}

func (s slowHost) OpenPartition(ctx context.Context, number int, write bool) (dps.Medium, error) {
	medium, err := s.Host.OpenPartition(ctx, number, write)
	if err != nil || !write {
		return medium, err
	}

	return slowMedium{medium, s.let}, nil
}

type slowMedium struct {
	dps.Medium

	let chan struct{}
}

func (s slowMedium) ReadAt(buffer []byte, offset int64) (int, error) {
	<-s.let

	return s.Medium.ReadAt(buffer, offset)
}

// The agent with the real engine: slots on a disk, an image with chunk indexes, and a survey that takes long.
func TestASurveyIsShownWhileItLasts(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	dir := t.TempDir()
	old, next := faulty.NewImage("os", oldVersion), faulty.NewImage("os", newVersion)
	b := newBench(t)
	b.options.Images = realImages{buildFrom(t, next)}

	variables := filepath.Join(dir, "efivars")
	g.Expect(os.Mkdir(variables, 0o755)).To(Succeed())

	disk, err := faulty.NewMachine(variables)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(disk.Install(old, 0, "os_1.0.0.efi")).To(Succeed())
	disk.Run(old, 0)

	host := slowHost{disk, make(chan struct{})}
	b.options.Scheme = dps.New(dps.Options{
		Host: host, Variables: boot.NewVariables(variables), StateDir: t.TempDir(), Architecture: "amd64",
	})
	b.options.Spawn = nil
	b.restart()
	b.cluster.Ask("a1", newVersion)

	status := func() v1alpha1.NodeUpdateStatus { b.pass(); return b.cluster.Status() }

	g.Eventually(status, 10*time.Second).Should(HaveField("Reason", v1alpha1.ReasonReadingSlots))
	g.Eventually(status, 10*time.Second).Should(HaveField("Progress.BytesRead", BeNumerically(">", 0)))

	now := status()
	g.Expect(now.Phase).To(Equal(v1alpha1.PhaseStaging))
	g.Expect(now.Progress.BytesDone).To(BeZero())
	// The running slot was read, the spare one was not.
	g.Expect(now.Progress.BytesToRead).To(Equal(2 * now.Progress.BytesRead))
	g.Expect(now.Message).To(ContainSubstring("reading what is there"))
	g.Expect(now.Message).To(ContainSubstring("(50%)"))

	close(host.let)
	g.Eventually(status, 10*time.Second).Should(HaveField("Phase", v1alpha1.PhaseStaged))

	got := status().Progress
	g.Expect(got.BytesDone).To(Equal(got.BytesTotal))
	g.Expect(got.BytesRead).To(Equal(got.BytesToRead))
	g.Expect(got.BytesFetched).To(And(BeNumerically(">", 20_000), Equal(got.BytesToFetch)))
	g.Expect(b.cluster.Writes).To(BeNumerically("<=", 7))
}

// buildFrom makes a folder with an image of the same contents.
func buildFrom(t *testing.T, from *faulty.Image) string {
	t.Helper()

	g := NewWithT(t)
	dir, files, config := t.TempDir(), map[osimage.Role]string{}, from.Config()

	for _, content := range config.Contents {
		files[content.Role] = filepath.Join(dir, string(content.Role))
		g.Expect(os.WriteFile(files[content.Role], from.Content(content.Role), 0o600)).To(Succeed())
	}

	inputs, err := osimage.FileInputs(files)
	g.Expect(err).NotTo(HaveOccurred())

	layout := filepath.Join(dir, "image")
	_, err = osimage.Build(t.Context(), layout, osimage.BuildSpec{
		Name: config.Name, Version: config.Version, Architecture: config.Architecture, RootHash: config.RootHash, Inputs: inputs,
	})
	g.Expect(err).NotTo(HaveOccurred())

	return layout
}

var _ agent.Images = (*agenttest.Registry)(nil)
