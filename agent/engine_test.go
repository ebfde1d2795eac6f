package agent_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stayput-dev/stayput/agent"
	"github.com/stayput-dev/stayput/agent/agenttest"
	agentslots "github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// bench is an engine on a made-up machine whose passes a test makes one by one.
type bench struct {
	*testing.T

	machine  *agenttest.Machine
	cluster  *agenttest.Cluster
	registry *agenttest.Registry
	engine   *agent.Engine
	options  agent.Options
}

func newBench(t *testing.T) *bench {
	t.Helper()

	clock := clocktesting.NewFakeClock(time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC))
	machine := agenttest.NewMachine(clock, oldVersion)
	cluster := agenttest.NewCluster(machine)
	registry := &agenttest.Registry{}
	b := &bench{T: t, machine: machine, cluster: cluster, registry: registry, options: agent.Options{
		Version: "test", Machine: machine, Scheme: machine, Images: registry, Cluster: cluster, Store: machine,
		Notifier: &notes{}, Clock: clock, Log: logr.Discard(), Moved: machine.Moved, Spawn: func(work func()) { work() },
	}}
	b.restart()

	return b
}

func (b *bench) restart() { b.engine = agent.New(b.options) }

func (b *bench) pass() {
	b.Helper()

	if _, err := b.engine.Pass(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) boot() {
	b.machine.Boot()
	b.restart()
}

func (b *bench) wantPhase(phase v1alpha1.Phase, reason v1alpha1.Reason) {
	b.Helper()

	if status := b.cluster.Status(); status.Phase != phase || status.Reason != reason {
		b.Fatalf("phase %s, reason %s (%s); expected %s, %s", status.Phase, status.Reason, status.Message, phase, reason)
	}

	for _, broken := range b.machine.Broken {
		b.Error(broken)
	}
}

type notes struct {
	mutex sync.Mutex
	alive int
	ends  int
}

func (n *notes) Ready() {}

func (n *notes) Alive(string) {
	n.mutex.Lock()
	defer n.mutex.Unlock()

	n.alive++
}

func (n *notes) Stopping() {
	n.mutex.Lock()
	defer n.mutex.Unlock()

	n.ends++
}

func TestAnIdleAgentWritesNothing(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.cluster.Ask("a1", newVersion)
	b.pass()

	writes := b.cluster.Writes
	for range 1000 {
		b.machine.Clock.Step(time.Minute)
		b.pass()
	}

	b.restart()
	b.pass()

	if b.cluster.Writes != writes {
		t.Errorf("%d writes in 1000 idle minutes", b.cluster.Writes-writes)
	}
}

// Memory is given back after the start and after staging, not while it is at work and not again and again.
func TestRestedIsCalledWhenWorkHasEnded(t *testing.T) {
	t.Parallel()

	b := newBench(t)

	rested := 0
	b.options.Rested = func() { rested++ }

	var work []func()

	b.options.Spawn = func(next func()) { work = append(work, next) }
	b.restart()

	want := func(count int, when string) {
		t.Helper()
		b.pass()
		b.pass()

		if rested != count {
			t.Fatalf("called %d times %s, want %d", rested, when, count)
		}
	}

	b.cluster.Unknown = true
	want(0, "before the API server was reached")

	b.cluster.Unknown = false
	want(1, "after the start")
	b.cluster.Ask("a1", newVersion)
	want(1, "while it is at work")

	for len(work) > 0 { // reading the config, then staging
		work[0]()

		work = work[1:]

		b.pass()
	}

	want(2, "after staging")
}

// looking counts how often the rungs are looked at.
type looking struct {
	*agenttest.Machine

	looks int
}

func (l *looking) Rungs(ctx context.Context) []v1alpha1.RungStatus {
	l.looks++

	return l.Machine.Rungs(ctx)
}

func TestAnotherStagedImageIsALookAtTheRungs(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	machine := &looking{Machine: b.machine}
	b.options.Machine = machine
	b.restart()

	for want, attempt := range []string{"a1", "a2"} {
		b.cluster.Ask(attempt, newVersion)
		b.pass()
		b.pass()
		b.wantPhase(v1alpha1.PhaseStaged, v1alpha1.ReasonWaitingForReady)

		if machine.looks != want+1 {
			t.Errorf("%d looks at the rungs when attempt %s is staged, want %d", machine.looks, attempt, want+1)
		}
	}
}

func TestReadyForAnotherAttemptIsNotOurs(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.cluster.Ask("a1", newVersion)
	b.pass()
	b.cluster.Drain(true)
	b.cluster.Ask("a2", newVersion) // the Node's Ready is still about a1
	b.pass()
	b.wantPhase(v1alpha1.PhaseStaged, v1alpha1.ReasonWaitingForReady)
}

func TestUncordonedMeansWait(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.cluster.Ask("a1", newVersion)
	b.pass()
	b.cluster.Drain(true)
	b.cluster.Uncordon()
	b.pass()
	b.wantPhase(v1alpha1.PhaseStaged, v1alpha1.ReasonWaitingForCordon)

	if b.machine.SpareBoots() {
		t.Error("armed while the node took pods")
	}
}

// The boot gate needs the agent's credentials. A node is not drained for a reboot that would fall back, and a node that
// was drained already does not reboot.
func TestTheNodeStaysWhenItsAgentCouldNotComeBack(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	now := b.machine.Clock.Now()
	b.cluster.Ask("a1", newVersion)
	b.machine.IdentityEnds = now.Add(59 * time.Minute)
	b.pass()
	b.wantPhase(v1alpha1.PhaseStaging, v1alpha1.ReasonIdentityUnusable)

	if message := b.cluster.Status().Message; !strings.Contains(message, "the certificate ends") {
		t.Errorf("message %q", message)
	}

	written := b.cluster.Status().Counters.SlotBytesWritten
	b.cluster.Drain(true)
	b.pass()
	b.wantPhase(v1alpha1.PhaseStaging, v1alpha1.ReasonIdentityUnusable)

	if b.machine.SpareBoots() {
		t.Error("armed, although the boot gate would fail")
	}

	b.machine.IdentityEnds = now.Add(24 * time.Hour)
	b.pass()
	b.wantPhase(v1alpha1.PhaseRebooting, v1alpha1.ReasonWaitingForBoot)

	if again := b.cluster.Status().Counters.SlotBytesWritten; again != written {
		t.Errorf("%d bytes were written while it waited", again-written)
	}
}

func TestANewerAttemptReplacesOneThatIsNotArmed(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.cluster.Ask("a1", newVersion)
	b.pass()
	b.cluster.Ask("a2", "1.2.0")
	b.pass()
	b.wantPhase(v1alpha1.PhaseStaged, v1alpha1.ReasonWaitingForReady)

	status := b.cluster.Status()
	if status.Attempt != "a2" || len(status.History) != 1 || status.History[0].ID != "a1" ||
		status.History[0].Reason != v1alpha1.ReasonAttemptSuperseded {
		t.Errorf("got attempt %s, history %+v", status.Attempt, status.History)
	}
}

func TestANewerAttemptWaitsForOneThatIsArmed(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.cluster.Ask("a1", newVersion)
	b.pass()
	b.cluster.Drain(true)
	b.pass()
	b.wantPhase(v1alpha1.PhaseRebooting, v1alpha1.ReasonWaitingForBoot)
	b.cluster.Ask("a2", "1.2.0")
	b.boot()
	b.pass()

	if status := b.cluster.Status(); status.Attempt != "a1" || status.Phase != v1alpha1.PhaseProving {
		t.Fatalf("got attempt %s, phase %s", status.Attempt, status.Phase)
	}

	for range 5 {
		b.machine.Tick()
	}

	b.pass()

	if status := b.cluster.Status(); status.Attempt != "a2" || status.History[0].ID != "a1" ||
		status.History[0].Phase != v1alpha1.PhaseSucceeded {
		t.Errorf("got attempt %s, history %+v", status.Attempt, status.History)
	}
}

func TestTheAttemptEndsWhenTheNodeUpdateIsDeleted(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.cluster.Ask("a1", newVersion)
	b.pass()
	b.cluster.Forget()
	b.cluster.Drain(true)
	b.pass()

	if b.machine.SpareBoots() || b.machine.RebootPending() {
		t.Error("went on without a NodeUpdate")
	}
}

// A node that runs the release already is told so, but only when asked, without a reboot, and only while it is true.
func TestReadyWithNothingPending(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.cluster.Ask("a1", oldVersion)
	b.pass()
	b.wantPhase(v1alpha1.PhaseSucceeded, v1alpha1.ReasonUpToDate)

	if len(b.cluster.Results) != 0 {
		t.Fatalf("answered without being asked: %+v", b.cluster.Results)
	}

	b.cluster.Drain(true)
	b.machine.Clock.Step(time.Hour)
	b.pass()

	if len(b.cluster.Results) != 1 || b.cluster.Results[0].Result != protocol.Successful || b.machine.Asks != 0 ||
		b.cluster.PodDeletions != 0 {
		t.Errorf("results %+v, %d reboots, %d pod deletions", b.cluster.Results, b.machine.Asks, b.cluster.PodDeletions)
	}
}

// A node that was updated and then started from its old slot by hand does not claim the success again.
func TestAnOldSuccessIsNotClaimedAgain(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.cluster.Ask("a1", newVersion)
	b.pass()
	b.finishUpdate()
	b.cluster.Release()
	b.machine.BootOther()
	b.restart()
	b.pass()
	b.cluster.Ask("a1", newVersion)
	b.cluster.Drain(true)
	b.machine.Clock.Step(time.Hour)
	b.pass()

	last := b.cluster.Results[len(b.cluster.Results)-1]
	if len(b.cluster.Results) != 2 || last.Result != protocol.Failed {
		t.Errorf("results %+v", b.cluster.Results)
	}
}

func TestTheAgentTellsWhatTheRegistryLacks(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.registry.Errors = []error{agenttest.Transient()}
	b.cluster.Ask("a1", newVersion)
	b.pass()
	b.wantPhase(v1alpha1.PhaseStaging, v1alpha1.ReasonRegistryUnavailable)
	b.machine.Clock.Step(time.Minute)
	b.pass()
	b.wantPhase(v1alpha1.PhaseStaged, v1alpha1.ReasonWaitingForReady)
}

// blockedScheme stages until it is told to stop.
type blockedScheme struct {
	agentslots.Scheme

	began   chan string
	stopped atomic.Int32
}

func (s *blockedScheme) Stage(ctx context.Context, image agentslots.Source, _ agentslots.Progress) error {
	s.began <- image.Config().Version
	<-ctx.Done()
	s.stopped.Add(1)

	return ctx.Err()
}

// newBlocked is a bench whose staging runs in the background and does not end by itself.
func newBlocked(t *testing.T) (*bench, *blockedScheme) {
	t.Helper()

	b := newBench(t)
	scheme := &blockedScheme{Scheme: b.machine, began: make(chan string, 1)}
	b.options.Scheme, b.options.Spawn = scheme, nil
	b.restart()

	return b, scheme
}

func TestANewerAttemptStopsStaging(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	b, scheme := newBlocked(t)

	b.cluster.Ask("a1", newVersion)
	b.pass() // reads the config in the background
	g.Eventually(func() string { b.pass(); return received(scheme.began) }).Should(Equal(newVersion))

	b.cluster.Ask("a2", "1.2.0")
	g.Eventually(func() string { b.pass(); return received(scheme.began) }).Should(Equal("1.2.0"))
	g.Expect(scheme.stopped.Load()).To(BeEquivalentTo(1))
}

func received(channel <-chan string) string {
	select {
	case text := <-channel:
		return text
	default:
		return ""
	}
}

func TestRunStopsCleanlyInTheMiddleOfStaging(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	b, scheme := newBlocked(t)
	told := &notes{}
	b.options.Notifier = told
	b.restart()
	b.cluster.Ask("a1", newVersion)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	go func() { ended <- b.engine.Run(ctx) }()

	g.Eventually(scheme.began, 10*time.Second).Should(Receive(Equal(newVersion)))
	cancel()
	g.Eventually(ended, 10*time.Second).Should(Receive(BeNil()))
	g.Expect(scheme.stopped.Load()).To(BeEquivalentTo(1), "Run returned before the background work had stopped")
	g.Expect(told.ends).To(Equal(1))
	g.Expect(told.alive).NotTo(BeZero())

	// The next process goes on from there.
	b.options.Scheme, b.options.Spawn = b.machine, func(work func()) { work() }
	b.restart()
	b.pass()
	b.wantPhase(v1alpha1.PhaseStaged, v1alpha1.ReasonWaitingForReady)
}

// hungScheme never returns from Observe before its context ends.
type hungScheme struct{ agentslots.Scheme }

var errHung = errors.New("hung")

func (hungScheme) Observe(ctx context.Context) (agentslots.State, error) {
	<-ctx.Done()

	return agentslots.State{}, errHung
}

// The watchdog is fed by the loop itself, so a loop that hangs is restarted.
func TestAHungLoopIsNotAlive(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	b := newBench(t)
	told := &notes{}
	b.options.Scheme, b.options.Notifier = hungScheme{b.machine}, told
	b.restart()
	b.cluster.Ask("a1", newVersion)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	go func() { ended <- b.engine.Run(ctx) }()

	g.Consistently(func() int {
		told.mutex.Lock()
		defer told.mutex.Unlock()

		return told.alive
	}, "300ms").Should(BeZero())
	cancel()
	g.Eventually(ended, 10*time.Second).Should(Receive(BeNil()))
}
