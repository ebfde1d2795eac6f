package agent

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stayput-dev/stayput/agent/health"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/trust"
)

const (
	// gateGrace is how much longer than its longest deadline the boot gate may take to take the machine down, and
	// commitGrace how long systemd may take to commit the boot after the gate has passed.
	gateGrace   = 10 * time.Minute
	commitGrace = 5 * time.Minute
	// outOfBandGrace is how long a fallback waits for the API server, to learn whether the BMC rung took part in it.
	outOfBandGrace = 2 * time.Minute
	// maxPassedBy is how often a boot loader that did not try the new slot is given another chance.
	maxPassedBy = 1
)

// proving decides in any boot after the one under which the reboot was asked for.
func proving(w world) step {
	attempt := w.attempt()

	switch {
	case attempt.BackBoot != w.bootID:
		return do(noteBack, v1alpha1.PhaseProving, v1alpha1.ReasonWaitingForHealth)
	case w.slotsErr != nil:
		return cannotObserve(w, v1alpha1.PhaseProving)
	case w.wantedRuns() && w.committed():
		return committed(w)
	case w.wantedRuns():
		return onTrial(w)
	default:
		return fellBack(w)
	}
}

func committed(w world) step {
	message := fmt.Sprintf("slot %s runs version %s, committed", w.slots.Running.Name, w.slots.Running.Version)

	if record := w.gateRecord(); record == nil || record.Verdict != health.VerdictPassed {
		message += "; the boot gate left no record of passing: check that stayput-boot-gate.service is enabled"
	}

	next := ends(w.now, v1alpha1.PhaseSucceeded, v1alpha1.ReasonCommitted, "", message)
	next.phase, next.reason = v1alpha1.PhaseReporting, v1alpha1.ReasonDeletingPods

	return next
}

// onTrial waits for the boot gate and for systemd's commit.
func onTrial(w world) step {
	attempt := w.attempt()
	record := w.gateRecord()
	passed := record != nil && record.BootID == w.bootID && record.Verdict == health.VerdictPassed
	deadline := attempt.BackAt.Add(longestGate(attempt.Health) + gateGrace)

	switch {
	case passed && w.now.Before(deadline.Add(commitGrace)):
		return waitFor(v1alpha1.PhaseProving, v1alpha1.ReasonWaitingForCommit,
			"the boot gate has passed; waiting for systemd-bless-boot").until(deadline.Add(commitGrace))
	case passed:
		return ends(w.now, v1alpha1.PhaseNeedsHuman, v1alpha1.ReasonCommitFailed, "", fmt.Sprintf(
			"the boot gate has passed, but boot entry %s still has its counter: see `systemctl status systemd-bless-boot` and "+
				"whether the boot partition can be written", w.slots.Running.Entry))
	case w.now.Before(deadline):
		return waitFor(v1alpha1.PhaseProving, v1alpha1.ReasonWaitingForHealth,
			"the trial boot runs; "+gateProgress(record, w.bootID)).until(deadline)
	default:
		next := do(giveUp, v1alpha1.PhaseProving, v1alpha1.ReasonWaitingForHealth)
		next.message = "the boot gate has neither passed nor taken the machine down; rebooting into the known-good slot"

		return next
	}
}

// gateProgress tells which gates are still waited for.
func gateProgress(record *health.Record, bootID string) string {
	if record == nil || record.BootID != bootID {
		return "waiting for the boot gate to start"
	}

	var waiting []string

	for _, gate := range record.Gates {
		if gate.Verdict != health.VerdictPassed {
			waiting = append(waiting, string(gate.Name))
		}
	}

	return "waiting for " + strings.Join(waiting, ", ")
}

func longestGate(settings v1alpha1.HealthSettings) time.Duration {
	return max(
		health.Deadline(settings, health.GateAPIServer), health.Deadline(settings, health.GateContainerRuntime),
		health.Deadline(settings, health.GateKubelet), health.Deadline(settings, health.GateNodeReady),
	)
}

// fellBack decides when another slot runs than the one that was armed.
func fellBack(w world) step {
	attempt, spare := w.attempt(), w.slots.Spare

	switch {
	case !w.wantedSpare():
		return ends(w.now, v1alpha1.PhaseNeedsHuman, v1alpha1.ReasonBootedUnexpectedSlot, "", fmt.Sprintf(
			"slot %s runs version %q, and neither slot holds version %s, which was armed: find out what wrote to the disk, "+
				"then ask for a new attempt", w.slots.Running.Name, w.slots.Running.Version, attempt.Version))
	case spare.Boot == slots.Good:
		return ends(w.now, v1alpha1.PhaseNeedsHuman, v1alpha1.ReasonBootedUnexpectedSlot, "", fmt.Sprintf(
			"version %s was committed in slot %s, but the machine then started slot %s (version %s): somebody chose it, or "+
				"the firmware did; reboot the machine", attempt.Version, spare.Name, w.slots.Running.Name, w.slots.Running.Version))
	case passedBy(w) && attempt.PassedBy < maxPassedBy:
		next := rebootStep(attempt.Version, w.now.Add(rebootDeadline))
		next.message = "the boot loader started the old slot without trying the new one; rebooting once more"
		next.passedBy = true

		return next
	case !w.updateKnown && w.now.Before(attempt.BackAt.Add(outOfBandGrace)):
		return waitFor(v1alpha1.PhaseProving, v1alpha1.ReasonWaitingForHealth, "fell back; waiting for the API server").
			wakeAt(attempt.BackAt.Add(outOfBandGrace))
	default:
		return rolledBack(w)
	}
}

