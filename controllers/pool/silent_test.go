package pool

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

type worldChange = func(*World, *v1alpha1.NodeUpdate, *corev1.Node)

func annotated(name string, ago time.Duration) worldChange {
	return func(w *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) {
		u.Annotations[name] = w.Now.Add(-ago).Format(time.RFC3339)
	}
}

// toldSince is a node that was drained and told to go; the label of GEP-0031 says nothing of the time.
func toldSince(d time.Duration) worldChange {
	return func(w *World, u *v1alpha1.NodeUpdate, n *corev1.Node) {
		begunSince(time.Hour)(w, u, n)
		annotated(AnnotationToldAt, d)(w, u, n)
		*n = *patched(n, protocol.SetReason(n, protocol.GEP0031, protocol.ReasonReady, "", w.Now))
	}
}

func beat(ago time.Duration) worldChange {
	return func(w *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) {
		u.Status.Heartbeat = &metav1.Time{Time: w.Now.Add(-ago)}
	}
}

func unheard(_ *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) { u.Status.Attempt = "a0" }

func noted(w *World, u *v1alpha1.NodeUpdate, n *corev1.Node) {
	annotated(AnnotationSilentSince, time.Hour)(w, u, n)
}

// written is when the API server took the agent's last write.
func written(ago time.Duration) worldChange {
	return func(w *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) {
		u.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: v1alpha1.FieldManagerAgent, Subresource: "status", Time: &metav1.Time{Time: w.Now.Add(-ago)},
		}}
	}
}

// adjusted is a change of the spec within the attempt.
func adjusted(_ *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) { u.Generation++ }

func idle(_ *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) {
	u.Status.Reason = v1alpha1.ReasonNoAttempt
}

// rung is what the BMC rung says.
func rung(attempt string, phase v1alpha1.OutOfBandPhase) worldChange {
	return func(_ *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) {
		u.Status.OutOfBand = &v1alpha1.OutOfBandStatus{
			Attempt: attempt, Phase: phase, Reason: v1alpha1.OutOfBandResetsUsedUp, Message: "look at its console",
		}
	}
}

func resetSince(ago time.Duration) worldChange {
	return func(w *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) {
		u.Status.OutOfBand.Intent = &v1alpha1.PowerIntent{DecidedAt: metav1.NewMicroTime(w.Now.Add(-ago))}
	}
}

// boots are the boot IDs that the agent and the kubelet tell.
func boots(agent, kubelet string) worldChange {
	return func(_ *World, u *v1alpha1.NodeUpdate, n *corev1.Node) {
		u.Status.BootID, n.Status.NodeInfo.BootID = agent, kubelet
	}
}

// kubeletIs is the Node's condition Ready.
func kubeletIs(status corev1.ConditionStatus) worldChange {
	return func(_ *World, _ *v1alpha1.NodeUpdate, n *corev1.Node) { setReady(n, status) }
}

// kubeletSince is when that condition changed last.
func kubeletSince(ago time.Duration) worldChange {
	return func(w *World, _ *v1alpha1.NodeUpdate, n *corev1.Node) {
		n.Status.Conditions[0].LastTransitionTime = metav1.NewTime(w.Now.Add(-ago))
	}
}

func noKubelet(_ *World, _ *v1alpha1.NodeUpdate, n *corev1.Node) { n.Status.Conditions = nil }

