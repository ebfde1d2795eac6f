package fault_test

import (
	"context"
	"time"

	"k8s.io/utils/clock"

	"github.com/stayput-dev/stayput/bmc"
)

const (
	poll = 2 * time.Second
	// attempts is how often a caller begins anew when nothing was sent and a retry is safe.
	attempts = 8
)

// place is where an operation runs: one BMC and a clock.
type place interface {
	open(ctx context.Context) (bmc.Machine, error)
	time() clock.Clock
	// uuid is what the machine must have.
	uuid() string
}

// operation plays what a caller of bmc.Run does: it connects, and begins anew when nothing was sent and the BMC was busy
// or out of reach.
type operation struct {
	place  place
	intent bmc.Intent
	// poll is the pause between observations, patience bounds one call; 0 means callTime.
	poll, patience time.Duration
	// limits of the plan.
	limits bmc.Limits
	// turns, when set, is held during a call of the machine.
	turns func(ctx context.Context) (release func(), err error)
	// before, when set, is called before an action is sent.
	before func()

	machine bmc.Machine
	errors  []error
}

func (o *operation) run(ctx context.Context) error {
	var err error
	for range attempts {
		var again bool
		if again, err = o.attempt(ctx); !again {
			return err
		}
		o.note(err)
		select {
		case <-o.place.time().After(max(bmc.RetryAfter(err), 5*time.Second)):
		case <-ctx.Done():
			return err
		}
	}

	return err
}

func (o *operation) attempt(ctx context.Context) (again bool, err error) {
	if o.machine == nil {
		opening, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		if o.machine, err = o.place.open(opening); err != nil {
			o.machine = nil

			return passes(err), err
		}
	}
	report, err := bmc.Run(ctx, calls{o}, o.intent, bmc.RunOptions{
		Expected: bmc.Identity{UUID: o.place.uuid()}, Poll: o.poll, Limits: o.limits, Clock: o.place.time(),
	})

	return len(report.Sent) == 0 && passes(err), err
}

func passes(err error) bool {
	kind := bmc.KindOf(err)

	return kind == bmc.Busy || kind == bmc.Transient
}

func (o *operation) note(err error) {
	if err != nil {
		o.errors = append(o.errors, err)
	}
}

func (o *operation) close(ctx context.Context) {
	if o.machine != nil {
		o.note(o.machine.Close(ctx))
	}
}

// calls bounds each call of the machine, notes its error, and takes turns.
type calls struct{ *operation }

func (c calls) call(ctx context.Context, do func(context.Context) error) error {
	patience := callTime
	if c.patience > 0 {
		patience = c.patience
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if c.turns != nil {
		release, err := c.turns(ctx)
		if err != nil {
			return err
		}
		defer release()
	}
	err := do(ctx)
	c.note(err)

	return err
}

// Identity implements bmc.Powered.
func (c calls) Identity(ctx context.Context) (identity bmc.Identity, err error) {
	err = c.call(ctx, func(ctx context.Context) error {
		identity, err = c.machine.Identity(ctx)

		return err
	})

	return identity, err
}

// Power implements bmc.Powered.
func (c calls) Power(ctx context.Context) (power bmc.Power, err error) {
	err = c.call(ctx, func(ctx context.Context) error {
		power, err = c.machine.Power(ctx)

		return err
	})

	return power, err
}

// Actions implements bmc.Powered.
func (c calls) Actions(ctx context.Context) (offered []bmc.Action, err error) {
	err = c.call(ctx, func(ctx context.Context) error {
		offered, err = c.machine.Actions(ctx)

		return err
	})

	return offered, err
}

// Do implements bmc.Powered.
func (c calls) Do(ctx context.Context, action bmc.Action) error {
	return c.call(ctx, func(ctx context.Context) error {
		if c.before != nil {
			c.before()
		}

		return c.machine.Do(ctx, action)
	})
}
