package demo

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/e2e"
	"github.com/stayput-dev/stayput/test/lab"
)

// Record is what was observed of a chapter, moment by moment. Times are those of this host's clock, to a second or so.
type Record struct {
	// Last is what was observed last.
	Last  *e2e.World
	nodes map[string]*trace
}

// trace is what was observed of one node.
type trace struct {
	bootID, os         string // before the update
	cordoned, released time.Time
	rebooted, back     time.Time
}

// See takes in one moment and tells whether nothing more will happen, good or bad.
func (r *Record) See(world *e2e.World) bool {
	r.Last = world

	if r.nodes == nil {
		r.nodes = map[string]*trace{}
	}

	for name, node := range world.Nodes {
		ready, _ := lab.Ready(node)
		bootID := node.Status.NodeInfo.BootID
		seen := r.nodes[name]

		if seen == nil {
			seen = &trace{bootID: bootID, os: node.Status.NodeInfo.OSImage}
			r.nodes[name] = seen
		}

		seen.cordoned = first(seen.cordoned, node.Spec.Unschedulable, world.At)
		seen.released = first(seen.released, !seen.cordoned.IsZero() && !node.Spec.Unschedulable && ready, world.At)
		seen.rebooted = first(seen.rebooted, rebooting(world.Updates[name]), world.At)
		seen.back = first(seen.back, !seen.rebooted.IsZero() && bootID != seen.bootID && ready, world.At)
	}

	return settled(world)
}

// first is the time when it was first so.
func first(known time.Time, so bool, now time.Time) time.Time {
	if known.IsZero() && so {
		return now
	}

	return known
}

func rebooting(update *v1alpha1.NodeUpdate) bool {
	return update != nil && update.Status.Attempt == update.Spec.Attempt && update.Status.RebootedAt != nil
}

// settled tells whether the rollout has come to a rest and every node serves.
func settled(world *e2e.World) bool {
	if world.Pool.Status.ObservedGeneration != world.Pool.Generation || len(world.Unavailable()) > 0 {
		return false
	}

	return !isTrue(world, v1alpha1.ConditionProgressing) &&
		(isTrue(world, v1alpha1.ConditionReady) || isTrue(world, v1alpha1.ConditionHalted))
}

func isTrue(world *e2e.World, kind string) bool {
	return world.Condition(kind).Status == metav1.ConditionTrue
}

// Outcome is how the attempt of one node ended.
type Outcome struct {
	Node    string
	Attempt v1alpha1.AttemptRecord
	// Runs is the version that the node runs now.
	Runs string
	// Outage is from the cordon until the node took pods again, Down from the order to reboot until its Node was Ready
	// in another boot; 0 when that was not seen.
	Outage, Down time.Duration
	// Resets is how often its BMC acted for this attempt.
	Resets int32
}

// Outcomes are those of the nodes that ended an attempt at the version, in the order in which they ended.
func (r *Record) Outcomes(version string) []Outcome {
	if r.Last == nil {
		return nil
	}

	var outcomes []Outcome

	for name, update := range r.Last.Updates {
		// A version occurs in one chapter only, so the newest attempt at it is this chapter's.
		index := slices.IndexFunc(update.Status.History, func(a v1alpha1.AttemptRecord) bool { return a.Version == version })
		if index < 0 {
			continue
		}

		outcome := Outcome{Node: name, Attempt: update.Status.History[index], Runs: update.Status.Running.Version}

		if seen := r.nodes[name]; seen != nil {
			outcome.Outage, outcome.Down = between(seen.cordoned, seen.released), between(seen.rebooted, seen.back)
		}

		if bmc := update.Status.OutOfBand; bmc != nil && bmc.Attempt == outcome.Attempt.ID {
			outcome.Resets = bmc.Resets
		}

		outcomes = append(outcomes, outcome)
	}

	slices.SortFunc(outcomes, func(a, b Outcome) int { return ended(a).Compare(ended(b)) })

	return outcomes
}

func ended(o Outcome) time.Time {
	if o.Attempt.EndedAt == nil {
		return time.Time{}
	}

	return o.Attempt.EndedAt.Time
}

func between(from, to time.Time) time.Duration {
	if from.IsZero() || to.IsZero() {
		return 0
	}

	return to.Sub(from)
}
