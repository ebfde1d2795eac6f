package bmc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/utils/clock"
)

// Powered is the part of a Machine that Run needs.
type Powered interface {
	Identity(ctx context.Context) (Identity, error)
	Power(ctx context.Context) (Power, error)
	Actions(ctx context.Context) ([]Action, error)
	Do(ctx context.Context, action Action) error
}

// RunOptions say how an intent is carried out. The zero value is a good one.
type RunOptions struct {
	// Expected is what the machine must be, as far as its BMC tells: UUID and Serial count, where both sides have one.
	Expected Identity
	// Required is what the machine must be shown to be: a BMC that does not tell it is refused.
	Required Identity
	// KeepPowered forbids every action that switches the machine off and leaves it to another to switch it on again.
	KeepPowered bool
	// DryRun ends with the first action instead of sending it.
	DryRun bool
	// Limits of the plan. A caller that waits longer raises them: a plan ends with its own limits, not with ctx.
	Limits Limits
	// Poll is the pause between two readings of the power. Default 2 s.
	Poll time.Duration
	// Progress, when set, is told each step that is another than the one before.
	Progress func(step Step)
	// Clock is the real one when nil.
	Clock clock.Clock
}

// Report is what came of an intent, as far as it got.
type Report struct {
	// Intent is what was wanted.
	Intent Intent `json:"intent"`
	// Identity is the machine's.
	Identity Identity `json:"identity"`
	// Before is the power as it was read before anything was sent, Observed as it was read last, and ObservedAt when.
	Before     Power     `json:"before"`
	Observed   Power     `json:"observed"`
	ObservedAt time.Time `json:"observedAt"`
	// Sent are the actions that were sent, or may have been, in their order. With DryRun it is the one that would be.
	Sent []Sent `json:"sent"`
	// Accepted tells whether the BMC accepted all of them. Of one whose answer was lost that is not known.
	Accepted bool `json:"accepted"`
	// Verb is the last step's: Done; Send with DryRun; another one when there is an error.
	Verb Verb `json:"verb"`
	// Why says in words what the last step rests on.
	Why string `json:"why"`
	// Elapsed is how long it took.
	Elapsed time.Duration `json:"elapsed"`
}

const (
	defaultPoll = 2 * time.Second
	// refusedTries is how often an action that names a state, On or ForceOff, is offered to a BMC that refuses it for now,
	// and refusedPause the pause in between: iDRAC10 refuses On for up to a minute after off (Ironic's
	// power_on_conflict_retry: 6 times, 10 s).
	refusedTries = 6
	refusedPause = 10 * time.Second
	// awayLimit is how long a BMC may be away after an action: a restart of its own takes up to six minutes.
	awayLimit = 7 * time.Minute
)

