package e2e

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/lab"
	"github.com/stayput-dev/stayput/test/lab/osbuild"
)

// Scenario is one story about an update.
type Scenario struct {
	// Name says what happens, in words.
	Name string
	// From is the version that every node must run at the start, and To what they are told to run.
	From string
	To   osbuild.Variant
	// Pool changes the HostPool from its defaults (all hosts, Auto, one at a time).
	Pool func(spec *v1alpha1.HostPoolSpec)
	// Steps are what happens on the way. Each waits for its When, in order.
	Steps []Step
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
	// Halted is whether the rollout stops; then one node was tried and the others were not.
	Halted bool
	// MinResets is how often the BMC must at least have acted, in all.
	MinResets int
}

// Step is one thing that happens to a node or to Stayput while the update is under way.
type Step struct {
	// Name says what is done.
	Name string
	// When tells, by what was just observed, whether its time has come.
	When func(world *World) bool
	// Do does it.
	Do func(ctx context.Context, run *Run) error
}

// World is what was observed at one moment.
type World struct {
	At      time.Time
	Pool    v1alpha1.HostPool
	Nodes   map[string]*corev1.Node
	Updates map[string]*v1alpha1.NodeUpdate
}

// InPhase are the nodes whose update is in the phase, for the attempt that is asked for now.
func (w *World) InPhase(phase v1alpha1.Phase) []string {
	var names []string

	for name, update := range w.Updates {
		if update.Status.Attempt == update.Spec.Attempt && update.Status.Phase == phase {
			names = append(names, name)
		}
	}

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

	return names
}

// condition is the status of a condition of the pool, "" when it is absent.
func (w *World) condition(kind string) string {
	for _, condition := range w.Pool.Status.Conditions {
		if condition.Type == kind && condition.ObservedGeneration == w.Pool.Generation {
			return string(condition.Status)
		}
	}

	return ""
}
