package bmc

import (
	"fmt"
	"time"
)

// Intent is what shall become of a machine's power. Its methods are plans: they decide, without touching anything, what
// the next step is, by what was just seen.
//
// Whatever is seen: On is sent only to a machine that is off; a machine is switched off, other than because that is
// what is wanted, only where it is seen to be on, so that it can be seen off, and where it can be switched on again;
// nothing is sent that the BMC does not offer; and an action is never sent again because its result is late.
type Intent string

// The intents. One that asks the operating system never becomes one that does not.
const (
	// IntentOn: powered on.
	IntentOn Intent = "On"
	// IntentOff: powered off at once. What the machine holds in memory is lost.
	IntentOff Intent = "Off"
	// IntentShutdown: powered off by its operating system.
	IntentShutdown Intent = "Shutdown"
	// IntentRestart: restarted at once, without switching the power off where the BMC can.
	IntentRestart Intent = "Restart"
	// IntentSoftRestart: restarted by its operating system.
	IntentSoftRestart Intent = "SoftRestart"
	// IntentCycle: powered off at once, seen off, and powered on.
	IntentCycle Intent = "Cycle"
)

// Intents are all of them.
func Intents() []Intent {
	return []Intent{IntentOn, IntentOff, IntentShutdown, IntentRestart, IntentSoftRestart, IntentCycle}
}

// endsOff tells whether the machine shall be off in the end.
func (i Intent) endsOff() bool { return i == IntentOff || i == IntentShutdown }

const (
	whyKeepPowered = "the host forbids switching it off (disablePowerOff)"
	whySettling    = "waiting for the machine's power to settle"
)

// First begins a plan.
func (i Intent) First(seen Observation) Step {
	switch {
	case seen.Power == PowerOff && i.endsOff():
		return Step{Verb: Done, Why: "the machine is off already"}
	case seen.Power == PowerOff && seen.offers(ActionOn):
		return Step{Verb: Send, Action: ActionOn, Why: "the machine is off"}
	case seen.Power == PowerOff:
		return Step{Verb: Blocked, Why: "the machine is off and the BMC does not offer On"}
	case seen.Power == PowerOn && i == IntentOn:
		return Step{Verb: Done, Why: "the machine is on already"}
	}
	switch i {
	case IntentOff:
		return firstOff(seen)
	case IntentRestart:
		return firstRestart(seen)
	case IntentCycle:
		return firstCycle(seen)
	case IntentShutdown, IntentSoftRestart:
		if seen.Power == PowerOn {
			return i.firstSoft(seen)
		}
	case IntentOn:
	}

	return Step{Verb: Wait, Why: whySettling}
}

func firstOff(seen Observation) Step {
	switch {
	case seen.KeepPowered:
		return Step{Verb: Blocked, Why: whyKeepPowered}
	case seen.offers(ActionForceOff):
		return Step{Verb: Send, Action: ActionForceOff, Why: whyPower(seen)}
	default:
		return blockedBy(seen)
	}
}

// firstRestart prefers ForceRestart because Ironic, which may watch the same machine, sees no change of power. A machine
// whose power state does not settle is treated as on: it is reset because it is silent.
func firstRestart(seen Observation) Step {
	switch {
	case seen.offers(ActionForceRestart):
		return Step{Verb: Send, Action: ActionForceRestart, Why: whyPower(seen)}
	case seen.KeepPowered:
		return Step{Verb: Blocked, Why: "the BMC does not offer ForceRestart, and " + whyKeepPowered}
	case seen.canBeSwitched():
		return Step{Verb: Send, Action: ActionForceOff, Why: whyPower(seen) + " and the BMC does not offer ForceRestart"}
	case seen.offers(ActionPowerCycle):
		return Step{Verb: Send, Action: ActionPowerCycle, Why: whyPower(seen) + " and the BMC does not offer ForceRestart"}
	default:
		return unseenOr(seen)
	}
}

// canBeSwitched tells whether the machine can be switched off, seen off, and switched on again. A BMC that does not say
// that it is on may not say that it is off either, and then nobody would switch it on.
func (o Observation) canBeSwitched() bool {
	return o.Power == PowerOn && o.offers(ActionForceOff) && o.offers(ActionOn)
}

// firstCycle prefers two requests to PowerCycle: of that one nobody can see whether the power was off at all.
func firstCycle(seen Observation) Step {
	switch {
	case seen.KeepPowered:
		return Step{Verb: Blocked, Why: whyKeepPowered}
	case seen.canBeSwitched():
		return Step{Verb: Send, Action: ActionForceOff, Why: whyPower(seen)}
	case seen.offers(ActionPowerCycle) && seen.Power == PowerOn:
		return Step{Verb: Send, Action: ActionPowerCycle, Why: whyPower(seen) + " and the BMC does not offer ForceOff and On"}
	case seen.offers(ActionPowerCycle):
		return Step{Verb: Send, Action: ActionPowerCycle, Why: whyPower(seen) + ", so that off could not be seen"}
	default:
		return unseenOr(seen)
	}
}

