package bmc_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stayput-dev/stayput/bmc"
)

// jumping is a clock on which every wait is over at once.
type jumping struct{ *clocktesting.FakeClock }

func (j jumping) NewTimer(length time.Duration) clock.Timer {
	timer := j.FakeClock.NewTimer(length)
	j.Step(length)

	return timer
}

// liar is a machine behind a BMC that does not always tell the truth.
type liar struct {
	clock    *clocktesting.FakeClock
	identity bmc.Identity
	power    bmc.Power
	offered  []bmc.Action
	// latency is how long a change of power takes; stale, how long the BMC tells the old state after that.
	latency, stale time.Duration
	// ignores are the actions that are accepted and do nothing; loses those whose answers are lost, though they are done.
	ignores, loses []bmc.Action
	// refuses are given out for actions, one a call.
	refuses []error
	// unread are given out for readings, one a call.
	unread []error
	// stuck is the state that it tells for ever once anything was sent.
	stuck bmc.Power

	acts    []bmc.Action
	changes []change
	reads   int
}

type change struct {
	at    time.Time
	power bmc.Power
}

func (l *liar) Identity(context.Context) (bmc.Identity, error) { return l.identity, nil }

func (l *liar) Actions(context.Context) ([]bmc.Action, error) { return l.offered, nil }

func (l *liar) Power(context.Context) (bmc.Power, error) {
	l.reads++
	if len(l.unread) > 0 {
		err := l.unread[0]
		l.unread = l.unread[1:]
		if err != nil {
			return bmc.PowerUnknown, err
		}
	}
	if l.stuck != "" && len(l.acts) > 0 {
		return l.stuck, nil
	}
	told := l.power
	for _, each := range l.changes {
		if !l.clock.Now().Before(each.at.Add(l.stale)) {
			told = each.power
		}
	}

	return told, nil
}

func (l *liar) Do(_ context.Context, action bmc.Action) error {
	if len(l.refuses) > 0 {
		err := l.refuses[0]
		l.refuses = l.refuses[1:]
		if err != nil {
			return err
		}
	}
	l.acts = append(l.acts, action)
	done := l.clock.Now().Add(l.latency)
	if !slices.Contains(l.ignores, action) {
		switch action {
		case bmc.ActionOn:
			l.changes = append(l.changes, change{done, bmc.PowerOn})
		case bmc.ActionForceOff, bmc.ActionShutdown:
			l.changes = append(l.changes, change{done, bmc.PowerOff})
		case bmc.ActionForceRestart, bmc.ActionSoftRestart, bmc.ActionPowerCycle:
			l.changes = append(l.changes, change{l.clock.Now(), bmc.PowerOff}, change{done, bmc.PowerOn})
		}
	}
	if slices.Contains(l.loses, action) {
		return &bmc.Error{Kind: bmc.Unknown, Op: "sending", Detail: "the answer was lost"}
	}

	return nil
}

func everyAction() []bmc.Action {
	return []bmc.Action{
		bmc.ActionOn, bmc.ActionForceOff, bmc.ActionForceRestart, bmc.ActionShutdown, bmc.ActionSoftRestart, bmc.ActionPowerCycle,
	}
}

