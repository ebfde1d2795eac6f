package outofband

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

// World is what is known of one machine in one pass.
type World struct {
	// Attempt and Phase are the agent's.
	Attempt string
	Phase   v1alpha1.Phase
	// LastSign is the newest sign of life since the reboot, by the node's clock; zero: none.
	LastSign time.Time
	// SilentAfter and Settings are the NodeUpdate's, with defaults.
	SilentAfter time.Duration
	Settings    Settings
	// Status is what was stored for this attempt; nil: nothing.
	Status *v1alpha1.OutOfBandStatus
	// Host is the BareMetalHost.
	Host HostView
	// Seen is the power as it was read in this pass; nil: not read.
	Seen *bmc.Observation
	// Problem is why it could not be read, or the action not be sent; nil: none.
	Problem *Problem
	// Recorded is the ID of the intent that this very pass has stored, and Before the status that it replaced.
	Recorded string
	Before   *v1alpha1.OutOfBandStatus
}

// Settings are spec.outOfBand of a NodeUpdate, with defaults.
type Settings struct {
	Disabled         bool
	MaxResets        int32
	SilentAfterReset time.Duration
}

// HostView is what matters of a BareMetalHost.
type HostView struct {
	// NotFound says why there is no host to act on; empty: there is one.
	NotFound string
	// Busy says who else may be acting on it; empty: nobody.
	Busy string
	// KeepPowered is spec.disablePowerOff.
	KeepPowered bool
}

// Problem is an error on the way to the BMC.
type Problem struct {
	Reason v1alpha1.OutOfBandReason
	Text   string
}

// The API's defaults, for objects that were made before a default was.
const (
	defaultSilentAfter      = 15 * time.Minute
	defaultSilentAfterReset = 10 * time.Minute
	defaultMaxResets        = 4
)

// newWorld reads a NodeUpdate and its Node, which may be nil.
func newWorld(update *v1alpha1.NodeUpdate, node *corev1.Node) World {
	settings := update.Spec.OutOfBand
	w := World{
		Attempt:     update.Status.Attempt,
		Phase:       update.Status.Phase,
		LastSign:    lastSign(update, node),
		SilentAfter: update.Spec.Reboot.SilentAfter.Duration,
		Settings: Settings{
			Disabled: settings.Disabled, MaxResets: defaultMaxResets,
			SilentAfterReset: settings.SilentAfterReset.Duration,
		},
	}
	if settings.MaxResets != nil {
		w.Settings.MaxResets = *settings.MaxResets
	}
	if w.SilentAfter <= 0 {
		w.SilentAfter = defaultSilentAfter
	}
	if w.Settings.SilentAfterReset <= 0 {
		w.Settings.SilentAfterReset = defaultSilentAfterReset
	}
	if stored := update.Status.OutOfBand; stored != nil && stored.Attempt == w.Attempt {
		w.Status = stored.DeepCopy()
	}

	return w
}

// lastSign is the newest sign of life since the machine was told to reboot. All three times are of the node's clock.
// The kubelet counts only with another boot ID than the agent's: the old boot's kubelet may write while it shuts down.
func lastSign(update *v1alpha1.NodeUpdate, node *corev1.Node) time.Time {
	var newest, rebooted time.Time
	if update.Status.RebootedAt != nil {
		rebooted = update.Status.RebootedAt.Time
	}
	if beat := update.Status.Heartbeat; beat != nil && beat.After(rebooted) {
		newest = beat.Time
	}
	if node == nil || node.Status.NodeInfo.BootID == "" || node.Status.NodeInfo.BootID == update.Status.BootID {
		return newest
	}
	for _, condition := range node.Status.Conditions {
		// The node controller sets Unknown and leaves the heartbeat as the kubelet wrote it.
		beat := condition.LastHeartbeatTime.Time
		if condition.Type == corev1.NodeReady && beat.After(rebooted) && beat.After(newest) {
			newest = beat
		}
	}

	return newest
}

// lastAction is the action of the present silence that was sent or may have been; nil: none.
func (w World) lastAction() *bmc.Sent {
	if w.Status == nil || w.Status.Intent == nil {
		return nil
	}
	intent := w.Status.Intent
	at := intent.DecidedAt.Time
	if intent.SentAt != nil {
		at = intent.SentAt.Time
	}
	if w.LastSign.After(at) {
		return nil
	}

	return &bmc.Sent{Action: bmc.Action(intent.Action), At: at}
}

// back tells whether the machine gave a sign of life after the last action, and recently.
func (w World) back(now time.Time) bool {
	if w.LastSign.IsZero() || !now.Before(w.LastSign.Add(w.SilentAfter)) {
		return false
	}

	return w.Status == nil || w.Status.Intent == nil || w.lastAction() == nil
}
