package outofband

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/stayput-dev/stayput/api/protocol"
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
	// SilentAfter is how long the machine may be silent in this phase (see patience).
	SilentAfter time.Duration
	// Settings are the NodeUpdate's, with defaults.
	Settings Settings
	// Status is what was stored for this attempt; nil: nothing.
	Status *v1alpha1.OutOfBandStatus
	// Next is the attempt that has begun since, when Attempt and Status are those of the one before, whose last action
	// may have left the machine off; empty: none has.
	Next string
	// Corrected tells that a stored time was later than now, and Status has now in its place.
	Corrected bool
	// Host is the BareMetalHost.
	Host HostView
	// Seen is the power as it was read in this pass; nil: not read.
	Seen *bmc.Observation
	// Answers tells that the machine's operating system answered on the network in this pass; false: it did not, or
	// was not asked.
	Answers bool
	// BootSet says what came of the boot override of the intent that this pass has stored; empty: it wants none.
	BootSet string
	// Problem is why it could not be read, or the action not be sent; nil: none.
	Problem *Problem
	// Recorded is the ID of the intent that this very pass has stored, Before the status that it replaced, and
	// PhaseBefore and HostBefore the agent's phase and the host on which it was decided.
	Recorded    string
	Before      *v1alpha1.OutOfBandStatus
	PhaseBefore v1alpha1.Phase
	HostBefore  HostView
	// Begins is the decision's by which that intent was stored.
	Begins bool
}

// Lease is what the node controller makes of the kubelet's Lease. The kubelet renews the Lease every 10 s, but writes
// the Node's status every 5 minutes only when nothing changes. The node controller makes the condition Ready Unknown
// when the Lease was not renewed for some 50 s (its --node-monitor-grace-period), so a machine that was reset just now
// is Live, too: neither field is a sign that came after an action.
type Lease struct {
	// Live: the kubelet renews it.
	Live bool
	// LostAt is when the node controller saw that it is not renewed any more; zero: it did not.
	LostAt time.Time
}

// Settings are spec.outOfBand of a NodeUpdate, with defaults.
type Settings struct {
	Disabled         bool
	PowerVia         v1alpha1.PowerPath
	MaxResets        int32
	SilentAfterReset time.Duration
	MaxSilent        intstr.IntOrString
}

// HostView is what matters of a BareMetalHost.
type HostView struct {
	// UID is the host's.
	UID types.UID
	// NotFound says why there is no host to act on; empty: there is one.
	NotFound string
	// Busy says who else may be acting on it; empty: nobody.
	Busy string
	// KeepPowered: it must not be switched off, since spec.disablePowerOff says so, or Metal3 would service it then.
	KeepPowered bool
	// ViaMetal3 tells that Metal3 switches the power.
	ViaMetal3 bool
}

// Problem is an error on the way to the BMC, or what keeps us from it for now.
type Problem struct {
	Reason v1alpha1.OutOfBandReason
	Text   string
	// Refused: the BMC was asked, and refused the action.
	Refused bool
}

// holdsUsUp tells that nothing is wrong with the way to the BMC: it may not be used now.
func (p Problem) holdsUsUp() bool {
	switch p.Reason {
	case v1alpha1.OutOfBandPowerInUse, v1alpha1.OutOfBandPoolSilent, v1alpha1.OutOfBandPowerLimited:
		return true
	default:
		return false
	}
}

// The API's defaults, for objects that were made before a default was.
const (
	defaultSilentAfterReset = 10 * time.Minute
	defaultMaxResets        = 4
	defaultMaxSilent        = "20%"
	// defaultGate is the longest of spec.health's defaults.
	defaultGate = 10 * time.Minute
)

