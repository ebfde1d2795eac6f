package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/lab/controlplane"
)

func TestEveryChangeThatMustNotBeIsFound(t *testing.T) {
	t.Parallel()

	before := Snapshot{UID: "1", MachineID: "m", DataUntouched: true, OS: "lab 1.0.0"}

	for name, test := range map[string]struct {
		change func(*Snapshot)
		says   string
	}{
		"nothing but the version": {func(s *Snapshot) { s.OS = "lab 1.1.0" }, ""},
		"another Node object":     {func(s *Snapshot) { s.UID = "2" }, "its Node object is another"},
		"provisioned anew":        {func(s *Snapshot) { s.MachineID = "n" }, "its machine-id is another"},
		"BareMetalHost written":   {func(s *Snapshot) { s.HostGeneration++ }, "the spec of its BareMetalHost"},
		"left cordoned":           {func(s *Snapshot) { s.Cordoned = true }, "cordoned is true"},
		"a label left behind":     {func(s *Snapshot) { s.Marks = []string{protocol.LabelCandidate + "="} }, "labels and annotations"},
		"data written":            {func(s *Snapshot) { s.DataUntouched = false }, "its data disk was written"},
	} {
		after := before
		test.change(&after)

		err := compare("node-1", before, after)
		if (err == nil) != (test.says == "") || (err != nil && (!errors.Is(err, ErrInvariant) || !strings.Contains(err.Error(), test.says))) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
}

func TestMarksAreOfTheProtocolOnly(t *testing.T) {
	t.Parallel()

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Labels:      map[string]string{"kubernetes.io/hostname": "n", protocol.LabelResult: "successful"},
		Annotations: map[string]string{protocol.AnnotationAttempt: "a", protocol.AnnotationScaleDownDisabled: "true"},
	}}

	if found := marks(node); len(found) != 3 {
		t.Errorf("marks are %v, want the label and both annotations", found)
	}
}

func TestWhoMayHaveBeenStaging(t *testing.T) {
	t.Parallel()

	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	// node-2 is seen staging at 20 only, so it may have been from 10 to 30.
	seen := timeline{{at: at(0)}, {at: at(10)}, {at: at(20), staging: []string{"node-2"}}, {at: at(30)}, {at: at(40)}}

	for _, test := range []struct {
		node     string
		from, to int
		want     bool
	}{
		{"node-1", 0, 5, false},
		{"node-1", 5, 12, true},
		{"node-1", 25, 26, true},
		{"node-1", 31, 35, false},
		{"node-2", 15, 25, false}, // itself
		{"node-1", 0, 100, true},
	} {
		if got := seen.othersStaging(test.node, at(test.from), at(test.to)); got != test.want {
			t.Errorf("others than %s staging from %d to %d: %v, want %v", test.node, test.from, test.to, got, test.want)
		}
	}
}

func TestBudgetIsCheckedAtEveryMoment(t *testing.T) {
	t.Parallel()

	seen := timeline{{unavailable: []string{"a"}}, {unavailable: []string{"a", "b"}}, {}}
	nodes := map[string]*corev1.Node{"a": {}, "b": {}, "c": {}, "d": {}}

	for limit, good := range map[string]bool{"": false, "1": false, "2": true, "49%": false, "50%": true} {
		world := &World{Nodes: nodes, Pool: v1alpha1.HostPool{}}

		if limit != "" {
			value := intstr.Parse(limit)
			world.Pool.Spec.Strategy.MaxUnavailable = &value
		}

		if err := seen.checkBudget(world); (err == nil) != good {
			t.Errorf("maxUnavailable %q: %v, want good %v", limit, err, good)
		}
	}
}

// A node whose power the scenario has cut counts only when Stayput has cordoned it, too.
func TestAFelledNodeIsNotTheUpdatesDoing(t *testing.T) {
	t.Parallel()

	for cordoned, want := range map[bool]int{false: 0, true: 1} {
		world := poolWorld(v1alpha1.ConditionReady, false, "", "").node(func(node *corev1.Node) {
			node.Spec.Unschedulable = cordoned
			node.Status.Conditions[0].Status = corev1.ConditionUnknown
		})

		if seen := (timeline{}).with(world, []string{someNode}); len(seen[0].unavailable) != want {
			t.Errorf("cordoned %v: unavailable are %v", cordoned, seen[0].unavailable)
		}

		if seen := (timeline{}).with(world, nil); len(seen[0].unavailable) != 1 {
			t.Errorf("not felled, cordoned %v: unavailable are %v", cordoned, seen[0].unavailable)
		}
	}
}

func TestWhatAnAgentMayNotWrite(t *testing.T) {
	t.Parallel()

	agent := controlplane.Agent("node-1").User
	written := func(user, resource, subresource, name string, code int) controlplane.Write {
		return controlplane.Write{User: user, Resource: resource, Subresource: subresource, Name: name, Code: code}
	}

	for name, test := range map[string]struct {
		write controlplane.Write
		want  bool
	}{
		"own Node":              {written(agent, "nodes", "", "node-1", 200), false},
		"another Node":          {written(agent, "nodes", "", "node-2", 200), true},
		"another Node, refused": {written(agent, "nodes", "", "node-2", 403), false},
		"kubelet's":             {written("system:node:node-1", "nodes", "", "node-2", 200), false},
		"own status":            {written(agent, "nodeupdates", "status", "node-1", 200), false},
		"own spec":              {written(agent, "nodeupdates", "", "node-1", 200), true},
		"another's status":      {written(agent, "nodeupdates", "status", "node-2", 200), true},
		"a pod":                 {written(agent, "pods", "", "x", 200), false},
	} {
		if got := trespass(test.write); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
