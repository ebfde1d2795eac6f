package agent_test

import (
	"context"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/agent/agenttest"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// run makes passes when the engine asks for them, as its loop does, and others in between, as events do.
func (b *bench) run(d, event time.Duration) {
	b.Helper()

	for end := b.machine.Clock.Now().Add(d); b.machine.Clock.Now().Before(end); {
		next, err := b.engine.Pass(b.Context())
		if err != nil {
			b.Fatal(err)
		}

		b.machine.Clock.Step(max(min(next.Sub(b.machine.Clock.Now()), event), time.Millisecond))
	}
}

// wantHeartbeats checks the pauses between the writes of a phase.
func (b *bench) wantHeartbeats(phase v1alpha1.Phase, atLeast int) {
	b.Helper()

	var before time.Time

	found := 0

	for _, status := range b.cluster.Statuses {
		if status.Phase != phase {
			continue
		}

		if pause := status.Heartbeat.Sub(before); found > 0 && pause > time.Minute {
			b.Errorf("%s: %s without a heartbeat", phase, pause)
		}

		before = status.Heartbeat.Time
		found++
	}

	if found < atLeast {
		b.Errorf("%s: %d writes, want at least %d", phase, found, atLeast)
	}
}

// A kubelet that is sick shows no life: the agent's heartbeat must, until the boot gate has decided.
func TestTheTrialBootShowsLifeEveryMinute(t *testing.T) {
	t.Parallel()

	const proved = 12 * time.Minute

	for name, event := range map[string]time.Duration{
		"no events": time.Hour, "an event every 7 seconds": 7 * time.Second, "an event every 45 seconds": 45 * time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			b := newBench(t)
			b.machine.Behaviours[newVersion] = agenttest.GateStuck
			b.machine.Clock.Step(990 * time.Millisecond) // the API keeps whole seconds
			b.cluster.Ask("a1", newVersion)
			b.pass()
			b.cluster.Drain(true)
			b.pass()
			b.boot()
			b.machine.Tick()

			writes := b.cluster.Writes
			b.run(proved, event)
			b.wantPhase(v1alpha1.PhaseProving, v1alpha1.ReasonWaitingForHealth)
			b.wantHeartbeats(v1alpha1.PhaseProving, int(proved/time.Minute))

			if more := b.cluster.Writes - writes; more > int(proved/time.Minute)+2 {
				t.Errorf("%d writes in %s", more, proved)
			}
		})
	}
}

// stuckPods is a cluster that deletes no pods.
type stuckPods struct{ *agenttest.Cluster }

func (stuckPods) DeletePods(context.Context) (int, error) { return 0, agenttest.ErrAway }

func TestReportingShowsLifeEveryMinute(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.options.Cluster = stuckPods{b.cluster}
	b.restart()
	b.update()
	b.run(10*time.Minute, time.Hour)
	b.wantPhase(v1alpha1.PhaseReporting, v1alpha1.ReasonDeletingPods)
	b.wantHeartbeats(v1alpha1.PhaseReporting, 10)
}

// update takes the node through a good update, up to the end of the trial boot.
func (b *bench) update() {
	b.Helper()
	b.cluster.Ask("a1", newVersion)
	b.run(time.Hour, time.Minute)
	b.wantPhase(v1alpha1.PhaseStaged, v1alpha1.ReasonWaitingForReady)
	b.cluster.Drain(true)
	b.run(4*time.Minute, time.Second)
	b.wantPhase(v1alpha1.PhaseRebooting, v1alpha1.ReasonWaitingForBoot)
	b.boot()

	for range 5 {
		b.machine.Tick()
	}
}

// Nothing but the trial boot has a heartbeat: not a node that waits for its drain, one that is told to reboot, or one
// that has ended.
func TestOtherPhasesHaveNoHeartbeat(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.update()
	b.run(time.Hour, time.Minute)
	b.wantPhase(v1alpha1.PhaseSucceeded, v1alpha1.ReasonCommitted)

	for i, now := range b.cluster.Statuses[1:] {
		before := b.cluster.Statuses[i]
		if before.Phase == now.Phase && before.Reason == now.Reason && before.Message == now.Message {
			t.Errorf("%s was written twice, %s apart", now.Phase, now.Heartbeat.Sub(before.Heartbeat.Time))
		}
	}
}

// When the API server was away, the heartbeat is not what tries again: the failed write's own pauses are.
func TestAHeartbeatThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.machine.Behaviours[newVersion] = agenttest.GateStuck
	b.cluster.Ask("a1", newVersion)
	b.pass()
	b.cluster.Drain(true)
	b.pass()
	b.boot()
	b.machine.Tick()
	b.run(2*time.Minute, time.Minute)

	b.cluster.Away = true
	b.run(5*time.Minute, time.Minute)

	b.cluster.Away = false
	writes := b.cluster.Writes
	b.run(time.Minute, time.Minute)

	if more := b.cluster.Writes - writes; more < 1 || more > 2 {
		t.Errorf("%d writes in the minute after the API server came back", more)
	}
}

func TestAClockThatIsSetBackDoesNotSilenceTheTrialBoot(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.machine.Behaviours[newVersion] = agenttest.GateStuck
	b.cluster.Ask("a1", newVersion)
	b.pass()
	b.cluster.Drain(true)
	b.pass()
	b.machine.Clock.Step(10 * time.Hour) // the clock of the boot
	b.boot()
	b.machine.Tick()
	b.run(2*time.Minute, time.Minute)
	b.machine.Clock.SetTime(b.machine.Clock.Now().Add(-10 * time.Hour))

	writes := b.cluster.Writes
	b.run(5*time.Minute, time.Hour)

	if more := b.cluster.Writes - writes; more < 5 {
		t.Errorf("%d writes in 5 minutes after the clock was set back", more)
	}
}