// newWorld reads a NodeUpdate and its Node, which may be nil, as they were now.
func newWorld(update *v1alpha1.NodeUpdate, node *corev1.Node, now time.Time) World {
	settings := update.Spec.OutOfBand
	w := World{
		Attempt:     update.Status.Attempt,
		Phase:       update.Status.Phase,
		LastSign:    lastSign(update, node, now),
		Lease:       leaseOf(update, node),
		SilentAfter: patience(update),
		Settings: Settings{
			Disabled: settings.Disabled, PowerVia: settings.PowerVia, MaxResets: defaultMaxResets,
			SilentAfterReset: settings.SilentAfterReset.Duration,
		},
	}
	if settings.MaxResets != nil {
		w.Settings.MaxResets = *settings.MaxResets
	}
	w.Settings.MaxSilent = intstr.FromString(defaultMaxSilent)
	if settings.MaxSilent != nil {
		w.Settings.MaxSilent = *settings.MaxSilent
	}
	if w.Settings.SilentAfterReset <= 0 {
		w.Settings.SilentAfterReset = defaultSilentAfterReset
	}
	stored := update.Status.OutOfBand
	switch {
	case stored == nil:
		return w
	case stored.Attempt == w.Attempt:
	case stored.Intent != nil:
		w.Attempt, w.Next = stored.Attempt, w.Attempt
	default:
		return w
	}
	w.Status = stored.DeepCopy()
	w.Corrected = pastTimes(w.Status, now, max(w.SilentAfter, w.Settings.SilentAfterReset))

	return w
}

// pastTimes puts now in the place of stored times that are later: they are of a clock that was ahead, and what is stored
// is older than anything that is seen from now on. A deadline is not farther off than patience.
func pastTimes(status *v1alpha1.OutOfBandStatus, now time.Time, patience time.Duration) (corrected bool) {
	// The API keeps whole seconds, rounded up for deadlines.
	limit := now.Add(time.Second)
	micro := func(at *metav1.MicroTime) {
		if at != nil && at.After(limit) {
			at.Time, corrected = now, true
		}
	}
	if intent := status.Intent; intent != nil {
		micro(&intent.DecidedAt)
		micro(intent.SentAt)
	}
	micro(status.PowerReadAt)
	if status.Evidence != nil {
		micro(&status.Evidence.CollectedAt)
	}
	for i := range status.History {
		if at := &status.History[i].At; at.After(limit) {
			at.Time, corrected = now, true
		}
	}
	if at := status.Deadline; at != nil && corrected && at.After(limit.Add(patience)) {
		at.Time = limit.Add(patience).Truncate(time.Second)
	}

	return corrected
}

// watched tells whether the machine itself is to give signs of life: it is about to reboot, was told to, or its agent has
// said that it is back, and is not done.
func watched(phase v1alpha1.Phase) bool {
	return phase == v1alpha1.PhaseArming || phase == v1alpha1.PhaseRebooting || back(phase)
}

// back tells whether the agent has said that it runs in the boot after the reboot.
func back(phase v1alpha1.Phase) bool {
	return phase == v1alpha1.PhaseProving || phase == v1alpha1.PhaseReporting
}

// agentPause is how long an agent that is back may say nothing, however short spec.reboot.silentAfter is: it writes
// once a minute, and two of its writes may be lost to a slow API server or a busy node.
const agentPause = 3 * time.Minute

// longestGate is when the boot gate has decided at the latest. All its parts start at once.
func longestGate(health v1alpha1.HealthSettings) time.Duration {
	longest := time.Duration(0)
	for _, gate := range []metav1.Duration{health.NodeReady, health.APIServer, health.ContainerRuntime, health.Kubelet} {
		if gate.Duration <= 0 {
			gate.Duration = defaultGate
		}
		longest = max(longest, gate.Duration)
	}

	return longest
}

// patience is how long the machine may be silent in this phase: spec.reboot.silentAfter, or as long as a machine that
// is well may take. One that loses its network while it is proved falls back by itself, unseen: its gate fails, and it
// goes down and boots anew.
func patience(update *v1alpha1.NodeUpdate) time.Duration {
	after := update.Spec.Reboot.Patience()
	switch update.Status.Phase {
	case v1alpha1.PhaseArming:
		// When the API server is away just then, the agent reboots without having said so.
		return after + v1alpha1.ArmDeadline
	case v1alpha1.PhaseProving:
		return max(after, agentPause) + longestGate(update.Spec.Health)
	case v1alpha1.PhaseReporting:
		return max(after, agentPause)
	default:
		return after
	}
}

// lastSign is when the newest sign of life came that is known to be of that time: the agent's newest write, or the
// kubelet's. It is never later than now.
func lastSign(update *v1alpha1.NodeUpdate, node *corev1.Node, now time.Time) time.Time {
	newest := agentSign(update, now)
	if beat := kubeletSign(update, node, now); beat.After(newest) {
		newest = beat
	}

	return newest
}