func TestSilentAgents(t *testing.T) {
	t.Parallel()
	const short, long, rungLong = 15*time.Minute - time.Second, 15 * time.Minute, 20 * time.Minute
	cannot := func(_ *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) {
		u.Status.Attempt, u.Status.Phase, u.Status.Reason = "", v1alpha1.PhaseIdle, v1alpha1.ReasonStorageError
	}
	gone := func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) { delete(w.Nodes, "n0") }
	patient := func(_ *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) { u.Spec.Reboot.SilentAfter.Duration = time.Hour }
	fetches := agentSays(v1alpha1.PhaseStaging, v1alpha1.ReasonDownloading)
	says := func(phase v1alpha1.Phase) worldChange { return agentSays(phase, v1alpha1.ReasonCommitted) }
	for name, tt := range map[string]struct {
		changes []worldChange
		silent  string // a part of what is said, "" when nothing is
		note    ActionKind
	}{
		"offered, not yet late":      {[]worldChange{unheard, annotated(AnnotationOfferedAt, short)}, "", ""},
		"offered, late":              {[]worldChange{unheard, annotated(AnnotationOfferedAt, long)}, "has said nothing of it", Miss},
		"offered, late, told before": {[]worldChange{unheard, annotated(AnnotationOfferedAt, long), noted}, "has said nothing of it", ""},
		"offered, cannot take it up": {[]worldChange{cannot, annotated(AnnotationOfferedAt, long)}, "", ""},
		"offered, Node gone":         {[]worldChange{unheard, annotated(AnnotationOfferedAt, long), gone}, "", ""},
		"offered, at a time unknown": {[]worldChange{unheard}, "", ""},
		"offered, patient":           {[]worldChange{unheard, annotated(AnnotationOfferedAt, long), patient}, "", ""},
		"offered, answered again": {
			[]worldChange{agentSays(v1alpha1.PhaseStaging, ""), annotated(AnnotationOfferedAt, 3*long), noted}, "", Hear,
		},
		"offered, cannot take it up, settings changed": {
			[]worldChange{cannot, annotated(AnnotationOfferedAt, 2*long), beat(long), adjusted}, "", "",
		},
		"offered, could not take up the one before": {
			[]worldChange{cannot, annotated(AnnotationOfferedAt, long), beat(2 * long), adjusted}, "has said nothing of it", Miss,
		},
		"offered, Idle for another reason": {
			[]worldChange{cannot, annotated(AnnotationOfferedAt, long), idle}, "has said nothing of it", Miss,
		},
		"staging for days": {
			[]worldChange{agentSays(v1alpha1.PhaseStaging, ""), annotated(AnnotationOfferedAt, 99*time.Hour), beat(stagingTime - time.Second)},
			"", "",
		},
		"staging, no progress": {
			[]worldChange{fetches, annotated(AnnotationOfferedAt, 99*time.Hour), beat(stagingTime)},
			"its agent is silent since 2026-11-28T23:00:00Z, for longer than 1h0m0s: it has told of no progress of staging", Miss,
		},
		"staging, the registry is away": {[]worldChange{
			agentSays(v1alpha1.PhaseStaging, v1alpha1.ReasonRegistryUnavailable), annotated(AnnotationOfferedAt, 99*time.Hour),
			written(10 * time.Minute),
		}, "", ""},
		"staging, the registry was away, and the agent has died": {[]worldChange{
			agentSays(v1alpha1.PhaseStaging, v1alpha1.ReasonRegistryUnavailable), annotated(AnnotationOfferedAt, 99*time.Hour),
			written(stagingTime),
		}, "it says Staging, RegistryUnavailable", Miss},
		"staging, no progress, patient": {
			[]worldChange{
				fetches, annotated(AnnotationOfferedAt, 99*time.Hour), beat(stagingTime),
				func(_ *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) {
					u.Spec.Reboot.SilentAfter.Duration = 2 * time.Hour
				},
			}, "", "",
		},
		"told, not yet late":       {[]worldChange{toldSince(short)}, "", ""},
		"told, late":               {[]worldChange{toldSince(long)}, "has not gone", Miss},
		"told, late, staging anew": {[]worldChange{toldSince(long), agentSays(v1alpha1.PhaseStaging, "")}, "has not gone", Miss},
		"told, late, told before":  {[]worldChange{toldSince(long), noted}, "has not gone", ""},
		"told, went":               {[]worldChange{toldSince(long), says(v1alpha1.PhaseRebooting), noted}, "", Hear},
		"told, speaks of something else": {
			[]worldChange{toldSince(long), func(_ *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) {
				u.Status.Reason, u.Status.Message = v1alpha1.ReasonStorageError, "sda: read error"
			}}, "it says Staged, StorageError: sda: read error", Miss,
		},
		"told, a heartbeat from the future": {
			[]worldChange{toldSince(time.Hour), says(v1alpha1.PhaseArming), beat(-time.Hour)}, "said Arming", Miss,
		},
		"told, a wrong clock, but a write of now": {
			[]worldChange{toldSince(time.Hour), says(v1alpha1.PhaseArming), beat(99 * time.Hour), written(time.Minute)}, "", "",
		},
		"proving":         {[]worldChange{toldSince(99 * time.Hour), says(v1alpha1.PhaseProving), beat(time.Minute)}, "", ""},
		"proving, late":   {[]worldChange{toldSince(99 * time.Hour), says(v1alpha1.PhaseProving), beat(rungLong)}, "said Proving", Miss},
		"reporting, late": {[]worldChange{toldSince(99 * time.Hour), says(v1alpha1.PhaseReporting), beat(rungLong)}, "said Reporting", Miss},
		"proving, late, marks lost": {
			[]worldChange{toldSince(99 * time.Hour), says(v1alpha1.PhaseProving), beat(rungLong), unmarked}, "said Proving", Miss,
		},
		"proving, late, the machine is back": {[]worldChange{
			toldSince(99 * time.Hour), says(v1alpha1.PhaseProving), beat(rungLong), rung("a1", v1alpha1.OutOfBandRecovered),
		}, "shows life", Miss},
		"proving, late, not Ready": {
			[]worldChange{toldSince(99 * time.Hour), says(v1alpha1.PhaseProving), beat(rungLong), kubeletIs(corev1.ConditionFalse)},
			"said Proving", Miss,
		},
		// The BMC rung waits longer than the pool: the boot gate may take all its time.
		"proving, lost, and the BMC rung still waits": {[]worldChange{
			toldSince(99 * time.Hour), says(v1alpha1.PhaseProving), beat(rungLong), rung("a1", v1alpha1.OutOfBandWatching),
			kubeletIs(corev1.ConditionUnknown),
		}, "", ""},
		"proving, told before, then the machine is lost": {
			[]worldChange{toldSince(99 * time.Hour), says(v1alpha1.PhaseProving), beat(rungLong), kubeletIs(corev1.ConditionUnknown), noted},
			"", Hear,
		},
		"reporting, lost": {
			[]worldChange{toldSince(99 * time.Hour), says(v1alpha1.PhaseReporting), beat(rungLong), kubeletIs(corev1.ConditionUnknown)}, "", "",
		},
		"proving, late, the machine has just come back": {
			[]worldChange{toldSince(99 * time.Hour), says(v1alpha1.PhaseProving), beat(rungLong), kubeletSince(startTime - time.Second)}, "", "",
		},
		"proving, late, the machine came back": {
			[]worldChange{toldSince(99 * time.Hour), says(v1alpha1.PhaseProving), beat(rungLong), kubeletSince(startTime)},
			"silent since 2026-11-28T23:40:00Z, for longer than 20m0s: it has said Proving", Miss,
		},
		"proving, late, the kubelet's clock is ahead": {
			[]worldChange{toldSince(99 * time.Hour), says(v1alpha1.PhaseProving), beat(rungLong), kubeletSince(-time.Hour)}, "said Proving", Miss,
		},
		"proving, told before, and the kubelet flaps": {
			[]worldChange{toldSince(99 * time.Hour), says(v1alpha1.PhaseProving), beat(rungLong), kubeletSince(0), noted}, "said Proving", "",
		},
		"proving, no kubelet has written": {
			[]worldChange{toldSince(99 * time.Hour), says(v1alpha1.PhaseProving), beat(rungLong), noKubelet}, "", "",
		},
		"proving, the machine is silent, too": {[]worldChange{
			toldSince(99 * time.Hour), says(v1alpha1.PhaseProving), beat(rungLong), rung("a1", v1alpha1.OutOfBandSilent),
		}, "", ""},
		"proving, late, an earlier machine was silent": {[]worldChange{
			toldSince(99 * time.Hour), says(v1alpha1.PhaseProving), beat(rungLong), rung("a0", v1alpha1.OutOfBandSilent),
		}, "said Proving", Miss},
		"rebooting, watched": {[]worldChange{
			toldSince(99 * time.Hour), says(v1alpha1.PhaseRebooting), beat(rungLong), rung("a1", v1alpha1.OutOfBandWatching),
		}, "", ""},
		"rebooting, the machine is back": {[]worldChange{
			toldSince(99 * time.Hour), says(v1alpha1.PhaseRebooting), beat(rungLong), rung("a1", v1alpha1.OutOfBandRecovered),
		}, "said Rebooting", Miss},
		"rebooting, the machine is back after a reset": {[]worldChange{
			toldSince(99 * time.Hour), says(v1alpha1.PhaseRebooting), beat(rungLong), rung("a1", v1alpha1.OutOfBandRecovered),
			resetSince(rungLong - time.Second),
		}, "", ""},
		"rebooting, another boot's kubelet": {[]worldChange{
			toldSince(99 * time.Hour), says(v1alpha1.PhaseRebooting), beat(rungLong), rung("a1", v1alpha1.OutOfBandWatching), boots("x", "y"),
		}, "said Rebooting", Miss},
		"rebooting, another boot's kubelet, which is not Ready": {[]worldChange{
			toldSince(99 * time.Hour), says(v1alpha1.PhaseRebooting), beat(rungLong), rung("a1", v1alpha1.OutOfBandWatching), boots("x", "y"),
			kubeletIs(corev1.ConditionFalse),
		}, "said Rebooting", Miss},
		"rebooting, another boot's kubelet, which is lost again": {[]worldChange{
			toldSince(99 * time.Hour), says(v1alpha1.PhaseRebooting), beat(rungLong), rung("a1", v1alpha1.OutOfBandWatching), boots("x", "y"),
			kubeletIs(corev1.ConditionUnknown),
		}, "", ""},
		"rebooting, the machine was back, and is lost again": {[]worldChange{
			toldSince(99 * time.Hour), says(v1alpha1.PhaseRebooting), beat(rungLong), rung("a1", v1alpha1.OutOfBandRecovered),
			kubeletIs(corev1.ConditionUnknown),
		}, "", ""},
		"rebooting, the old boot's kubelet": {[]worldChange{
			toldSince(99 * time.Hour), says(v1alpha1.PhaseRebooting), beat(rungLong), rung("a1", v1alpha1.OutOfBandWatching), boots("x", "x"),
		}, "", ""},
		"arming":                    {[]worldChange{toldSince(long), says(v1alpha1.PhaseArming), beat(long)}, "", ""},
		"arming, after a long wait": {[]worldChange{toldSince(time.Hour), says(v1alpha1.PhaseArming), beat(long)}, "", ""},
		"arming for ever": {
			[]worldChange{toldSince(time.Hour), says(v1alpha1.PhaseArming), beat(long + v1alpha1.ArmDeadline)}, "said Arming", Miss,
		},
		"arming for ever, not Ready": {[]worldChange{
			toldSince(time.Hour), says(v1alpha1.PhaseArming), beat(long + v1alpha1.ArmDeadline), kubeletIs(corev1.ConditionFalse),
		}, "is not reset while the machine shows life", Miss},
		"arming for ever, marks lost": {
			[]worldChange{toldSince(time.Hour), says(v1alpha1.PhaseArming), beat(long + v1alpha1.ArmDeadline), unmarked}, "said Arming", Miss,
		},
		"arming, and the machine is lost": {[]worldChange{
			toldSince(time.Hour), says(v1alpha1.PhaseArming), beat(long + v1alpha1.ArmDeadline), kubeletIs(corev1.ConditionUnknown),
		}, "", ""},
		"arming, and the BMC rung finds the machine silent": {[]worldChange{
			toldSince(time.Hour), says(v1alpha1.PhaseArming), beat(long + v1alpha1.ArmDeadline), rung("a1", v1alpha1.OutOfBandSilent),
		}, "", ""},
		"arming, and the BMC rung resets it": {[]worldChange{
			toldSince(time.Hour), says(v1alpha1.PhaseArming), beat(long + v1alpha1.ArmDeadline), rung("a1", v1alpha1.OutOfBandResetting), noted,
		}, "", Hear},
		"arming, back after a reset": {[]worldChange{
			toldSince(time.Hour), says(v1alpha1.PhaseArming), beat(long + v1alpha1.ArmDeadline), rung("a1", v1alpha1.OutOfBandRecovered),
			resetSince(long + v1alpha1.ArmDeadline - time.Second),
		}, "", ""},
		"arming, an earlier machine was silent": {[]worldChange{
			toldSince(time.Hour), says(v1alpha1.PhaseArming), beat(long + v1alpha1.ArmDeadline), rung("a0", v1alpha1.OutOfBandSilent),
		}, "said Arming", Miss},
		"ended, about to answer": {[]worldChange{toldSince(time.Hour), says(v1alpha1.PhaseSucceeded), beat(short)}, "", ""},
		"ended and answered, long after": {[]worldChange{
			toldSince(99 * time.Hour), says(v1alpha1.PhaseSucceeded), beat(short),
			func(_ *World, _ *v1alpha1.NodeUpdate, n *corev1.Node) {
				*n = *patched(n, protocol.Succeed(n, protocol.GEP0031, "a1"))
			},
		}, "", ""},
		"ended, never answers": {[]worldChange{toldSince(time.Hour), says(v1alpha1.PhaseSucceeded), beat(long)}, "said Succeeded", Miss},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			decision := Decide(oneNode(tt.changes...))
			silent := decision.Nodes[0].Silent
			if (silent == "") != (tt.silent == "") || !strings.Contains(silent, tt.silent) {
				t.Errorf("said %q, want %q", silent, tt.silent)
			}
			var note ActionKind
			for _, a := range decision.Actions {
				if a.Kind == Miss || a.Kind == Hear {
					note = a.Kind
				}
			}
			if note != tt.note {
				t.Errorf("noted %q, want %q", note, tt.note)
			}
		})
	}
}