func newLiar(power bmc.Power) *liar {
	return &liar{
		clock: clocktesting.NewFakeClock(startTime()), power: power, offered: everyAction(), latency: 3 * time.Second,
		identity: bmc.Identity{UUID: "11111111-1111-4111-8111-111111111111", Serial: "S1"},
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	busy := &bmc.Error{Kind: bmc.Busy, Op: "sending", Detail: "not now"}
	conflict := &bmc.Error{Kind: bmc.Conflict, Op: "sending", Detail: "ActionParameterValueConflict"}
	lost := &bmc.Error{Kind: bmc.Transient, Op: "reading", Detail: "connection refused"}
	refused := &bmc.Error{Kind: bmc.Auth, Op: "reading", Detail: "401"}
	only := func(actions ...bmc.Action) func(*liar) { return func(l *liar) { l.offered = actions } }

	for name, test := range map[string]struct {
		intent  bmc.Intent
		power   bmc.Power
		change  func(l *liar)
		options bmc.RunOptions

		kind     bmc.Kind // of the error; "" for none
		acts     []bmc.Action
		observed bmc.Power
	}{
		"on":          {intent: bmc.IntentOn, power: bmc.PowerOff, acts: []bmc.Action{bmc.ActionOn}, observed: bmc.PowerOn},
		"on already":  {intent: bmc.IntentOn, power: bmc.PowerOn, observed: bmc.PowerOn},
		"off":         {intent: bmc.IntentOff, power: bmc.PowerOn, acts: []bmc.Action{bmc.ActionForceOff}, observed: bmc.PowerOff},
		"off already": {intent: bmc.IntentOff, power: bmc.PowerOff, observed: bmc.PowerOff},
		"shutdown":    {intent: bmc.IntentShutdown, power: bmc.PowerOn, acts: []bmc.Action{bmc.ActionShutdown}, observed: bmc.PowerOff},
		"a shutdown that is not heard never becomes hard": {
			intent: bmc.IntentShutdown, power: bmc.PowerOn, change: func(l *liar) { l.ignores = everyAction() },
			kind: bmc.NotFollowed, acts: []bmc.Action{bmc.ActionShutdown}, observed: bmc.PowerOn,
		},
		"restart": {intent: bmc.IntentRestart, power: bmc.PowerOn, acts: []bmc.Action{bmc.ActionForceRestart}, observed: bmc.PowerOn},
		"a restart without one": {
			intent: bmc.IntentRestart, power: bmc.PowerOn, change: only(bmc.ActionOn, bmc.ActionForceOff),
			acts: []bmc.Action{bmc.ActionForceOff, bmc.ActionOn}, observed: bmc.PowerOn,
		},
		"a restart of a machine that is off": {
			intent: bmc.IntentRestart, power: bmc.PowerOff, acts: []bmc.Action{bmc.ActionOn}, observed: bmc.PowerOn,
		},
		"a soft restart": {
			intent: bmc.IntentSoftRestart, power: bmc.PowerOn, acts: []bmc.Action{bmc.ActionSoftRestart}, observed: bmc.PowerOn,
		},
		"a soft restart without one": {
			intent: bmc.IntentSoftRestart, power: bmc.PowerOn, change: only(bmc.ActionOn, bmc.ActionShutdown),
			acts: []bmc.Action{bmc.ActionShutdown, bmc.ActionOn}, observed: bmc.PowerOn,
		},
		"a cycle": {
			intent: bmc.IntentCycle, power: bmc.PowerOn, acts: []bmc.Action{bmc.ActionForceOff, bmc.ActionOn}, observed: bmc.PowerOn,
		},
		"a cycle whose off is told late": {
			intent: bmc.IntentCycle, power: bmc.PowerOn, change: func(l *liar) { l.stale = 30 * time.Second },
			acts: []bmc.Action{bmc.ActionForceOff, bmc.ActionOn}, observed: bmc.PowerOn,
		},
		"a cycle in one": {
			intent: bmc.IntentCycle, power: bmc.PowerOn, change: only(bmc.ActionOn, bmc.ActionPowerCycle),
			acts: []bmc.Action{bmc.ActionPowerCycle}, observed: bmc.PowerOn,
		},
		"nothing is offered": {
			intent: bmc.IntentCycle, power: bmc.PowerOn, change: only(), kind: bmc.Unsupported, observed: bmc.PowerOn,
		},
		"it must keep its power": {
			intent: bmc.IntentOff, power: bmc.PowerOn, options: bmc.RunOptions{KeepPowered: true}, kind: bmc.Unsupported,
			observed: bmc.PowerOn,
		},
		"accepted, and nothing happens": {
			intent: bmc.IntentOff, power: bmc.PowerOn, change: func(l *liar) { l.ignores = everyAction() },
			kind: bmc.NotFollowed, acts: []bmc.Action{bmc.ActionForceOff}, observed: bmc.PowerOn,
		},
		"going off for ever": {
			intent: bmc.IntentCycle, power: bmc.PowerOn, change: func(l *liar) { l.stuck = bmc.PowerTransition },
			kind: bmc.NotFollowed, acts: []bmc.Action{bmc.ActionForceOff}, observed: bmc.PowerTransition,
		},
		"the power never settles": {
			intent: bmc.IntentOn, power: bmc.PowerTransition, kind: bmc.NotFollowed, observed: bmc.PowerTransition,
		},
		"the answer is lost, and it was done": {
			intent: bmc.IntentOff, power: bmc.PowerOn, change: func(l *liar) { l.loses = everyAction() },
			acts: []bmc.Action{bmc.ActionForceOff}, observed: bmc.PowerOff,
		},
		"the answer is lost, and it was not done": {
			intent: bmc.IntentOff, power: bmc.PowerOn, change: func(l *liar) { l.loses, l.ignores = everyAction(), everyAction() },
			kind: bmc.NotFollowed, acts: []bmc.Action{bmc.ActionForceOff}, observed: bmc.PowerOn,
		},
		"On is refused for a while": {
			intent: bmc.IntentCycle, power: bmc.PowerOn,
			change: func(l *liar) { l.refuses = []error{nil, conflict, conflict, busy} },
			acts:   []bmc.Action{bmc.ActionForceOff, bmc.ActionOn}, observed: bmc.PowerOn,
		},
		"On is refused for good": {
			intent: bmc.IntentOn, power: bmc.PowerOff, change: func(l *liar) { l.refuses = slices.Repeat([]error{conflict}, 50) },
			kind: bmc.Conflict, observed: bmc.PowerOff,
		},
		"a restart that is refused is not tried again": {
			intent: bmc.IntentRestart, power: bmc.PowerOn, change: func(l *liar) { l.refuses = []error{busy} },
			kind: bmc.Busy, observed: bmc.PowerOn,
		},
		"the BMC is away for a while": {
			intent: bmc.IntentOff, power: bmc.PowerOn, change: func(l *liar) { l.unread = []error{nil, lost, lost, lost} },
			acts: []bmc.Action{bmc.ActionForceOff}, observed: bmc.PowerOff,
		},
		"the BMC stays away": {
			intent: bmc.IntentOff, power: bmc.PowerOn,
			change: func(l *liar) { l.unread = append([]error{nil}, slices.Repeat([]error{lost}, 1000)...) },
			kind:   bmc.NotFollowed, acts: []bmc.Action{bmc.ActionForceOff}, observed: bmc.PowerOn,
		},
		"the BMC is away before anything is sent": {
			intent: bmc.IntentOff, power: bmc.PowerOn, change: func(l *liar) { l.unread = []error{lost} }, kind: bmc.Transient,
		},
		"credentials are refused meanwhile": {
			intent: bmc.IntentOff, power: bmc.PowerOn, change: func(l *liar) { l.unread = []error{nil, refused} },
			kind: bmc.Auth, acts: []bmc.Action{bmc.ActionForceOff}, observed: bmc.PowerOn,
		},
		"another machine by its UUID": {
			intent: bmc.IntentOff, power: bmc.PowerOn, kind: bmc.Mismatch,
			options: bmc.RunOptions{Expected: bmc.Identity{UUID: "22222222-2222-4222-8222-222222222222"}},
		},
		"another machine by its serial number": {
			intent: bmc.IntentOff, power: bmc.PowerOn, kind: bmc.Mismatch, options: bmc.RunOptions{Expected: bmc.Identity{Serial: "S2"}},
		},
		"a BMC that tells no UUID, where one was only learned": {
			intent: bmc.IntentOff, power: bmc.PowerOn, change: func(l *liar) { l.identity = bmc.Identity{} },
			options: bmc.RunOptions{Expected: bmc.Identity{UUID: "22222222-2222-4222-8222-222222222222", Serial: "S1"}},
			acts:    []bmc.Action{bmc.ActionForceOff}, observed: bmc.PowerOff,
		},
		"a BMC that tells no UUID, where one is required": {
			intent: bmc.IntentOff, power: bmc.PowerOn, kind: bmc.Mismatch, change: func(l *liar) { l.identity.UUID = "Not Settable" },
			options: bmc.RunOptions{Required: bmc.Identity{UUID: "11111111-1111-4111-8111-111111111111"}},
		},
		"a BMC that tells no serial number, where one is required": {
			intent: bmc.IntentOff, power: bmc.PowerOn, kind: bmc.Mismatch, change: func(l *liar) { l.identity.Serial = " " },
			options: bmc.RunOptions{Required: bmc.Identity{UUID: "11111111-1111-4111-8111-111111111111", Serial: "S1"}},
		},
		"the power is unknown, and there is no restart": {
			intent: bmc.IntentRestart, power: bmc.PowerUnknown, change: only(bmc.ActionOn, bmc.ActionForceOff),
			kind: bmc.Unsupported, observed: bmc.PowerUnknown,
		},
		"the power is unknown, and it shall be cycled": {
			intent: bmc.IntentCycle, power: bmc.PowerUnknown, change: only(bmc.ActionOn, bmc.ActionForceOff, bmc.ActionForceRestart),
			kind: bmc.Unsupported, observed: bmc.PowerUnknown,
		},
		"the power changes for ever, and it shall be cycled": {
			intent: bmc.IntentCycle, power: bmc.PowerTransition, change: only(bmc.ActionOn, bmc.ActionForceOff),
			kind: bmc.NotFollowed, observed: bmc.PowerTransition,
		},
		"the power is unknown, and it is cycled in one": {
			intent: bmc.IntentCycle, power: bmc.PowerUnknown, acts: []bmc.Action{bmc.ActionPowerCycle}, observed: bmc.PowerOn,
		},
		"the expected machine": {
			intent: bmc.IntentOff, power: bmc.PowerOn, options: bmc.RunOptions{Expected: bmc.Identity{Serial: " s1 "}},
			acts: []bmc.Action{bmc.ActionForceOff}, observed: bmc.PowerOff,
		},
		"a dry run": {
			intent: bmc.IntentCycle, power: bmc.PowerOn, options: bmc.RunOptions{DryRun: true}, observed: bmc.PowerOn,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLiar(test.power)
			if test.change != nil {
				test.change(l)
			}
			test.options.Clock = jumping{l.clock}
			report, err := bmc.Run(t.Context(), l, test.intent, test.options)
			if bmc.KindOf(err) != test.kind || !slices.Equal(l.acts, test.acts) || report.Observed != test.observed {
				t.Errorf("kind %q, sent %v, observed %q: %v (%s)", bmc.KindOf(err), l.acts, report.Observed, err, report.Why)
			}
			if err == nil && report.Verb != bmc.Done && !test.options.DryRun {
				t.Errorf("no error, and the last step is %s", report.Verb)
			}
			if limit := 10 * time.Minute; report.Elapsed > limit {
				t.Errorf("it took %s", report.Elapsed)
			}
		})
	}
}