// agentSign is when the agent wrote last. The API server's time of the write is taken where it tells one: it is the
// same clock for all nodes, and the write of the reboot is a sign, too, from which the silence counts.
func agentSign(update *v1alpha1.NodeUpdate, now time.Time) time.Time {
	if written := v1alpha1.StatusWrittenAt(update, v1alpha1.FieldManagerAgent, now); !written.IsZero() {
		return written
	}
	if update.Status.Heartbeat == nil {
		return time.Time{}
	}

	return afterReboot(update, update.Status.Heartbeat.Time, now)
}

// managerKubelet is the kubelet's field manager: the API server takes the name of the program. In distributions that
// run it in a program of another name only the heartbeat tells.
const managerKubelet = "kubelet"

// kubeletSign is when the kubelet wrote the Node's status last, by the API server's clock where it tells.
func kubeletSign(update *v1alpha1.NodeUpdate, node *corev1.Node, now time.Time) time.Time {
	ready := protocol.ReadyCondition(node)
	if ready == nil || !counts(update, node) {
		return time.Time{}
	}
	if written := v1alpha1.StatusWrittenAt(node, managerKubelet, now); !written.IsZero() {
		return written
	}

	// The node controller sets Unknown and leaves the heartbeat as the kubelet wrote it.
	return afterReboot(update, ready.LastHeartbeatTime.Time, now)
}

// afterReboot is a time of the node's clock, if it can be right: with a wrong clock only what came after the reboot is
// comparable, and what is still to come tells of a clock that is ahead, not of when it was.
func afterReboot(update *v1alpha1.NodeUpdate, at, now time.Time) time.Time {
	if rebooted := update.Status.RebootedAt; at.After(now) || rebooted != nil && !at.After(rebooted.Time) {
		return time.Time{}
	}

	return at
}

// counts tells whether what the kubelet says counts. While the machine is to go down, status.bootID is the old boot's,
// whose kubelet may go on while the machine hangs on its way down: it must be another.
func counts(update *v1alpha1.NodeUpdate, node *corev1.Node) bool {
	phase, before, bootID := update.Status.Phase, update.Status.BootID, node.Status.NodeInfo.BootID
	anyBoot := phase == v1alpha1.PhaseArming || back(phase)

	return bootID != "" && (anyBoot || before != "" && bootID != before)
}

// leaseOf reads the Node's condition Ready.
func leaseOf(update *v1alpha1.NodeUpdate, node *corev1.Node) Lease {
	ready := protocol.ReadyCondition(node)
	switch {
	case ready == nil, !counts(update, node):
		return Lease{}
	case ready.Status == corev1.ConditionUnknown:
		return Lease{LostAt: ready.LastTransitionTime.Time}
	default:
		return Lease{Live: true}
	}
}

// lastAction is the action of the present silence that was sent or may have been; nil: none.
func (w World) lastAction() *bmc.Sent {
	if w.Status == nil || w.Status.Intent == nil {
		return nil
	}
	last := w.sentLast()
	if !w.LastSign.Before(last.At) {
		return nil
	}

	return &last
}

// sentLast is the action of the stored intent, which must be there, with the time at which it was sent or decided. Signs
// of life have whole seconds: one of the second of an intent that may not have been sent is of after it.
func (w World) sentLast() bmc.Sent {
	intent := w.Status.Intent
	at := intent.DecidedAt.Truncate(time.Second)
	if intent.SentAt != nil {
		at = intent.SentAt.Time
	}

	return bmc.Sent{Action: bmc.Action(intent.Action), At: at}
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

// aliveUntil is how long a machine that gave this sign counts as alive. A machine that was reset and went silent anew
// has the time of a reset, too: two resets are never closer, whatever it said in between.
func (w World) aliveUntil(sign time.Time) time.Time {
	until := sign.Add(w.SilentAfter)
	if w.Status == nil || w.Status.Intent == nil {
		return until
	}
	if ends := w.resetEnds(w.sentLast()); ends.After(until) {
		return ends
	}

	return until
}

// isAlive tells whether the machine gave a sign of life after the last action, and recently.
func (w World) isAlive(now time.Time) bool {
	sign := w.lifeSign(now)

	return !sign.IsZero() && now.Before(w.aliveUntil(sign))
}
