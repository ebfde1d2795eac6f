package e2e

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

const someNode = "node-1"

// poolWorld is a World whose pool has one condition.
func poolWorld(kind string, holds bool, reason, message string) *World {
	world := &World{Nodes: map[string]*corev1.Node{}, Updates: map[string]*v1alpha1.NodeUpdate{}}
	world.Pool.Generation, world.Pool.Status.ObservedGeneration = 1, 1

	return world.with(kind, holds, reason, message)
}

func (w *World) with(kind string, holds bool, reason, message string) *World {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}

	w.Pool.Status.Conditions = append(w.Pool.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: 1,
	})

	return w
}

func (w *World) node(change func(*corev1.Node)) *World {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: someNode, Labels: map[string]string{}, Annotations: map[string]string{}}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	change(node)
	w.Nodes[someNode] = node

	return w
}

func (w *World) update(phase v1alpha1.Phase, done int64) *World {
	update := &v1alpha1.NodeUpdate{ObjectMeta: metav1.ObjectMeta{Name: someNode}}
	update.Spec.Attempt, update.Status.Attempt, update.Status.Phase = "now", "now", phase
	update.Status.Progress = &v1alpha1.Progress{BytesDone: done, BytesTotal: 1000}
	w.Updates[someNode] = update

	return w
}

func cordon(node *corev1.Node) { node.Spec.Unschedulable = true }

func untouched(*corev1.Node) {}

