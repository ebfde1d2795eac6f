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
	// LastSign is when the newest sign of life came that is known to be of that time; zero: none.
	LastSign time.Time
	// Lease is what the node controller makes of the kubelet's Lease.
	Lease Lease
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
	// Recorded is the ID of the intent that this very pass has stored, Before the status that it replaced, and
	// PhaseBefore the agent's phase on which it was decided.
	Recorded    string
	Before      *v1alpha1.OutOfBandStatus
	PhaseBefore v1alpha1.Phase
}

// Lease is what the node controller makes of the kubelet's Lease, of the boot in which the agent speaks. The kubelet
// renews the Lease every 10 s, but writes the Node's status every 5 minutes only when nothing changes. The node
// controller makes the condition Ready Unknown when the Lease was not renewed for some 50 s (its
// --node-monitor-grace-period), so a machine that was reset just now is Live, too: neither field is a sign that came
// after an action.
type Lease struct {
	// Live: the kubelet renews it.
	Live bool
	// LostAt is when the node controller saw that it is not renewed any more; zero: it did not.
	LostAt time.Time
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
		Lease:       leaseOf(update, node),
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

// watched tells whether the machine itself is to give signs of life: it was told to reboot, or its agent has said that
// it is back, and is not done.
func watched(phase v1alpha1.Phase) bool { return phase == v1alpha1.PhaseRebooting || back(phase) }

// back tells whether the agent has said that it runs in the boot after the reboot.
func back(phase v1alpha1.Phase) bool {
	return phase == v1alpha1.PhaseProving || phase == v1alpha1.PhaseReporting
}

// lastSign is when the newest sign of life came that is known to be of that time: the agent's newest write, or the
// kubelet's.
func lastSign(update *v1alpha1.NodeUpdate, node *corev1.Node) time.Time {
	newest := agentSign(update)
	if beat := kubeletSign(update, node); beat.After(newest) {
		newest = beat
	}

	return newest
}

// agentSign is when the agent wrote last. The API server's time of the write is taken where it tells one: it is the
// same clock for all nodes, and the write of the reboot is a sign, too, from which the silence counts. The heartbeat is
// of the node's clock: with a wrong one, only what came after the reboot is comparable.
func agentSign(update *v1alpha1.NodeUpdate) time.Time {
	var written, rebooted time.Time
	for _, entry := range update.ManagedFields {
		if entry.Manager == v1alpha1.FieldManagerAgent && entry.Subresource == "status" && entry.Time != nil &&
			entry.Time.After(written) {
			written = entry.Time.Time
		}
	}
	if !written.IsZero() {
		return written
	}
	if update.Status.RebootedAt != nil {
		rebooted = update.Status.RebootedAt.Time
	}
	if beat := update.Status.Heartbeat; beat != nil && beat.After(rebooted) {
		return beat.Time
	}

	return time.Time{}
}

// kubeletSign is when the kubelet wrote the Node's status last, by the node's clock. While the machine is to go down, it
// counts only with another boot ID than the agent's: the old boot's kubelet may write while it shuts down.
func kubeletSign(update *v1alpha1.NodeUpdate, node *corev1.Node) time.Time {
	ready := readyCondition(node)
	if ready == nil || node.Status.NodeInfo.BootID == "" {
		return time.Time{}
	}
	if !back(update.Status.Phase) && node.Status.NodeInfo.BootID == update.Status.BootID {
		return time.Time{}
	}
	// The node controller sets Unknown and leaves the heartbeat as the kubelet wrote it.
	beat := ready.LastHeartbeatTime.Time
	if update.Status.RebootedAt != nil && !beat.After(update.Status.RebootedAt.Time) {
		return time.Time{}
	}

	return beat
}

// leaseOf reads the Node's condition Ready. It says something only of the boot in which the agent has said that it is
// back.
func leaseOf(update *v1alpha1.NodeUpdate, node *corev1.Node) Lease {
	ready := readyCondition(node)
	switch {
	case ready == nil, !back(update.Status.Phase), update.Status.BootID == "",
		node.Status.NodeInfo.BootID != update.Status.BootID:
		return Lease{}
	case ready.Status == corev1.ConditionUnknown:
		return Lease{LostAt: ready.LastTransitionTime.Time}
	default:
		return Lease{Live: true}
	}
}

// readyCondition is nil when the Node, which may be nil, has none.
func readyCondition(node *corev1.Node) *corev1.NodeCondition {
	if node == nil {
		return nil
	}
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == corev1.NodeReady {
			return &node.Status.Conditions[i]
		}
	}

	return nil
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

// lifeSign is when the machine gave its newest sign of life. While an action waits for a sign that is newer than
// itself, there is none, and the Lease tells nothing.
func (w World) lifeSign(now time.Time) time.Time {
	switch {
	case w.lastAction() != nil:
		return time.Time{}
	case w.Lease.Live:
		return now
	case w.Lease.LostAt.After(w.LastSign):
		return w.Lease.LostAt
	default:
		return w.LastSign
	}
}

// isAlive tells whether the machine gave a sign of life after the last action, and recently.
func (w World) isAlive(now time.Time) bool {
	sign := w.lifeSign(now)

	return !sign.IsZero() && now.Before(sign.Add(w.SilentAfter))
}
