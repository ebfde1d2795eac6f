package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/stayput-dev/stayput/agent/health"
	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// defaultTries is how often the boot loader may start a new slot when the spec does not say.
const defaultTries = 3

// effect does what a step decided. Each is safe to repeat from its start.
type effect func(e *Engine, ctx context.Context, now world, next step) error

func effects() map[action]effect {
	return map[action]effect{
		adopt:      (*Engine).adopt,
		drop:       (*Engine).drop,
		fetch:      (*Engine).fetch,
		learn:      (*Engine).learn,
		markStaged: (*Engine).markStaged,
		unstage:    (*Engine).unstage,
		takeReady:  (*Engine).takeReady,
		arm:        (*Engine).arm,
		reboot:     (*Engine).reboot,
		giveUp:     (*Engine).giveUp,
		noteBack:   (*Engine).noteBack,
		conclude:   (*Engine).conclude,
		reopen:     (*Engine).reopen,
		disarm:     (*Engine).disarm,
		deletePods: (*Engine).deletePods,
		report:     (*Engine).report,
		settle:     (*Engine).settle,
	}
}

func (e *Engine) act(ctx context.Context, now world, next step) error {
	if next.do == fetch { // lasts longer than a pass
		return e.fetch(ctx, now, next)
	}

	ctx, cancel := context.WithTimeout(ctx, effectDeadline)
	defer cancel()

	return effects()[next.do](e, ctx, now, next)
}

func (e *Engine) adopt(_ context.Context, now world, next step) error {
	err := e.save(func(state *journal.State) {
		state.Attempt = next.attempt

		if now.fresh && now.update != nil {
			status := now.status()
			state.History = status.History
			state.Downloaded = max(state.Downloaded, status.Counters.BytesDownloaded)
			state.Written = max(state.Written, status.Counters.SlotBytesWritten)
		}
	})
	if err == nil {
		e.fresh, e.asked = false, false
	}

	return err
}

func (e *Engine) drop(_ context.Context, now world, _ step) error {
	e.stager.stop()

	return e.save(func(state *journal.State) {
		state.Attempt.End = &journal.End{
			Phase: v1alpha1.PhaseRefused, Reason: v1alpha1.ReasonAttemptSuperseded,
			Message: "another attempt was asked for before this one was armed", At: now.now,
		}
		state.Remember(recordOf(*state.Attempt))
		state.Attempt = nil
	})
}

func (e *Engine) fetch(ctx context.Context, now world, _ step) error {
	e.stager.start(ctx, *now.attempt())

	return nil
}

func (e *Engine) learn(_ context.Context, now world, next step) error {
	return e.save(func(state *journal.State) {
		state.Attempt.Config, state.Attempt.RootHash = next.image, next.image.RootHash
		state.Attempt.Signature = now.staging.signature

		if state.Images == nil {
			state.Images = map[string]string{}
		}

		state.Images[next.image.RootHash] = now.attempt().Digest
	})
}

func (e *Engine) markStaged(_ context.Context, now world, _ step) error {
	return e.save(func(state *journal.State) {
		state.Attempt.StagedAt, state.Attempt.Staging = &now.now, now.staging.progress
		state.Attempt.Signature = signatureOf(now)
	})
}

func (e *Engine) unstage(_ context.Context, now world, _ step) error {
	e.Log.Info("the spare slot no longer holds what was staged; staging again",
		"slot", now.slots.Spare.Name, "holds", now.slots.Spare.Version)

	return e.save(func(state *journal.State) { state.Attempt.StagedAt, state.Attempt.Staging = nil, nil })
}

func (e *Engine) takeReady(_ context.Context, now world, _ step) error {
	return e.save(func(state *journal.State) {
		state.Attempt.ReadyAt = &now.now
		state.Attempt.BytesAtReady = state.Downloaded + state.Written
		state.Attempt.Dialect = string(now.node.Dialect)
	})
}

func (e *Engine) arm(ctx context.Context, now world, _ step) error {
	attempt := now.attempt()

	err := e.armSpare(ctx, now)
	if err == nil {
		return nil
	}

	if end, final := armFailed(now, err); final {
		return e.conclude(ctx, now, end)
	}

	return fmt.Errorf("arming version %s: %w", attempt.Version, err)
}

func (e *Engine) armSpare(ctx context.Context, now world) error {
	attempt := now.attempt()

	if attempt.Config == nil {
		return fmt.Errorf("%w (its description is lost with the journal)", errNoConfig)
	}

	err := e.save(func(state *journal.State) {
		state.Attempt.ArmIntent, state.Attempt.ArmedEntry = now.bootID, ""
	})
	if err != nil {
		return err
	}

	err = e.Machine.SaveTrial(health.Trial{
		Attempt: attempt.ID, Version: attempt.Version, RootHash: attempt.RootHash, BootIDBefore: now.bootID, Health: attempt.Health,
	})
	if err != nil {
		return err
	}

	// A rung that is missing is shown in the status; it is the operator's choice to go on without.
	if err := e.Machine.EnsureWatchdog(ctx); err != nil {
		e.Log.Error(err, "the hardware watchdog cannot be switched on; going on without")
	}

	tries := int(attempt.Reboot.Tries)
	if tries <= 0 {
		tries = defaultTries
	}

	if err := e.Scheme.Arm(ctx, *attempt.Config, tries); err != nil {
		return err
	}

	after, err := e.Scheme.Observe(ctx)
	if err != nil {
		return fmt.Errorf("looking at the armed slot: %w", err)
	}

	if after.Spare.RootHash != attempt.RootHash || after.Spare.Entry == "" {
		return fmt.Errorf("%w: slot %s has boot entry %q", errNotArmed, after.Spare.Name, after.Spare.Entry)
	}

	return e.save(func(state *journal.State) {
		state.Attempt.ArmedEntry = after.Spare.Entry

		if state.Tries == nil {
			state.Tries = map[string]int{}
		}

		state.Tries[attempt.Digest]++
	})
}

