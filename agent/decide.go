package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

const (
	// rebootRetry is how long the machine may stay up after a reboot was asked for before it is asked again, and
	// rebootDeadline how long in all before the attempt ends.
	rebootRetry    = 5 * time.Minute
	rebootDeadline = 15 * time.Minute
	// observeRetry is how soon the slots are looked at again when that failed.
	observeRetry = 15 * time.Second
)

// handlers decide the next step of each phase.
func handlers() map[v1alpha1.Phase]func(world) step {
	return map[v1alpha1.Phase]func(world) step{
		v1alpha1.PhaseIdle:       idle,
		v1alpha1.PhaseStaging:    stage,
		v1alpha1.PhaseStaged:     staged,
		v1alpha1.PhaseArming:     arming,
		v1alpha1.PhaseRebooting:  rebooting,
		v1alpha1.PhaseProving:    proving,
		v1alpha1.PhaseReporting:  ended,
		v1alpha1.PhaseSucceeded:  ended,
		v1alpha1.PhaseRolledBack: ended,
		v1alpha1.PhaseRefused:    ended,
		v1alpha1.PhaseNeedsHuman: ended,
	}
}

// decide is the whole decision: what to do next in this world.
func decide(w world) step { return handlers()[phaseOf(w)](w) }

// phaseOf derives where the attempt is.
func phaseOf(w world) v1alpha1.Phase {
	attempt := w.attempt()

	switch {
	case attempt == nil:
		return v1alpha1.PhaseIdle
	case attempt.End != nil:
		return endedPhase(w)
	case attempt.ArmIntent == "" && w.superseded():
		return v1alpha1.PhaseIdle
	case attempt.StagedAt == nil:
		return v1alpha1.PhaseStaging
	case attempt.ReadyAt == nil:
		return v1alpha1.PhaseStaged
	case attempt.ArmIntent == "":
		return v1alpha1.PhaseArming
	case attempt.RebootedAt == nil:
		return armedPhase(w)
	case attempt.RebootBoot == w.bootID:
		return v1alpha1.PhaseRebooting
	default:
		return v1alpha1.PhaseProving
	}
}

// armedPhase is for an attempt that was about to be armed and for which no reboot was asked. The machine may have gone
// down in between.
func armedPhase(w world) v1alpha1.Phase {
	if w.bootID == w.attempt().ArmIntent || w.slotsErr != nil {
		return v1alpha1.PhaseArming
	}

	tried := w.wantedRuns() || w.gateRecord() != nil || (w.wantedSpare() && w.slots.Spare.Boot == slots.Bad)
	if tried {
		return v1alpha1.PhaseProving
	}

	return v1alpha1.PhaseArming
}

func endedPhase(w world) v1alpha1.Phase {
	attempt := w.attempt()

	switch {
	case attempt.Settled() && w.superseded() && !mustReport(w):
		return v1alpha1.PhaseIdle
	case attempt.End.Phase == v1alpha1.PhaseSucceeded && !attempt.Settled():
		return v1alpha1.PhaseReporting
	default:
		return attempt.End.Phase
	}
}

func idle(w world) step {
	attempt := w.attempt()

	switch {
	case !w.updateKnown:
		return waitFor(v1alpha1.PhaseIdle, v1alpha1.ReasonNoAttempt, "waiting for the API server")
	case attempt != nil && attempt.End == nil:
		return do(drop, v1alpha1.PhaseIdle, v1alpha1.ReasonAttemptSuperseded)
	case w.update == nil || w.update.Spec.Attempt == "":
		return waitFor(v1alpha1.PhaseIdle, v1alpha1.ReasonNoAttempt, "no attempt is asked for")
	case w.slotsErr != nil:
		return cannotObserve(w, v1alpha1.PhaseIdle)
	default:
		next := do(adopt, v1alpha1.PhaseStaging, v1alpha1.ReasonDownloading)
		next.attempt = rebuild(w)

		return next
	}
}

func cannotObserve(w world, phase v1alpha1.Phase) step {
	reason := v1alpha1.ReasonStorageError
	if refusal, ok := slots.AsRefusal(w.slotsErr); ok {
		reason = refusal.Reason
	}

	return waitFor(phase, reason, fmt.Sprintf("the slots cannot be read, trying again: %v", w.slotsErr)).
		wakeAt(w.now.Add(observeRetry))
}