func TestADryRunSaysWhatItWouldSend(t *testing.T) {
	t.Parallel()
	l := newLiar(bmc.PowerOn)
	report, err := bmc.Run(t.Context(), l, bmc.IntentCycle, bmc.RunOptions{DryRun: true, Clock: jumping{l.clock}})
	if err != nil || len(report.Sent) != 1 || report.Sent[0].Action != bmc.ActionForceOff || !report.Sent[0].At.IsZero() {
		t.Errorf("%+v, %v", report, err)
	}
}

// stopping is a machine whose first action ends the caller's context.
type stopping struct {
	*liar

	stop context.CancelFunc
}

func (s stopping) Do(ctx context.Context, action bmc.Action) error {
	s.stop()

	return s.liar.Do(ctx, action)
}

func TestAnInterruptedRunStopsAtOnceAndSaysWhatItSent(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	l := newLiar(bmc.PowerOn)
	report, err := bmc.Run(ctx, stopping{l, stop}, bmc.IntentCycle, bmc.RunOptions{Clock: l.clock})
	if bmc.KindOf(err) != bmc.Unknown || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "ForceOff") {
		t.Errorf("got %v", err)
	}
	if len(report.Sent) != 1 || l.reads != 1 {
		t.Errorf("sent %v, %d readings", report.Sent, l.reads)
	}
}