// The condition of the shipped dialect tells the time for an attempt whose record does not.
func TestSilentAfterTheConditionOfAnOlderController(t *testing.T) {
	t.Parallel()
	world := oneNode(begunSince(time.Hour), told)
	world.Now = world.Now.Add(v1alpha1.DefaultSilentAfter)
	if decision := Decide(world); decision.Nodes[0].Silent == "" {
		t.Error("the agent does not count as silent")
	}
}

func TestThePassComesBackWhenAnAgentGetsLate(t *testing.T) {
	t.Parallel()
	if got := Decide(oneNode(toldSince(14 * time.Minute))).Recheck; got != time.Minute {
		t.Errorf("the pool is looked at again after %s, want %s", got, time.Minute)
	}
}

func TestASilentAgentIsSaidInTheStatus(t *testing.T) {
	t.Parallel()
	world := oneNode(toldSince(time.Hour), beat(2*time.Hour))
	fill := func() {
		decision := Decide(world)
		(&report{now: world.Now}).fill(world.Pool, world, decision, nil)
		metrics, err := NewMetrics(prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		metrics.observe(world.Pool, decision)
		if got := testutil.ToFloat64(metrics.silent); (got == 1) != (decision.Nodes[0].Silent != "") {
			t.Errorf("the metric is %v", got)
		}
	}
	fill()
	for _, name := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionProgressing} {
		found := meta.FindStatusCondition(world.Pool.Status.Conditions, name)
		if name == v1alpha1.ConditionReady && found.Reason != v1alpha1.ReasonAgentSilent {
			t.Errorf("%s has reason %s", name, found.Reason)
		}
		for _, want := range []string{
			"n0: its agent is silent since 2026-11-28T23:00:00Z", "last heartbeat is of 2026-11-28T22:00:00Z",
			"systemctl status stayput-agent", "journalctl -u stayput-agent", "stays cordoned and is not reset",
		} {
			if !strings.Contains(found.Message, want) {
				t.Errorf("%s does not say %q: %s", name, want, found.Message)
			}
		}
	}
	world.Updates["n0"].Status.Phase = v1alpha1.PhaseRebooting
	fill()
	if found := meta.FindStatusCondition(world.Pool.Status.Conditions, v1alpha1.ConditionReady); found.Reason != v1alpha1.ReasonUpdating ||
		strings.Contains(found.Message, "silent") {
		t.Errorf("after the agent went: %s %s", found.Reason, found.Message)
	}
}

