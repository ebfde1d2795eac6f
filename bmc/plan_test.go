package bmc_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stayput-dev/stayput/bmc"
)

func allActions() []bmc.Action {
	return []bmc.Action{bmc.ActionOn, bmc.ActionForceOff, bmc.ActionForceRestart}
}

func noRestart() []bmc.Action { return []bmc.Action{bmc.ActionOn, bmc.ActionForceOff} }

func startTime() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func TestFirstStep(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		seen   bmc.Observation
		verb   bmc.Verb
		action bmc.Action
	}{
		"on":              {bmc.Observation{Power: bmc.PowerOn, Offered: allActions()}, bmc.Send, bmc.ActionForceRestart},
		"off":             {bmc.Observation{Power: bmc.PowerOff, Offered: allActions()}, bmc.Send, bmc.ActionOn},
		"transition":      {bmc.Observation{Power: bmc.PowerTransition, Offered: allActions()}, bmc.Send, bmc.ActionForceRestart},
		"unknown":         {bmc.Observation{Power: bmc.PowerUnknown, Offered: allActions()}, bmc.Send, bmc.ActionForceRestart},
		"no restart":      {bmc.Observation{Power: bmc.PowerOn, Offered: noRestart()}, bmc.Send, bmc.ActionForceOff},
		"nothing offered": {bmc.Observation{Power: bmc.PowerOn}, bmc.Blocked, ""},
		"off without On":  {bmc.Observation{Power: bmc.PowerOff, Offered: []bmc.Action{bmc.ActionForceRestart}}, bmc.Blocked, ""},
		"ForceOff without On": {
			bmc.Observation{Power: bmc.PowerOn, Offered: []bmc.Action{bmc.ActionForceOff}}, bmc.Blocked, "",
		},
		"keep powered": {
			bmc.Observation{Power: bmc.PowerOn, Offered: allActions(), KeepPowered: true}, bmc.Send, bmc.ActionForceRestart,
		},
		"keep powered, no restart": {
			bmc.Observation{Power: bmc.PowerOn, Offered: noRestart(), KeepPowered: true}, bmc.Blocked, "",
		},
	}
	for name, c := range cases {
		if got := bmc.IntentRestart.First(c.seen); got.Verb != c.verb || got.Action != c.action || got.Why == "" {
			t.Errorf("%s: got %+v, want %s %s", name, got, c.verb, c.action)
		}
	}
}

// Every power, intent, and set of offered actions: what is switched off on the way can be seen off and switched on.
func TestNothingIsSwitchedOffUnseen(t *testing.T) {
	t.Parallel()
	for set := range 1 << len(everyAction()) {
		var offered []bmc.Action
		for i, action := range everyAction() {
			if set&(1<<i) != 0 {
				offered = append(offered, action)
			}
		}
		for _, power := range []bmc.Power{bmc.PowerOn, bmc.PowerOff, bmc.PowerTransition, bmc.PowerUnknown} {
			for _, intent := range []bmc.Intent{bmc.IntentOn, bmc.IntentRestart, bmc.IntentSoftRestart, bmc.IntentCycle} {
				step := intent.First(bmc.Observation{Power: power, Offered: offered})
				off := step.Action == bmc.ActionForceOff || step.Action == bmc.ActionShutdown
				if off && (power != bmc.PowerOn || !slices.Contains(offered, bmc.ActionOn)) {
					t.Errorf("%s of a machine whose power is %s, offered %v: %+v", intent, power, offered, step)
				}
				if step.Why == "" || step.Verb == bmc.Send && !slices.Contains(offered, step.Action) {
					t.Errorf("%s, %s, offered %v: %+v", intent, power, offered, step)
				}
			}
		}
	}
}