// stage runs the background work until the spare slot holds the image.
func stage(w world) step {
	attempt := w.attempt()

	if w.slotsErr != nil {
		return cannotObserve(w, v1alpha1.PhaseStaging)
	}

	if next, known := alreadyThere(w); known {
		return next
	}

	if w.staging.attempt != attempt.ID {
		return do(fetch, v1alpha1.PhaseStaging, v1alpha1.ReasonDownloading)
	}

	switch {
	case attempt.Config == nil && w.staging.image != nil:
		next := do(learn, v1alpha1.PhaseStaging, v1alpha1.ReasonDownloading)
		next.image = w.staging.image

		return next
	case w.staging.running:
		return stagingGoesOn(w)
	case w.staging.staged:
		return do(markStaged, v1alpha1.PhaseStaged, v1alpha1.ReasonWaitingForReady)
	case w.staging.err != nil:
		return stagingFailed(w)
	default:
		return do(fetch, v1alpha1.PhaseStaging, v1alpha1.ReasonDownloading)
	}
}

// stagingGoesOn says what the background work is at.
func stagingGoesOn(w world) step {
	version := w.attempt().Version

	switch {
	case w.staging.progress == nil:
		return waitFor(v1alpha1.PhaseStaging, v1alpha1.ReasonDownloading, "looking at the image of version "+version)
	case w.staging.stage == osimage.Surveying:
		return waitFor(v1alpha1.PhaseStaging, v1alpha1.ReasonReadingSlots, fmt.Sprintf(
			"staging version %s: %s", version, w.staging.line))
	default:
		return waitFor(v1alpha1.PhaseStaging, v1alpha1.ReasonDownloading, fmt.Sprintf(
			"writing version %s into the spare slot: %s", version, w.staging.line))
	}
}

func stagingFailed(w world) step {
	reason, final := classifyStaging(w.staging.err)

	switch {
	case final:
		return ends(w.now, v1alpha1.PhaseRefused, reason, "", w.staging.err.Error())
	case w.now.Before(w.staging.retryAt):
		return waitFor(v1alpha1.PhaseStaging, reason, fmt.Sprintf("trying again at %s: %v",
			w.staging.retryAt.UTC().Format(time.TimeOnly), w.staging.err)).wakeAt(w.staging.retryAt)
	default:
		return do(fetch, v1alpha1.PhaseStaging, reason)
	}
}

// alreadyThere compares what is on the disk with what is wanted, before a byte is moved.
func alreadyThere(w world) (step, bool) {
	attempt := w.attempt()

	switch {
	case w.runsIt():
		return ends(w.now, v1alpha1.PhaseSucceeded, v1alpha1.ReasonUpToDate, "",
			fmt.Sprintf("slot %s already runs version %s, committed", w.slots.Running.Name, w.slots.Running.Version)), true
	case w.wantedRuns():
		// Only a lost journal leads here: the trial boot of this image is running.
		next := do(adopt, v1alpha1.PhaseProving, v1alpha1.ReasonWaitingForHealth)
		next.attempt = resumed(w, attempt)

		return next, true
	case attempt.Recovered && w.wantedSpare() && (w.slots.Spare.Boot == slots.Bad || w.statusArmed(attempt.ID)):
		return triedSpare(w)
	default:
		return step{}, false
	}
}

// triedSpare attributes a spare slot that was tried in vain, when the journal is lost.
func triedSpare(w world) (step, bool) {
	attempt, status := w.attempt(), w.status()

	ours := w.statusArmed(attempt.ID) || (w.gate != nil && w.gate.Attempt == attempt.ID) ||
		(status.Attempt == attempt.ID && status.Phase == v1alpha1.PhaseStaged)
	if ours {
		next := do(adopt, v1alpha1.PhaseProving, v1alpha1.ReasonWaitingForHealth)
		next.attempt = resumed(w, attempt)

		return next, true
	}

	for _, record := range status.History {
		if record.ID != attempt.ID && record.Digest == attempt.Digest {
			return step{}, false // An earlier attempt's; this one was asked for after it.
		}
	}

	return ends(w.now, v1alpha1.PhaseNeedsHuman, v1alpha1.ReasonStateLost, "", fmt.Sprintf(
		"the agent's journal was lost, and slot %s holds version %s with all its tries used up: it cannot be told whether "+
			"this attempt or an earlier one did that; look at the console log, then ask for a new attempt",
		w.slots.Spare.Name, attempt.Version)), true
}

