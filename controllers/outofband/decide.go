package outofband

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

// Verb says what a pass does next.
type Verb string

// The verbs.
const (
	// Rest: nothing of ours is to be done for this machine.
	Rest Verb = "Rest"
	// Wait: store Status and look again After.
	Wait Verb = "Wait"
	// Observe: read the power.
	Observe Verb = "Observe"
	// Record: store Status, which holds a new intent; then look at everything again.
	Record Verb = "Record"
	// Send: send the action of the intent that this pass has stored.
	Send Verb = "Send"
	// Withdraw: store Status, which no longer holds the intent: it was not sent. Look again After.
	Withdraw Verb = "Withdraw"
)

// Decision is what a pass does next.
type Decision struct {
	Verb   Verb
	Status *v1alpha1.OutOfBandStatus
	// After is when to look again if nothing happens before.
	After time.Duration
	// Action is what to send.
	Action bmc.Action
	// Begins tells that what is recorded begins a reset, and does not go on with one. What switches a machine on that we
	// have switched off only ends one, whatever it is counted as.
	Begins bool
}

// Intervals between two looks at what may change without an event.
const (
	// pollPower is for a machine whose power is changing.
	pollPower = 5 * time.Second
	// pollHost is for a host that another is busy with.
	pollHost = 30 * time.Second
	// pollIdle is for a machine that waits for a person.
	pollIdle = 5 * time.Minute
	// settlePower is how long PoweringOn or PoweringOff is taken for what it says before the machine is reset.
	settlePower = 2 * time.Minute
	// intentLife is how long after it was stored an intent may be sent: nothing that is older is known of the machine. It
	// holds the reads in between of a slow BMC.
	intentLife = 2 * time.Minute
	// brakeLimit is how long a pool that fell silent keeps a machine from being reset before a person is asked.
	brakeLimit = time.Hour
	// retryAtOnce is for a pass that was overtaken by events.
	retryAtOnce = time.Second
)

// Decide says what to do next. It has no effects.
func Decide(w World, now time.Time) Decision {
	if w.Recorded != "" {
		return w.confirm(now)
	}
	if owed := w.leftOff(now); owed != nil {
		return *owed
	}
	if w.Next != "" {
		// The earlier attempt owes nothing.
		w.Attempt, w.Status, w.Next = w.Next, nil, ""
	}
	switch {
	case !watched(w.Phase):
		return w.afterOutage()
	case w.Status == nil, w.ended():
		return wait(w.status(v1alpha1.OutOfBandWatching, v1alpha1.OutOfBandWaitingForMachine,
			w.waitText(), now.Add(w.SilentAfter)), w.SilentAfter)
	case w.isAlive(now):
		return w.alive(now)
	case w.watching() && now.Before(w.deadline()):
		return w.waitOn(w.Status, now)
	default:
		return w.silent(now)
	}
}

// afterOutage ends our part when the agent has moved on.
func (w World) afterOutage() Decision {
	if w.Status == nil || w.ended() {
		return Decision{Verb: Rest}
	}
	status := w.status(v1alpha1.OutOfBandRecovered, v1alpha1.OutOfBandMachineBack,
		w.backText(), time.Time{})

	return wait(status, 0)
}

// alive waits for the agent of a machine that shows life while its agent is not done. The deadline moves on only when
// it has come, or what is said changes: signs come every minute, and each write would be one more event.
func (w World) alive(now time.Time) Decision {
	until := w.aliveUntil(w.lifeSign(now))
	if w.watching() && w.deadline().After(until) {
		until = w.deadline()
	}
	status := w.status(v1alpha1.OutOfBandRecovered, v1alpha1.OutOfBandMachineBack, w.backText(), until)
	if w.Status.Phase == v1alpha1.OutOfBandWatching {
		status = w.status(v1alpha1.OutOfBandWatching, v1alpha1.OutOfBandWaitingForMachine, w.waitText(), until)
	}
	same := status.Phase == w.Status.Phase && status.Message == w.Status.Message
	if same && now.Before(w.deadline()) {
		status = w.Status
	}

	return w.waitOn(status, now)
}

