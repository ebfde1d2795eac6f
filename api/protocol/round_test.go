package protocol

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// round plays one attempt on one node. Both sides keep nothing but what their real counterparts persist: the
// orchestrator that the attempt has ended, the agent that it has begun and how it went.
type round struct {
	t       *rapid.T
	dialect Dialect
	attempt string
	good    bool

	node *corev1.Node
	// before is the node as it was, without what earlier rounds had left on it.
	before *corev1.Node
	// old are earlier readings, from which a stale cache or a slow worker may still act.
	old []*corev1.Node
	now time.Time

	released bool
	// asked is the dialect in which the agent was let go; wentAt counts how often it went.
	asked Dialect
	went  int
}

func TestRoundEndsWithTheNodeAsItWas(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		r := drawRound(t)
		t.Repeat(map[string]func(*rapid.T){
			"orchestrator":       func(*rapid.T) { r.orchestrate(r.node) },
			"orchestrator, late": func(t *rapid.T) { r.orchestrate(r.drawOld(t)) },
			"agent":              func(*rapid.T) { r.act(r.node) },
			"agent, late":        func(t *rapid.T) { r.act(r.drawOld(t)) },
			"kubelet":            func(*rapid.T) { r.heartbeat() },
			"":                   func(*rapid.T) { r.check() },
		})

		const enough = 30
		for range enough {
			r.orchestrate(r.node)
			r.act(r.node)
			r.check()
		}

		if !r.released || r.went != 1 {
			t.Fatalf("released %t, the agent went %d times; the node: %+v", r.released, r.went, r.node)
		}

		r.compareWithBefore()
	})
}

func drawRound(t *rapid.T) *round {
	r := &round{
		t: t, attempt: "new", good: rapid.Bool().Draw(t, "good"), now: start,
		dialect: rapid.SampledFrom([]Dialect{Shipped, GEP0031}).Draw(t, "dialect"),
	}
	r.before = testNode(func(node *corev1.Node) {
		node.ResourceVersion = "1"
		node.Spec.Unschedulable = rapid.Bool().Draw(t, "cordoned by a person")
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}

		if rapid.Bool().Draw(t, "scale-down disabled by a person") {
			node.Annotations[AnnotationScaleDownDisabled] = rapid.SampledFrom([]string{"true", "false"}).Draw(t, "value")
		}
	})
	r.node = r.before.DeepCopy()
	r.drawLeftovers()
	r.old = []*corev1.Node{r.node}

	return r
}

// drawLeftovers puts on the node what earlier rounds, ours or others', may have left.
func (r *round) drawLeftovers() {
	value := rapid.SampledFrom([]string{"", "true", "false", "successful", "failed", "?"})
	for _, key := range append(resultLabels(), LabelCandidate, LabelSelected, LabelReadyGEP) {
		if rapid.Bool().Draw(r.t, key) {
			r.node.Labels[key] = value.Draw(r.t, "value of "+key)
		}
	}

	for _, key := range append(resultAnnotations(), AnnotationAttempt) {
		if rapid.Bool().Draw(r.t, key) {
			r.node.Annotations[key] = "old"
		}
	}

	if !r.node.Spec.Unschedulable && rapid.Bool().Draw(r.t, "our old cordon") {
		cordoned(r.node)
		r.node.Annotations[AnnotationCordonedBy] = "old"
	}

	if r.node.Annotations[AnnotationScaleDownDisabled] == "" && rapid.Bool().Draw(r.t, "our old scale-down mark") {
		r.node.Annotations[AnnotationScaleDownDisabled] = "true"
		r.node.Annotations[AnnotationScaleDownDisabledByUs] = "old"
	}

	for i := range rapid.IntRange(0, 3).Draw(r.t, "conditions") {
		reason := rapid.SampledFrom(append(reasons(), "Unheard")).Draw(r.t, "reason")
		condition(reason, start.Add(time.Duration(-i)*time.Hour), withAttempt("left", "old"))(r.node)
	}
}

func (r *round) drawOld(t *rapid.T) *corev1.Node {
	return rapid.SampledFrom(r.old).Draw(t, "reading")
}

// do applies a patch that was made from some reading, fresh or not. A conflict is no failure: nothing has happened.
func (r *round) do(patch *Patch) bool {
	if patch == nil {
		return true
	}

	next, err := apply(r.node, patch)
	if errors.Is(err, errConflict) {
		return false
	}

	if err != nil {
		r.t.Fatal(err)
	}

	r.old = append(r.old, r.node)
	r.node = next
	r.now = r.now.Add(time.Second)

	return true
}

