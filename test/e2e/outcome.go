package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// checkOutcome compares the end with what is wanted.
func (r *Run) checkOutcome(world *World) error {
	resets, err := r.countResets()
	if err != nil {
		return err
	}

	want := r.Scenario.Want
	errs := []error{want.compareResets(resets - r.resets)}
	tried := 0

	for _, name := range r.Scenario.Machines {
		record := r.record(world, name)
		if record == nil {
			if !want.Halted {
				errs = append(errs, fmt.Errorf("%w: %s was not tried", ErrOutcome, name))
			}

			continue
		}

		tried++

		errs = append(errs, want.compare(name, record), r.checkVersion(world, name), r.checkAnswer(name, record))
	}

	if want.Halted && tried != 1 {
		errs = append(errs, fmt.Errorf("%w: %d nodes were tried, want the rollout to halt after 1", ErrOutcome, tried))
	}

	return errors.Join(append(errs, want.comparePool(world))...)
}

// compare says how the end of a node's attempt differs from what is wanted.
func (w Want) compare(name string, record *v1alpha1.AttemptRecord) error {
	if record.Phase != w.Phase || record.Reason != w.Reason || record.Rung != w.Rung || !strings.Contains(record.Message, w.Says) {
		return fmt.Errorf("%w: %s ended %s (%s) by rung %q: %s; want %s (%s) by rung %q, with %q", ErrOutcome, name,
			record.Phase, record.Reason, record.Rung, record.Message, w.Phase, w.Reason, w.Rung, w.Says)
	}

	return nil
}

func (w Want) compareResets(resets int) error {
	if resets < w.MinResets || (w.MinResets == 0 && resets > 0) {
		return fmt.Errorf("%w: the BMCs acted %d times, want %d at least, and none when it is 0", ErrOutcome, resets, w.MinResets)
	}

	return nil
}

// comparePool says how the pool differs: a rollout that halts has poisoned the image, no other has.
func (w Want) comparePool(world *World) error {
	halted := world.holds(v1alpha1.ConditionHalted)
	release := world.Pool.Status.Release
	poisoned := release != nil && slices.ContainsFunc(world.Pool.Status.Poisoned, func(p v1alpha1.PoisonedRelease) bool {
		return p.Digest == release.Digest
	})

	if halted != w.Halted || poisoned != w.Halted {
		return fmt.Errorf("%w: halted is %v and the image poisoned %v, want both %v", ErrOutcome, halted, poisoned, w.Halted)
	}

	return nil
}

// checkVersion proves that the node runs what its end says, by what its kubelet reports.
func (r *Run) checkVersion(world *World, name string) error {
	node := world.Nodes[name]
	if node == nil {
		return fmt.Errorf("%w: the Node %s is gone", ErrOutcome, name)
	}

	before, after := r.before[name].OS, node.Status.NodeInfo.OSImage

	if r.Scenario.Want.Phase == v1alpha1.PhaseSucceeded {
		if !strings.HasSuffix(after, " "+r.Scenario.To.Version) {
			return fmt.Errorf("%w: %s runs %q, want version %s", ErrOutcome, name, after, r.Scenario.To.Version)
		}

		return nil
	}

	if after != before {
		return fmt.Errorf("%w: %s runs %q, want %q as before", ErrOutcome, name, after, before)
	}

	return nil
}

// checkAnswer proves that the agent answered on the Node in the dialect in which it was asked, and in no other.
func (r *Run) checkAnswer(name string, record *v1alpha1.AttemptRecord) error {
	if record.ReadyAt == nil {
		return nil // it was not asked to go
	}

	dialect := r.last.Pool.Spec.Strategy.Dialect
	want := answerLabel(dialect, record.Phase)

	for _, label := range []string{protocol.LabelResult, protocol.LabelSuccessfulGEP, protocol.LabelFailedGEP} {
		if seen := r.witness.saw(name, label); seen != (label == want) {
			return fmt.Errorf("%w: %s was asked in dialect %s and ended %s, but label %s was seen: %v",
				ErrOutcome, name, dialect, record.Phase, label, seen)
		}
	}

	return nil
}

func answerLabel(dialect v1alpha1.ProtocolDialect, phase v1alpha1.Phase) string {
	switch {
	case dialect != v1alpha1.DialectGEP0031:
		return protocol.LabelResult
	case phase == v1alpha1.PhaseSucceeded:
		return protocol.LabelSuccessfulGEP
	default:
		return protocol.LabelFailedGEP
	}
}

// record is how the node's attempt at the scenario's version ended, nil when it made none.
func (r *Run) record(world *World, name string) *v1alpha1.AttemptRecord {
	return newestRecord(world.Updates[name], r.Scenario.To.Version, r.began)
}

// newestRecord is the newest attempt at a version that ended since then, nil when there is none. One that was taken back
// before the node was drained is none.
func newestRecord(update *v1alpha1.NodeUpdate, version string, since time.Time) *v1alpha1.AttemptRecord {
	if update == nil {
		return nil
	}

	for index := range update.Status.History {
		record := &update.Status.History[index]
		// The status has whole seconds.
		ended := record.EndedAt != nil && !record.EndedAt.Time.Before(since.Truncate(time.Second))

		if ended && record.Version == version && record.Reason != v1alpha1.ReasonAttemptSuperseded {
			return record
		}
	}

	return nil
}

func (r *Run) countResets() (int, error) {
	total := 0

	for _, name := range r.Scenario.Machines {
		machine, err := r.Lab.Machine(name)
		if err != nil {
			return 0, err
		}

		resets, err := r.Lab.BMC.Resets(machine.UUID())
		if err != nil {
			return 0, fmt.Errorf("counting the resets of %s: %w", name, err)
		}

		total += resets
	}

	return total, nil
}
