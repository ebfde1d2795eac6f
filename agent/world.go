package agent

import (
	"time"

	"github.com/stayput-dev/stayput/agent/health"
	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// world is all that a decision may depend on.
type world struct {
	now    time.Time
	bootID string

	journal journal.State
	// fresh tells that this process found no journal.
	fresh bool

	// identityErr is why the boot gate could not use the agent's credentials after a reboot now, nil when it could.
	identityErr error

	slots    slots.State
	slotsErr error
	trial    *health.Trial
	gate     *health.Record

	update      *v1alpha1.NodeUpdate
	updateKnown bool
	// node is nil while the Node is not known.
	node *protocol.View

	staging staging
	// askedReboot tells that this process has asked for the reboot that the journal speaks of.
	askedReboot bool
	// justReported tells that this process has answered on the Node a moment ago; the view may be older.
	justReported bool
}

// staging is where the background work is.
type staging struct {
	attempt string
	running bool
	// image is the image's config once it was read.
	image *osimage.Config
	// staged tells that the spare slot holds the image, read back.
	staged bool
	// err is why the last run ended, retryAt when to try again; failures counts them.
	err      error
	retryAt  time.Time
	failures int
	// signature is what was found of the image's signatures.
	signature *journal.Signature
	// stage and progress are how far it has come, line says that in words; nil before the scheme has told.
	stage    osimage.Stage
	progress *v1alpha1.Progress
	line     string
}

func (w world) attempt() *journal.Attempt { return w.journal.Attempt }

// status is what the cluster was shown last, as far as is known: nothing while the NodeUpdate is not known or there is
// none, as in the first passes after a reboot.
func (w world) status() v1alpha1.NodeUpdateStatus {
	if w.update == nil {
		return v1alpha1.NodeUpdateStatus{}
	}

	return w.update.Status
}

// outOfBand is the BMC rung's part about the attempt, nil when there is none.
func (w world) outOfBand() *v1alpha1.OutOfBandStatus {
	outOfBand := w.status().OutOfBand
	if w.attempt() == nil || outOfBand == nil || outOfBand.Attempt != w.attempt().ID {
		return nil
	}

	return outOfBand
}

// wantedRuns tells whether the slot that runs is the attempt's image, and wantedSpare whether the spare one is.
func (w world) wantedRuns() bool {
	return w.attempt().RootHash != "" && w.slots.Running.RootHash == w.attempt().RootHash
}

func (w world) wantedSpare() bool {
	return w.attempt().RootHash != "" && w.slots.Spare.RootHash == w.attempt().RootHash
}

// stagedSpare tells whether the attempt's image is in the spare slot, armed or ready to be.
func (w world) stagedSpare() bool {
	return w.wantedSpare() || (w.attempt().RootHash != "" && w.slots.Spare.Staged == w.attempt().RootHash)
}

// runsIt tells whether the slot that runs is the attempt's image and committed.
func (w world) runsIt() bool {
	return (w.wantedRuns() || w.digestOf(w.slots.Running) == w.attempt().Digest) && w.committed()
}

// committed tells whether the slot that runs is committed.
func (w world) committed() bool {
	return w.slots.Running.Boot == slots.Good && !w.slots.TrialBoot
}

// gateRecord is the boot gate's record about the attempt. A gate that had lost the trial file names no attempt; stale
// records were dropped when the trial file was written.
func (w world) gateRecord() *health.Record {
	if w.gate == nil || (w.gate.Attempt != w.attempt().ID && w.gate.Attempt != "") {
		return nil
	}

	return w.gate
}

// asked tells whether the Node asks the agent to go on with the attempt and has no answer to it.
func (w world) asked() bool {
	return w.node != nil && w.node.Ready && (w.node.Attempt == "" || w.node.Attempt == w.attempt().ID)
}

// superseded tells whether the cluster wants another attempt than the journal's, or none.
func (w world) superseded() bool {
	return w.updateKnown && (w.update == nil || w.update.Spec.Attempt != w.attempt().ID)
}

// statusArmed tells whether the NodeUpdate's status, which this agent wrote earlier, says that the attempt was armed.
func (w world) statusArmed(id string) bool {
	status := w.status()
	if status.Attempt != id {
		return false
	}

	switch status.Phase {
	case v1alpha1.PhaseRebooting, v1alpha1.PhaseProving, v1alpha1.PhaseReporting:
		return true
	default:
		return false
	}
}

// digestOf is the digest of the image in a slot, "" when Stayput did not write it there.
func (w world) digestOf(slot slots.Slot) string {
	if slot.RootHash == "" {
		return ""
	}

	return w.journal.Images[slot.RootHash]
}