// Such an agent is not silent, and the pool would only say that it waits for staging.
func TestAnAgentThatCannotStageIsSaidInTheStatus(t *testing.T) {
	t.Parallel()
	says := func(attempt string, phase v1alpha1.Phase, reason v1alpha1.Reason) worldChange {
		return func(w *World, u *v1alpha1.NodeUpdate, n *corev1.Node) {
			agentSays(phase, reason)(w, u, n)
			u.Status.Attempt, u.Status.Message, u.Status.ObservedGeneration = attempt, "trying again: "+strings.Repeat("é", 1000), u.Generation
			written(time.Minute)(w, u, n)
		}
	}
	away := func(attempt string) worldChange {
		return says(attempt, v1alpha1.PhaseStaging, v1alpha1.ReasonRegistryUnavailable)
	}
	idle := says("", v1alpha1.PhaseIdle, v1alpha1.ReasonStorageError)
	for name, tt := range map[string]struct {
		changes []worldChange
		want    string
	}{
		"the registry is away":  {[]worldChange{away("a1")}, "Staging, RegistryUnavailable"},
		"it cannot take it up":  {[]worldChange{idle}, "Idle, StorageError"},
		"it reads its slots":    {[]worldChange{says("a1", v1alpha1.PhaseStaging, v1alpha1.ReasonReadingSlots)}, ""},
		"it fetches":            {[]worldChange{says("a1", v1alpha1.PhaseStaging, v1alpha1.ReasonDownloading)}, ""},
		"of an earlier attempt": {[]worldChange{away("a0")}, ""},
		"it has said no more":   {[]worldChange{away("a1"), written(2 * stagingTime)}, "does not go on"},
		"nobody asks any more":  {[]worldChange{idle, closedAs(DrainTimeout, "", 0), unmarked}, ""},
	} {
		world := oneNode(append(tt.changes, annotated(AnnotationOfferedAt, 3*stagingTime))...)
		(&report{now: world.Now}).fill(world.Pool, world, Decide(world), nil)
		found := meta.FindStatusCondition(world.Pool.Status.Conditions, v1alpha1.ConditionReady)
		said := strings.Count(found.Message, "trying again: ééé")
		if !strings.Contains(found.Message, tt.want) || said > 1 || (said == 1) != (tt.want != "") {
			t.Errorf("%s: Ready has reason %s and says %s", name, found.Reason, found.Message)
		}
	}
}

// The events API takes 1024 bytes.
func TestAnAgentsLongMessageLeavesTheNextActionInTheEvent(t *testing.T) {
	t.Parallel()
	world := oneNode(toldSince(time.Hour), agentSays(v1alpha1.PhaseStaged, v1alpha1.ReasonStorageError), beat(time.Hour))
	world.Updates["n0"].Status.Message = strings.Repeat("é", v1alpha1.MaxMessage/2)
	silent := Decide(world).Nodes[0].Silent
	note := notef("attempt %s: %s", strings.Repeat("a", attemptIDLength), silent)
	if !strings.Contains(note, "journalctl -u stayput-agent") || !strings.HasSuffix(note, "goes on by itself") {
		t.Errorf("the event says %s", note)
	}
}
