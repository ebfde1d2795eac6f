package outofband

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

// rung is how one reset is done. The first one is gentle where the operating system answers: what is alive can flush its
// file systems. From the second on the power is taken away: a device that hangs may outlive a restart. The last one asks
// the firmware for the disk, in case it has lost its boot order.
type rung struct {
	// intents are the plans, best first; the first one that what was seen allows is taken.
	intents []bmc.Intent
	// fromDisk asks for the disk at the boot that the reset makes.
	fromDisk bool
}

// rungOf is the rung of a reset, which are counted from 1.
func (w World) rungOf(reset int32) rung {
	switch {
	case reset <= 1 && w.Answers:
		return rung{intents: []bmc.Intent{bmc.IntentSoftRestart, bmc.IntentRestart}}
	case reset <= 1:
		return rung{intents: []bmc.Intent{bmc.IntentRestart}}
	default:
		return rung{
			intents:  []bmc.Intent{bmc.IntentCycle, bmc.IntentRestart},
			fromDisk: reset >= w.Settings.MaxResets && !w.Host.ViaMetal3,
		}
	}
}

// first is the first step of a rung.
func (r rung) first(seen bmc.Observation) bmc.Step {
	step := bmc.Step{}
	for _, intent := range r.intents {
		if step = intent.First(seen); step.Verb == bmc.Send {
			return step
		}
	}

	return step
}

// boots tells whether a machine that follows the action boots.
func boots(action bmc.Action) bool {
	switch action {
	case bmc.ActionForceOff, bmc.ActionShutdown:
		return false
	case bmc.ActionOn, bmc.ActionForceRestart, bmc.ActionSoftRestart, bmc.ActionPowerCycle:
	}

	return true
}

// asksOS tells whether it matters for what is decided next whether the operating system answers.
func (w World) asksOS() bool {
	return w.Recorded == "" && w.Seen != nil && w.Seen.Power == bmc.PowerOn && w.Status.Resets == 0
}

// unfinished tells whether our last action was to switch the machine on, is not known to have been sent, and was not:
// the machine is off, long after. Nobody but us would switch it on, and On hurts no machine that is seen to be off.
func (w World) unfinished(last bmc.Sent) bool {
	_, ons := w.switchedOff()

	return last.Action == bmc.ActionOn && w.Status.Intent.SentAt == nil && w.Seen.Power == bmc.PowerOff && ons < maxUnknownOns
}

// switchedOff tells whether the machine is off since we have switched it off, as far as is known, and how often it was
// told to go on since.
func (w World) switchedOff() (ours bool, ons int) {
	status := w.Status.DeepCopy()
	w.putPower(status)
	if intent := status.Intent; intent != nil {
		since := intent.DecidedAt.Add(intentLife)
		if intent.SentAt != nil {
			since = intent.SentAt.Time
		}
		if status.Power == v1alpha1.PowerOn && status.PowerReadAt != nil && status.PowerReadAt.After(since) {
			return false, 0
		}
		addUnknown(status)
	}

	return offByUs(status)
}

// offByUs reads the history.
func offByUs(status *v1alpha1.OutOfBandStatus) (ours bool, ons int) {
	seenOff := false
	for _, event := range status.History {
		switch action := bmc.Action(event.Action); {
		case action == bmc.ActionForceOff, action == bmc.ActionShutdown:
			ours, seenOff, ons = true, false, 0
		case action == bmc.ActionOn:
			ons++
		case event.Power == v1alpha1.PowerOff:
			seenOff = true
		case event.Power == v1alpha1.PowerOn && seenOff:
			// Before it was seen off the BMC may have told what was before.
			ours = false
		}
	}

	return ours, ons
}

const (
	// maxOns is how often a machine that we have switched off is told to go on before that is left to a person.
	maxOns = 3
	// maxUnknownOns is the same for when none of them is known to have been sent.
	maxUnknownOns = 2 * maxOns
)

// owesOn is the step that switches a machine on that we have switched off, when no reset is left for it.
func (w World) owesOn() (bmc.Step, bool) {
	ours, ons := w.switchedOff()
	step := bmc.IntentOn.First(*w.Seen)

	return step, ours && ons < maxOns && step.Verb == bmc.Send
}

// silentText begins what is said of a machine that is silent.
func (w World) silentText() string {
	if ours, _ := w.switchedOff(); ours {
		return "the machine was switched off by a reset and has not been seen on since"
	}

	return "the machine is silent"
}

// maxHistory bounds status.outOfBand.history.
const maxHistory = 16

// addToHistory adds to the history of a status. A power that is as it was is nothing new, but for after an action.
func addToHistory(status *v1alpha1.OutOfBandStatus, event v1alpha1.PowerEvent) {
	if last := len(status.History) - 1; event.Power != "" && last >= 0 && status.History[last].Power == event.Power {
		return
	}
	status.History = append(status.History, event)
	for len(status.History) > maxHistory {
		// What was sent is decided by, and a power that changes all the time must not displace it.
		oldest := max(0, slices.IndexFunc(status.History[:maxHistory], func(each v1alpha1.PowerEvent) bool { return each.Action == "" }))
		status.History = slices.Delete(status.History, oldest, oldest+1)
	}
}

// addAction adds the action of a status's intent to its history.
func addAction(status *v1alpha1.OutOfBandStatus) {
	event := v1alpha1.PowerEvent{Action: status.Intent.Action, At: metav1.NewTime(status.Intent.DecidedAt.Time), Unknown: true}
	if status.Intent.Refusal != "" {
		event.Unknown, event.Refused = false, true
	}
	if sent := status.Intent.SentAt; sent != nil {
		event.At, event.Unknown = metav1.NewTime(sent.Time), false
	}
	addToHistory(status, event)
}

// addUnknown adds the action of an intent that a process has left without telling whether it was sent.
func addUnknown(status *v1alpha1.OutOfBandStatus) {
	intent := status.Intent
	noted := func(event v1alpha1.PowerEvent) bool {
		return event.Action == intent.Action && event.At.Unix() == intent.DecidedAt.Unix()
	}
	if intent.SentAt == nil && !slices.ContainsFunc(status.History, noted) {
		addAction(status)
	}
}

// refusalText says how often the BMC has refused, and what it said last.
func (w World) refusalText() string {
	times := 0
	for _, event := range w.Status.History {
		if event.Refused {
			times++
		}
	}
	if times == 0 {
		return ""
	}
	last := ""
	if w.Status.Intent != nil && w.Status.Intent.Refusal != "" {
		last = ", last: " + w.Status.Intent.Refusal
	}

	return fmt.Sprintf(" (the BMC refused %d times%s)", times, last)
}

// wantsEvidence tells whether a person is asked by this status, and what the BMC can tell was not collected since the
// last action, and since the machine gave a sign of life.
func (w World) wantsEvidence(status *v1alpha1.OutOfBandStatus) bool {
	if status == nil || status.Phase != v1alpha1.OutOfBandNeedsHuman {
		return false
	}

	if status.Evidence == nil {
		return true
	}
	collected := status.Evidence.CollectedAt

	return collected.Time.Before(w.LastSign) || status.Intent != nil && collected.Before(&status.Intent.DecidedAt)
}

// bootText says how the boot override went; "" when none was wanted.
func (w World) bootText() string {
	if w.BootSet == "" {
		return ""
	}

	return fmt.Sprintf(" (%s)", w.BootSet)
}
