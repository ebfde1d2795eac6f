package demo

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// ErrNotSeen means that something of the story did not happen.
var ErrNotSeen = errors.New("not seen")

// Check compares what was observed with what the chapter promises, object by object.
func (c *Chapter) Check(record *Record) error {
	var errs []error

	missing := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrNotSeen, fmt.Sprintf(format, args...)))
	}

	if record.Last == nil || len(record.Last.Nodes) == 0 {
		missing("any node")

		return errors.Join(errs...)
	}

	c.checkNodes(record, missing)
	c.checkAttempts(record, missing)
	c.checkPool(record, missing)

	return errors.Join(errs...)
}

func (c *Chapter) checkNodes(record *Record, missing func(string, ...any)) {
	for name, node := range record.Last.Nodes {
		if os := node.Status.NodeInfo.OSImage; !strings.HasSuffix(os, " "+c.Runs) {
			missing("node %s on OS %s; its kubelet says %q", name, c.Runs, os)
		}

		if seen := record.nodes[name]; seen == nil || !strings.HasSuffix(seen.os, " "+c.From) {
			missing("node %s on OS %s before the update", name, c.From)
		}

		update := record.Last.Updates[name]

		switch {
		case update == nil:
			missing("a NodeUpdate of node %s", name)
		case update.Status.Running.Version != c.Runs || update.Status.KnownGood.Version != c.Runs:
			missing("node %s on OS %s, committed; its agent says that it runs %q and that %q is good", name, c.Runs,
				update.Status.Running.Version, update.Status.KnownGood.Version)
		}
	}

	if names := record.Last.Unavailable(); len(names) > 0 {
		missing("every node back in service; %v are cordoned or not Ready", names)
	}
}

func (c *Chapter) checkAttempts(record *Record, missing func(string, ...any)) {
	want, version := c.Scenario.Want, c.Scenario.To.Version
	outcomes := record.Outcomes(version)
	tried := slices.DeleteFunc(slices.Clone(outcomes), func(o Outcome) bool {
		return o.Attempt.ReadyAt == nil // never told to go, as the other node of a rollout that halts
	})

	wanted := len(record.Last.Nodes)
	if c.Halts() {
		wanted = 1
	}

	if len(tried) != wanted {
		missing("OS %s tried on %d of %d nodes; %d tried it", version, wanted, len(record.Last.Nodes), len(tried))
	}

	resets := int32(0)

	for _, outcome := range tried {
		attempt := outcome.Attempt
		resets += outcome.Resets

		if attempt.Phase != want.Phase || attempt.Reason != want.Reason || attempt.Rung != want.Rung {
			missing("%s on node %s; it ended %s", ending(want.Phase, want.Reason, want.Rung), outcome.Node,
				ending(attempt.Phase, attempt.Reason, attempt.Rung))
		}

		if outcome.Outage <= 0 || outcome.Down <= 0 {
			missing("node %s going out of service, rebooting and coming back", outcome.Node)
		}
	}

	if resets < int32(want.MinResets) || resets > c.MaxResets { //nolint:gosec // a handful
		missing("%d to %d resets through a BMC; there were %d", want.MinResets, c.MaxResets, resets)
	}
}

func (c *Chapter) checkPool(record *Record, missing func(string, ...any)) {
	pool, version := &record.Last.Pool, c.Scenario.To.Version
	poisoned := slices.ContainsFunc(pool.Status.Poisoned, func(p v1alpha1.PoisonedRelease) bool {
		return p.Version == version && pool.Status.Release != nil && p.Digest == pool.Status.Release.Digest
	})

	switch {
	case c.Halts() && !poisoned:
		missing("the digest of OS %s poisoned; the pool has %v", version, pool.Status.Poisoned)
	case !c.Halts() && poisoned:
		missing("OS %s not poisoned", version)
	}

	if isTrue(record.Last, v1alpha1.ConditionHalted) != c.Halts() {
		missing("Halted=%v", c.Halts())
	}

	if isTrue(record.Last, v1alpha1.ConditionReady) == c.Halts() {
		missing("Ready=%v", !c.Halts())
	}
}

func ending(phase v1alpha1.Phase, reason v1alpha1.Reason, rung v1alpha1.Rung) string {
	text := fmt.Sprintf("%s (%s)", phase, reason)
	if rung != "" {
		text += " by rung " + string(rung)
	}

	return text
}

// Told is a chapter that was begun.
type Told struct {
	Chapter *Chapter
	Record  *Record
	// Err is what went wrong, nil when everything of the chapter was seen.
	Err error
}

// ErrStory means that the story was not told as it should.
var ErrStory = errors.New("the demonstration did not show what it promises")

// Verdict is nil only when every chapter of the story was told, in order, and everything in it was seen.
func Verdict(story []Chapter, told []Told) error {
	var errs []error

	for index := range story {
		if index >= len(told) {
			errs = append(errs, fmt.Errorf("%w: %s: it was not reached", ErrStory, story[index].Name))

			continue
		}

		seen := told[index]

		switch {
		case seen.Chapter == nil || seen.Chapter.Name != story[index].Name:
			errs = append(errs, fmt.Errorf("%w: %s: another was told in its place", ErrStory, story[index].Name))
		case seen.Err != nil:
			errs = append(errs, fmt.Errorf("%w: %s: %w", ErrStory, story[index].Name, seen.Err))
		default:
			if err := seen.Chapter.Check(seen.Record); err != nil {
				errs = append(errs, fmt.Errorf("%w: %s: %w", ErrStory, story[index].Name, err))
			}
		}
	}

	return errors.Join(errs...)
}
