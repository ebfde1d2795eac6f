package agent

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

const (
	// progressStep is the part of the work, in percent, after which progress is worth a write. readingShare is how much of
	// the work reading the slots is, where that is done, in percent: a guess, for what is read is more than what is
	// written, and goes faster.
	progressStep = 20
	readingShare = 40
	// messageEvery is how often a message that changed, and nothing else, is worth a write.
	messageEvery = 10 * time.Minute
	// heartbeatEvery is how often the status is written while a trial boot is proved or reported, though nothing has
	// changed: with a sick kubelet it is the only sign of life that the BMC rung sees.
	heartbeatEvery = time.Minute
	percent        = 100
)

// statusOf is what the cluster is to be shown of a world and a step: the agent's part of NodeUpdate status.
func statusOf(w world, now step, scheme, version string, rungs []v1alpha1.RungStatus) v1alpha1.NodeUpdateStatus {
	status := v1alpha1.NodeUpdateStatus{
		Phase: now.phase, Reason: now.reason, Message: cut(now.message), Deadline: metaTime(now.deadline),
		Heartbeat: metaTime(w.now), BootID: w.bootID, AgentVersion: version, Scheme: scheme,
		Counters: countersOf(w), Rungs: rungs, History: w.journal.History,
	}

	if w.slotsErr == nil {
		status.Running = w.slotStatus(w.slots.Running)
		if good := w.slots.KnownGood(); good != nil {
			status.KnownGood = w.slotStatus(*good)
		}
	} else {
		status.Running, status.KnownGood = w.status().Running, w.status().KnownGood
	}

	attempt := w.attempt()
	if attempt == nil || phaseOf(w) == v1alpha1.PhaseIdle {
		if w.update != nil {
			status.ObservedGeneration = w.update.Generation
		}
	} else {
		status.Attempt = attempt.ID
		status.ObservedGeneration = attempt.Generation
		status.Progress = progressOf(w)

		if now.phase == v1alpha1.PhaseRebooting && attempt.RebootSince != nil {
			status.RebootedAt = metaTime(*attempt.RebootSince)
		}
	}

	status.Conditions = conditionsOf(w, status, rungs)

	return status
}

func (w world) slotStatus(slot slots.Slot) v1alpha1.SlotStatus {
	return v1alpha1.SlotStatus{Name: slot.Name, Version: slot.Version, Digest: w.digestOf(slot)}
}

func countersOf(w world) v1alpha1.Counters {
	counters := v1alpha1.Counters{BytesDownloaded: w.journal.Downloaded, SlotBytesWritten: w.journal.Written}
	if attempt := w.attempt(); attempt != nil && attempt.ReadyAt != nil {
		counters.BytesSinceDrain = w.journal.Downloaded + w.journal.Written - attempt.BytesAtReady
	}

	return counters
}

func progressOf(w world) *v1alpha1.Progress {
	attempt := w.attempt()

	switch {
	case attempt.StagedAt != nil && attempt.Config != nil:
		var done v1alpha1.Progress
		if attempt.Staging != nil {
			done = *attempt.Staging
		}

		done.BytesTotal = 0
		for _, content := range slotContents(*attempt.Config) {
			done.BytesTotal += content.RawSize
		}

		done.BytesDone = done.BytesTotal

		return &done
	case w.staging.attempt == attempt.ID:
		return w.staging.progress
	default:
		return nil
	}
}

// signatureOf is what was found of the signatures of the attempt's image, nil when none were asked for.
func signatureOf(w world) *journal.Signature {
	if w.staging.attempt == w.attempt().ID && w.staging.signature != nil {
		return w.staging.signature // The keys may be others than when it was stored.
	}

	return w.attempt().Signature
}