// passedBy tells whether the boot loader started the old slot although the new one has all its tries.
func passedBy(w world) bool {
	return w.slots.Spare.Boot == slots.Trial && w.gateRecord() == nil &&
		(w.attempt().ArmedEntry == "" || w.slots.Spare.Entry == w.attempt().ArmedEntry)
}

// rolledBack says which rung brought the node back, and what was seen.
func rolledBack(w world) step {
	attempt, record, bmc := w.attempt(), w.gateRecord(), w.outOfBand()
	back := fmt.Sprintf("version %s fell back to %s", attempt.Version, w.slots.Running.Version)
	rung, how := v1alpha1.RungBootTries, ""

	if bmc != nil && bmc.Resets > 0 {
		rung, how = v1alpha1.RungBMC, fmt.Sprintf("; resets of the machine through its BMC: %d", bmc.Resets)
	}

	switch {
	case record != nil && record.Verdict == health.VerdictFailed:
		return ends(w.now, v1alpha1.PhaseRolledBack, v1alpha1.ReasonHealthGateFailed, v1alpha1.RungBootGate,
			back+": "+record.Message+how)
	case record != nil && record.Verdict == health.VerdictPassed:
		return ends(w.now, v1alpha1.PhaseRolledBack, v1alpha1.ReasonBootedUnexpectedSlot, rung,
			back+": its boot gate had passed, but it was not committed before the machine went down"+how)
	case record != nil:
		return ends(w.now, v1alpha1.PhaseRolledBack, v1alpha1.ReasonGateInterrupted, rung, back+
			": the machine went down while its boot gate was "+gateProgress(record, record.BootID)+lastErrors(record)+how)
	case passedBy(w):
		return ends(w.now, v1alpha1.PhaseRolledBack, v1alpha1.ReasonBootedUnexpectedSlot, rung, back+fmt.Sprintf(
			": the boot loader never tried boot entry %s; look for a default entry in loader.conf or the EFI variables",
			w.slots.Spare.Entry)+how)
	case w.slots.Spare.Boot == slots.NoEntry:
		return ends(w.now, v1alpha1.PhaseRolledBack, v1alpha1.ReasonBootedUnexpectedSlot, rung, back+fmt.Sprintf(
			": its boot entry %s is gone from the boot partition", attempt.ArmedEntry)+how)
	default:
		return ends(w.now, v1alpha1.PhaseRolledBack, v1alpha1.ReasonKernelOrInitrdFailed, rung,
			back+": every try ended before the boot gate ran"+how)
	}
}

func lastErrors(record *health.Record) string {
	for _, gate := range record.Gates {
		if gate.Verdict != health.VerdictPassed && gate.LastError != "" {
			return " (" + string(gate.Name) + ": " + gate.LastError + ")"
		}
	}

	return ""
}

// classifyStaging gives an error of the background work its reason, and tells whether a retry cannot mend it.
func classifyStaging(err error) (reason v1alpha1.Reason, final bool) {
	if refusal, ok := slots.AsRefusal(err); ok {
		return refusal.Reason, true
	}

	if osimage.IsTransient(err) {
		return v1alpha1.ReasonRegistryUnavailable, false
	}

	for _, known := range []struct {
		kind   error
		reason v1alpha1.Reason
		final  bool
	}{
		{osimage.ErrUntrusted, v1alpha1.ReasonImageUntrusted, true},
		{trust.ErrKey, v1alpha1.ReasonKeysUnusable, false},
		{trust.ErrPolicy, v1alpha1.ReasonKeysUnusable, false},
		{osimage.ErrNotAnImage, v1alpha1.ReasonImageInvalid, true},
		{osimage.ErrWrongDigest, v1alpha1.ReasonImageInvalid, true},
		{osimage.ErrTruncated, v1alpha1.ReasonImageInvalid, true},
		{osimage.ErrTooLarge, v1alpha1.ReasonImageTooLarge, true},
		{osimage.ErrWrongArchitecture, v1alpha1.ReasonWrongArchitecture, true},
		// What follows is about the registry or the node's access to it: an operator mends it without a new attempt.
		{osimage.ErrNotFound, v1alpha1.ReasonRegistryUnavailable, false},
		{osimage.ErrUnauthorized, v1alpha1.ReasonRegistryUnavailable, false},
		{osimage.ErrUnknownCA, v1alpha1.ReasonRegistryUnavailable, false},
		{osimage.ErrPlainHTTP, v1alpha1.ReasonRegistryUnavailable, false},
	} {
		if errors.Is(err, known.kind) {
			return known.reason, known.final
		}
	}

	return v1alpha1.ReasonStorageError, false
}