// A plan that has switched the machine off and does not come to its end says so.
func TestAMachineThatIsLeftOffIsSaidToBe(t *testing.T) {
	t.Parallel()
	conflict := &bmc.Error{Kind: bmc.Conflict, Op: "sending", Detail: "not now"}
	gone := &bmc.Error{Kind: bmc.Auth, Op: "reading", Detail: "401"}
	for name, test := range map[string]struct {
		intent  bmc.Intent
		power   bmc.Power
		change  func(l *liar)
		stopped bool
		want    bool
	}{
		"stopped after off":        {intent: bmc.IntentCycle, stopped: true, want: true},
		"stopped after a shutdown": {intent: bmc.IntentSoftRestart, change: func(l *liar) { l.offered = noSoft() }, stopped: true, want: true},
		"off is not seen in time":  {intent: bmc.IntentCycle, change: func(l *liar) { l.latency = time.Hour }, want: true},
		"off cannot be seen":       {intent: bmc.IntentCycle, change: func(l *liar) { l.stuck = bmc.PowerUnknown }, want: true},
		"On is refused": {
			intent: bmc.IntentCycle, want: true,
			change: func(l *liar) { l.refuses = append([]error{nil}, slices.Repeat([]error{conflict}, 50)...) },
		},
		"On is not heard":           {intent: bmc.IntentCycle, change: func(l *liar) { l.ignores = []bmc.Action{bmc.ActionOn} }, want: true},
		"credentials are refused":   {intent: bmc.IntentCycle, change: func(l *liar) { l.unread = []error{nil, gone} }, want: true},
		"it was to be off":          {intent: bmc.IntentOff, stopped: true},
		"stopped after a restart":   {intent: bmc.IntentRestart, stopped: true},
		"it was off, and stays off": {intent: bmc.IntentOn, power: bmc.PowerOff, change: func(l *liar) { l.ignores = everyAction() }},
	} {
		ctx, stop := context.WithCancel(t.Context())
		l := newLiar(bmc.PowerOn)
		if test.power != "" {
			l.power = test.power
		}
		if test.change != nil {
			test.change(l)
		}
		var machine bmc.Powered = l
		options := bmc.RunOptions{Clock: jumping{l.clock}}
		if test.stopped {
			machine, options.Clock = stopping{l, stop}, l.clock
		}
		_, err := bmc.Run(ctx, machine, test.intent, options)
		stop()
		failed, ok := errors.AsType[*bmc.Error](err)
		if !ok || failed.LeftOff != test.want || strings.Contains(err.Error(), "switch it on") != test.want ||
			strings.Contains(failed.Advice(), "switch it on") != test.want {
			t.Errorf("%s: %v, %+v", name, err, failed)
		}
	}
}