func staged(w world) step {
	attempt := w.attempt()

	switch {
	case w.slotsErr != nil:
		return cannotObserve(w, v1alpha1.PhaseStaged)
	case !w.stagedSpare():
		return do(unstage, v1alpha1.PhaseStaging, v1alpha1.ReasonDownloading)
	case w.identityErr != nil:
		// Not Staged: the node is not to be drained for a reboot that would fall back.
		return waitFor(v1alpha1.PhaseStaging, v1alpha1.ReasonIdentityUnusable, fmt.Sprintf(
			"version %s is in slot %s, but its boot gate could not reach the API server: %v", attempt.Version,
			w.slots.Spare.Name, w.identityErr))
	case !w.asked():
		return waitFor(v1alpha1.PhaseStaged, v1alpha1.ReasonWaitingForReady, fmt.Sprintf(
			"version %s is in slot %s; waiting for the node to be drained", attempt.Version, w.slots.Spare.Name))
	case !w.node.Cordoned:
		return waitFor(v1alpha1.PhaseStaged, v1alpha1.ReasonWaitingForCordon,
			"asked to go, but the node is not cordoned: cordon and drain it, or take the request back")
	default:
		return do(takeReady, v1alpha1.PhaseArming, v1alpha1.ReasonWritingBootEntry)
	}
}

func arming(w world) step {
	attempt := w.attempt()

	switch {
	case w.slotsErr != nil && w.now.After(attempt.ReadyAt.Add(v1alpha1.ArmDeadline)):
		return ends(w.now, v1alpha1.PhaseRefused, v1alpha1.ReasonArmFailed, "", fmt.Sprintf(
			"the slots could not be read for %s: %v", v1alpha1.ArmDeadline, w.slotsErr))
	case w.slotsErr != nil:
		return cannotObserve(w, v1alpha1.PhaseArming)
	case !w.stagedSpare():
		return ends(w.now, v1alpha1.PhaseRefused, v1alpha1.ReasonArmFailed, "", fmt.Sprintf(
			"slot %s no longer holds version %s, which was staged: something else wrote to it; ask for a new attempt",
			w.slots.Spare.Name, attempt.Version))
	case attempt.ArmIntent == w.bootID && attempt.ArmedEntry != "" && w.slots.Spare.Entry == attempt.ArmedEntry:
		return rebootStep(attempt.Version, w.now.Add(rebootDeadline))
	default:
		return do(arm, v1alpha1.PhaseArming, v1alpha1.ReasonWritingBootEntry).until(attempt.ReadyAt.Add(v1alpha1.ArmDeadline))
	}
}

// armFailed decides about an error of the effect arm: whether it ends the attempt.
func armFailed(w world, err error) (step, bool) {
	if refusal, ok := slots.AsRefusal(err); ok {
		return ends(w.now, v1alpha1.PhaseRefused, v1alpha1.ReasonArmFailed, "", "arming: "+refusal.Error()), true
	}

	if errors.Is(err, slots.ErrNotStaged) || w.now.After(w.attempt().ReadyAt.Add(v1alpha1.ArmDeadline)) {
		return ends(w.now, v1alpha1.PhaseRefused, v1alpha1.ReasonArmFailed, "", err.Error()), true
	}

	return step{}, false
}

// rebooting waits in the boot under which the reboot was asked for.
func rebooting(w world) step {
	attempt := w.attempt()
	deadline := attempt.RebootSince.Add(rebootDeadline)
	retry := attempt.RebootAskedAt.Add(rebootRetry)

	switch {
	case !w.now.Before(deadline):
		return rebootFailed(w)
	case !w.askedReboot || !w.now.Before(retry):
		return rebootStep(attempt.Version, deadline)
	default:
		return waitFor(v1alpha1.PhaseRebooting, v1alpha1.ReasonWaitingForBoot, rebootMessage(attempt.Version)).
			until(deadline).wakeAt(retry)
	}
}

func rebootStep(version string, deadline time.Time) step {
	next := do(reboot, v1alpha1.PhaseRebooting, v1alpha1.ReasonWaitingForBoot).until(deadline)
	next.message = rebootMessage(version)

	return next
}

func rebootMessage(version string) string {
	return "the machine was told to reboot into version " + version
}