// Run carries out an intent: it reads the state, checks which machine answers, sends one action, observes until the
// power is as it shall be or the time is up, and so on to the end of the plan. It never sends an action again whose
// answer was lost; one that the BMC has refused for now is offered again only if it names a state (On, ForceOff).
//
// The error is nil when the last step is Done, or with DryRun. Otherwise it is an *Error: of kind Unsupported when
// nothing that the BMC offers leads there, NotFollowed when the machine did not follow in time, or the BMC's own. The
// report tells how far it got in each case. When ctx ends the plan stops where it is. An error that leaves a machine off
// that was to be on says so with LeftOff; and a plan that switches off and on is not begun, with an error of kind
// Unsupported, when ctx ends before the machine can be expected to be on again (see Limits.Needs).
func Run(ctx context.Context, machine Powered, intent Intent, options RunOptions) (Report, error) {
	if options.Poll <= 0 {
		options.Poll = defaultPoll
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	options.Limits = options.Limits.withDefaults()
	r := &run{
		machine: machine, options: options, began: options.Clock.Now(),
		report: Report{Intent: intent, Accepted: true},
	}
	err := r.leftOff(r.play(ctx))
	r.report.Elapsed = options.Clock.Since(r.began)

	return r.report, err
}

type run struct {
	machine Powered
	options RunOptions
	began   time.Time
	report  Report
	seen    Observation
	// refused counts the refusals of the present action.
	refused int
	shown   string
}

func (r *run) play(ctx context.Context) error {
	if err := r.prepare(ctx); err != nil {
		return err
	}
	for {
		step := r.next()
		r.show(step)
		switch step.Verb {
		case Done:
			return nil
		case Blocked:
			return r.fail(Unsupported, step.Why)
		case Expired:
			return r.fail(NotFollowed, step.Why+"; look at its console, or at the BMC's log")
		case Send:
			if r.options.DryRun {
				r.report.Sent = append(r.report.Sent, Sent{Action: step.Action})

				return nil
			}
			if err := r.holds(ctx, step.Action); err != nil {
				return err
			}
			if err := r.send(ctx, step.Action); err != nil {
				return err
			}
		case Wait:
		}
		if err := r.look(ctx); err != nil {
			return err
		}
	}
}

// prepare reads all that decides whether anything may be done.
func (r *run) prepare(ctx context.Context) error {
	var err error
	if r.report.Identity, err = r.machine.Identity(ctx); err != nil {
		return err
	}
	if err := CheckIdentity(r.report.Identity, r.options.Expected); err != nil {
		return err
	}
	if err := RequireIdentity(r.report.Identity, r.options.Required); err != nil {
		return err
	}
	if r.seen.Offered, err = r.machine.Actions(ctx); err != nil {
		return err
	}
	r.seen.KeepPowered = r.options.KeepPowered
	if err := r.read(ctx); err != nil {
		return err
	}
	r.report.Before = r.seen.Power

	return nil
}

// holds refuses to switch a machine off that is to be on in the end, when the time does not last until it can be switched
// on.
func (r *run) holds(ctx context.Context, action Action) error {
	deadline, bounded := ctx.Deadline()
	needs := r.options.Limits.Needs(action)
	if !bounded || action.boots() || r.report.Intent.endsOff() || time.Until(deadline) >= needs {
		return nil
	}

	return r.fail(Unsupported, fmt.Sprintf("nothing was sent: %s, and seeing it through takes up to %s, but the time is up in %s; give it "+
		"more time", action, needs, max(0, time.Until(deadline)).Round(time.Second)))
}

// leftOff adds to an error that the machine was switched off, or may go off, where it was to be on in the end.
func (r *run) leftOff(err error) error {
	sent := r.report.Sent
	if err == nil || r.options.DryRun || r.report.Intent.endsOff() || len(sent) == 0 {
		return err
	}
	took := slices.ContainsFunc(sent, func(each Sent) bool { return each.Action != ActionOn })
	if !took || sent[len(sent)-1].Action.boots() && r.report.Observed != PowerOff {
		return err
	}
	failed := Error{Kind: KindOf(err), Op: "power intent " + string(r.report.Intent), Detail: err.Error(), Err: err}
	if ours, ok := errors.AsType[*Error](err); ok {
		failed = *ours
	}
	failed.LeftOff = true
	failed.Detail += "; it was switched off, or may still go off, and nobody switches it on now: switch it on"

	return &failed
}

func (r *run) fail(kind Kind, detail string) error {
	return &Error{Kind: kind, Op: "power intent " + string(r.report.Intent), Detail: detail}
}

// next decides by what was seen. A machine whose power does not settle cannot be begun with for ever.
func (r *run) next() Step {
	now := r.options.Clock.Now()
	sent := r.report.Sent
	if len(sent) > 0 {
		return r.report.Intent.Next(r.seen, sent[len(sent)-1], r.options.Limits, now)
	}
	step := r.report.Intent.First(r.seen)
	if step.Verb == Wait && now.Sub(r.began) >= r.options.Limits.On {
		return Step{Verb: Expired, Why: fmt.Sprintf("%s for %s and does not settle", whyPower(r.seen), r.options.Limits.On)}
	}

	return step
}

func (r *run) show(step Step) {
	r.report.Verb, r.report.Why = step.Verb, step.Why
	if text := fmt.Sprint(step); r.options.Progress != nil && text != r.shown {
		r.shown = text
		r.options.Progress(step)
	}
}

// send sends an action. A refusal that may pass leaves the plan where it is.
func (r *run) send(ctx context.Context, action Action) error {
	err := r.machine.Do(ctx, action)
	kind := KindOf(err)
	names := action == ActionOn || action == ActionForceOff
	switch {
	case err == nil || kind == Unknown:
		// After the answer, so that no reading from before it counts.
		r.report.Sent = append(r.report.Sent, Sent{Action: action, At: r.options.Clock.Now()})
		r.report.Accepted = r.report.Accepted && err == nil
		r.refused = 0

		return nil
	case names && (kind == Busy || kind == Conflict) && r.refused < refusedTries:
		r.refused++

		return r.pause(ctx, max(RetryAfter(err), refusedPause))
	default:
		r.report.Accepted = false

		return err
	}
}

// look waits a moment and reads the power. Once something was sent, a BMC that does not answer for a while is put up
// with: it may be the very machine's power that it lost.
func (r *run) look(ctx context.Context) error {
	for {
		if err := r.pause(ctx, r.options.Poll); err != nil {
			return err
		}
		err := r.read(ctx)
		kind := KindOf(err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil, kind != Transient && kind != Busy && kind != Unknown:
			return err
		case r.options.Clock.Since(r.lastAct()) >= r.patience():
			return r.fail(NotFollowed, fmt.Sprintf("the power could not be read for %s: %v", r.patience(), err))
		}
	}
}

// lastAct is when the last action was sent; when there is none, when all began.
func (r *run) lastAct() time.Time {
	if sent := r.report.Sent; len(sent) > 0 {
		return sent[len(sent)-1].At
	}

	return r.began
}

// patience is how long after the last action the power may stay unread.
func (r *run) patience() time.Duration {
	return max(awayLimit, r.options.Limits.Off, r.options.Limits.On, r.options.Limits.Shutdown)
}

func (r *run) read(ctx context.Context) error {
	at := r.options.Clock.Now()
	power, err := r.machine.Power(ctx)
	if err != nil {
		return err
	}
	r.seen.Power, r.seen.At = power, at
	r.report.Observed, r.report.ObservedAt = power, at

	return nil
}

func (r *run) pause(ctx context.Context, length time.Duration) error {
	timer := r.options.Clock.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return r.stopped(ctx)
	}
}

func (r *run) stopped(ctx context.Context) error {
	kind := Transient
	if len(r.report.Sent) > 0 {
		kind = Unknown
	}
	why := "interrupted"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		why = "the time is up"
	}

	return &Error{
		Kind: kind, Op: "power intent " + string(r.report.Intent), Err: ctx.Err(),
		Detail: fmt.Sprintf("%s; the machine's power was %s; sent so far: %v", why, r.report.Observed, r.report.Actions()),
	}
}

// Actions are those of Sent, in their order.
func (r Report) Actions() []Action {
	actions := make([]Action, 0, len(r.Sent))
	for _, each := range r.Sent {
		actions = append(actions, each.Action)
	}

	return actions
}
