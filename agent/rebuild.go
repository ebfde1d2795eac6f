package agent

import (
	"strings"
	"time"

	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// lostBoot stands for a boot ID that is not known any more; no boot has it.
const lostBoot = "lost"

// rebuild makes the memory of the attempt that the NodeUpdate asks for. Nearly always the attempt is new, and the memory
// is empty. When the journal was lost in the middle of it, the trial file and the NodeUpdate say how far it was.
func rebuild(w world) *journal.Attempt {
	spec := w.update.Spec
	attempt := &journal.Attempt{
		ID: spec.Attempt, Image: spec.Release.OS.Image, Version: spec.Release.OS.Version,
		Digest: digestPart(spec.Release.OS.Image), Reboot: spec.Reboot, Health: spec.Health,
		Verification: spec.Verification.DeepCopy(),
		Generation:   w.update.Generation, StartedAt: w.now, Recovered: w.fresh,
	}

	if record := endedBefore(w, spec.Attempt); record != nil {
		if record.Phase != v1alpha1.PhaseSucceeded {
			attempt.End = &journal.End{
				Phase: record.Phase, Reason: record.Reason, Message: record.Message, Rung: record.Rung, At: w.now,
			}
			attempt.StartedAt = record.StartedAt.Time
			attempt.Disarmed = true
		}

		// A success is not taken from memory: it is found again by comparing what runs.
		return attempt
	}

	if w.fresh {
		recollect(w, attempt)
	}

	return attempt
}

// endedBefore is the record of an attempt with that ID that had ended, nil when there is none.
func endedBefore(w world, id string) *v1alpha1.AttemptRecord {
	if record := w.journal.Record(id); record != nil {
		return record
	}

	history := w.status().History
	for i, record := range history {
		if record.ID == id {
			return &history[i]
		}
	}

	return nil
}

// recollect fills in what the trial file and the NodeUpdate's status know of an attempt that the journal forgot.
func recollect(w world, attempt *journal.Attempt) {
	if w.trial == nil || w.trial.Attempt != attempt.ID {
		return // Without the root hash, stage reads the image's config first and then looks at the slots.
	}

	attempt.RootHash = w.trial.RootHash

	tried := w.trial.BootIDBefore != w.bootID && (w.slots.Running.RootHash == attempt.RootHash ||
		(w.gate != nil && w.gate.Attempt == attempt.ID) ||
		(w.slots.Spare.RootHash == attempt.RootHash && w.slots.Spare.Boot == slots.Bad))

	// Otherwise the trial file was all that came of arming: staging finds everything there, and arming is repeated.
	if tried || w.statusArmed(attempt.ID) {
		attempt.ArmIntent = w.trial.BootIDBefore
		armedBefore(w, attempt)
	}
}

// armedBefore notes that the attempt had been armed and the reboot asked for.
func armedBefore(w world, attempt *journal.Attempt) {
	status := w.status()
	at, boot := w.now, lostBoot

	// In phase Rebooting the boot ID of the status is that before the reboot; later it is not.
	if status.Attempt == attempt.ID && status.Phase == v1alpha1.PhaseRebooting && status.BootID != "" {
		boot = status.BootID
	}

	if status.Attempt == attempt.ID && status.RebootedAt != nil {
		at = status.RebootedAt.Time
	}

	if attempt.ArmIntent == "" {
		attempt.ArmIntent = boot
	}

	attempt.StagedAt, attempt.ReadyAt = orNow(attempt.StagedAt, w.now), orNow(attempt.ReadyAt, w.now)
	attempt.RebootedAt, attempt.RebootSince, attempt.RebootAskedAt, attempt.RebootBoot = &at, &at, &at, boot
}

func orNow(at *time.Time, now time.Time) *time.Time {
	if at != nil {
		return at
	}

	return &now
}

// resumed is the attempt as one whose slot had been tried: what runs or what the spare slot shows proves it.
func resumed(w world, attempt *journal.Attempt) *journal.Attempt {
	known := *attempt
	armedBefore(w, &known)
	known.RebootBoot = lostBoot

	return &known
}

func digestPart(image string) string {
	_, digest, _ := strings.Cut(image, "@")

	return digest
}
