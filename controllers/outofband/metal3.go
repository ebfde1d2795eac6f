package outofband

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

// machine is what a pass needs of a machine. Every bmc.Machine is one.
type machine interface {
	Power(ctx context.Context) (bmc.Power, error)
	Actions(ctx context.Context) ([]bmc.Action, error)
	Do(ctx context.Context, action bmc.Action) error
}

var (
	_ machine = bmc.Machine(nil)
	_ machine = (*metal3Machine)(nil)
)

const (
	// ownRebootAnnotation is the only reboot annotation that is ours: our key. While it, or any other of its kind, is on a
	// host, baremetal-operator keeps the machine off.
	ownRebootAnnotation = metal3.RebootAnnotationPrefix + "/stayput"
	// hardReboot is its value: at once. With softReboot the operating system is asked first: baremetal-operator gives it 3
	// minutes (softPowerOffTimeout), waits 1 to 2 more, and takes the power away then.
	hardReboot = `{"mode":"hard"}`
	softReboot = `{"mode":"soft"}`
	// metal3Limit is how long Metal3 may take to switch the power: Ironic's own limit is 2 minutes, and between what
	// Ironic sees and status.poweredOn are up to 3 more, since both look now and then only.
	metal3Limit = 5 * time.Minute
	// metal3SoftLimit is the same for a machine whose operating system is asked first.
	metal3SoftLimit = metal3Limit + 3*time.Minute
	// holdLimit is how long after its intent was stored our key may be on a host, softHoldLimit the same for a soft one.
	// They are longer than the limits by the time in which an intent may be sent, so that the reset ends before the key is
	// taken off it.
	holdLimit     = metal3Limit + intentLife
	softHoldLimit = metal3SoftLimit + intentLife
)

// metal3Machine is the power of a host as baremetal-operator manages it: off while our key is there, and on, as
// spec.online says, when it is not. Power comes first: Do writes to the very host that Power has read.
type metal3Machine struct {
	reader client.Reader
	writer client.Client
	// host is what was read last.
	host *metal3.BareMetalHost
	// busy says why another forbids what is about to be done; "" when nobody does.
	busy func(ctx context.Context, host *metal3.BareMetalHost) (string, error)
}

// Actions are what baremetal-operator's answers to our key amount to. A restart without the power being switched is none
// of them.
func (m *metal3Machine) Actions(context.Context) ([]bmc.Action, error) {
	return []bmc.Action{bmc.ActionOn, bmc.ActionForceOff, bmc.ActionShutdown}, nil
}

// Power reads the host anew. Between our wish and what Metal3 has seen of it the power is changing, and so it is when
// the machine is off and nobody has asked for that: baremetal-operator is about to switch it on.
func (m *metal3Machine) Power(ctx context.Context) (bmc.Power, error) {
	var host metal3.BareMetalHost
	name := client.ObjectKeyFromObject(m.host)
	if err := m.reader.Get(ctx, name, &host); err != nil {
		return "", fmt.Errorf("reading BareMetalHost %s: %w", name, err)
	}
	busy, err := m.busy(ctx, &host)
	switch {
	case err != nil:
		return "", err
	case busy != "":
		return "", &bmc.Error{Kind: bmc.Busy, Op: "reading the power", Detail: busy}
	}
	m.host = &host

	return metal3Power(&host), nil
}

func metal3Power(host *metal3.BareMetalHost) bmc.Power {
	switch held, on := has(host, ownRebootAnnotation), host.Status.PoweredOn; {
	case held && !on:
		return bmc.PowerOff
	case !held && on:
		return bmc.PowerOn
	default:
		return bmc.PowerTransition
	}
}

