package pool

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// The BMC rung gave the machine up while the agent's last word is Rebooting.
func TestAMachineThatTheBMCRungGaveUpNeedsAPerson(t *testing.T) {
	t.Parallel()
	world := oneNode(toldSince(99*time.Hour), agentSays(v1alpha1.PhaseRebooting, v1alpha1.ReasonWaitingForBoot),
		beat(99*time.Hour), rung("a1", v1alpha1.OutOfBandNeedsHuman))
	actions := Decide(world).Actions
	if len(actions) != 1 || actions[0].Kind != Close || actions[0].Outcome != NeedsHuman {
		t.Fatalf("want the attempt to be closed: %+v", actions)
	}
	closedAs(actions[0].Outcome, v1alpha1.Reason(actions[0].Reason), 0)(&world, world.Updates["n0"], nil)
	decision := Decide(world)
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	metrics.observe(world.Pool, decision)
	for phase, want := range map[v1alpha1.Phase]float64{v1alpha1.PhaseNeedsHuman: 1, v1alpha1.PhaseRebooting: 0} {
		if got := testutil.ToFloat64(metrics.nodes.WithLabelValues("metal", "pool", string(phase))); got != want {
			t.Errorf("%v nodes count as %s, want %v", got, phase, want)
		}
	}
	(&report{now: world.Now}).fill(world.Pool, world, decision, nil)
	found := meta.FindStatusCondition(world.Pool.Status.Conditions, v1alpha1.ConditionReady)
	if found.Reason != v1alpha1.ReasonNeedsHuman || !strings.Contains(found.Message, "n0: needs a person: look at its console") {
		t.Errorf("the pool says %s: %s", found.Reason, found.Message)
	}
}

// Whatever came after the attempt was given up, the text names the next action.
func TestANodeThatNeedsAPersonSaysWhatToDo(t *testing.T) {
	t.Parallel()
	const (
		agentText = "the machine was told to reboot into version 1.1.0"
		rungText  = "look at its console"
		look      = "systemctl status stayput-agent"
	)
	says := func(attempt string, phase v1alpha1.Phase, message string) worldChange {
		return func(w *World, u *v1alpha1.NodeUpdate, n *corev1.Node) {
			agentSays(phase, v1alpha1.ReasonWaitingForBoot)(w, u, n)
			beat(time.Hour)(w, u, n)
			u.Status.Attempt, u.Status.Message = attempt, message
		}
	}
	rebooting := says("a1", v1alpha1.PhaseRebooting, agentText)
	for name, tt := range map[string]struct {
		changes    []worldChange
		want, lack []string
	}{
		"the BMC rung can do no more": {
			[]worldChange{rebooting, rung("a1", v1alpha1.OutOfBandNeedsHuman)}, []string{rungText}, []string{agentText, look},
		},
		"the machine came back, and its agent did not": {
			[]worldChange{rebooting, rung("a1", v1alpha1.OutOfBandRecovered)},
			[]string{
				"ResetsUsedUp at 2026-11-28T23:59:00Z; since then: " + rungText, "its agent says Rebooting, WaitingForBoot: " + agentText,
				"its last heartbeat is of 2026-11-28T23:00:00Z", look, "start it",
			},
			nil,
		},
		"its agent is at work": {
			[]worldChange{says("a1", v1alpha1.PhaseProving, "waiting"), rung("a1", v1alpha1.OutOfBandRecovered)},
			[]string{"its agent says Proving, WaitingForBoot: waiting", look},
			nil,
		},
		"its agent knows of no attempt": {
			[]worldChange{says("", v1alpha1.PhaseIdle, "no attempt"), rung("a1", v1alpha1.OutOfBandRecovered)},
			[]string{"ResetsUsedUp", "its agent says nothing of the attempt", look},
			[]string{"no attempt"},
		},
		"an earlier attempt's rung": {
			[]worldChange{rebooting, rung("a0", v1alpha1.OutOfBandRecovered)}, []string{"ResetsUsedUp", look}, []string{rungText},
		},
		"its agent asks for the person": {
			[]worldChange{says("a1", v1alpha1.PhaseNeedsHuman, "repair the disk"), rung("a1", v1alpha1.OutOfBandNeedsHuman)},
			[]string{"n0: needs a person: repair the disk"},
			[]string{rungText, look},
		},
		"its agent says much": {
			[]worldChange{says("a1", v1alpha1.PhaseRebooting, strings.Repeat("é", 1000)), rung("a1", v1alpha1.OutOfBandRecovered)},
			[]string{look, "start it"},
			nil,
		},
	} {
		closed := closedAs(NeedsHuman, v1alpha1.Reason(v1alpha1.OutOfBandResetsUsedUp), time.Minute)
		world := oneNode(append(tt.changes, begunSince(time.Hour), closed, poisoned)...)
		(&report{now: world.Now}).fill(world.Pool, world, Decide(world), nil)
		found := meta.FindStatusCondition(world.Pool.Status.Conditions, v1alpha1.ConditionReady)
		if found.Reason != v1alpha1.ReasonNeedsHuman {
			t.Errorf("%s: the reason is %s", name, found.Reason)
		}
		for _, want := range tt.want {
			if !strings.Contains(found.Message, want) {
				t.Errorf("%s: %q is not in %s", name, want, found.Message)
			}
		}
		for _, lack := range tt.lack {
			if strings.Contains(found.Message, lack) {
				t.Errorf("%s: %q is in %s", name, lack, found.Message)
			}
		}
	}
}

func TestWhatNeedsAPersonIsSaidBeforeALongMessageIsCut(t *testing.T) {
	t.Parallel()
	decision := Decision{}
	for _, name := range []string{"n0", "n1", "n2", "n3", "n4"} {
		decision.Nodes = append(decision.Nodes, NodeSummary{Name: name, Wait: WaitAgent, Silent: strings.Repeat("silent ", 60)})
	}
	decision.Nodes = append(decision.Nodes, NodeSummary{Name: "n5", Wait: WaitHuman, Message: "look at its console"})
	pool := newSimulation(1, intstr.FromInt32(1), v1alpha1.DialectShipped).world.Pool
	(&report{}).progress(pool, decision, nil)
	found := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionReady)
	if !strings.Contains(found.Message, "n5: needs a person: look at its console") || strings.Count(found.Message, "n5") != 1 {
		t.Errorf("the message says %s", found.Message)
	}
}