// orchestrate does the next step of the orchestrator's side from one reading of the node.
func (r *round) orchestrate(seen *corev1.Node) {
	if r.released {
		r.do(Release(seen, r.attempt))

		return
	}

	reason := func(reason Reason) *Patch { return SetReason(seen, r.dialect, reason, "", r.now) }

	switch state := Read(seen).StateFor(r.attempt); state {
	case StateIdle, StateOther:
		r.do(MarkCandidate(seen, r.attempt))
	case StateCandidate:
		r.doFirst(reason(ReasonCandidate), Select(seen))
	case StateSelected:
		next := ReasonDrainSuccessful
		if r.dialect == GEP0031 {
			next = ReasonReady
		}

		r.doFirst(reason(ReasonSelected), Cordon(seen, r.attempt), DisableScaleDown(seen, r.attempt), reason(next))
	case StateDrained:
		r.do(reason(ReasonReady))
	case StateReady:
	case StateSucceeded, StateFailed:
		r.finish(seen, state, reason)
	}
}

func (r *round) finish(seen *corev1.Node, state State, reason func(Reason) *Patch) {
	if (state == StateSucceeded) != r.good {
		r.t.Fatalf("the attempt is %s, the agent says good: %t", state, r.good)
	}

	last := ReasonUpdateFailed
	if r.good {
		last = ReasonUpdateSuccessful
	}

	if patch := reason(last); patch != nil {
		r.do(patch)

		return
	}

	r.released = r.do(Release(seen, r.attempt))
}

func (r *round) doFirst(patches ...*Patch) {
	for _, patch := range patches {
		if patch != nil {
			r.do(patch)

			return
		}
	}
}

// act does the agent's next step from one reading of the node.
func (r *round) act(seen *corev1.Node) {
	view := Read(seen)

	if view.Ready && view.Cordoned && view.Attempt == r.attempt && r.went == 0 {
		if view.Dialect != r.dialect {
			r.t.Fatalf("asked in %s, read as %s", r.dialect, view.Dialect)
		}

		r.asked = view.Dialect
		r.went++
	}

	if r.went == 0 {
		return
	}

	if r.good {
		r.do(Succeed(seen, r.asked, r.attempt))
	} else {
		r.do(Fail(seen, r.asked, r.attempt, "gate kubelet failed"))
	}
}

func (r *round) heartbeat() {
	next := r.node.DeepCopy()
	for i := range next.Status.Conditions {
		if next.Status.Conditions[i].Type == corev1.NodeReady {
			next.Status.Conditions[i].LastHeartbeatTime = metav1.NewTime(r.now)
		}
	}

	patch := &Patch{Type: "application/merge-patch+json", Data: []byte(`{"metadata":{"annotations":{"beat":"` + r.now.String() + `"}}}`)}
	r.before.Annotations["beat"] = r.now.String()
	r.node = next
	r.do(patch)
}

// check holds at every moment.
func (r *round) check() {
	view := Read(r.node)

	if r.went == 0 && view.ResultFor(r.attempt) != NoResult {
		r.t.Fatalf("an answer to %q before the agent went: %+v", r.attempt, r.node)
	}

	if view.Ready && view.Attempt == r.attempt && !view.Cordoned {
		r.t.Fatalf("asked to go without a cordon: %+v", r.node)
	}

	if r.before.Spec.Unschedulable && !view.Cordoned {
		r.t.Fatal("a person's cordon was taken off")
	}

	for key, value := range r.before.Labels {
		if r.node.Labels[key] != value {
			r.t.Fatalf("somebody else's label %s was changed to %q", key, r.node.Labels[key])
		}
	}

	for key, value := range r.before.Annotations {
		if r.node.Annotations[key] != value {
			r.t.Fatalf("somebody else's annotation %s was changed to %q", key, r.node.Annotations[key])
		}
	}
}

func (r *round) compareWithBefore() {
	if diff := differences(r.before, r.node); len(diff) > 0 {
		r.t.Fatalf("the round left the node changed: %s", strings.Join(diff, "; "))
	}

	want := []string{string(corev1.NodeReady)}
	if found := inPlaceConditions(r.node); len(found) > 0 {
		want = append(want, string(ConditionInPlaceUpdate))

		if r.dialect == Shipped && Reason(found[0].Reason) == ReasonReady {
			r.t.Fatalf("the condition stayed at %s", found[0].Reason)
		}
	}

	if r.dialect == Shipped && len(r.node.Status.Conditions) != len(want) {
		r.t.Fatalf("conditions: %+v", r.node.Status.Conditions)
	}
}

func differences(before, after *corev1.Node) []string {
	var diff []string

	if !maps.Equal(before.Labels, after.Labels) {
		diff = append(diff, fmt.Sprintf("labels %v, were %v", after.Labels, before.Labels))
	}

	if !maps.Equal(before.Annotations, after.Annotations) {
		diff = append(diff, fmt.Sprintf("annotations %v, were %v", after.Annotations, before.Annotations))
	}

	if !equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		diff = append(diff, fmt.Sprintf("spec %+v, was %+v", after.Spec, before.Spec))
	}

	return diff
}
