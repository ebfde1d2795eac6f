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
	// observe reads the power.
	observe(ctx context.Context) (bmc.Observation, error)
	// send sends an action.
	send(ctx context.Context, action bmc.Action) error
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
	for range maxSteps {
		decision := Decide(w, clk.Now())
		switch decision.Verb {
		case Rest:
			return 0, nil
		case Wait:
			return decision.After, storeIfNew(ctx, do, w.Status, decision.Status)
		case Observe:
			w = observe(ctx, do, w)
		case Record:
			if w, err = record(ctx, do, w, decision); err != nil {
				return 0, err
			}
		case Withdraw:
			return decision.After, do.restore(ctx, w.Recorded, decision.Status)
		case Send:
			return send(ctx, do, w, decision.Action, clk)
		default:
			return 0, fmt.Errorf("carrying out decision %q: %w", decision.Verb, errNoSuchVerb)
		}
	}

	return retryAtOnce, nil
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
	seen, err := do.observe(ctx)
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
	fresh.PhaseBefore, fresh.HostBefore = w.Phase, w.Host

	return fresh, nil
}

// send sends the action and stores what came of it. When that cannot be stored, the intent stays without a time of
// sending, which the next pass takes for sent.
func send(ctx context.Context, do effects, w World, action bmc.Action, clk clock.PassiveClock) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("sending %s: %w", action, err)
	}
	sendErr := do.send(ctx, action)
	status, withdrawn := AfterSend(w, sendErr, clk.Now())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if err := do.restore(ctx, w.Recorded, status); err != nil {
		return 0, err
	}
	if withdrawn {
		return max(pollHost, bmc.RetryAfter(sendErr)), nil
	}

	return pollPower, nil
}
