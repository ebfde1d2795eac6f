package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stayput-dev/stayput/agent/health"
	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// Machine is the node itself, without its slots.
type Machine interface {
	// BootID is the kernel's random ID of this boot.
	BootID() (string, error)
	// Trial is the trial file, nil when there is none that can be read.
	Trial() (*health.Trial, error)
	// SaveTrial stores the trial file, and drops the record that the boot gate made for another attempt.
	SaveTrial(trial health.Trial) error
	// RemoveTrial removes the trial file; none is fine.
	RemoveTrial() error
	// Gate is the boot gate's record, nil when there is none that can be read.
	Gate() (*health.Record, error)
	// CheckIdentity tells why the boot gate could not use the agent's credentials from now until then, nil when it could.
	// Its error holds no secrets.
	CheckIdentity(now, then time.Time) error
	// EnsureWatchdog switches the hardware watchdog on where there is one. Safe to repeat.
	EnsureWatchdog(ctx context.Context) error
	// Rungs looks at the in-OS rungs of the fallback ladder.
	Rungs(ctx context.Context) []v1alpha1.RungStatus
	// Excerpt is what the boot before this one left behind for a person to read, "" when there is nothing or when that
	// boot is the one with the boot ID since.
	Excerpt(ctx context.Context, since string) string
	// Reboot asks for a reboot through the firmware. Asking twice is fine.
	Reboot(ctx context.Context) error
}

// Images fetches images by digest.
type Images interface {
	// Image reads the manifest and the config of an image and gives access to its contents. One that lacks the signatures
	// that the NodeUpdate or the node itself wants is refused with osimage.ErrUntrusted; verification may be nil.
	Image(ctx context.Context, reference string, verification *v1alpha1.NodeVerification) (Image, error)
}

// Image is an image that may be staged.
type Image struct {
	slots.Source

	// Signature is the verdict on its signatures, nil when none were asked for.
	Signature *journal.Signature
}

// Cluster is what the agent sees and does through the API server. The two views come from a watch, so they are cheap,
// may be a little old, and stay what they were while the API server is away. Callers do not change what they get.
type Cluster interface {
	// Update is the node's own NodeUpdate: nil and true when there is none, nil and false when that is not known yet.
	Update() (*v1alpha1.NodeUpdate, bool)
	// Node is the node's own Node, nil when there is none or it is not known yet.
	Node() *corev1.Node
	// ApplyStatus applies the agent's part of the NodeUpdate's status.
	ApplyStatus(ctx context.Context, status v1alpha1.NodeUpdateStatus) error
	// PatchNode patches the node's own Node.
	PatchNode(ctx context.Context, patch protocol.Patch) error
	// DeletePods deletes all pods of the node but mirror pods, and tells how many. It does not wait for them to go.
	DeletePods(ctx context.Context) (int, error)
	// Changed receives something after either view has changed.
	Changed() <-chan struct{}
}

// Store keeps the journal; journal.File is one.
type Store interface {
	Load() (state journal.State, lost bool, err error)
	Save(state journal.State) error
}

// Notifier tells the service manager how the agent is.
type Notifier interface {
	// Ready tells that the agent has started.
	Ready()
	// Alive is called by the engine's loop; when it is not called for long, the agent hangs and is restarted.
	Alive(status string)
	// Stopping tells that the agent ends on purpose.
	Stopping()
}