// waitOn waits for the deadline of a status. One that is farther off than a machine may be silent from now on is of
// earlier settings, or of an earlier phase, which was more patient: the new ones reach at once.
func (w World) waitOn(status *v1alpha1.OutOfBandStatus, now time.Time) Decision {
	w.Status = status
	if most := w.aliveUntil(now); w.deadline().After(most.Add(time.Second)) {
		message := status.Message
		if status.Phase == v1alpha1.OutOfBandWatching {
			message = w.waitText()
		}
		w.Status = w.status(status.Phase, status.Reason, message, most)
	}

	return wait(w.Status, w.deadline().Sub(now))
}

// silent decides about a machine whose deadline has passed, or that is being reset.
func (w World) silent(now time.Time) Decision {
	last := w.lastAction()
	if last != nil && w.Status.Reason == v1alpha1.OutOfBandWaitingAfterReset && now.Before(w.resetEnds(*last)) {
		return wait(w.Status, w.resetEnds(*last).Sub(now))
	}
	if stop := w.obstacle(now); stop != nil {
		return *stop
	}
	if pause := w.afterAnother(last, now); pause != nil {
		return *pause
	}
	if w.Seen == nil {
		// Our own writes make events too: they must not make us read again at once.
		interval := w.lookInterval()
		if age := w.readAge(now); age < interval {
			return wait(w.Status, interval-age)
		}

		return Decision{Verb: Observe}
	}
	if last != nil {
		return w.continueReset(*last, now)
	}

	return w.beginReset(now)
}

// lookInterval is the least time between two looks at the power.
func (w World) lookInterval() time.Duration {
	switch {
	case w.waitsForHuman():
		return pollIdle
	case w.Status.Reason == v1alpha1.OutOfBandPoolSilent, w.Status.Reason == v1alpha1.OutOfBandPowerLimited,
		w.Status.Reason == v1alpha1.OutOfBandPowerInUse:
		return pollHost
	default:
		return pollPower
	}
}

// afterAnother gives a machine the time of a reset since another was busy with its host or had its power, who may have
// rebooted it a moment ago. A reset that is under way goes on.
func (w World) afterAnother(last *bmc.Sent, now time.Time) *Decision {
	underWay := w.underWay(last, now)
	decision := Decision{}
	switch reason := w.Status.Reason; {
	case reason == v1alpha1.OutOfBandHostBusy && !underWay:
		decision = w.giveTime("another was busy with its host", now)
	case now.Before(w.deadline()) && (reason == v1alpha1.OutOfBandPowerInUse && !underWay || w.hasTime()):
		decision = wait(w.Status, w.deadline().Sub(now))
	default:
		return nil
	}

	return &decision
}

// giveTime waits for a machine that somebody may have rebooted a moment ago.
func (w World) giveTime(why string, now time.Time) Decision {
	status := w.status(v1alpha1.OutOfBandSilent, v1alpha1.OutOfBandWaitingForMachine, fmt.Sprintf(
		"the machine is silent; %s and may have rebooted it, so it has time before it is reset", why),
		now.Add(w.Settings.SilentAfterReset))

	return wait(status, w.Settings.SilentAfterReset)
}

// hasTime tells that giveTime was the last that was decided.
func (w World) hasTime() bool {
	return w.Status.Phase == v1alpha1.OutOfBandSilent && w.Status.Reason == v1alpha1.OutOfBandWaitingForMachine
}

// underWay tells whether the last action is one of a reset that has not ended.
func (w World) underWay(last *bmc.Sent, now time.Time) bool {
	return last != nil && (now.Before(w.resetEnds(*last)) || !boots(last.Action))
}

// obstacle is a reason not to reach for the BMC.
func (w World) obstacle(now time.Time) *Decision {
	if w.Settings.Disabled && w.Host.NotFound == "" {
		return w.disabled()
	}
	reason, text, left := w.hindrance()
	if reason == "" {
		return nil
	}
	phase, deadline, after := v1alpha1.OutOfBandSilent, w.deadline(), pollHost
	last := w.lastAction()
	if last != nil {
		phase, deadline = v1alpha1.OutOfBandResetting, w.resetEnds(*last)
	}
	switch {
	case w.Status.Resets >= w.Settings.MaxResets && (last == nil || !now.Before(deadline)):
		decision := w.resetsUsedUp(left)

		return &decision
	case reason == v1alpha1.OutOfBandPowerInUse && !w.underWay(last, now):
		phase, deadline, after = v1alpha1.OutOfBandSilent, now.Add(w.Settings.SilentAfterReset), w.Settings.SilentAfterReset
	case reason == v1alpha1.OutOfBandPoolSilent && !now.Before(w.LastSign.Add(w.SilentAfter+brakeLimit)):
		phase = v1alpha1.OutOfBandNeedsHuman
	case w.Problem != nil && w.Problem.Refused && !now.Before(w.refusedUntil(last)):
		phase, deadline, after = v1alpha1.OutOfBandNeedsHuman, time.Time{}, pollIdle
		text += "; look at its console, and switch it on by hand"
	}
	decision := wait(w.status(phase, reason, text, deadline), after)

	return &decision
}

