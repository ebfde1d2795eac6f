package outofband

import (
	"fmt"
	"time"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

// leftOff goes on with a reset that may have left the machine off, though its agent has moved on, has written once more
// just after the action, or has begun another attempt: what we have switched off we switch on. A reset during a silence,
// with no sign of life since, is gone on with as one; nil: there is nothing to go on with.
func (w World) leftOff(now time.Time) *Decision {
	if w.Status == nil || w.Status.Intent == nil || w.ended() || w.Host.ViaMetal3 {
		// Metal3 switches the machine on when our key goes, which it does by itself.
		return nil
	}
	last := w.sentLast()
	if silence := w.Next == "" && watched(w.Phase) && w.LastSign.Before(last.At); silence || !w.mayBeOff(last) {
		return nil
	}
	if why, reason := w.cannotLook(); why != "" {
		return w.stuck(last, why, reason, now)
	}
	if w.Seen == nil {
		return w.look(last, now)
	}

	return w.switchOn(last, now)
}

// mayBeOff tells whether the machine can be off by the last action, as far as is known.
func (w World) mayBeOff(last bmc.Sent) bool {
	status := w.Status.DeepCopy()
	w.putPower(status)
	isOn := func(after time.Time) bool {
		return status.Power == v1alpha1.PowerOn && status.PowerReadAt != nil && status.PowerReadAt.After(after)
	}
	ends := w.resetEnds(last)
	switch {
	case !w.LastSign.Before(ends):
		return false
	case last.Action == bmc.ActionOn:
		ours, _ := w.switchedOff()

		return ours && w.LastSign.Before(last.At)
	case boots(last.Action):
		// A sign of life just after it may be of before it.
		return (w.Next != "" || !watched(w.Phase)) && !isOn(last.At.Add(settleRestart)) && w.LastSign.Before(last.At.Add(settlePower))
	default:
		addUnknown(status)
		ours, _ := offByUs(status)

		return ours && !isOn(ends)
	}
}

// settleRestart is how long after a restart the BMC may tell the power from before it.
const settleRestart = 15 * time.Second

// cannotLook is what keeps us from the machine's power; empty: nothing.
func (w World) cannotLook() (why string, reason v1alpha1.OutOfBandReason) {
	switch {
	case w.Host.NotFound != "":
		return w.Host.NotFound, v1alpha1.OutOfBandHostNotFound
	case w.Host.Busy != "":
		return w.Host.Busy, v1alpha1.OutOfBandHostBusy
	case w.Problem != nil:
		return w.Problem.Text, w.Problem.Reason
	default:
		return "", ""
	}
}

// stuck waits until the machine's power can be reached. A machine that was restarted, and not switched off, is on by then.
func (w World) stuck(last bmc.Sent, why string, reason v1alpha1.OutOfBandReason, now time.Time) *Decision {
	ends := w.resetEnds(last)
	if boots(last.Action) && last.Action != bmc.ActionOn && !now.Before(ends) {
		return nil
	}
	decision := w.owing(reason, "it is switched on, if it is off, as soon as that can be done: "+why, ends, now)

	return &decision
}

// owing says that the machine may be off by us. A person is asked when the time of a reset is over.
func (w World) owing(reason v1alpha1.OutOfBandReason, text string, ends, now time.Time) Decision {
	phase, after := v1alpha1.OutOfBandResetting, pollHost
	if !now.Before(ends) {
		phase, ends = v1alpha1.OutOfBandNeedsHuman, time.Time{}
		text += "; look at its console, and switch it on if it is off"
	}

	return wait(w.status(phase, reason, fmt.Sprintf("%s: the machine may be off after %s, its agent says %s; %s",
		w.resetOf(), w.Status.Intent.Action, w.Phase, text), ends), after)
}

// look reads the power, often while it is likely to change.
func (w World) look(last bmc.Sent, now time.Time) *Decision {
	interval := pollPower
	switch {
	case w.waitsForHuman():
		interval = pollIdle
	case !now.Before(last.At.Add(settlePower)):
		interval = pollHost
	}
	decision := Decision{Verb: Observe}
	if age := w.readAge(now); age < interval {
		decision = wait(w.Status, interval-age)
	}

	return &decision
}

// switchOn switches the machine on when it is off, and waits while it may still go off.
func (w World) switchOn(last bmc.Sent, now time.Time) *Decision {
	ends := w.resetEnds(last)
	step := bmc.IntentRestart.Next(*w.Seen, last, w.limits(), now)
	if _, ons := w.switchedOff(); step.Verb == bmc.Expired && w.Seen.Power == bmc.PowerOff && ons < w.mostOns() {
		step = bmc.IntentOn.First(*w.Seen)
	}
	decision := Decision{}
	switch {
	case step.Verb == bmc.Done, step.Verb == bmc.Expired && w.Seen.Power == bmc.PowerOn && !now.Before(ends),
		step.Verb == bmc.Expired && w.Seen.Power != bmc.PowerOff && boots(last.Action):
		return nil
	case step.Verb == bmc.Send && w.Settings.Disabled:
		decision = w.owing(v1alpha1.OutOfBandDisabled, step.Why+", and spec.outOfBand.disabled forbids power actions", now, now)
	case step.Verb == bmc.Send:
		decision = w.record(step, w.Status.Resets, now)
	case step.Verb != bmc.Blocked && now.Before(ends):
		decision = w.owing(v1alpha1.OutOfBandPowerActionSent, fmt.Sprintf(
			"it may still go off until %s, and is switched on then", ends.UTC().Format(time.RFC3339)), ends, now)
		decision.After = pollPower
	default:
		decision = w.owing(v1alpha1.OutOfBandPowerActionSent, step.Why, now, now)
	}

	return &decision
}

// mostOns is how often the machine is told to go on.
func (w World) mostOns() int {
	if w.Status.Intent.SentAt == nil {
		return maxUnknownOns
	}

	return maxOns
}
