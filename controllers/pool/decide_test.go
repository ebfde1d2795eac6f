package pool

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// one node, n0, whose attempt a1 at 1.1.0 is open and marked.
func oneNode(changes ...func(*World, *v1alpha1.NodeUpdate, *corev1.Node)) World {
	world := newSimulation(1, intstr.FromInt32(1), v1alpha1.DialectShipped).world
	update := &v1alpha1.NodeUpdate{ObjectMeta: metav1.ObjectMeta{Name: "n0", Annotations: map[string]string{}}}
	update.Spec.Door = v1alpha1.Door{Kind: v1alpha1.DoorHostPool, Namespace: "metal", Name: "pool", Host: "hn0"}
	update.Spec.Attempt = "a1"
	update.Spec.Release.OS = v1alpha1.OSRelease{Image: "registry.test/os@" + digestOf("1.1.0"), Version: "1.1.0"}
	update.Status.Attempt, update.Status.Phase = "a1", v1alpha1.PhaseStaged
	node := world.Nodes["n0"]
	node.Labels = map[string]string{protocol.LabelCandidate: "true"}
	node.Annotations = map[string]string{protocol.AnnotationAttempt: "a1"}
	world.Updates["n0"] = update
	for _, change := range changes {
		change(&world, update, node)
	}

	return world
}

func agentSays(phase v1alpha1.Phase, reason v1alpha1.Reason) func(*World, *v1alpha1.NodeUpdate, *corev1.Node) {
	return func(_ *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) {
		u.Status.Phase, u.Status.Reason = phase, reason
	}
}

func begunSince(d time.Duration) func(*World, *v1alpha1.NodeUpdate, *corev1.Node) {
	return func(w *World, u *v1alpha1.NodeUpdate, n *corev1.Node) {
		u.Annotations[AnnotationBegunAt] = w.Now.Add(-d).Format(time.RFC3339)
		n.Labels[protocol.LabelSelected] = "true"
		n.Annotations[protocol.AnnotationCordonedBy] = "a1"
		n.Spec.Unschedulable = true
	}
}

func closedAs(outcome Outcome, reason v1alpha1.Reason, ago time.Duration) func(*World, *v1alpha1.NodeUpdate, *corev1.Node) {
	return func(w *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) {
		u.Annotations[AnnotationClosedAs] = string(outcome)
		u.Annotations[AnnotationClosedReason] = string(reason)
		u.Annotations[AnnotationClosedAt] = w.Now.Add(-ago).Format(time.RFC3339)
	}
}

// says puts the condition on the Node that the orchestrator sets for the attempt.
func says(reason protocol.Reason, attempt string) func(*World, *v1alpha1.NodeUpdate, *corev1.Node) {
	return func(w *World, _ *v1alpha1.NodeUpdate, n *corev1.Node) {
		of := n.DeepCopy()
		of.Annotations = map[string]string{protocol.AnnotationAttempt: attempt}
		patch := protocol.SetReason(of, protocol.Shipped, reason, "", w.Now)
		*n = *patched(n, patch)
	}
}

func told(w *World, u *v1alpha1.NodeUpdate, n *corev1.Node) {
	says(protocol.ReasonReady, "a1")(w, u, n)
}

func unmarked(_ *World, _ *v1alpha1.NodeUpdate, n *corev1.Node) { n.Labels, n.Annotations = nil, nil }

func poisoned(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) {
	w.Pool.Status.Poisoned = []v1alpha1.PoisonedRelease{{Digest: digestOf("1.1.0")}}
}

func left(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) { w.Links = nil }

func newer(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) {
	w.Pool.Spec.Release.OS.Image = "registry.test/os:1.3.0"
	w.Pool.Status.Release = &v1alpha1.ResolvedRelease{Image: "registry.test/os:1.3.0", Digest: digestOf("1.3.0"), Version: "1.3.0"}
}