// refusedUntil is how long a BMC may refuse to switch the machine on before a person is asked.
func (w World) refusedUntil(last *bmc.Sent) time.Time {
	if last == nil {
		return w.LastSign.Add(w.SilentAfter + brakeLimit)
	}

	return w.resetEnds(*last)
}

// disabled only looks, as spec.outOfBand.disabled wants it.
func (w World) disabled() *Decision {
	if w.Seen == nil && w.Problem == nil {
		return nil
	}
	decision := wait(w.status(v1alpha1.OutOfBandNeedsHuman, v1alpha1.OutOfBandDisabled,
		fmt.Sprintf("%s%s, and spec.outOfBand.disabled forbids power actions; "+
			"look at its console and reset it, or allow power actions in the HostPool", w.silentText(), w.powerText()),
		time.Time{}), pollIdle)

	return &decision
}

// hindrance is what keeps a silent machine from being reset, with the text for when a reset is left, and what is added
// to the text for when none is.
func (w World) hindrance() (reason v1alpha1.OutOfBandReason, text, left string) {
	switch {
	case w.Host.NotFound != "":
		return v1alpha1.OutOfBandHostNotFound, w.silentText() + " and cannot be reset: " + w.Host.NotFound,
			"; its host cannot be used: " + w.Host.NotFound
	case w.Host.Busy != "":
		return v1alpha1.OutOfBandHostBusy, w.silentText() + " and is reset as soon as the host is free: " + w.Host.Busy,
			"; the host is busy: " + w.Host.Busy
	case w.Problem == nil:
		return "", "", ""
	case w.Problem.holdsUsUp():
		return w.Problem.Reason, w.silentText() + " and is reset later: " + w.Problem.Text, ""
	default:
		return w.Problem.Reason, w.silentText() + "; this is tried again: " + w.Problem.Text, ""
	}
}

// resetsUsedUp asks a person, and looks at the power now and then: they may switch it.
func (w World) resetsUsedUp(more string) Decision {
	return wait(w.status(v1alpha1.OutOfBandNeedsHuman, v1alpha1.OutOfBandResetsUsedUp, fmt.Sprintf(
		"%s%s after %d of %d resets%s%s; look at status.outOfBand.evidence and at its console, then repair "+
			"or reset it by hand, or raise spec.outOfBand.maxResets",
		w.silentText(), w.powerText(), w.Status.Resets, w.Settings.MaxResets, w.refusalText(), more), time.Time{}), pollIdle)
}

// beginReset starts a new reset when there is one left.
func (w World) beginReset(now time.Time) Decision {
	if w.Status.Resets >= w.Settings.MaxResets {
		if step, owed := w.owesOn(); owed {
			return w.record(step, w.Status.Resets, now)
		}

		return w.resetsUsedUp("")
	}
	if w.Seen.Power == bmc.PowerTransition && now.Before(w.deadline().Add(settlePower)) {
		return wait(w.status(v1alpha1.OutOfBandSilent, v1alpha1.OutOfBandDeadlinePassed,
			"the machine is silent and its power is changing", w.deadline()), pollPower)
	}
	reset := w.Status.Resets + 1
	step := w.rungOf(reset).first(*w.Seen)
	if step.Verb != bmc.Send {
		return wait(w.status(v1alpha1.OutOfBandNeedsHuman, v1alpha1.OutOfBandDeadlinePassed,
			"the machine is silent and cannot be reset: "+step.Why+"; look at its console and reset it by hand",
			time.Time{}), pollIdle)
	}
	if w.Answers {
		step.Why += ", and its operating system answers"
	}

	return w.record(step, reset, now)
}

