package agent

import (
	"time"

	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// action is what a step does: a closed list. Each is one effect (see effects.go) and is safe to repeat.
type action string

const (
	// wait does nothing until the world changes or the step's wake time comes.
	wait action = "wait"
	// adopt takes up an attempt: stores it in the journal.
	adopt action = "adopt"
	// drop forgets an attempt that was superseded before anything was armed.
	drop action = "drop"
	// fetch starts the background work: read the image's config, check it, stage it.
	fetch action = "fetch"
	// learn stores the image's config.
	learn action = "learn"
	// markStaged stores that the spare slot holds the image; unstage that it does not.
	markStaged action = "mark-staged"
	unstage    action = "unstage"
	// takeReady stores that the node is drained, and how many bytes were moved until then.
	takeReady action = "take-ready"
	// arm stores the intent, leaves the trial file, and makes the spare slot the next boot.
	arm action = "arm"
	// reboot stores the intent, tells the cluster, and asks for the reboot.
	reboot action = "reboot"
	// giveUp marks the running trial boot bad and reboots: the boot gate should have, and did not.
	giveUp action = "give-up"
	// noteBack stores when the agent ran again.
	noteBack action = "note-back"
	// conclude stores how the attempt ended.
	conclude action = "conclude"
	// reopen takes the end back.
	reopen action = "reopen"
	// disarm makes the spare slot unbootable.
	disarm action = "disarm"
	// deletePods deletes the pods of the node, and report answers on the Node.
	deletePods action = "delete-pods"
	report     action = "report"
	// settle stores the attempt in the history.
	settle action = "settle"
)

// step is a decision.
type step struct {
	do action
	// phase, reason and message are what the cluster is shown while the step lasts.
	phase   v1alpha1.Phase
	reason  v1alpha1.Reason
	message string
	// deadline is when the present wait ends, zero when it waits for others.
	deadline time.Time
	// wake is when to decide again at the latest, zero for the slow timer.
	wake time.Time

	// attempt is what to adopt, image what to learn, end what to conclude.
	attempt *journal.Attempt
	image   *osimage.Config
	end     *journal.End
	// passedBy tells that the reboot is because the boot loader did not try the new slot.
	passedBy bool
}

func waitFor(phase v1alpha1.Phase, reason v1alpha1.Reason, message string) step {
	return step{do: wait, phase: phase, reason: reason, message: message}
}

// until sets the deadline of a wait, at which it is decided again.
func (s step) until(deadline time.Time) step {
	s.deadline, s.wake = deadline, deadline

	return s
}

// wakeAt makes the engine decide again at a time that is no deadline.
func (s step) wakeAt(at time.Time) step {
	s.wake = at

	return s
}

func do(what action, phase v1alpha1.Phase, reason v1alpha1.Reason) step {
	return step{do: what, phase: phase, reason: reason}
}

// ends concludes the attempt.
func ends(now time.Time, phase v1alpha1.Phase, reason v1alpha1.Reason, rung v1alpha1.Rung, message string) step {
	return step{
		do: conclude, phase: phase, reason: reason, message: message,
		end: &journal.End{Phase: phase, Reason: reason, Rung: rung, Message: cut(message), At: now},
	}
}

// cut shortens a message to what the API takes.
func cut(message string) string { return v1alpha1.Cut(message, v1alpha1.MaxMessage) }
