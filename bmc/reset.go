package bmc

import (
	"fmt"
	"slices"
	"time"
)

// Verb says what the next step of a reset is.
type Verb string

// The verbs.
const (
	// Send: store Action as an intent, then send it.
	Send Verb = "Send"
	// Wait: look again later.
	Wait Verb = "Wait"
	// Done: the reset has taken place; the machine is powered on.
	Done Verb = "Done"
	// Blocked: nothing that is allowed here resets the machine.
	Blocked Verb = "Blocked"
	// Expired: the BMC accepted the last action, and the machine did not follow in time. A new reset may be begun.
	Expired Verb = "Expired"
)

// Step is the next step of a reset.
type Step struct {
	Verb Verb
	// Action is what to send, with Send.
	Action Action
	// Why says so in words.
	Why string
}

// Sent is an action of this reset that was sent, or may have been.
type Sent struct {
	Action Action
	// At is when it was sent; when that is not known, when it was decided.
	At time.Time
}

// Observation is what was seen at one moment.
type Observation struct {
	Power Power
	// At is when the read began.
	At time.Time
	// Offered are the actions that the BMC offers.
	Offered []Action
	// KeepPowered forbids every action that switches the machine off and leaves it to another to switch it on again:
	// the BMCs of such machines are lost without the machine's power (disablePowerOff of a BareMetalHost).
	KeepPowered bool
}

// Limits of a reset. The zero value of each field means its default.
type Limits struct {
	// Off is how long the machine may take to be off after ForceOff. Default 120 s (Ironic's power_state_change_timeout
	// in metal3's images).
	Off time.Duration
	// On is how long it may take to be on after On, or after ForceRestart. Default 120 s.
	On time.Duration
	// Settle is how long a reading after On or ForceRestart may still be the one from before. Default 15 s.
	Settle time.Duration
}

const (
	defaultPowerLimit = 120 * time.Second
	defaultSettle     = 15 * time.Second
)

func (l Limits) withDefaults() Limits {
	if l.Off <= 0 {
		l.Off = defaultPowerLimit
	}
	if l.On <= 0 {
		l.On = defaultPowerLimit
	}
	if l.Settle <= 0 {
		l.Settle = defaultSettle
	}

	return l
}

// FirstStep begins a reset: ForceRestart for a machine that is on, On for one that is off, and ForceOff where no
// restart is offered. ForceRestart is preferred because Ironic, which may watch the same machine, sees no change of
// power. A machine whose power state does not settle is treated as on: it is reset because it is silent.
func FirstStep(seen Observation) Step {
	offers := func(a Action) bool { return slices.Contains(seen.Offered, a) }
	switch {
	case seen.Power == PowerOff && offers(ActionOn):
		return Step{Verb: Send, Action: ActionOn, Why: "the machine is off"}
	case seen.Power == PowerOff:
		return Step{Verb: Blocked, Why: "the machine is off and the BMC does not offer On"}
	case offers(ActionForceRestart):
		return Step{Verb: Send, Action: ActionForceRestart, Why: fmt.Sprintf("the machine's power is %s", seen.Power)}
	case seen.KeepPowered:
		return Step{Verb: Blocked, Why: "the BMC does not offer ForceRestart, and the host forbids switching it off"}
	case offers(ActionForceOff) && offers(ActionOn):
		return Step{
			Verb: Send, Action: ActionForceOff,
			Why: fmt.Sprintf("the machine's power is %s and the BMC does not offer ForceRestart", seen.Power),
		}
	default:
		return Step{Verb: Blocked, Why: fmt.Sprintf("the BMC offers only %v", seen.Offered)}
	}
}

// NextStep continues a reset whose last action is last. An observation that is older than the action proves nothing,
// so it asks to wait.
func NextStep(seen Observation, last Sent, limits Limits, now time.Time) Step {
	limits = limits.withDefaults()
	if !seen.At.After(last.At) {
		return Step{Verb: Wait, Why: "the power state was read before the action"}
	}
	if last.Action == ActionForceOff {
		return afterForceOff(seen, last, limits, now)
	}

	return afterPowerOn(seen, last, limits, now)
}

// afterForceOff waits for Off, however late it comes: we switched the machine off, so we switch it on.
func afterForceOff(seen Observation, last Sent, limits Limits, now time.Time) Step {
	switch {
	case seen.Power == PowerOff && slices.Contains(seen.Offered, ActionOn):
		return Step{Verb: Send, Action: ActionOn, Why: "the machine is off after ForceOff"}
	case seen.Power == PowerOff:
		return Step{Verb: Blocked, Why: "the machine is off after ForceOff and the BMC does not offer On"}
	case now.Sub(last.At) < limits.Off:
		return Step{Verb: Wait, Why: "waiting for the machine to be off"}
	default:
		return Step{Verb: Expired, Why: fmt.Sprintf("the machine's power is %s %s after ForceOff", seen.Power, limits.Off)}
	}
}

// afterPowerOn waits for On. A restart that left the machine off is completed by On.
func afterPowerOn(seen Observation, last Sent, limits Limits, now time.Time) Step {
	switch {
	case seen.Power == PowerOn && seen.At.Sub(last.At) >= limits.Settle:
		return Step{Verb: Done, Why: fmt.Sprintf("the machine is on after %s", last.Action)}
	case now.Sub(last.At) < limits.On:
		return Step{Verb: Wait, Why: "waiting for the machine to be on"}
	case last.Action == ActionForceRestart && seen.Power == PowerOff && slices.Contains(seen.Offered, ActionOn):
		return Step{Verb: Send, Action: ActionOn, Why: "the machine stayed off after ForceRestart"}
	default:
		return Step{Verb: Expired, Why: fmt.Sprintf(
			"the machine's power is %s %s after %s", seen.Power, limits.On, last.Action)}
	}
}