// continueReset goes on with a reset whose last action was sent, or may have been.
func (w World) continueReset(last bmc.Sent, now time.Time) Decision {
	ends, refusal := w.resetEnds(last), w.Status.Intent.Refusal
	step := bmc.IntentRestart.Next(*w.Seen, last, w.limits(), now)
	if step.Verb == bmc.Expired && w.unfinished(last) {
		step = bmc.IntentRestart.First(*w.Seen)
	}
	if refusal != "" && step.Verb != bmc.Send {
		step.Why = fmt.Sprintf("the BMC refused %s, and may have acted all the same (%s)", last.Action, refusal)
	}
	switch {
	case step.Verb == bmc.Send:
		return w.record(step, w.Status.Resets, now)
	case step.Verb == bmc.Wait && now.Before(ends):
		return wait(w.status(v1alpha1.OutOfBandResetting, v1alpha1.OutOfBandPowerActionSent,
			fmt.Sprintf("%s: %s", w.resetOf(), step.Why), ends), pollPower)
	case now.Before(ends):
		return wait(w.status(v1alpha1.OutOfBandResetting, v1alpha1.OutOfBandWaitingAfterReset,
			fmt.Sprintf("%s: %s; waiting for a sign of life", w.resetOf(), step.Why), ends),
			ends.Sub(now))
	case refusal == "" && !boots(last.Action) && w.Seen.Power == bmc.PowerOn && w.Status.Resets < w.Settings.MaxResets && !w.hasTime():
		// It was to be off, and long after it is on.
		return w.giveTime("a reset was to switch it off, it is on, another may have switched it on", now)
	default:
		return w.beginReset(now)
	}
}

// record stores a step as an intent. A step that goes on with a reset keeps its number.
func (w World) record(step bmc.Step, reset int32, now time.Time) Decision {
	why := step.Why
	if w.Host.ViaMetal3 {
		why = fmt.Sprintf("Metal3 says that the machine's power is %s", w.Seen.Power)
	}
	status := w.status(v1alpha1.OutOfBandResetting, v1alpha1.OutOfBandDeadlinePassed, fmt.Sprintf(
		"reset %d of %d: sending %s, since %s", reset, w.Settings.MaxResets, step.Action, why),
		now.Add(w.Settings.SilentAfterReset))
	status.Resets = reset
	intent := &v1alpha1.PowerIntent{
		ID:            fmt.Sprintf("%s-%d-%s", w.Attempt, reset, step.Action),
		Action:        string(step.Action),
		DecidedAt:     metav1.NewMicroTime(now),
		ObservedPower: v1alpha1.PowerState(w.Seen.Power),
	}
	if earlier := w.Status.Intent; earlier != nil {
		addUnknown(status)
		if reset == w.Status.Resets && earlier.Action == intent.Action {
			intent.ID += fmt.Sprintf("-%d", now.Unix())
		}
	}
	ours, _ := w.switchedOff()
	if w.rungOf(reset).fromDisk && boots(step.Action) && w.Status.BootOverride == "" {
		intent.BootFrom = string(bmc.BootDisk)
	}
	status.Intent = intent

	return Decision{Verb: Record, Status: status, Begins: reset > w.Status.Resets && (!ours || step.Action != bmc.ActionOn)}
}

// confirm looks at what was seen after the intent was stored, and sends only if it still holds.
func (w World) confirm(now time.Time) Decision {
	if w.Status == nil || w.Status.Intent == nil || w.Status.Intent.ID != w.Recorded || w.Status.Intent.SentAt != nil {
		// Somebody else has written the status: whatever it says is decided in a new pass.
		return Decision{Verb: Wait, Status: w.Status, After: retryAtOnce}
	}
	intent := w.Status.Intent
	if w.Seen == nil && w.Problem == nil && w.stillWanted() {
		return Decision{Verb: Observe}
	}
	decided := intent.DecidedAt.Time
	switch {
	case w.Problem != nil, !w.stillWanted(),
		!w.Seen.At.After(decided),
		now.Sub(decided) > intentLife,
		string(w.Seen.Power) != string(intent.ObservedPower),
		!slices.Contains(w.Seen.Offered, bmc.Action(intent.Action)):
		return w.withdraw(now)
	default:
		return Decision{Verb: Send, Status: w.Status, Action: bmc.Action(intent.Action)}
	}
}

// stillWanted tells whether nothing but the BMC could keep a stored intent from being sent.
func (w World) stillWanted() bool {
	same := w.Phase == w.PhaseBefore && w.Host == w.HostBefore && w.Host.NotFound == "" && w.Host.Busy == "" && !w.Settings.Disabled
	if w.endsOwnReset() {
		return same
	}

	return same && watched(w.Phase) && w.LastSign.Before(w.Status.Intent.DecidedAt.Time) && !w.signSince(w.Before)
}

