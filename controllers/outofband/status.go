package outofband

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

func wait(status *v1alpha1.OutOfBandStatus, after time.Duration) Decision {
	return Decision{Verb: Wait, Status: status, After: after}
}

// status is a new status that keeps what the old one counted. A zero deadline means none.
func (w World) status(
	phase v1alpha1.OutOfBandPhase, reason v1alpha1.OutOfBandReason, message string, deadline time.Time,
) *v1alpha1.OutOfBandStatus {
	status := &v1alpha1.OutOfBandStatus{}
	if w.Status != nil {
		status = w.Status.DeepCopy()
	}
	status.Attempt, status.Phase, status.Reason = w.Attempt, phase, reason
	status.Message = v1alpha1.Cut(message, v1alpha1.MaxMessage)
	status.Deadline = nil
	if !deadline.IsZero() {
		// Stored in whole seconds: rounded up, so that it is never early.
		at := metav1.NewTime(deadline.Add(time.Second - 1).Truncate(time.Second))
		status.Deadline = &at
	}
	w.putPower(status)

	return status
}

func (w World) putPower(status *v1alpha1.OutOfBandStatus) {
	if w.Seen != nil {
		at := metav1.NewMicroTime(w.Seen.At)
		status.Power, status.PowerReadAt = v1alpha1.PowerState(w.Seen.Power), &at
		addToHistory(status, v1alpha1.PowerEvent{At: metav1.NewTime(w.Seen.At), Power: status.Power})
	}
}

// ended tells whether the machine had come back for good. A later reboot of the same attempt is a new wait.
func (w World) ended() bool {
	return w.Status.Phase == v1alpha1.OutOfBandRecovered && w.Status.Deadline == nil
}

// waitsForHuman tells whether a person was asked, and nothing has changed that would let us go on.
func (w World) waitsForHuman() bool {
	if w.Status.Phase != v1alpha1.OutOfBandNeedsHuman {
		return false
	}
	switch w.Status.Reason {
	case v1alpha1.OutOfBandDisabled:
		return w.Settings.Disabled
	case v1alpha1.OutOfBandResetsUsedUp:
		return w.Settings.Disabled || w.Status.Resets >= w.Settings.MaxResets
	default:
		return true
	}
}

// watching tells whether the deadline is still that of a wait, not of a silence.
func (w World) watching() bool {
	return w.Status.Phase == v1alpha1.OutOfBandWatching || w.Status.Phase == v1alpha1.OutOfBandRecovered
}

// deadline is the stored one; zero, which is in the past, when there is none.
func (w World) deadline() time.Time {
	if w.Status == nil || w.Status.Deadline == nil {
		return time.Time{}
	}

	return w.Status.Deadline.Time
}

// resetEnds is when a machine that is still silent may be reset anew. It comes from the action itself, not from the
// stored deadline, which has none while a person is asked.
func (w World) resetEnds(last bmc.Sent) time.Time { return last.At.Add(w.Settings.SilentAfterReset) }

// readAge is how long ago the power was read; very long when never.
func (w World) readAge(now time.Time) time.Duration {
	if w.Status == nil || w.Status.PowerReadAt == nil {
		return time.Duration(1<<63 - 1)
	}

	return now.Sub(w.Status.PowerReadAt.Time)
}

func (w World) resetOf() string {
	return fmt.Sprintf("reset %d of %d", w.Status.Resets, w.Settings.MaxResets)
}

// waitText says what is waited for.
func (w World) waitText() string {
	switch {
	case back(w.Phase):
		return "the agent says that the machine is back; until it is done, the machine must go on showing life"
	case w.Phase == v1alpha1.PhaseArming:
		return "the machine is about to reboot"
	default:
		return "the machine was told to reboot"
	}
}

// backText says that the machine is back.
func (w World) backText() string {
	if watched(w.Phase) && !back(w.Phase) {
		return "the machine shows life, its agent has not moved on" + w.resetsText()
	}

	return fmt.Sprintf("the machine is back, its agent says %s%s", w.Phase, w.resetsText())
}

func (w World) resetsText() string {
	if w.Status.Resets == 0 {
		return ""
	}

	return fmt.Sprintf("; resets through its BMC: %d", w.Status.Resets)
}

func (w World) powerText() string {
	switch {
	case w.Seen != nil:
		return fmt.Sprintf(" (its power is %s)", w.Seen.Power)
	case w.Problem != nil:
		return fmt.Sprintf(" (its power cannot be read: %s)", w.Problem.Text)
	default:
		return ""
	}
}

// problemOf gives an error on the way to the BMC its reason.
func problemOf(err error) *Problem {
	problem := &Problem{Reason: v1alpha1.OutOfBandBMCUnreachable, Text: err.Error(), Refused: isRefusal(err)}
	if errors.Is(err, errPace) {
		problem.Reason = v1alpha1.OutOfBandPowerLimited

		return problem
	}
	switch bmc.KindOf(err) {
	case bmc.Auth:
		problem.Reason = v1alpha1.OutOfBandBMCCredentials
	case bmc.NotFound, bmc.Ambiguous, bmc.Mismatch:
		problem.Reason = v1alpha1.OutOfBandHostNotFound
	case bmc.Untrusted, bmc.Unsupported, bmc.Busy, bmc.Conflict, bmc.Transient, bmc.Unknown, bmc.NotFollowed:
	}

	return problem
}