func rebootFailed(w world) step {
	message := fmt.Sprintf("the machine was told to reboot and is still up after %s; see `systemctl list-jobs` for what holds it up",
		rebootDeadline)
	if w.slotsErr == nil && w.wantedRuns() {
		return ends(w.now, v1alpha1.PhaseNeedsHuman, v1alpha1.ReasonRebootFailed, "", message+
			"; it runs the trial boot, which its boot gate rejected: reboot it by hand, it comes back on the known-good slot")
	}

	return ends(w.now, v1alpha1.PhaseRefused, v1alpha1.ReasonRebootFailed, "", message)
}

// ended cleans up, puts the attempt into the history, answers, and then waits for another attempt. The history reaches
// the cluster before the answer does: whoever sees the answer finds the reason, and an agent that loses its journal
// right after the answer finds that the attempt has ended.
func ended(w world) step {
	attempt, end := w.attempt(), w.attempt().End

	phase, reason := end.Phase, end.Reason
	if phase == v1alpha1.PhaseSucceeded && !attempt.Settled() {
		phase, reason = v1alpha1.PhaseReporting, v1alpha1.ReasonDeletingPods
	}

	if next, found := wrongEnd(w, phase); found {
		return next
	}

	switch {
	case mustDisarm(w):
		return do(disarm, phase, reason)
	case end.Reason == v1alpha1.ReasonCommitted && !attempt.PodsDeleted && !answered(w):
		return do(deletePods, phase, reason)
	case !attempt.Settled():
		return do(settle, phase, reason).withEnd(end)
	case mustReport(w) && w.node == nil:
		return waitFor(phase, reason, "the result cannot be reported: waiting for the API server")
	case mustReport(w):
		return do(report, phase, reason).withEnd(end)
	default:
		return waitFor(end.Phase, end.Reason, end.Message)
	}
}

// wrongEnd compares the end with what runs, before it is acted on.
func wrongEnd(w world, phase v1alpha1.Phase) (step, bool) {
	attempt := w.attempt()

	switch {
	case mustReopen(w):
		return do(reopen, v1alpha1.PhaseProving, v1alpha1.ReasonWaitingForHealth), true
	case attempt.End.Phase != v1alpha1.PhaseSucceeded || !mustReport(w):
		return step{}, false
	case w.slotsErr != nil:
		return cannotObserve(w, phase), true
	case !w.runsIt():
		return ends(w.now, v1alpha1.PhaseNeedsHuman, v1alpha1.ReasonBootedUnexpectedSlot, "", fmt.Sprintf(
			"version %s had been put on this node, but slot %s runs version %q now: somebody chose it, or the firmware did; "+
				"ask for a new attempt", attempt.Version, w.slots.Running.Name, w.slots.Running.Version)), true
	default:
		return step{}, false
	}
}

// withEnd shows the end's own message where the step has none.
func (s step) withEnd(end *journal.End) step {
	if s.message == "" {
		s.message = end.Message
	}

	return s
}

// mustReopen tells whether the new slot runs although the attempt had ended without it: the machine went down after the
// decision and before the slot was disarmed.
func mustReopen(w world) bool {
	end := w.attempt().End

	return (end.Phase == v1alpha1.PhaseRefused || end.Phase == v1alpha1.PhaseRolledBack) &&
		!w.attempt().Settled() && w.attempt().RebootedAt != nil && w.attempt().RebootBoot != w.bootID &&
		w.slotsErr == nil && w.wantedRuns()
}

// mustDisarm tells whether a boot entry of an attempt that failed is still to be taken away. What runs is left alone:
// then the spare slot is the known-good one.
func mustDisarm(w world) bool {
	attempt := w.attempt()

	return attempt.End.Phase != v1alpha1.PhaseSucceeded && attempt.ArmIntent != "" && !attempt.Disarmed &&
		w.slotsErr == nil && w.wantedSpare() && !w.wantedRuns() && w.slots.Spare.Boot != slots.Good
}

// answered tells whether the Node carries the attempt's result.
func answered(w world) bool {
	return w.node != nil && w.node.ResultFor(w.attempt().ID) != protocol.NoResult
}

// mustReport tells whether the Node is to be answered: after the drain, unless the orchestrator has moved on in the
// meantime, and whenever it asks.
func mustReport(w world) bool {
	switch {
	case answered(w), w.justReported:
		return false
	case w.asked():
		return true
	case w.attempt().ReadyAt == nil || w.attempt().Reported:
		return false
	default:
		return w.node == nil || w.node.Attempt == w.attempt().ID ||
			(w.node.Attempt == "" && (w.node.Candidate || w.node.Selected))
	}
}