func (e *Engine) reboot(ctx context.Context, now world, next step) error {
	err := e.save(func(state *journal.State) {
		attempt := state.Attempt
		if attempt.RebootBoot != now.bootID {
			attempt.RebootSince = &now.now
		}

		if attempt.RebootedAt == nil {
			attempt.RebootedAt = &now.now
		}

		if next.passedBy {
			attempt.PassedBy++
		}

		attempt.RebootAskedAt, attempt.RebootBoot = &now.now, now.bootID
	})
	if err != nil {
		return err
	}

	// The BMC rung watches a machine only once it knows that the machine was told to reboot. When the API server is
	// away that must not hold the node up: it is drained and was told to go.
	now.journal = e.state
	e.statusRetry = time.Time{}
	e.show(ctx, now, next)

	if err := e.Machine.Reboot(ctx); err != nil {
		return fmt.Errorf("asking for the reboot: %w", err)
	}

	e.asked = true

	return nil
}

func (e *Engine) giveUp(ctx context.Context, now world, next step) error {
	if err := e.Scheme.MarkBad(ctx); err != nil {
		e.Log.Error(err, "the trial boot cannot be marked bad; its tries have to run out")
	}

	return e.reboot(ctx, now, next)
}

func (e *Engine) noteBack(_ context.Context, now world, _ step) error {
	e.asked = false

	return e.save(func(state *journal.State) { state.Attempt.BackAt, state.Attempt.BackBoot = &now.now, now.bootID })
}

func (e *Engine) conclude(ctx context.Context, now world, next step) error {
	end := *next.end

	switch end.Reason {
	case v1alpha1.ReasonKernelOrInitrdFailed, v1alpha1.ReasonGateInterrupted:
		if seen := e.Machine.Excerpt(ctx, now.attempt().RebootBoot); seen != "" {
			end.Message = cut(end.Message + "; last seen: " + seen)
		}
	default:
	}

	return e.save(func(state *journal.State) { state.Attempt.End = &end })
}

func (e *Engine) reopen(_ context.Context, now world, _ step) error {
	e.Log.Info("the attempt had ended, but its slot runs now; going on with it", "end", now.attempt().End.Reason)

	return e.save(func(state *journal.State) { state.Attempt.End = nil })
}

func (e *Engine) disarm(ctx context.Context, _ world, _ step) error {
	if err := e.Scheme.Disarm(ctx); err != nil {
		return fmt.Errorf("disarming the spare slot: %w", err)
	}

	if err := e.Machine.RemoveTrial(); err != nil {
		return err
	}

	return e.save(func(state *journal.State) { state.Attempt.Disarmed = true })
}

func (e *Engine) deletePods(ctx context.Context, _ world, _ step) error {
	count, err := e.Cluster.DeletePods(ctx)
	if err != nil {
		return fmt.Errorf("deleting the pods of the node: %w", err)
	}

	e.Log.Info("deleted the pods of the node, so that they start anew", "count", count)

	return e.save(func(state *journal.State) { state.Attempt.PodsDeleted = true })
}

func (e *Engine) report(ctx context.Context, now world, next step) error {
	attempt := now.attempt()

	if e.show(ctx, now, next); !e.statusRetry.IsZero() {
		return fmt.Errorf("reporting the result: %w", errStatusFirst)
	}

	node := e.Cluster.Node()
	if node == nil {
		return fmt.Errorf("reporting the result: %w", errNoNode)
	}

	dialect := protocol.Dialect(attempt.Dialect)
	if now.node.Dialect != "" {
		dialect = now.node.Dialect
	}

	patch := protocol.Succeed(node, dialect, attempt.ID)
	if attempt.End.Phase != v1alpha1.PhaseSucceeded {
		patch = protocol.Fail(node, dialect, attempt.ID, attempt.End.Message)
	}

	if patch != nil {
		if err := e.Cluster.PatchNode(ctx, *patch); err != nil {
			return fmt.Errorf("reporting the result on the Node: %w", err)
		}
	}

	e.reported = e.Clock.Now()

	return e.save(func(state *journal.State) { state.Attempt.Reported = true })
}

func (e *Engine) settle(_ context.Context, now world, _ step) error {
	if err := e.Machine.RemoveTrial(); err != nil {
		return err
	}

	return e.save(func(state *journal.State) {
		state.Attempt.SettledAt = &now.now
		state.Remember(recordOf(*state.Attempt))
	})
}