func TestDecide(t *testing.T) {
	t.Parallel()
	type change = func(*World, *v1alpha1.NodeUpdate, *corev1.Node)
	bmcGaveUp := func(_ *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) {
		u.Status.OutOfBand = &v1alpha1.OutOfBandStatus{
			Attempt: "a1", Phase: v1alpha1.OutOfBandNeedsHuman, Reason: v1alpha1.OutOfBandResetsUsedUp,
		}
	}
	staleResult := func(_ *World, _ *v1alpha1.NodeUpdate, n *corev1.Node) {
		n.Labels[protocol.LabelResult] = protocol.ResultValueSuccessful
		n.Annotations[protocol.AnnotationResultAttempt] = "a0"
	}
	answered := func(_ *World, _ *v1alpha1.NodeUpdate, n *corev1.Node) {
		*n = *patched(n, protocol.Succeed(n, protocol.Shipped, "a1"))
	}
	forgotten := func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) { delete(w.Updates, "n0") }
	retry := func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) { w.Retry = digestOf("1.1.0") }
	uncordoned := func(_ *World, _ *v1alpha1.NodeUpdate, n *corev1.Node) { n.Spec.Unschedulable = false }
	gone := func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) { delete(w.Nodes, "n0") }
	other := func(_ *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) { u.Spec.Door.Name = "rival" }
	for name, tt := range map[string]struct {
		changes []change
		want    string // actions, then "poison" when a digest is poisoned
	}{
		"staged":                            {nil, "Begin"},
		"staging":                           {[]change{agentSays(v1alpha1.PhaseStaging, "")}, ""},
		"not marked yet":                    {[]change{unmarked}, "Mark"},
		"draining":                          {[]change{begunSince(time.Minute)}, "Drain"},
		"drain over time":                   {[]change{begunSince(2 * time.Hour)}, "Close/DrainTimeout"},
		"drain over time, told":             {[]change{begunSince(2 * time.Hour), told}, ""},
		"told for an earlier attempt":       {[]change{begunSince(time.Minute), says(protocol.ReasonReady, "a0")}, "Drain"},
		"told":                              {[]change{begunSince(time.Minute), told}, ""},
		"told, then uncordoned by a person": {[]change{begunSince(time.Minute), told, uncordoned}, "Close/Withdrawn"},
		"told, then halted":                 {[]change{begunSince(time.Minute), told, poisoned}, ""},
		"told, then another release":        {[]change{begunSince(time.Minute), told, newer}, ""},
		"told, then the host leaves":        {[]change{begunSince(time.Minute), told, left}, ""},
		"draining, then halted":             {[]change{begunSince(time.Minute), poisoned}, "Close/Withdrawn"},
		"draining, then another release":    {[]change{begunSince(time.Minute), newer}, "Close/Withdrawn"},
		"draining, then the host leaves":    {[]change{begunSince(time.Minute), left}, "Close/Withdrawn"},
		"rebooting, Node gone":              {[]change{begunSince(time.Minute), agentSays(v1alpha1.PhaseRebooting, ""), gone}, ""},
		"rolled back": {
			[]change{agentSays(v1alpha1.PhaseRolledBack, v1alpha1.ReasonHealthGateFailed)},
			"Close/RolledBack poison",
		},
		"succeeded, not answered on the Node yet": {
			[]change{begunSince(time.Minute), told, agentSays(v1alpha1.PhaseSucceeded, v1alpha1.ReasonCommitted)}, "",
		},
		"succeeded, not answered, uncordoned by a person": {
			[]change{begunSince(time.Minute), told, agentSays(v1alpha1.PhaseSucceeded, v1alpha1.ReasonCommitted), uncordoned}, "",
		},
		"succeeded, and answered": {
			[]change{begunSince(time.Minute), told, agentSays(v1alpha1.PhaseSucceeded, v1alpha1.ReasonCommitted), answered},
			"Close/Succeeded",
		},
		"succeeded, and the Node has lost its marks": {
			[]change{begunSince(time.Minute), agentSays(v1alpha1.PhaseSucceeded, v1alpha1.ReasonCommitted), unmarked},
			"Close/Succeeded",
		},
		"rolled back, not answered on the Node yet": {
			[]change{begunSince(time.Minute), told, agentSays(v1alpha1.PhaseRolledBack, v1alpha1.ReasonHealthGateFailed)}, "",
		},
		"refused for the image": {
			[]change{agentSays(v1alpha1.PhaseRefused, v1alpha1.ReasonVersionNotNewer)},
			"Close/Refused poison",
		},
		"refused for the node": {[]change{agentSays(v1alpha1.PhaseRefused, v1alpha1.ReasonNoSpareSlot)}, "Close/Refused"},
		"up to date":           {[]change{agentSays(v1alpha1.PhaseIdle, v1alpha1.ReasonUpToDate)}, "Close/Succeeded"},
		"agent needs a person": {
			[]change{agentSays(v1alpha1.PhaseNeedsHuman, v1alpha1.ReasonCommitFailed)},
			"Close/NeedsHuman poison",
		},
		"BMC needs a person": {
			[]change{begunSince(time.Minute), told, agentSays(v1alpha1.PhaseRebooting, ""), bmcGaveUp},
			"Close/NeedsHuman poison",
		},
		"held": {
			[]change{begunSince(0), told, agentSays(v1alpha1.PhaseNeedsHuman, ""), closedAs(NeedsHuman, "", 0), poisoned},
			"",
		},
		"held, poison lifted": {
			[]change{begunSince(0), agentSays(v1alpha1.PhaseNeedsHuman, ""), closedAs(NeedsHuman, "", 0)},
			"Offer",
		},
		"held, silent, poison lifted": {
			[]change{begunSince(0), agentSays(v1alpha1.PhaseRebooting, ""), bmcGaveUp, closedAs(NeedsHuman, "", 0)},
			"",
		},
		"held, then back": {
			[]change{begunSince(0), agentSays(v1alpha1.PhaseRolledBack, ""), closedAs(NeedsHuman, "", 0), poisoned},
			"Close/RolledBack",
		},
		"closed, marks left by a crash":  {[]change{begunSince(0), closedAs(RolledBack, "", 0), poisoned}, "Clean"},
		"NodeUpdate deleted by a hand":   {[]change{begunSince(0), forgotten}, "Clean"},
		"a result of another attempt":    {[]change{begunSince(0), told, staleResult}, ""},
		"failed, halted":                 {[]change{closedAs(RolledBack, "", 0), unmarked, poisoned}, ""},
		"failed, retry":                  {[]change{closedAs(RolledBack, "", 0), unmarked, poisoned, retry}, "Offer"},
		"drain timeout, a moment ago":    {[]change{closedAs(DrainTimeout, "", time.Minute), unmarked}, ""},
		"drain timeout, long ago":        {[]change{closedAs(DrainTimeout, "", RetryDelay), unmarked}, "Offer"},
		"refused for the node, long ago": {[]change{closedAs(Refused, v1alpha1.ReasonNoSpareSlot, RetryDelay), unmarked}, "Offer"},
		"refused for the node, just now": {[]change{closedAs(Refused, v1alpha1.ReasonNoSpareSlot, 0), unmarked}, ""},
		"host left, nothing under way":   {[]change{closedAs(Succeeded, "", 0), unmarked, left}, "Remove"},
		"another pool's":                 {[]change{other}, ""},
		"paused": {
			[]change{func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) { w.Pool.Spec.Paused = true }},
			"",
		},
		"paused while draining": {
			[]change{begunSince(time.Minute), func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) { w.Pool.Spec.Paused = true }},
			"Drain",
		},
		"manual, not selected": {[]change{func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) {
			w.Pool.Spec.Strategy.Type = v1alpha1.ManualInPlaceUpdate
		}}, ""},
		"another release, not yet resolved": {[]change{func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) {
			w.Pool.Spec.Release.OS.Image = "registry.test/os:9"
		}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			decision := Decide(oneNode(tt.changes...))
			var got []string
			for _, a := range decision.Actions {
				got = append(got, strings.TrimSuffix(fmt.Sprintf("%s/%s", a.Kind, a.Outcome), "/"))
			}
			if len(decision.Poison) > 0 {
				got = append(got, "poison")
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got %q, want %q", strings.Join(got, " "), tt.want)
			}
		})
	}
}