// endsOwnReset tells whether the stored intent switches a machine on that a reset of ours has left off. Then neither the
// agent's phase nor a sign of life takes it back: they are of before the machine was seen off.
func (w World) endsOwnReset() bool {
	if w.Status.Intent.Action != string(bmc.ActionOn) || w.Host.ViaMetal3 ||
		w.Before == nil || w.Before.Intent == nil || w.Before.Resets != w.Status.Resets {
		return false
	}
	before := w.Before.DeepCopy()
	addUnknown(before)
	ours, _ := offByUs(before)

	return ours || before.Intent.Action != string(bmc.ActionOn)
}

// signSince tells whether a sign of life came that the status from before the intent did not know.
func (w World) signSince(before *v1alpha1.OutOfBandStatus) bool {
	earlier := w
	earlier.Status = before

	return before == nil || earlier.isAlive(w.Status.Intent.DecidedAt.Time)
}

// withdraw takes an intent back that was certainly not sent.
func (w World) withdraw(now time.Time) Decision {
	earlier := w
	earlier.Status, earlier.Recorded, earlier.Before = w.Before.DeepCopy(), "", nil
	earlier.Status.BootOverride = cmp.Or(w.BootSet, earlier.Status.BootOverride)
	if stop := earlier.obstacle(now); stop != nil {
		return Decision{Verb: Withdraw, Status: stop.Status, After: stop.After}
	}
	status := earlier.Status
	earlier.putPower(status)

	return Decision{Verb: Withdraw, Status: status, After: retryAtOnce}
}

// AfterSend is the status after Send. err is what Machine.Do gave. withdrawn tells that the BMC has not acted.
func AfterSend(w World, err error, now time.Time) (status *v1alpha1.OutOfBandStatus, withdrawn bool) {
	switch {
	case err == nil:
		sent := metav1.NewMicroTime(now)
		status = w.status(v1alpha1.OutOfBandResetting, v1alpha1.OutOfBandPowerActionSent,
			fmt.Sprintf("%s: %s was accepted by %s%s", w.resetOf(), w.Status.Intent.Action, w.through(), w.bootText()),
			now.Add(w.Settings.SilentAfterReset))
		status.Intent.SentAt = &sent
		status.BootOverride = cmp.Or(w.BootSet, status.BootOverride)
		addAction(status)

		return status, false
	case bmc.KindOf(err) == bmc.Unknown:
		status = w.status(v1alpha1.OutOfBandResetting, v1alpha1.OutOfBandPowerActionSent,
			fmt.Sprintf("%s: %s may have been accepted%s: %v", w.resetOf(), w.Status.Intent.Action, w.bootText(), err),
			w.Status.Intent.DecidedAt.Add(w.Settings.SilentAfterReset))
		status.BootOverride = cmp.Or(w.BootSet, status.BootOverride)
		addAction(status)

		return status, false
	case isRefusal(err) && w.beginsOrRestarts():
		// A BMC may carry out what it refuses, and one that refuses for ever must not be asked for ever: it counts.
		status = w.status(v1alpha1.OutOfBandResetting, v1alpha1.OutOfBandPowerActionSent,
			fmt.Sprintf("%s: the BMC refused %s and says that it has not acted%s: %v", w.resetOf(), w.Status.Intent.Action, w.bootText(), err),
			w.Status.Intent.DecidedAt.Add(w.Settings.SilentAfterReset))
		status.BootOverride = cmp.Or(w.BootSet, status.BootOverride)
		status.Intent.Refusal = v1alpha1.Cut(err.Error(), maxRefusal)
		addAction(status)

		return status, false
	default:
		w.Problem = problemOf(err)

		return w.withdraw(now).Status, true
	}
}

// maxRefusal is the API's limit.
const maxRefusal = 512

// isRefusal tells that the BMC itself has refused an action.
func isRefusal(err error) bool {
	refusal, ok := errors.AsType[*bmc.Error](err)

	return ok && refusal.Refused
}

// beginsOrRestarts tells of every stored intent but one that switches a machine on which a reset has left off: that is
// tried until it is on, and harms nothing.
func (w World) beginsOrRestarts() bool {
	return w.Status.Intent.Action != string(bmc.ActionOn) || w.Before == nil || w.Status.Resets > w.Before.Resets
}
