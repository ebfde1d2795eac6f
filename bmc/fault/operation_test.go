package fault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stayput-dev/stayput/bmc"
)

// Errors of an operation itself, beside those of the driver.
var (
	errExpired = errors.New("the BMC accepted it and the machine did not follow in time")
	errBlocked = errors.New("nothing that the BMC offers does it")
)

const (
	poll = 2 * time.Second
	// budget bounds an operation, by the clock.
	budget = 15 * time.Minute
	// conflictPause and conflictTries are Ironic's power_on_conflict_retry.
	conflictPause = 10 * time.Second
	conflictTries = 7
)

// decider is a plan: what to do next.
type decider = func(seen bmc.Observation, sent []bmc.Sent, now time.Time) (bmc.Step, error)

// place is where an operation runs: one BMC and a clock.
type place interface {
	open(ctx context.Context) (bmc.Machine, error)
	now() time.Time
	wait(d time.Duration)
	// uuid is what the machine must have.
	uuid() string
}

// operation plays what a caller of a Machine does: observe, check the identity, decide, act once, observe until it has
// settled. A request whose answer was lost counts as sent.
type operation struct {
	place  place
	decide decider
	// poll is the pause between observations.
	poll time.Duration
	// turns, when set, is held during a turn.
	turns func(ctx context.Context) (release func(), err error)

	machine   bmc.Machine
	sent      []bmc.Sent
	conflicts int
	errors    []error
}

func (o *operation) run(ctx context.Context) error {
	end := o.place.now().Add(budget)
	var last error
	for o.place.now().Before(end) && ctx.Err() == nil {
		pause, done, err := o.turn(ctx)
		if done {
			return err
		}
		last = err
		o.place.wait(pause)
	}
	if last != nil {
		return last
	}

	return errExpired
}

// turn is one observation with what follows from it. err is the newest failure.
func (o *operation) turn(ctx context.Context) (pause time.Duration, done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if o.turns != nil {
		release, err := o.turns(ctx)
		if err != nil {
			return o.failed(err)
		}
		defer release()
	}
	if o.machine == nil {
		if o.machine, err = o.place.open(ctx); err != nil {
			o.machine = nil

			return o.failed(err)
		}
	}
	at := o.place.now()
	power, err := o.machine.Power(ctx)
	if err != nil {
		return o.failed(err)
	}
	offered, err := o.machine.Actions(ctx)
	if err != nil {
		return o.failed(err)
	}
	step, err := o.decide(bmc.Observation{Power: power, At: at, Offered: offered}, o.sent, o.place.now())
	switch {
	case err != nil:
		return 0, true, err
	case step.Verb == bmc.Done:
		return 0, true, nil
	case step.Verb != bmc.Send:
		return o.poll, false, nil
	}
	if err := o.checkIdentity(ctx); err != nil {
		return o.failed(err)
	}
	decided := o.place.now()
	err = o.machine.Do(ctx, step.Action)
	if kind := bmc.KindOf(err); err == nil || kind == bmc.Unknown {
		o.note(err)
		o.sent = append(o.sent, bmc.Sent{Action: step.Action, At: decided})

		return o.poll, false, nil
	}

	return o.failed(err)
}

func (o *operation) checkIdentity(ctx context.Context) error {
	identity, err := o.machine.Identity(ctx)
	if err == nil && !bmc.SameUUID(identity.UUID, o.place.uuid()) {
		return &bmc.Error{Kind: bmc.Mismatch, Op: "checking the machine", Detail: "another machine answers"}
	}

	return err
}

func (o *operation) close(ctx context.Context) {
	if o.machine != nil {
		o.note(o.machine.Close(ctx))
	}
}

// failed decides whether it is worth while to look again.
func (o *operation) failed(err error) (pause time.Duration, done bool, _ error) {
	o.note(err)
	switch bmc.KindOf(err) {
	case bmc.Busy, bmc.Transient:
		return max(bmc.RetryAfter(err), 5*time.Second), false, err
	case bmc.Conflict:
		o.conflicts++

		return conflictPause, o.conflicts == conflictTries, err
	default:
		return 0, true, err
	}
}

func (o *operation) note(err error) {
	if err != nil {
		o.errors = append(o.errors, err)
	}
}

// reset is the plan of package bmc.
func reset(seen bmc.Observation, sent []bmc.Sent, now time.Time) (bmc.Step, error) {
	var step bmc.Step
	if len(sent) == 0 {
		step = bmc.IntentRestart.First(seen)
	} else {
		step = bmc.IntentRestart.Next(seen, sent[len(sent)-1], bmc.Limits{}, now)
	}
	switch step.Verb {
	case bmc.Blocked:
		return step, fmt.Errorf("%w: %s", errBlocked, step.Why)
	case bmc.Expired:
		return step, fmt.Errorf("%w: %s", errExpired, step.Why)
	default:
		return step, nil
	}
}

const powerLimit = 2 * time.Minute

// reach sends one action and waits for a power state.
func reach(action bmc.Action, want bmc.Power) decider {
	return func(seen bmc.Observation, sent []bmc.Sent, now time.Time) (bmc.Step, error) {
		switch {
		case seen.Power == want:
			return bmc.Step{Verb: bmc.Done}, nil
		case len(sent) > 0 && now.Sub(sent[0].At) > powerLimit:
			return bmc.Step{}, fmt.Errorf("%w: its power is %s", errExpired, seen.Power)
		case len(sent) > 0:
			return bmc.Step{Verb: bmc.Wait}, nil
		case !slices.Contains(seen.Offered, action):
			return bmc.Step{}, fmt.Errorf("%w: it offers %v", errBlocked, seen.Offered)
		default:
			return bmc.Step{Verb: bmc.Send, Action: action}, nil
		}
	}
}

// cycle is off, seen off, and on.
func cycle(seen bmc.Observation, sent []bmc.Sent, now time.Time) (bmc.Step, error) {
	off := slices.ContainsFunc(sent, func(s bmc.Sent) bool { return s.Action == bmc.ActionForceOff })
	on := slices.ContainsFunc(sent, func(s bmc.Sent) bool { return s.Action == bmc.ActionOn })
	switch {
	case !on && seen.Power == bmc.PowerOff:
		return bmc.Step{Verb: bmc.Send, Action: bmc.ActionOn}, nil
	case on && off:
		return reach(bmc.ActionOn, bmc.PowerOn)(seen, sent[1:], now)
	default:
		return reach(bmc.ActionForceOff, bmc.PowerOff)(seen, sent, now)
	}
}
