package health_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/health"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

const (
	bootID    = "11111111-2222-3333-4444-555555555555"
	rootHash  = "abcd"
	countPath = "LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
)

var (
	errSick        = errors.New("sick")
	errNoPartition = errors.New("no boot partition")
	errNoLogind    = errors.New("no logind")
)

// gate is a gate whose state is set by the test.
type gate struct {
	name  health.GateName
	mu    sync.Mutex
	err   error
	looks int
	seen  health.Boot
	// waitedFor is how many looks there were when the clock was last moved; passed gates are not looked at again.
	waitedFor int
	passed    bool
}

func (g *gate) Name() health.GateName { return g.name }

func (g *gate) Check(_ context.Context, boot health.Boot) error {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.looks++
	g.seen = boot
	g.passed = g.err == nil

	return g.err
}

func (g *gate) set(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.err = err
}

// machine records what happens in which order; it is the scheme and the rebooter.
type machine struct {
	slots.Scheme

	dir                            string
	did                            []string
	state                          slots.State
	observeErr, markErr, rebootErr error
}

func (m *machine) Observe(context.Context) (slots.State, error) { return m.state, m.observeErr }

func (m *machine) note(what string) {
	record, err := health.ReadRecord(m.dir)
	if err != nil {
		record.Verdict = "unknown"
	}

	m.did = append(m.did, what+" with record "+string(record.Verdict))
}

func (m *machine) MarkBad(context.Context) error {
	m.note("mark bad")

	return m.markErr
}

func (m *machine) Reboot(context.Context) error {
	m.note("reboot")

	return m.rebootErr
}

type bench struct {
	deps    health.Deps
	machine *machine
	clock   *clocktesting.FakeClock
	gates   []*gate
	root    string
}

// newBench is a trial boot of version 1.1.0 in which every gate is sick.
func newBench(t *testing.T) *bench {
	t.Helper()

	root := t.TempDir()
	state := filepath.Join(root, "state")

	put(t, filepath.Join(root, "proc/sys/kernel/random/boot_id"), bootID)
	put(t, filepath.Join(root, "proc/cmdline"), "usrhash="+rootHash)
	put(t, filepath.Join(root, "vars", countPath), "\x06\x00\x00\x00x\x00")
	put(t, filepath.Join(state, "keep"), "")

	b := &bench{
		root: root, machine: &machine{dir: state, state: slots.State{TrialBoot: true}},
		clock: clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0)),
	}
	b.deps = health.Deps{
		StateDir: state, System: boot.System{Root: root}, Variables: boot.NewVariables(filepath.Join(root, "vars")),
		Scheme: b.machine, Rebooter: b.machine, Clock: b.clock, Log: logr.Discard(),
	}

	for _, name := range []health.GateName{
		health.GateAPIServer, health.GateContainerRuntime, health.GateKubelet, health.GateNodeReady,
	} {
		g := &gate{name: name, err: errSick}
		b.gates = append(b.gates, g)
		b.deps.Gates = append(b.deps.Gates, g)
	}

	b.trial(t, health.Trial{Attempt: "a1", Version: "1.1.0", RootHash: rootHash})

	return b
}