// releaseVerified is the condition about the signatures, nil when it is about nothing.
func releaseVerified(w world, status v1alpha1.NodeUpdateStatus) *metav1.Condition {
	attempt := w.attempt()
	if attempt == nil || status.Attempt != attempt.ID {
		return nil
	}

	condition := metav1.Condition{
		Type: v1alpha1.ConditionReleaseVerified, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonReleaseUntrusted,
	}

	switch signature := signatureOf(w); {
	case attempt.End != nil && attempt.End.Reason == v1alpha1.ReasonImageUntrusted:
		condition.Message = attempt.End.Message
	case signature == nil:
		return nil
	case signature.Verified:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, v1alpha1.ReasonVerified, cut(signature.Message)
	default:
		condition.Message = cut(signature.Message)
	}

	return &condition
}

func conditionsOf(w world, status v1alpha1.NodeUpdateStatus, rungs []v1alpha1.RungStatus) []metav1.Condition {
	stagedNow := metav1.Condition{
		Type: v1alpha1.ConditionStaged, Status: metav1.ConditionFalse, Reason: string(status.Reason), Message: "nothing is staged",
	}

	if attempt := w.attempt(); attempt != nil && attempt.StagedAt != nil && status.Attempt == attempt.ID {
		stagedNow.Status, stagedNow.Reason = metav1.ConditionTrue, "Verified"
		stagedNow.Message = "attempt " + attempt.ID + ": version " + attempt.Version + " was read back from the spare slot"
	}

	fallback := metav1.Condition{
		Type: v1alpha1.ConditionFallbackReady, Status: metav1.ConditionTrue, Reason: "AllRungs", Message: "every rung is there",
	}

	for _, rung := range rungs {
		if rung.State != v1alpha1.RungReady {
			fallback.Status, fallback.Reason, fallback.Message = metav1.ConditionFalse, "RungMissing", cut(string(rung.Rung)+": "+rung.Message)
		}
	}

	for _, problem := range w.slots.Problems {
		fallback.Status, fallback.Reason, fallback.Message = metav1.ConditionFalse, "SlotProblem", cut(problem)
	}

	conditions := []metav1.Condition{stagedNow, fallback}
	if verified := releaseVerified(w, status); verified != nil {
		conditions = append(conditions, *verified)
	}

	for i := range conditions {
		conditions[i].ObservedGeneration = status.ObservedGeneration
		conditions[i].LastTransitionTime = metav1.NewTime(w.now)

		for _, old := range w.status().Conditions {
			if old.Type == conditions[i].Type && old.Status == conditions[i].Status {
				conditions[i].LastTransitionTime = old.LastTransitionTime
			}
		}
	}

	return conditions
}

// worthWriting tells whether the difference between what the cluster was shown last and what is now is worth one of
// the few writes of an attempt. An idle agent writes nothing, and neither does one that waits for the orchestrator.
func worthWriting(old, now v1alpha1.NodeUpdateStatus) bool {
	switch {
	case old.Attempt != now.Attempt, old.Phase != now.Phase, !sameReason(old, now),
		old.ObservedGeneration != now.ObservedGeneration, old.BootID != now.BootID,
		old.Running != now.Running, old.KnownGood != now.KnownGood,
		old.AgentVersion != now.AgentVersion, old.Scheme != now.Scheme,
		!sameRungs(old.Rungs, now.Rungs), !sameHistory(old.History, now.History),
		!sameConditions(old.Conditions, now.Conditions):
		return true
	case now.Phase == v1alpha1.PhaseStaging && old.Progress == nil && now.Progress != nil:
		return true // It is known by now what there is to do.
	case share(now.Progress)-share(old.Progress) >= progressStep && now.Progress.BytesDone < now.Progress.BytesTotal:
		return true // When all is done, another phase follows at once.
	case beats(old, now.Heartbeat.Time):
		return true
	case old.Message != now.Message && !moves(now.Reason):
		return old.Heartbeat == nil || now.Heartbeat.Sub(old.Heartbeat.Time) >= messageEvery
	default:
		return false
	}
}