// A condition that an earlier attempt left at DrainSuccessful says nothing of this one: the node is said to be selected.
func TestSelectedIsSaidOncePerAttempt(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reason  protocol.Reason
		attempt string
		says    bool
	}{
		"drained for this attempt":    {protocol.ReasonDrainSuccessful, "a1", false},
		"drained for an earlier one":  {protocol.ReasonDrainSuccessful, "a0", true},
		"selected for this attempt":   {protocol.ReasonSelected, "a1", false},
		"selected for an earlier one": {protocol.ReasonSelected, "a0", true},
		"a candidate":                 {protocol.ReasonCandidate, "a1", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			world := oneNode(says(tt.reason, tt.attempt))
			a := &actor{world: world, now: func() time.Time { return world.Now }}
			patch := a.selected("a1")(world.Nodes["n0"])
			if (patch != nil) != tt.says {
				t.Fatalf("patch %v, want one: %t", patch, tt.says)
			}
			view := protocol.Read(patched(world.Nodes["n0"], patch))
			if tt.says && (view.Reason != protocol.ReasonSelected || view.ReasonAttempt != "a1") {
				t.Errorf("the Node says %s for attempt %q", view.Reason, view.ReasonAttempt)
			}
		})
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		max   *intstr.IntOrString
		total int
		want  int
	}{
		{nil, 100, 1},
		{new(intstr.FromInt32(3)), 2, 3},
		{new(intstr.FromString("10%")), 9, 1},
		{new(intstr.FromString("10%")), 29, 2},
		{new(intstr.FromString("100%")), 7, 7},
		{new(intstr.FromString("50%")), 0, 1},
	} {
		if got := limit(tt.max, tt.total); got != tt.want {
			t.Errorf("limit(%v, %d) = %d, want %d", tt.max, tt.total, got, tt.want)
		}
	}
}