// Do sets our key for ForceOff and GracefulShutdown, if nothing about the host has changed since Power, and takes it off
// for On, in any case.
func (m *metal3Machine) Do(ctx context.Context, action bmc.Action) error {
	switch action {
	case bmc.ActionForceOff:
		return m.write(ctx, action, hardReboot, m.host.ResourceVersion)
	case bmc.ActionShutdown:
		return m.write(ctx, action, softReboot, m.host.ResourceVersion)
	case bmc.ActionOn:
		return m.write(ctx, action, nil, "")
	default:
		return &bmc.Error{
			Kind: bmc.Unsupported, Op: "sending " + string(action) + " through Metal3",
			Detail: "it offers On, ForceOff and GracefulShutdown only; set spec.outOfBand.powerVia of the HostPool to BMC",
		}
	}
}

func (m *metal3Machine) write(ctx context.Context, action bmc.Action, value any, resourceVersion string) error {
	err := patchKey(ctx, m.writer, m.host, value, resourceVersion)
	if err == nil {
		return nil
	}

	return keyError("sending "+string(action)+" through Metal3", m.host, err)
}

// patchKey writes our key, or with a nil value takes it off, and touches nothing else. With a resource version the host
// must still be of it.
func patchKey(ctx context.Context, writer client.Client, host *metal3.BareMetalHost, value any, resourceVersion string) error {
	metadata := map[string]any{"annotations": map[string]any{ownRebootAnnotation: value}}
	if resourceVersion != "" {
		metadata["resourceVersion"] = resourceVersion
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	target := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: host.Namespace, Name: host.Name}}
	target.SetGroupVersionKind(metal3.GroupVersion.WithKind("BareMetalHost"))

	return writer.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(v1alpha1.FieldManagerOutOfBand))
}

// keyError says what an error of the API server means for our key: refused, or perhaps written.
func keyError(op string, host *metal3.BareMetalHost, err error) error {
	failure := &bmc.Error{Kind: bmc.Unknown, Op: op, Err: err, Detail: fmt.Sprintf(
		"annotation %s of BareMetalHost %s/%s: %v", ownRebootAnnotation, host.Namespace, host.Name, err)}
	switch {
	case apierrors.IsConflict(err):
		failure.Kind = bmc.Conflict
	case apierrors.IsNotFound(err):
		failure.Kind = bmc.NotFound
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		failure.Kind = bmc.Unsupported
		failure.Detail += "; give the controller the right to patch BareMetalHosts, as config/rbac does"
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsMethodNotSupported(err):
		failure.Kind = bmc.Unsupported
	case apierrors.IsTooManyRequests(err):
		failure.Kind = bmc.Busy
		if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
			failure.RetryAfter = time.Duration(seconds) * time.Second
		}
	}

	return failure
}

// holds tells whether a reset under way needs our key on the host. Without one the key must go, whatever it was that
// left it there: no machine is kept off by a controller that has died, a pool that was deleted or a setting that changed.
func (w World) holds(now time.Time) bool {
	if !w.Host.ViaMetal3 || w.Host.NotFound != "" || w.Settings.Disabled || !watched(w.Phase) || w.Next != "" {
		return false
	}
	last := w.lastAction()
	if last == nil {
		return false
	}
	switch intent := w.Status.Intent; last.Action {
	case bmc.ActionForceOff:
		return now.Before(intent.DecidedAt.Add(holdLimit))
	case bmc.ActionShutdown:
		return now.Before(intent.DecidedAt.Add(softHoldLimit))
	case bmc.ActionOn:
		// The pass that has stored it takes the key off in a moment.
		return intent.SentAt == nil && now.Before(intent.DecidedAt.Add(intentLife))
	default:
		return false
	}
}

// limits are those of the way to the power.
func (w World) limits() bmc.Limits {
	if w.Host.ViaMetal3 {
		return bmc.Limits{Off: metal3Limit, Shutdown: metal3SoftLimit, On: metal3Limit}
	}

	return bmc.Limits{}
}

// through names the way to the power.
func (w World) through() string {
	if w.Host.ViaMetal3 {
		return "Metal3"
	}

	return "the BMC"
}