func (b *bench) trial(t *testing.T, trial health.Trial) {
	t.Helper()

	if err := health.SaveTrial(b.deps.StateDir, trial); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path, content string) {
	t.Helper()

	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

type outcome struct {
	record health.Record
	err    error
}

// run runs the gate; step is called whenever every gate waits for its next look.
func (b *bench) run(ctx context.Context, t *testing.T, step func(at time.Duration)) outcome {
	t.Helper()

	done := make(chan outcome, 1)

	go func() {
		record, err := health.RunGate(ctx, b.deps)
		done <- outcome{record, err}
	}()

	g := gomega.NewWithT(t)
	start := b.clock.Now()

	var result outcome

	g.Eventually(func() bool {
		select {
		case result = <-done:
			return true
		default:
		}

		if b.waiting() {
			step(b.clock.Since(start))
			b.clock.Step(2 * time.Second)
		}

		return false
	}).WithTimeout(time.Minute).WithPolling(100 * time.Microsecond).Should(gomega.BeTrue())

	return result
}

// waiting tells whether the gates that have not passed have all looked since the last step.
func (b *bench) waiting() bool {
	for _, g := range b.gates {
		if !g.settled() {
			return false
		}
	}

	for _, g := range b.gates {
		g.wait()
	}

	return true
}

func (g *gate) settled() bool {
	g.mu.Lock()
	defer g.mu.Unlock()

	return g.passed || g.looks > g.waitedFor
}

func (g *gate) wait() {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.waitedFor = g.looks
}

func TestAllGatesPass(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	got := b.run(t.Context(), t, func(at time.Duration) {
		running, err := health.ReadRecord(b.deps.StateDir)
		if at < 10*time.Second && (err != nil || running.Verdict != health.VerdictRunning) {
			t.Errorf("while it runs the record is %+v, %v", running, err)
		}

		if at >= 10*time.Second {
			for _, g := range b.gates {
				g.set(nil)
			}
		}
	})

	if got.err != nil || got.record.Verdict != health.VerdictPassed || len(b.machine.did) > 0 {
		t.Fatalf("RunGate() = %+v, %v; did %v", got.record, got.err, b.machine.did)
	}

	stored, err := health.ReadRecord(b.deps.StateDir)
	if err != nil || stored.Verdict != health.VerdictPassed || stored.Attempt != "a1" || stored.Version != "1.1.0" ||
		stored.BootID != bootID || len(stored.Gates) != 4 || stored.Gates[3].Name != health.GateNodeReady {
		t.Errorf("stored %+v, %v", stored, err)
	}

	if seen := b.gates[3].seen; seen != (health.Boot{ID: bootID, Version: "1.1.0"}) {
		t.Errorf("the gate was told %+v", seen)
	}
}

// One gate stays sick; the machine goes down at that gate's own deadline, in the right order.
func TestOneGateFails(t *testing.T) {
	t.Parallel()

	for i, deadline := range []time.Duration{5 * time.Minute, 5 * time.Minute, 5 * time.Minute, 10 * time.Minute} {
		b := newBench(t)
		for j, g := range b.gates {
			if j != i {
				g.set(nil)
			}
		}

		start := b.clock.Now()
		got := b.run(t.Context(), t, func(time.Duration) {})

		if !errors.Is(got.err, health.ErrUnhealthy) || got.record.Verdict != health.VerdictFailed ||
			!strings.Contains(got.record.Message, string(b.gates[i].name)) || !strings.Contains(got.record.Message, "sick") {
			t.Errorf("gate %s: %+v, %v", b.gates[i].name, got.record, got.err)
		}

		if took := b.clock.Since(start); took < deadline || took > deadline+4*time.Second {
			t.Errorf("gate %s took %s, want %s", b.gates[i].name, took, deadline)
		}

		if want := []string{"mark bad with record failed", "reboot with record failed"}; !slices.Equal(b.machine.did, want) {
			t.Errorf("gate %s: did %v, want %v", b.gates[i].name, b.machine.did, want)
		}
	}
}

func TestDeadlinesOfTheTrial(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.trial(t, health.Trial{Attempt: "a1", RootHash: rootHash, Health: v1alpha1.HealthSettings{
		Kubelet: metav1.Duration{Duration: 20 * time.Second},
	}})

	got := b.run(t.Context(), t, func(time.Duration) {})

	if !strings.Contains(got.record.Message, "kubelet did not pass within 20s") {
		t.Errorf("message %q", got.record.Message)
	}
}

// Without trial.json, or with one of another image, the defaults hold and no version is expected.
func TestTrialLost(t *testing.T) {
	t.Parallel()

	for name, lose := range map[string]func(t *testing.T, b *bench){
		"absent": func(t *testing.T, b *bench) {
			t.Helper()

			if err := health.RemoveTrial(b.deps.StateDir); err != nil {
				t.Fatal(err)
			}
		},
		"damaged": func(t *testing.T, b *bench) {
			t.Helper()
			put(t, filepath.Join(b.deps.StateDir, health.TrialFile), `{"attempt":`)
		},
		"of another image": func(t *testing.T, b *bench) {
			t.Helper()
			b.trial(t, health.Trial{Attempt: "old", Version: "1.0.5", RootHash: "ffff"})
		},
	} {
		b := newBench(t)
		lose(t, b)

		for _, g := range b.gates {
			g.set(nil)
		}

		got := b.run(t.Context(), t, func(time.Duration) {})
		if got.err != nil || got.record.Attempt != "" || b.gates[3].seen != (health.Boot{ID: bootID}) {
			t.Errorf("%s: %+v, %v, told %+v", name, got.record, got.err, b.gates[3].seen)
		}
	}
}

func TestNotATrialBoot(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(t *testing.T, b *bench){
		"no counter": func(t *testing.T, b *bench) {
			t.Helper()

			if err := os.Remove(filepath.Join(b.root, "vars", countPath)); err != nil {
				t.Fatal(err)
			}
		},
		"committed already": func(_ *testing.T, b *bench) { b.machine.state.TrialBoot = false },
	} {
		b := newBench(t)
		change(t, b)

		if record, err := health.RunGate(t.Context(), b.deps); err != nil || record.Verdict != "" || b.gates[0].looks > 0 {
			t.Errorf("%s: %+v, %v", name, record, err)
		}

		if _, err := health.ReadRecord(b.deps.StateDir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a record was left: %v", name, err)
		}
	}
}

// A machine whose slots cannot be observed, or that has no scheme, is on trial when its boot is counted.
func TestTrialBootWithoutScheme(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(b *bench){
		"no scheme": func(b *bench) { b.deps.Scheme = nil },
		"blind":     func(b *bench) { b.machine.observeErr, b.machine.state.TrialBoot = errSick, false },
	} {
		b := newBench(t)
		change(b)

		for _, g := range b.gates {
			g.set(nil)
		}

		got := b.run(t.Context(), t, func(time.Duration) {})
		if got.err != nil || got.record.Verdict != health.VerdictPassed {
			t.Errorf("%s: %+v, %v", name, got.record, got.err)
		}
	}
}

// What cannot be done does not keep the machine from going down.
func TestFallBackInSpiteOfErrors(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.machine.markErr, b.machine.rebootErr = errNoPartition, errNoLogind

	if err := os.RemoveAll(b.deps.StateDir); err != nil {
		t.Fatal(err)
	}

	got := b.run(t.Context(), t, func(time.Duration) {})

	for _, want := range []string{"sick", "no boot partition", "no logind"} {
		if got.err == nil || !strings.Contains(got.err.Error(), want) {
			t.Errorf("error %v, want one with %q", got.err, want)
		}
	}

	if len(b.machine.did) != 2 {
		t.Errorf("did %v", b.machine.did)
	}
}

// The machine is shut down while the gate runs: nothing is marked, and the record says that it was interrupted.
func TestInterrupted(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := b.run(ctx, t, func(at time.Duration) {
		if at >= 10*time.Second {
			cancel()
		}
	})

	if !errors.Is(got.err, context.Canceled) || len(b.machine.did) > 0 {
		t.Errorf("RunGate() = %v, did %v", got.err, b.machine.did)
	}

	if record, err := health.ReadRecord(b.deps.StateDir); err != nil || record.Verdict != health.VerdictRunning {
		t.Errorf("record %+v, %v", record, err)
	}

	cancel()
}

// systemd may start the gate again in the same boot.
func TestSecondRunInTheSameBoot(t *testing.T) {
	t.Parallel()

	for _, verdict := range []health.Verdict{health.VerdictPassed, health.VerdictFailed} {
		b := newBench(t)
		if err := health.SaveRecord(b.deps.StateDir, health.Record{BootID: bootID, Verdict: verdict}); err != nil {
			t.Fatal(err)
		}

		got, err := health.RunGate(t.Context(), b.deps)
		if got.Verdict != verdict || (err == nil) != (verdict == health.VerdictPassed) || b.gates[0].looks > 0 {
			t.Errorf("after %s: %+v, %v", verdict, got, err)
		}

		if failed := verdict == health.VerdictFailed; failed != (len(b.machine.did) == 2) {
			t.Errorf("after %s: did %v", verdict, b.machine.did)
		}
	}

	// A record of an earlier boot says nothing about this one.
	b := newBench(t)
	if err := health.SaveRecord(b.deps.StateDir, health.Record{BootID: "other", Verdict: health.VerdictFailed}); err != nil {
		t.Fatal(err)
	}

	for _, g := range b.gates {
		g.set(nil)
	}

	if got := b.run(t.Context(), t, func(time.Duration) {}); got.err != nil || got.record.BootID != bootID {
		t.Errorf("after an earlier boot: %+v, %v", got.record, got.err)
	}
}