func TestWhenADrainIsBlockedByTheBudget(t *testing.T) {
	t.Parallel()

	const (
		budget = "default/service"
		says   = "node-1: draining: PodDisruptionBudget default/service does not allow the eviction of pod default/service-x"
	)

	both := func(message string) *World {
		return poolWorld(v1alpha1.ConditionReady, false, v1alpha1.ReasonUpdating, message).
			with(v1alpha1.ConditionProgressing, true, v1alpha1.ReasonUpdating, message)
	}

	for name, test := range map[string]struct {
		world *World
		want  bool
	}{
		"blocked":        {both(says).node(cordon), true},
		"another budget": {both("PodDisruptionBudget default/other").node(cordon), false},
		"draining":       {both("node-1: draining since 10:00").node(cordon), false},
		"not cordoned":   {both(says).node(untouched), false},
		"one condition only": {
			poolWorld(v1alpha1.ConditionReady, false, v1alpha1.ReasonUpdating, says).node(cordon), false,
		},
	} {
		if got := blockedByBudget(budget)(test.world); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWhenANodeIsInTheMiddleOfStaging(t *testing.T) {
	t.Parallel()

	empty := func() *World { return poolWorld(v1alpha1.ConditionReady, false, "", "") }
	earlier := empty().update(v1alpha1.PhaseStaging, 500)
	earlier.Updates[someNode].Status.Attempt = "earlier"

	for name, test := range map[string]struct {
		world *World
		want  bool
	}{
		"middle":             {empty().update(v1alpha1.PhaseStaging, 500), true},
		"too early":          {empty().update(v1alpha1.PhaseStaging, 390), false},
		"too late":           {empty().update(v1alpha1.PhaseStaging, 810), false},
		"staged":             {empty().update(v1alpha1.PhaseStaged, 500), false},
		"an earlier attempt": {earlier, false},
		"nothing":            {empty(), false},
	} {
		if got := staging(someNode, 40, 80)(test.world); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWhenAPersonMaySelect(t *testing.T) {
	t.Parallel()

	waiting := func() *World { return poolWorld(v1alpha1.ConditionReady, false, v1alpha1.ReasonWaitingForSelect, "") }
	selected := func(node *corev1.Node) { node.Labels[protocol.LabelSelected] = "true" }
	other := poolWorld(v1alpha1.ConditionReady, false, v1alpha1.ReasonWaitingForBudget, "")

	for name, test := range map[string]struct {
		world *World
		want  bool
	}{
		"staged and serving": {waiting().update(v1alpha1.PhaseStaged, 1000).node(untouched), true},
		"staging":            {waiting().update(v1alpha1.PhaseStaging, 10).node(untouched), false},
		"selected already":   {waiting().update(v1alpha1.PhaseStaged, 1000).node(selected), false},
		"cordoned already":   {waiting().update(v1alpha1.PhaseStaged, 1000).node(cordon), false},
		"another reason":     {other.update(v1alpha1.PhaseStaged, 1000).node(untouched), false},
	} {
		if got := waitsForSelection(someNode)(test.world); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWhenANodeIsAboutToReboot(t *testing.T) {
	t.Parallel()

	empty := func() *World { return poolWorld(v1alpha1.ConditionReady, false, "", "") }
	gone := func(node *corev1.Node) { node.Status.Conditions[0].Status = corev1.ConditionUnknown }

	for name, test := range map[string]struct {
		world *World
		want  bool
	}{
		"told":       {empty().update(v1alpha1.PhaseRebooting, 0).node(untouched), true},
		"gone":       {empty().update(v1alpha1.PhaseRebooting, 0).node(gone), false},
		"armed only": {empty().update(v1alpha1.PhaseArming, 0).node(untouched), false},
		"no update":  {empty().node(untouched), false},
	} {
		if got := rebooting(someNode)(test.world); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestInWhichDialectANodeIsAsked(t *testing.T) {
	t.Parallel()

	gep := func(node *corev1.Node) {
		for _, label := range []string{protocol.LabelCandidate, protocol.LabelSelected, protocol.LabelReadyGEP} {
			node.Labels[label] = ""
		}

		node.Annotations[protocol.AnnotationAttempt] = "now"
		cordon(node)
	}
	shipped := func(node *corev1.Node) {
		gep(node)
		delete(node.Labels, protocol.LabelReadyGEP)

		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: protocol.ConditionInPlaceUpdate, Status: corev1.ConditionTrue, Reason: string(protocol.ReasonReady),
		})
	}

	for name, test := range map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{"GEP-0031": {gep, true}, "as shipped": {shipped, false}, "not at all": {untouched, false}} {
		world := poolWorld(v1alpha1.ConditionReady, false, "", "").node(test.change)
		if got := askedIn(someNode, protocol.GEP0031)(world); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The end must not be taken for one while a label is still to be taken off, and must be, with the label, when nobody
// takes it off.
func TestWhenAScenarioHasEnded(t *testing.T) {
	t.Parallel()

	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	done := func(after time.Duration) *World {
		world := poolWorld(v1alpha1.ConditionReady, true, "", "").node(untouched)
		world.At = start.Add(after)

		return world
	}
	mark := func(node *corev1.Node) { node.Labels[protocol.LabelCandidate] = "" }
	run := &Run{}

	for _, test := range []struct {
		name  string
		world *World
		want  bool
	}{
		{"done", done(0), true},
		{"cordoned", done(0).node(cordon), false},
		{"marked", done(0).node(mark), false},
		{"marked still", done(cleanWait).node(mark), false},
		{"marked too long", done(cleanWait + time.Second).node(mark), true},
		{"moving", done(0).with(v1alpha1.ConditionProgressing, true, "", ""), false},
		{"marked, after it moved again", done(time.Hour).node(mark), false},
	} {
		if got := run.atEnd(test.world); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}

	old := done(0)
	old.Pool.Generation = 2

	if run.atEnd(old) {
		t.Error("the status of an earlier spec counts")
	}
}

func TestPodsThatServeAndPodsThatAreStale(t *testing.T) {
	t.Parallel()

	pod := func(uid, app, node string, change func(*corev1.Pod)) corev1.Pod {
		made := corev1.Pod{ObjectMeta: workloadMeta(app)}
		made.Name, made.UID, made.Spec.NodeName = uid, types.UID(uid), node
		made.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		change(&made)

		return made
	}
	as := func(*corev1.Pod) {}
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	starting := func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }
	ending := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }

	all := podList{
		pod("s", serviceName, someNode, as), pod("e", everywhereName, someNode, as), pod("m", "mirror", someNode, mirror),
	}

	if trouble := all.notServing([]string{someNode}); trouble != "" {
		t.Errorf("all serve, but: %s", trouble)
	}

	if got := all.on(someNode); len(got) != 2 {
		t.Errorf("pods but for the mirror: %v", got)
	}

	if got := all.stale(someNode, all.on(someNode)); len(got) != 2 {
		t.Errorf("stale pods: %v", got)
	}

	if got := all.stale("node-2", all.on(someNode)); len(got) != 0 {
		t.Errorf("stale pods of another node: %v", got)
	}

	for name, change := range map[string]func(*corev1.Pod){"starting": starting, "ending": ending} {
		sick := podList{pod("s", serviceName, someNode, change), pod("e", everywhereName, someNode, as)}
		if sick.notServing([]string{someNode}) == "" {
			t.Errorf("%s: nothing is found", name)
		}
	}

	if all.notServing([]string{someNode, "node-2"}) == "" {
		t.Error("a machine without pods is not found")
	}
}