// firstSoft is for a machine that is on.
func (i Intent) firstSoft(seen Observation) Step {
	switch {
	case i == IntentSoftRestart && seen.offers(ActionSoftRestart):
		return Step{Verb: Send, Action: ActionSoftRestart, Why: whyPower(seen)}
	case seen.KeepPowered:
		return Step{Verb: Blocked, Why: whyKeepPowered}
	case seen.offers(ActionShutdown) && (i == IntentShutdown || seen.offers(ActionOn)):
		return Step{Verb: Send, Action: ActionShutdown, Why: whyPower(seen)}
	default:
		return blockedBy(seen)
	}
}

func whyPower(seen Observation) string { return fmt.Sprintf("the machine's power is %s", seen.Power) }

// unseenOr is for a machine that could be switched off and on, if only its power were known. A change of power ends.
func unseenOr(seen Observation) Step {
	if seen.Power == PowerOn || !seen.offers(ActionForceOff) || !seen.offers(ActionOn) {
		return blockedBy(seen)
	}
	why := whyPower(seen) + ", so that nobody could see it off and switch it on again"
	if seen.Power == PowerTransition {
		return Step{Verb: Wait, Why: why}
	}

	return Step{Verb: Blocked, Why: why + "; look at its console, or at the BMC's log"}
}

func blockedBy(seen Observation) Step {
	return Step{Verb: Blocked, Why: fmt.Sprintf("the BMC offers only %v", seen.Offered)}
}

// Next goes on with a plan whose last action is last. An observation that is older than the action proves nothing, so
// it asks to wait.
func (i Intent) Next(seen Observation, last Sent, limits Limits, now time.Time) Step {
	limits = limits.withDefaults()
	if !seen.At.After(last.At) {
		return Step{Verb: Wait, Why: "the power state was read before the action"}
	}
	switch last.Action {
	case ActionForceOff:
		return i.afterOff(seen, last, limits.Off, now)
	case ActionShutdown:
		return i.afterOff(seen, last, limits.Shutdown, now)
	case ActionOn, ActionForceRestart, ActionSoftRestart, ActionPowerCycle:
		// No plan that ends off sends these. Of one that was stored for another intent it must neither be taken for
		// done, nor be switched on.
		if i.endsOff() {
			return i.afterOff(seen, last, limits.Off, now)
		}
	}

	return afterOn(seen, last, limits, now)
}

// afterOff waits for Off. Where the machine shall be on in the end it is switched on however late Off comes: we switched
// it off.
func (i Intent) afterOff(seen Observation, last Sent, limit time.Duration, now time.Time) Step {
	switch {
	case seen.Power == PowerOff && i.endsOff():
		return Step{Verb: Done, Why: fmt.Sprintf("the machine is off after %s", last.Action)}
	case seen.Power == PowerOff && seen.offers(ActionOn):
		return Step{Verb: Send, Action: ActionOn, Why: fmt.Sprintf("the machine is off after %s", last.Action)}
	case seen.Power == PowerOff:
		return Step{Verb: Blocked, Why: fmt.Sprintf("the machine is off after %s and the BMC does not offer On", last.Action)}
	case now.Sub(last.At) < limit:
		return Step{Verb: Wait, Why: "waiting for the machine to be off"}
	default:
		return Step{Verb: Expired, Why: fmt.Sprintf("%s %s after %s", whyPower(seen), limit, last.Action)}
	}
}

// afterOn waits for On. After a restart a reading of On may be the one from before; On itself is sent only when Off was
// seen. A restart that left the machine off is completed by On.
func afterOn(seen Observation, last Sent, limits Limits, now time.Time) Step {
	switch {
	case seen.Power == PowerOn && (last.Action == ActionOn || seen.At.Sub(last.At) >= limits.Settle):
		return Step{Verb: Done, Why: fmt.Sprintf("the machine is on after %s", last.Action)}
	case now.Sub(last.At) < limits.On:
		return Step{Verb: Wait, Why: "waiting for the machine to be on"}
	case last.Action != ActionOn && seen.Power == PowerOff && seen.offers(ActionOn):
		return Step{Verb: Send, Action: ActionOn, Why: fmt.Sprintf("the machine stayed off after %s", last.Action)}
	default:
		return Step{Verb: Expired, Why: fmt.Sprintf("%s %s after %s", whyPower(seen), limits.On, last.Action)}
	}
}