func TestByDigest(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"r.example/os:1.0":          "r.example/os@sha256:d",
		"r.example:5000/os":         "r.example:5000/os@sha256:d",
		"r.example:5000/a/os:1.0":   "r.example:5000/a/os@sha256:d",
		"r.example/os@sha256:e":     "r.example/os@sha256:d",
		"r.example/os:1.0@sha256:e": "r.example/os@sha256:d",
	} {
		if got := byDigest(image, "sha256:d"); got != want {
			t.Errorf("byDigest(%s) = %s, want %s", image, got, want)
		}
	}
}

// Whoever allows more power actions for a silent machine means this one, not the next attempt.
func TestSettingsOfTheBMCReachAMachineThatIsAway(t *testing.T) {
	t.Parallel()
	type change = func(*World, *v1alpha1.NodeUpdate, *corev1.Node)
	resets := int32(7)
	same := func(w *World, u *v1alpha1.NodeUpdate, _ *corev1.Node) {
		u.Spec.OutOfBand, u.Spec.Reboot = w.Pool.Spec.OutOfBand, w.Pool.Spec.Reboot
	}
	more := func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) { w.Pool.Spec.OutOfBand.MaxResets = &resets }
	longer := func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) {
		w.Pool.Spec.Reboot.SilentAfter.Duration += time.Hour
	}
	health := func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) {
		w.Pool.Spec.Health.Kubelet.Duration += time.Hour
	}
	away := agentSays(v1alpha1.PhaseRebooting, v1alpha1.ReasonWaitingForBoot)
	needsHuman := closedAs(NeedsHuman, "", time.Minute)
	for name, test := range map[string]struct {
		changes []change
		want    bool
	}{
		"nothing changed": {changes: []change{begunSince(0), told, away, same}},
		"more resets":     {changes: []change{begunSince(0), told, away, same, more}, want: true},
		"more patience":   {changes: []change{begunSince(0), told, away, same, longer}, want: true},
		"needs a person":  {changes: []change{begunSince(0), told, away, same, more, needsHuman}, want: true},
		"told":            {changes: []change{begunSince(0), told, same, more}, want: true},
		"still staging":   {changes: []change{agentSays(v1alpha1.PhaseStaging, ""), same, more}},
		"still draining":  {changes: []change{begunSince(0), same, more}},
		"other settings":  {changes: []change{begunSince(0), told, away, same, health}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			actions := Decide(oneNode(test.changes...)).Actions
			got := slices.ContainsFunc(actions, func(a Action) bool { return a.Kind == Adjust && a.Attempt == "a1" })
			if got != test.want {
				t.Errorf("adjusted is %v, want %v: %+v", got, test.want, actions)
			}
		})
	}
}