// beats tells whether a heartbeat is due. A clock that was set back, as after a boot with a wrong one, is no reason to
// fall silent.
func beats(shown v1alpha1.NodeUpdateStatus, now time.Time) bool {
	due := heartbeatDue(shown)

	return !due.IsZero() && (!now.Before(due) || now.Before(shown.Heartbeat.Time))
}

// heartbeatDue is when the status is worth a write though nothing has changed; zero: never. A boot in which the agent
// has said Rebooting is on its way down: there another write would say nothing.
func heartbeatDue(shown v1alpha1.NodeUpdateStatus) time.Time {
	switch shown.Phase {
	case v1alpha1.PhaseProving, v1alpha1.PhaseReporting:
		if shown.Heartbeat != nil {
			return shown.Heartbeat.Add(heartbeatEvery)
		}
	default:
	}

	return time.Time{}
}

// share is how much of the work of staging is done, in percent.
func share(progress *v1alpha1.Progress) int64 {
	switch {
	case progress == nil || progress.BytesTotal == 0:
		return 0
	case progress.BytesToRead == 0:
		return progress.BytesDone * percent / progress.BytesTotal
	default:
		return progress.BytesRead*readingShare/progress.BytesToRead +
			progress.BytesDone*(percent-readingShare)/progress.BytesTotal
	}
}

// moves tells whether a reason is one of staging that goes on. The agent goes from one to the other with each content, and
// its message has numbers in it.
func moves(reason v1alpha1.Reason) bool {
	return reason == v1alpha1.ReasonReadingSlots || reason == v1alpha1.ReasonDownloading
}

func sameReason(old, now v1alpha1.NodeUpdateStatus) bool {
	return old.Reason == now.Reason || (moves(old.Reason) && moves(now.Reason))
}

func sameRungs(old, now []v1alpha1.RungStatus) bool {
	return slices.EqualFunc(old, now, func(a, b v1alpha1.RungStatus) bool { return a.Rung == b.Rung && a.State == b.State })
}

func sameHistory(old, now []v1alpha1.AttemptRecord) bool {
	return slices.EqualFunc(old, now, func(a, b v1alpha1.AttemptRecord) bool { return a.ID == b.ID && a.Phase == b.Phase })
}

// sameConditions leaves the verdict on the signatures aside: it comes with the first progress, or with the end.
func sameConditions(old, now []metav1.Condition) bool {
	others := func(all []metav1.Condition) []metav1.Condition {
		return slices.DeleteFunc(slices.Clone(all), func(condition metav1.Condition) bool {
			return condition.Type == v1alpha1.ConditionReleaseVerified
		})
	}

	return slices.EqualFunc(others(old), others(now), func(a, b metav1.Condition) bool {
		return a.Type == b.Type && a.Status == b.Status
	})
}

// recordOf is the history's entry of an attempt that has ended.
func recordOf(attempt journal.Attempt) v1alpha1.AttemptRecord {
	return v1alpha1.AttemptRecord{
		ID: attempt.ID, Phase: attempt.End.Phase, Reason: attempt.End.Reason, Message: attempt.End.Message,
		Version: attempt.Version, Digest: attempt.Digest, Rung: attempt.End.Rung,
		StartedAt: metav1.NewTime(attempt.StartedAt), ReadyAt: metaTimeOf(attempt.ReadyAt),
		RebootedAt: metaTimeOf(attempt.RebootedAt), BackAt: metaTimeOf(attempt.BackAt), EndedAt: metaTime(attempt.End.At),
	}
}

func metaTime(at time.Time) *metav1.Time {
	if at.IsZero() {
		return nil
	}

	// The API keeps whole seconds in UTC.
	value := metav1.NewTime(at.UTC().Truncate(time.Second))

	return &value
}

func metaTimeOf(at *time.Time) *metav1.Time {
	if at == nil {
		return nil
	}

	return metaTime(*at)
}
