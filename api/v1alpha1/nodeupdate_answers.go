package v1alpha1

import "time"

// AnnotationOfferedAt on a NodeUpdate is when its attempt was offered (RFC 3339): the agent's time to take it up counts
// from it.
const AnnotationOfferedAt = "stayput.dev/offered-at"

// AgentWroteAt is when the agent wrote the status last; zero: that is not known. The API server's time of the write is
// taken where the object has its managed fields: it is the same clock for all nodes. Caches may leave them out; then the
// heartbeat counts, which is of the node's clock. What is later than now was written by a clock that is wrong.
func (u *NodeUpdate) AgentWroteAt(now time.Time) time.Time {
	var written time.Time
	for _, entry := range u.ManagedFields {
		if entry.Manager == FieldManagerAgent && entry.Subresource == "status" && entry.Time != nil &&
			entry.Time.After(written) && !entry.Time.After(now) {
			written = entry.Time.Time
		}
	}
	if beat := u.Status.Heartbeat; written.IsZero() && beat != nil && !beat.After(now) {
		written = beat.Time
	}

	return written
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
