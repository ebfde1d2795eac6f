package outofband

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/clock"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

// effects are all that a pass can do to the world.
type effects interface {
	// load reads everything but the power, live.
	load(ctx context.Context) (World, error)
	// store writes the status if nothing has changed since the last load or store; otherwise it fails.
	store(ctx context.Context, status *v1alpha1.OutOfBandStatus) error
	// restore writes the status whatever else has changed, as long as the stored intent is still the one named.
	restore(ctx context.Context, intent string, status *v1alpha1.OutOfBandStatus) error
	// observe reads the power. fromDisk asks the firmware for the disk at the next boot first, and boot says what came of it.
	observe(ctx context.Context, fromDisk bool) (seen bmc.Observation, boot string, err error)
	// answers tells whether the machine's operating system answers on the network.
	answers(ctx context.Context) bool
	// permit tells what forbids that a reset begins now, though nothing of this machine does; with no reason: nothing.
	permit(ctx context.Context, w World) (Problem, error)
	// alone calls act while no other has the host's power. It gives why it was not called; with no reason: it was.
	alone(ctx context.Context, act func(ctx context.Context) error) (Problem, error)
	// send sends an action. begins tells that it begins a reset.
	send(ctx context.Context, action bmc.Action, begins bool) error
	// evidence collects what the BMC tells of the machine.
	evidence(ctx context.Context) *v1alpha1.PowerEvidence
}

// maxSteps bounds a pass; the longest is: observe, record, observe, send.
const maxSteps = 8

// writeTimeout bounds the write after an action. It is made even when the pass is being cancelled.
const writeTimeout = 20 * time.Second

var errNoSuchVerb = errors.New("there is no such verb")

// pass carries out decisions until one of them is to wait, and gives the time after which to look again; 0: at the
// next event. An error of the API server ends the pass; the next one starts from what is stored.
func pass(ctx context.Context, do effects, clk clock.PassiveClock) (time.Duration, error) {
	w, err := do.load(ctx)
	if err != nil {
		return 0, err
	}

	return carryOut(ctx, do, w, clk)
}

func carryOut(ctx context.Context, do effects, w World, clk clock.PassiveClock) (time.Duration, error) {
	for range maxSteps {
		decision := Decide(w, clk.Now())
		switch decision.Verb {
		case Rest:
			return 0, nil
		case Wait:
			return decision.After, conclude(ctx, do, w, decision.Status)
		case Observe:
			w = observe(ctx, do, w)
		case Record:
			after, stop, err := act(ctx, do, w, decision, clk)
			if stop.Reason == "" {
				return after, err
			}
			w.Problem = &stop
		case Withdraw:
			return decision.After, restore(ctx, do, w, decision.Status)
		case Send:
			return send(ctx, do, w, decision.Action, clk)
		default:
			return 0, fmt.Errorf("carrying out decision %q: %w", decision.Verb, errNoSuchVerb)
		}
	}

	return retryAtOnce, nil
}

// act stores an intent and carries out what is decided of it, while no other has the host's power. With a reason to stop
// nothing was stored.
func act(
	ctx context.Context, do effects, w World, decision Decision, clk clock.PassiveClock,
) (after time.Duration, stop Problem, err error) {
	if decision.Begins {
		if stop, err = do.permit(ctx, w); stop.Reason != "" || err != nil {
			return 0, stop, err
		}
		if w.asksOS() && do.answers(ctx) {
			w.Answers = true
			decision = Decide(w, clk.Now())
		}
	}
	stop, err = do.alone(ctx, func(ctx context.Context) error {
		recorded, err := record(ctx, do, w, decision)
		if err != nil {
			return err
		}
		after, err = carryOut(ctx, do, recorded, clk)

		return err
	})

	return after, stop, err
}

// conclude stores what a pass ends with, and then, where a person is asked by it, what the BMC tells: that may take its
// time.
func conclude(ctx context.Context, do effects, w World, after *v1alpha1.OutOfBandStatus) error {
	before := w.Status
	if w.Corrected {
		before = nil // what is stored differs
	}
	if err := storeIfNew(ctx, do, before, after); err != nil {
		return err
	}
	// A BMC whose power could not be read tells nothing else; when it can be, it is asked.
	if w.Seen == nil || !w.wantsEvidence(after) {
		return nil
	}
	after = after.DeepCopy()
	after.Evidence = do.evidence(ctx)

	return do.store(ctx, after)
}

// storeIfNew spares the API server a write, and us the event that it would make.
func storeIfNew(ctx context.Context, do effects, before, after *v1alpha1.OutOfBandStatus) error {
	if after == nil || equality.Semantic.DeepEqual(before, after) {
		return nil
	}

	return do.store(ctx, after)
}

// observe adds the power, or why it cannot be read.
func observe(ctx context.Context, do effects, w World) World {
	fromDisk := w.Recorded != "" && w.Status.Intent != nil && w.Status.Intent.BootFrom != ""
	seen, boot, err := do.observe(ctx, fromDisk)
	w.BootSet = boot
	if err != nil {
		w.Problem = problemOf(err)

		return w
	}
	seen.KeepPowered = w.Host.KeepPowered
	w.Seen = &seen

	return w
}

// record stores an intent and forgets everything else that was known.
func record(ctx context.Context, do effects, w World, decision Decision) (World, error) {
	if err := do.store(ctx, decision.Status); err != nil {
		return World{}, err
	}
	fresh, err := do.load(ctx)
	if err != nil {
		return World{}, err
	}
	fresh.Recorded, fresh.Before = decision.Status.Intent.ID, w.Status
	fresh.PhaseBefore, fresh.HostBefore, fresh.Begins = w.Phase, w.Host, decision.Begins

	return fresh, nil
}

// send sends the action and stores what came of it. When that cannot be stored, the intent stays without a time of
// sending, which the next pass takes for sent.
func send(ctx context.Context, do effects, w World, action bmc.Action, clk clock.PassiveClock) (time.Duration, error) {
	sendErr := ctx.Err()
	if sendErr == nil {
		sendErr = do.send(ctx, action, w.Begins)
	}
	status, withdrawn := AfterSend(w, sendErr, clk.Now())
	if err := restore(ctx, do, w, status); err != nil {
		return 0, err
	}
	if withdrawn {
		return max(pollHost, bmc.RetryAfter(sendErr)), nil
	}

	return pollPower, nil
}

// restore stores what came of the stored intent, also when the pass is being cancelled: an intent that was certainly not
// sent must not be taken for sent.
func restore(ctx context.Context, do effects, w World, status *v1alpha1.OutOfBandStatus) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()

	return do.restore(ctx, w.Recorded, status)
}
