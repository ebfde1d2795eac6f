package e2e

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/lab"
	"github.com/stayput-dev/stayput/test/lab/osbuild"
)

// Scenario is one rollout, and what happens while it is under way.
type Scenario struct {
	// Name says what happens, in words.
	Name string
	// Machines are the nodes that it is about. Scenarios of disjoint machines are played side by side.
	Machines []string
	// To is what they are told to run. Whatever they run before has to be older.
	To osbuild.Variant
	// Pool changes the HostPool from its defaults (the hosts of Machines, Auto, one at a time).
	Pool func(spec *v1alpha1.HostPoolSpec)
	// Incidents happen on the way, each at its own time.
	Incidents []Incident
	// Want is how it must end.
	Want Want
	// Limit bounds the whole scenario.
	Limit time.Duration
}

// Want is how a scenario must end.
type Want struct {
	// Phase, Reason and Rung are those of the newest attempt of every node that was tried.
	Phase  v1alpha1.Phase
	Reason v1alpha1.Reason
	Rung   v1alpha1.Rung
	// Says is what its message must contain.
	Says string
	// Halted is whether the rollout stops and the image is poisoned; then one node was tried and the others were not.
	Halted bool
	// MinResets is how often the BMC must at least have acted, in all. When it is 0, it must not have acted.
	MinResets int
}

// Incident is one thing that goes wrong, or otherwise than by default, in a rollout. Several fit into one, for a reboot
// takes minutes.
type Incident struct {
	// Name says what happens, in words.
	Name string
	// Before, when there is one, prepares the machines and the cluster before anything is asked for.
	Before func(ctx context.Context, run *Run) error
	// Steps are taken in order, each when its When says so. Those of other incidents go on beside them.
	Steps []Step
	// Check, when there is one, looks at what only this incident is about, at the end of the rollout.
	Check func(run *Run, world *World) error
	// After, when there is one, takes away what Before and Steps have left. It is called in any case.
	After func(ctx context.Context, run *Run) error
}

// Step is one act of an incident.
type Step struct {
	// Name says what is done.
	Name string
	// When tells, by what was just observed, whether its time has come.
	When func(world *World) bool
	// Do does it. Nil means that the observation is what matters.
	Do func(ctx context.Context, run *Run) error
}

// Predecessors are the indices of the scenarios that must have ended before the one at index begins: for each of its
// machines, the last one before it that is about that machine.
func Predecessors(scenarios []Scenario, index int) []int {
	found := map[int]bool{}

	for _, machine := range scenarios[index].Machines {
		for earlier := index - 1; earlier >= 0; earlier-- {
			if slices.Contains(scenarios[earlier].Machines, machine) {
				found[earlier] = true

				break
			}
		}
	}

	return slices.Sorted(maps.Keys(found))
}

// maxPoolName is the limit of a label's value, which names of objects end up in.
const maxPoolName = 63

// poolName makes the name of the scenario's HostPool from its own.
func (s Scenario) poolName() string {
	words := strings.FieldsFunc(strings.ToLower(s.Name), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	name := strings.Join(words, "-")

	return strings.TrimRight(name[:min(len(name), maxPoolName)], "-")
}

// selector picks the BareMetalHosts of the scenario's machines.
func (s Scenario) selector() metav1.LabelSelector {
	return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: lab.NodeLabel, Operator: metav1.LabelSelectorOpIn, Values: s.Machines,
	}}}
}

// World is what was observed at one moment.
type World struct {
	At   time.Time
	Pool v1alpha1.HostPool
	// Nodes and Updates are those of the scenario's machines, by name.
	Nodes   map[string]*corev1.Node
	Updates map[string]*v1alpha1.NodeUpdate
	// Staging are the nodes that are staging, also those of other scenarios.
	Staging []string
}

// InPhase are the nodes whose update is in the phase, for the attempt that is asked for now.
func (w *World) InPhase(phase v1alpha1.Phase) []string { return inPhase(w.Updates, phase) }

func inPhase(updates map[string]*v1alpha1.NodeUpdate, phase v1alpha1.Phase) []string {
	var names []string

	for name, update := range updates {
		if update.Spec.Attempt != "" && update.Status.Attempt == update.Spec.Attempt && update.Status.Phase == phase {
			names = append(names, name)
		}
	}

	slices.Sort(names)

	return names
}

// Unavailable are the nodes that are cordoned or not Ready.
func (w *World) Unavailable() []string {
	var names []string

	for name, node := range w.Nodes {
		if ready, _ := lab.Ready(node); !ready || node.Spec.Unschedulable {
			names = append(names, name)
		}
	}

	slices.Sort(names)

	return names
}

// Progress is how much of the image the node has staged for the attempt that is asked for now, in percent.
func (w *World) Progress(name string) int64 {
	update := w.Updates[name]
	if update == nil || update.Status.Attempt != update.Spec.Attempt || update.Status.Progress == nil ||
		update.Status.Progress.BytesTotal == 0 {
		return 0
	}

	const percent = 100

	return update.Status.Progress.BytesDone * percent / update.Status.Progress.BytesTotal
}

// Condition is a condition of the pool that is about its present spec, the zero value when there is none.
func (w *World) Condition(kind string) metav1.Condition {
	for _, condition := range w.Pool.Status.Conditions {
		if condition.Type == kind && condition.ObservedGeneration == w.Pool.Generation {
			return condition
		}
	}

	return metav1.Condition{}
}

func (w *World) holds(kind string) bool { return w.Condition(kind).Status == metav1.ConditionTrue }

// marked are the nodes that still carry marks of the update protocol.
func (w *World) marked() []string {
	var names []string

	for name, node := range w.Nodes {
		if len(marks(node)) > 0 {
			names = append(names, name)
		}
	}

	slices.Sort(names)

	return names
}