func noSoft() []bmc.Action { return []bmc.Action{bmc.ActionOn, bmc.ActionShutdown} }

// Nothing is begun that the caller's time does not hold, and limits that the caller raises are kept.
func TestTheTimeHoldsWhatIsBegun(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		intent  bmc.Intent
		offered []bmc.Action
		limits  bmc.Limits
		time    time.Duration
		kind    bmc.Kind
	}{
		"too short for a cycle": {intent: bmc.IntentCycle, offered: noRestart(), time: time.Minute, kind: bmc.Unsupported},
		"enough for a cycle":    {intent: bmc.IntentCycle, offered: noRestart(), time: 5 * time.Minute},
		"enough with lower limits": {
			intent: bmc.IntentCycle, offered: noRestart(), limits: bmc.Limits{Off: 10 * time.Second}, time: 2 * time.Minute,
		},
		"too short for a shutdown": {intent: bmc.IntentSoftRestart, offered: noSoft(), time: 3 * time.Minute, kind: bmc.Unsupported},
		"enough for a shutdown":    {intent: bmc.IntentSoftRestart, offered: noSoft(), time: 5 * time.Minute},
		"too short with higher limits": {
			intent: bmc.IntentSoftRestart, offered: noSoft(), limits: bmc.Limits{Shutdown: time.Hour}, time: 5 * time.Minute,
			kind: bmc.Unsupported,
		},
		"off needs no time to be seen on": {intent: bmc.IntentOff, offered: noRestart(), time: time.Minute},
		"nor does a restart":              {intent: bmc.IntentRestart, offered: allActions(), time: time.Minute},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), test.time)
		l := newLiar(bmc.PowerOn)
		l.offered = test.offered
		report, err := bmc.Run(ctx, l, test.intent, bmc.RunOptions{Clock: jumping{l.clock}, Limits: test.limits})
		cancel()
		if bmc.KindOf(err) != test.kind || (test.kind != "" && len(l.acts)+len(report.Sent) > 0) {
			t.Errorf("%s: %v, sent %v", name, err, l.acts)
		}
	}
	l := newLiar(bmc.PowerOn)
	l.offered, l.latency = noSoft(), 8*time.Minute
	_, err := bmc.Run(t.Context(), l, bmc.IntentSoftRestart, bmc.RunOptions{
		Clock: jumping{l.clock}, Limits: bmc.Limits{Shutdown: 10 * time.Minute, On: 10 * time.Minute},
	})
	if err != nil || len(l.acts) != 2 {
		t.Errorf("%v, sent %v", err, l.acts)
	}
}

func TestEveryKindSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, kind := range bmc.Kinds() {
		if kind.Advice() == "" {
			t.Errorf("%s has no advice", kind)
		}
		if unsafe := kind == bmc.Unknown || kind == bmc.NotFollowed; kind.RetrySafe() == unsafe {
			t.Errorf("%s: a retry is safe: %v", kind, kind.RetrySafe())
		}
	}
}
