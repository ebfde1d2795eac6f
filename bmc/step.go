package bmc

import (
	"slices"
	"time"
)

// Verb says what the next step of a plan is.
type Verb string

// The verbs.
const (
	// Send: store Action as an intent, then send it.
	Send Verb = "Send"
	// Wait: look again later.
	Wait Verb = "Wait"
	// Done: the power is as it shall be, as far as a BMC can tell: of a restart it only sees that the machine is on.
	Done Verb = "Done"
	// Blocked: nothing that is allowed here leads there.
	Blocked Verb = "Blocked"
	// Expired: the BMC accepted the last action, and the machine did not follow in time. A new plan may be begun.
	Expired Verb = "Expired"
)

// Step is the next step of a plan.
type Step struct {
	Verb Verb
	// Action is what to send, with Send.
	Action Action
	// Why says so in words.
	Why string
}

// Sent is an action of a plan that was sent, or may have been.
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

// Limits of a plan. The zero value of each field means its default.
type Limits struct {
	// Off is how long the machine may take to be off after ForceOff. Default 120 s (Ironic's power_state_change_timeout
	// in metal3's images).
	Off time.Duration
	// Shutdown is how long an operating system may take to shut down. Default 180 s (baremetal-operator's
	// softPowerOffTimeout). It has no upper bound.
	Shutdown time.Duration
	// On is how long it may take to be on after On, or after a restart. Default 120 s.
	On time.Duration
	// Settle is how long a reading after a restart may still be the one from before. Default 15 s.
	Settle time.Duration
}

const (
	defaultPowerLimit    = 120 * time.Second
	defaultShutdownLimit = 180 * time.Second
	defaultSettle        = 15 * time.Second
)

func (l Limits) withDefaults() Limits {
	if l.Off <= 0 {
		l.Off = defaultPowerLimit
	}
	if l.Shutdown <= 0 {
		l.Shutdown = defaultShutdownLimit
	}
	if l.On <= 0 {
		l.On = defaultPowerLimit
	}
	if l.Settle <= 0 {
		l.Settle = defaultSettle
	}

	return l
}

// Needs is how long a machine may take from an action that takes its power away until it is told to be on again: a
// caller who goes on with that must not stop before. It holds the time in which BMCs refuse On after off.
func (l Limits) Needs(action Action) time.Duration {
	l = l.withDefaults()
	const refusing = refusedTries * refusedPause
	if action == ActionShutdown {
		return l.Shutdown + refusing
	}

	return l.Off + refusing
}

func (o Observation) offers(action Action) bool { return slices.Contains(o.Offered, action) }