func TestNextStep(t *testing.T) {
	t.Parallel()
	seen := func(power bmc.Power, after time.Duration) bmc.Observation {
		return bmc.Observation{Power: power, At: startTime().Add(after), Offered: allActions()}
	}
	cases := map[string]struct {
		last   bmc.Action
		seen   bmc.Observation
		verb   bmc.Verb
		action bmc.Action
	}{
		"older observation":         {bmc.ActionForceOff, seen(bmc.PowerOff, 0), bmc.Wait, ""},
		"still on after ForceOff":   {bmc.ActionForceOff, seen(bmc.PowerOn, time.Second), bmc.Wait, ""},
		"going off":                 {bmc.ActionForceOff, seen(bmc.PowerTransition, time.Second), bmc.Wait, ""},
		"off after ForceOff":        {bmc.ActionForceOff, seen(bmc.PowerOff, time.Second), bmc.Send, bmc.ActionOn},
		"off very late":             {bmc.ActionForceOff, seen(bmc.PowerOff, time.Hour), bmc.Send, bmc.ActionOn},
		"never off":                 {bmc.ActionForceOff, seen(bmc.PowerOn, 2*time.Minute), bmc.Expired, ""},
		"off just after On":         {bmc.ActionOn, seen(bmc.PowerOff, time.Minute), bmc.Wait, ""},
		"on after On":               {bmc.ActionOn, seen(bmc.PowerOn, time.Minute), bmc.Done, ""},
		"never on":                  {bmc.ActionOn, seen(bmc.PowerOff, 2*time.Minute), bmc.Expired, ""},
		"stale on after restart":    {bmc.ActionForceRestart, seen(bmc.PowerOn, time.Second), bmc.Wait, ""},
		"on after restart":          {bmc.ActionForceRestart, seen(bmc.PowerOn, time.Minute), bmc.Done, ""},
		"off within a restart":      {bmc.ActionForceRestart, seen(bmc.PowerOff, time.Minute), bmc.Wait, ""},
		"off after a restart":       {bmc.ActionForceRestart, seen(bmc.PowerOff, 3*time.Minute), bmc.Send, bmc.ActionOn},
		"unknown after a restart":   {bmc.ActionForceRestart, seen(bmc.PowerUnknown, 3*time.Minute), bmc.Expired, ""},
		"in between after too long": {bmc.ActionOn, seen(bmc.PowerTransition, 3*time.Minute), bmc.Expired, ""},
	}
	for name, c := range cases {
		got := bmc.IntentRestart.Next(c.seen, bmc.Sent{Action: c.last, At: startTime()}, bmc.Limits{}, c.seen.At)
		if got.Verb != c.verb || got.Action != c.action || got.Why == "" {
			t.Errorf("%s: got %+v, want %s %s", name, got, c.verb, c.action)
		}
	}
}

// Whatever is seen: On is sent only to a machine that is off, the machine is switched off only where that is allowed
// and can be undone, and nothing is sent that the BMC does not offer.
func TestStepsAreSafe(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seen := bmc.Observation{
			Power: rapid.SampledFrom([]bmc.Power{
				bmc.PowerOn, bmc.PowerOff, bmc.PowerTransition, bmc.PowerUnknown,
			}).Draw(t, "power"),
			At:          startTime().Add(time.Duration(rapid.IntRange(-300, 300).Draw(t, "seconds")) * time.Second),
			Offered:     rapid.SliceOfDistinct(rapid.SampledFrom(everyAction()), rapid.ID).Draw(t, "offered"),
			KeepPowered: rapid.Bool().Draw(t, "keep"),
		}
		intent := rapid.SampledFrom(bmc.Intents()).Draw(t, "intent")
		endsOff := intent == bmc.IntentOff || intent == bmc.IntentShutdown
		soft := intent == bmc.IntentShutdown || intent == bmc.IntentSoftRestart
		step := intent.First(seen)
		if rapid.Bool().Draw(t, "continue") {
			last := bmc.Sent{Action: rapid.SampledFrom(everyAction()).Draw(t, "last"), At: startTime()}
			step = intent.Next(seen, last, bmc.Limits{}, startTime().Add(5*time.Minute))
			if step.Verb == bmc.Send && step.Action != bmc.ActionOn {
				t.Fatalf("goes on with %s after %s", step.Action, last.Action)
			}
			if step.Verb == bmc.Send && !seen.At.After(startTime()) {
				t.Fatalf("acts on an observation from before the action: %+v", step)
			}
		}
		if step.Verb == bmc.Done && (seen.Power == bmc.PowerOff) != endsOff {
			t.Fatalf("takes a machine whose power is %s for done", seen.Power)
		}
		if step.Verb != bmc.Send {
			return
		}
		offered := map[bmc.Action]bool{}
		for _, action := range seen.Offered {
			offered[action] = true
		}
		switch {
		case !offered[step.Action]:
			t.Fatalf("sends %s, which is not offered", step.Action)
		case (step.Action == bmc.ActionOn) != (seen.Power == bmc.PowerOff):
			t.Fatalf("sends %s to a machine whose power is %s", step.Action, seen.Power)
		case seen.KeepPowered && step.Action != bmc.ActionOn && step.Action != bmc.ActionForceRestart && step.Action != bmc.ActionSoftRestart:
			t.Fatalf("sends %s to a machine that must keep its power", step.Action)
		case (step.Action == bmc.ActionForceOff || step.Action == bmc.ActionShutdown) && !endsOff && !offered[bmc.ActionOn]:
			t.Fatalf("switches off a machine that it cannot switch on again")
		case soft && step.Action != bmc.ActionOn && step.Action != bmc.ActionShutdown && step.Action != bmc.ActionSoftRestart:
			t.Fatalf("sends %s, though it shall be soft", step.Action)
		case endsOff && step.Action == bmc.ActionOn:
			t.Fatalf("switches on a machine that shall be off")
		}
	})
}
