package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AnnotationOfferedAt on a NodeUpdate is when its attempt was offered (RFC 3339): the agent's time to take it up counts
// from it.
const AnnotationOfferedAt = "stayput.dev/offered-at"

// ArmDeadline is how long an agent may be in phase Arming before its machine reboots, or it refuses.
const ArmDeadline = 10 * time.Minute

// StatusWrittenAt is when a field manager changed an object's status last, by the API server's clock, which is the same
// one for all nodes, and never later than now; zero: the object does not say. Caches may leave managed fields out.
func StatusWrittenAt(object metav1.Object, manager string, now time.Time) time.Time {
	var newest time.Time
	for _, entry := range object.GetManagedFields() {
		if entry.Manager == manager && entry.Subresource == "status" && entry.Time != nil && entry.Time.After(newest) {
			newest = entry.Time.Time
		}
	}
	if newest.After(now) {
		return now
	}

	return newest
}

// AgentWroteAt is when the agent wrote the status last; zero: that is not known. Where the API server does not tell, the
// heartbeat does, which is of the node's clock: one later than now tells nothing.
func (u *NodeUpdate) AgentWroteAt(now time.Time) time.Time {
	if written := StatusWrittenAt(u, FieldManagerAgent, now); !written.IsZero() {
		return written
	}
	if beat := u.Status.Heartbeat; beat != nil && !beat.After(now) {
		return beat.Time
	}

	return time.Time{}
}

// NotTakenUp tells whether the agent has seen the present attempt and says why it does not take it up, as where it
// cannot read the slots: it is idle then, and names no attempt. A change of settings makes a new generation, which leaves
// its answer true: it is enough that it came after the offer.
func (u *NodeUpdate) NotTakenUp(now time.Time) bool {
	status := &u.Status
	if status.Attempt != "" || status.Phase != PhaseIdle || status.Reason == "" || status.Reason == ReasonNoAttempt {
		return false
	}
	if status.ObservedGeneration == u.Generation {
		return true
	}
	offered, err := time.Parse(time.RFC3339, u.Annotations[AnnotationOfferedAt])

	return err == nil && u.AgentWroteAt(now).After(offered)
}

// SilentMachine is what the BMC rung says of a machine that is silent in the present attempt; nil: it is not, as far as
// the rung knows, or the agent has ended the attempt since.
func (u *NodeUpdate) SilentMachine() *OutOfBandStatus {
	bmc := u.Status.OutOfBand
	if bmc == nil || bmc.Attempt != u.Spec.Attempt || (u.Status.Attempt == bmc.Attempt && u.Status.Phase.Ended()) {
		return nil
	}
	switch bmc.Phase {
	case OutOfBandSilent, OutOfBandResetting, OutOfBandNeedsHuman:
		return bmc
	default:
		return nil
	}
}
