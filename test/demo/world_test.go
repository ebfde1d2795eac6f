package demo

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/e2e"
)

func start() time.Time { return time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC) }

// chapters are those of the story, by what they are about.
func chapters() (update, panics, hang Chapter) {
	story := Story(PaceOf(false))

	return story[0], story[1], story[2]
}

// newWorld is how the nodes of a chapter are at its beginning.
func newWorld(chapter *Chapter) *e2e.World {
	world := &e2e.World{At: start(), Nodes: map[string]*corev1.Node{}, Updates: map[string]*v1alpha1.NodeUpdate{}}
	world.Pool.Generation = 1

	for _, name := range chapter.Scenario.Machines {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		node.Status.NodeInfo = corev1.NodeSystemInfo{BootID: "old", OSImage: "Stayput lab OS " + chapter.From}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		world.Nodes[name] = node
	}

	return world
}

func setReady(node *corev1.Node, status corev1.ConditionStatus) {
	node.Status.Conditions[0].Status = status
}

func set(world *e2e.World, kind string, status metav1.ConditionStatus, message string) {
	world.Pool.Status.Conditions = append(world.Pool.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, ObservedGeneration: world.Pool.Generation, Message: message,
	})
}

// play lets the chapter go as it promises, node by node, and gives what was observed.
func play(chapter *Chapter) *Record {
	world, record := newWorld(chapter), &Record{}
	after := func(seconds int) { world.At = world.At.Add(time.Duration(seconds) * time.Second) }
	want, version := chapter.Scenario.Want, chapter.Scenario.To.Version

	record.See(world)

	for index, name := range chapter.Scenario.Machines {
		node := world.Nodes[name]
		update := &v1alpha1.NodeUpdate{ObjectMeta: metav1.ObjectMeta{Name: name}}
		update.Spec.Attempt, update.Spec.Release.OS.Version = "attempt-"+name, version
		update.Status.Attempt, update.Status.Running.Version = update.Spec.Attempt, chapter.From
		update.Status.KnownGood.Version = chapter.Runs
		world.Updates[name] = update

		if chapter.Halts() && index > 0 {
			continue // staged, never told to go
		}

		node.Spec.Unschedulable = true
		after(10)
		record.See(world)
		update.Status.RebootedAt = &metav1.Time{Time: world.At}
		after(20)
		record.See(world)
		setReady(node, corev1.ConditionFalse)
		after(100)
		record.See(world)
		setReady(node, corev1.ConditionTrue)
		node.Status.NodeInfo.BootID, node.Status.NodeInfo.OSImage = "new", "Stayput lab OS "+chapter.Runs
		update.Status.Running.Version = chapter.Runs
		after(5)
		record.See(world)
		node.Spec.Unschedulable = false
		update.Status.Phase, update.Status.Reason, update.Status.RebootedAt = want.Phase, want.Reason, nil
		update.Status.History = []v1alpha1.AttemptRecord{{
			ID: update.Spec.Attempt, Version: version, Phase: want.Phase, Reason: want.Reason, Rung: want.Rung, Message: "what was seen",
			ReadyAt: &metav1.Time{Time: world.At}, EndedAt: &metav1.Time{Time: world.At},
		}}

		if want.MinResets > 0 {
			update.Status.OutOfBand = &v1alpha1.OutOfBandStatus{Attempt: update.Spec.Attempt, Resets: int32(want.MinResets)}
		}

		after(1)
		record.See(world)
	}

	world.Pool.Status.ObservedGeneration = world.Pool.Generation
	world.Pool.Status.Release = &v1alpha1.ResolvedRelease{Digest: "sha256:" + version, Version: version}

	if chapter.Halts() {
		world.Pool.Status.Poisoned = []v1alpha1.PoisonedRelease{{Digest: "sha256:" + version, Version: version}}
		set(world, v1alpha1.ConditionHalted, metav1.ConditionTrue, "release "+version+" failed")
		set(world, v1alpha1.ConditionReady, metav1.ConditionFalse, "")
	} else {
		set(world, v1alpha1.ConditionHalted, metav1.ConditionFalse, "")
		set(world, v1alpha1.ConditionReady, metav1.ConditionTrue, "")
	}

	record.See(world)

	return record
}

func TestTheStoryEndsOnlyWhenTheRolloutRests(t *testing.T) {
	t.Parallel()

	chapter, _, _ := chapters()
	for name, tt := range map[string]struct {
		change func(*e2e.World)
		want   bool
	}{
		"at rest":                      {func(*e2e.World) {}, true},
		"a node is cordoned":           {func(w *e2e.World) { w.Nodes["node-1"].Spec.Unschedulable = true }, false},
		"a node is not Ready":          {func(w *e2e.World) { setReady(w.Nodes["node-2"], corev1.ConditionUnknown) }, false},
		"the pool has not seen it yet": {func(w *e2e.World) { w.Pool.Generation = 2 }, false},
		"still progressing": {func(w *e2e.World) {
			set(w, v1alpha1.ConditionProgressing, metav1.ConditionTrue, "")
		}, false},
		"neither Ready nor Halted": {func(w *e2e.World) { w.Pool.Status.Conditions = nil }, false},
		"halted": {func(w *e2e.World) {
			w.Pool.Status.Conditions = nil
			set(w, v1alpha1.ConditionHalted, metav1.ConditionTrue, "")
		}, true},
	} {
		record := play(&chapter)
		tt.change(record.Last)

		if got := record.See(record.Last); got != tt.want {
			t.Errorf("%s: ended is %v, want %v", name, got, tt.want)
		}
	}
}

func TestOutagesAreMeasured(t *testing.T) {
	t.Parallel()

	update, panics, hang := chapters()

	for _, chapter := range []Chapter{update, panics, hang} {
		outcomes := play(&chapter).Outcomes(chapter.Scenario.To.Version)
		if wanted := map[bool]int{true: 1, false: 2}[chapter.Halts()]; len(outcomes) != wanted {
			t.Fatalf("%s: %d outcomes, want %d", chapter.Name, len(outcomes), wanted)
		}

		for index, outcome := range outcomes {
			if outcome.Node != chapter.Scenario.Machines[index] {
				t.Errorf("%s: outcome %d is of %s, want the order in which they ended", chapter.Name, index, outcome.Node)
			}

			// Cordoned at 10, told to reboot by 30, Ready anew at 135, uncordoned at 136.
			if outcome.Outage != 126*time.Second || outcome.Down != 105*time.Second {
				t.Errorf("%s: %s was out for %s and down for %s", chapter.Name, outcome.Node, outcome.Outage, outcome.Down)
			}
		}
	}
}
