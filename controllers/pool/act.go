package pool

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/clusters"
)

// attemptIDLength gives 27 letters and digits to the 12th power: no ID is met twice.
const attemptIDLength = 12

// actor carries out the actions of one pass.
type actor struct {
	cluster *clusters.Cluster
	world   World
	now     func() time.Time
	// drains tells what blocks a node, for the status.
	drains map[string]string
	// again is set when a pass should follow soon.
	again time.Duration
}

func (a *actor) soon(d time.Duration) {
	if a.again == 0 || d < a.again {
		a.again = d
	}
}

func (a *actor) act(ctx context.Context, action Action) error {
	var err error
	switch action.Kind {
	case Offer:
		err = a.offer(ctx, action)
	case Mark:
		err = a.mark(ctx, action)
	case Begin:
		err = a.begin(ctx, action)
	case Drain:
		err = a.drain(ctx, action)
	case Close:
		err = a.close(ctx, action)
	case Clean:
		err = a.clean(ctx, action)
	case Remove:
		err = a.remove(ctx, action)
	case Miss:
		err = a.miss(ctx, action)
	case Hear:
		err = a.store(ctx, action, func(r *record) { r.silentSince = time.Time{} })
	case Adjust:
		err = a.adjust(ctx, action)
	}
	if err != nil {
		return fmt.Errorf("node %s: %s: %w", action.Node, action.Kind, err)
	}

	return nil
}

func (a *actor) offer(ctx context.Context, action Action) error {
	pool, wanted := a.world.Pool, a.world.wanted()
	spec := v1alpha1.NodeUpdateSpec{
		Door: v1alpha1.Door{
			Kind: v1alpha1.DoorHostPool, Namespace: pool.Namespace, Name: pool.Name, Host: action.Host,
		},
		Attempt: rand.String(attemptIDLength),
		Release: v1alpha1.NodeRelease{OS: v1alpha1.OSRelease{
			Image: byDigest(wanted.Image, wanted.Digest), Version: wanted.Version,
		}},
		Verification: a.world.Verification.DeepCopy(),
		Reboot:       pool.Spec.Reboot, Health: pool.Spec.Health, OutOfBand: pool.Spec.OutOfBand,
	}

	return a.applyUpdate(ctx, action.Node, "", spec, record{offeredAt: a.now().Truncate(time.Second)})
}

// applyUpdate writes spec and record in one server-side apply, so that a record is always about its attempt. With a
// UID the object must still be the one that was read.
func (a *actor) applyUpdate(
	ctx context.Context, node string, uid types.UID, spec v1alpha1.NodeUpdateSpec, rec record,
) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.NodeUpdate{Spec: spec})
	if err != nil {
		return fmt.Errorf("encoding spec: %w", err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": content["spec"]}}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NodeUpdate"))
	object.SetName(node)
	object.SetUID(uid)
	object.SetAnnotations(rec.annotations())
	err = a.cluster.Client().Apply(ctx, client.ApplyConfigurationFromUnstructured(object),
		client.FieldOwner(v1alpha1.FieldManagerOrchestrator))
	if apierrors.IsConflict(err) {
		return fmt.Errorf("NodeUpdate %s has fields that somebody else wrote; remove that writer, or delete the NodeUpdate: %w",
			node, err)
	}
	if err != nil {
		return fmt.Errorf("writing NodeUpdate: %w", err)
	}

	return nil
}

// store changes the record of the node's present attempt, for an action that was decided on a world that was read live.
func (a *actor) store(ctx context.Context, action Action, change func(*record)) error {
	return a.storeIn(ctx, a.world.Updates[action.Node], change)
}

// storeIn changes the record of an update. All else of the update is written as it is given, so it must not be a cache's.
func (a *actor) storeIn(ctx context.Context, update *v1alpha1.NodeUpdate, change func(*record)) error {
	rec := recordOf(update)
	before := rec
	change(&rec)
	if rec == before {
		return nil
	}

	return a.applyUpdate(ctx, update.Name, update.UID, update.Spec, rec)
}

func (a *actor) adjust(ctx context.Context, action Action) error {
	update, pool := a.world.Updates[action.Node], a.world.Pool
	spec := update.Spec
	spec.OutOfBand, spec.Reboot.SilentAfter = pool.Spec.OutOfBand, pool.Spec.Reboot.SilentAfter

	return a.applyUpdate(ctx, action.Node, update.UID, spec, recordOf(update))
}

// current is the update as it is now, nil when the attempt is not the open one any more. The routine actions are decided
// on a cache, which may lag.
func (a *actor) current(ctx context.Context, action Action) (*v1alpha1.NodeUpdate, error) {
	update := &v1alpha1.NodeUpdate{}
	err := a.cluster.Live().Get(ctx, types.NamespacedName{Name: action.Node}, update)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // an attempt that is gone is not an error, and there is nothing to go on with
	}
	if err != nil {
		return nil, fmt.Errorf("reading the NodeUpdate: %w", err)
	}
	if update.Spec.Attempt != action.Attempt || recordOf(update).closedAs != "" {
		return nil, nil //nolint:nilnil // as above
	}

	return update, nil
}

func (a *actor) mark(ctx context.Context, action Action) error {
	if update, err := a.current(ctx, action); err != nil || update == nil {
		return err
	}

	return a.patchNode(ctx, action.Node,
		func(n *corev1.Node) *protocol.Patch { return protocol.MarkCandidate(n, action.Attempt) },
		a.reason(protocol.ReasonCandidate, ""))
}

func (a *actor) begin(ctx context.Context, action Action) error {
	if err := a.store(ctx, action, func(r *record) { r.begunAt = a.now().Truncate(time.Second) }); err != nil {
		return err
	}
	a.soon(time.Second)
	if err := a.takeOut(ctx, action); err != nil {
		return err
	}
	a.event(action.Node, corev1.EventTypeNormal, "Selected", "Update", "selected and cordoned for attempt %s", action.Attempt)

	return nil
}

// takeOut selects and cordons the node. It is repeated on every pass of the drain, since hands may undo it.
func (a *actor) takeOut(ctx context.Context, action Action) error {
	return a.patchNode(ctx, action.Node,
		protocol.Select,
		a.selected(action.Attempt),
		func(n *corev1.Node) *protocol.Patch { return protocol.DisableScaleDown(n, action.Attempt) },
		func(n *corev1.Node) *protocol.Patch { return protocol.Cordon(n, action.Attempt) })
}

// selected says that the node is selected, unless the same attempt has already said that the node is drained.
func (a *actor) selected(attempt string) func(*corev1.Node) *protocol.Patch {
	return func(n *corev1.Node) *protocol.Patch {
		if view := protocol.Read(n); view.Reason == protocol.ReasonDrainSuccessful && view.ReasonAttempt == attempt {
			return nil
		}

		return a.reason(protocol.ReasonSelected, "")(n)
	}
}

func (a *actor) drain(ctx context.Context, action Action) error {
	update, err := a.current(ctx, action)
	if err != nil || update == nil {
		return err
	}
	if err := a.takeOut(ctx, action); err != nil {
		return err
	}
	left, blocked, err := drainPass(ctx, a.cluster.Kubernetes(), action.Node, a.world.Pool.Spec.Drain)
	if err != nil {
		return err
	}
	if left > 0 {
		a.soon(drainInterval)
		a.drains[action.Node] = fmt.Sprintf("%d pods left", left)
		if blocked != "" {
			a.drains[action.Node] = blocked
			a.event(action.Node, corev1.EventTypeWarning, "DrainBlocked", "Drain", "%s", blocked)
		}

		return nil
	}
	if err := a.storeIn(ctx, update, func(r *record) { r.toldAt = a.now().Truncate(time.Second) }); err != nil {
		return err
	}
	err = a.patchNode(ctx, action.Node, a.reason(protocol.ReasonDrainSuccessful, ""), a.reason(protocol.ReasonReady, ""))
	if err != nil {
		return err
	}
	a.event(action.Node, corev1.EventTypeNormal, "Drained", "Drain", "empty; told to go for attempt %s", action.Attempt)

	return nil
}

func (a *actor) close(ctx context.Context, action Action) error {
	err := a.store(ctx, action, func(r *record) {
		r.closedAs, r.closedAt, r.closedReason = action.Outcome, a.now().Truncate(time.Second), action.Reason
		r.silentSince = time.Time{}
	})
	if err != nil {
		return err
	}
	eventType := corev1.EventTypeNormal
	if failure(action.Outcome) {
		eventType = corev1.EventTypeWarning
	}
	a.event(action.Node, eventType, string(action.Outcome), "Update", "attempt %s ended: %s %s",
		action.Attempt, action.Reason, action.Message)
	if action.Outcome == NeedsHuman {
		return nil
	}
	a.soon(time.Second)

	return a.finish(ctx, action)
}

// miss stores that the agent is silent, and then tells it, so that it is told once.
func (a *actor) miss(ctx context.Context, action Action) error {
	if err := a.store(ctx, action, func(r *record) { r.silentSince = action.Since.Truncate(time.Second) }); err != nil {
		return err
	}
	a.event(action.Node, corev1.EventTypeWarning, v1alpha1.ReasonAgentSilent, "Update", "attempt %s: %s", action.Attempt, action.Message)

	return nil
}

// finish moves the condition to the result and releases the Node.
func (a *actor) finish(ctx context.Context, action Action) error {
	var last func(*corev1.Node) *protocol.Patch
	switch action.Outcome {
	case Succeeded:
		last = a.reason(protocol.ReasonUpdateSuccessful, "")
	case RolledBack, Refused, DrainTimeout, NeedsHuman:
		last = a.reason(protocol.ReasonUpdateFailed, "Node in-place update failed: "+action.Reason+" "+action.Message)
	case Withdrawn:
		last = a.reason(protocol.ReasonCandidate, "Node in-place update withdrawn: "+action.Message)
	}
	onlyOurs := func(n *corev1.Node) *protocol.Patch {
		if protocol.Read(n).Attempt != action.Attempt {
			return nil
		}

		return last(n)
	}
	err := a.patchNode(ctx, action.Node, onlyOurs,
		func(n *corev1.Node) *protocol.Patch { return protocol.Release(n, action.Attempt) })

	return client.IgnoreNotFound(err)
}

// clean finishes what a pass that was interrupted, or a hand, has left on the Node.
func (a *actor) clean(ctx context.Context, action Action) error {
	a.soon(time.Second)
	if update := a.world.Updates[action.Node]; update != nil && update.Spec.Attempt == action.Attempt {
		if rec := recordOf(update); rec.closedAs != "" {
			action.Outcome, action.Reason = rec.closedAs, rec.closedReason

			return a.finish(ctx, action)
		}
	}
	action.Outcome, action.Message = Withdrawn, "nobody asks for the attempt any more"

	return a.finish(ctx, action)
}

func (a *actor) remove(ctx context.Context, action Action) error {
	update := a.world.Updates[action.Node]
	err := a.cluster.Client().Delete(ctx, update.DeepCopy(), client.Preconditions{UID: &update.UID})
	if err := client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("deleting NodeUpdate: %w", err)
	}

	return nil
}

func (a *actor) reason(reason protocol.Reason, message string) func(*corev1.Node) *protocol.Patch {
	dialect := protocol.Dialect(a.world.Pool.Spec.Strategy.Dialect)
	if dialect == "" {
		dialect = protocol.Shipped
	}

	return func(n *corev1.Node) *protocol.Patch { return protocol.SetReason(n, dialect, reason, message, a.now()) }
}

// patchNode reads the Node live and applies one patch after the other, each made from what the one before gave.
func (a *actor) patchNode(ctx context.Context, name string, makers ...func(*corev1.Node) *protocol.Patch) error {
	node := &corev1.Node{}
	if err := a.cluster.Live().Get(ctx, types.NamespacedName{Name: name}, node); err != nil {
		return fmt.Errorf("reading the Node: %w", err)
	}
	for _, maker := range makers {
		patch := maker(node)
		if patch == nil {
			continue
		}
		raw := client.RawPatch(patch.Type, patch.Data)
		var err error
		if patch.Subresource == "status" {
			err = a.cluster.Client().Status().Patch(ctx, node, raw, client.FieldOwner(v1alpha1.FieldManagerOrchestrator))
		} else {
			err = a.cluster.Client().Patch(ctx, node, raw, client.FieldOwner(v1alpha1.FieldManagerOrchestrator))
		}
		if err != nil {
			return fmt.Errorf("patching the Node: %w", err)
		}
	}

	return nil
}

func (a *actor) event(node, eventType, reason, action, note string, args ...any) {
	if object := a.world.Nodes[node]; object != nil {
		a.cluster.Events().Eventf(object, nil, eventType, reason, action, "%s", notef(note, args...))
	}
}

// notef is the text of an event, no longer than the API server takes.
func notef(format string, args ...any) string {
	return v1alpha1.Cut(fmt.Sprintf(format, args...), v1alpha1.MaxNote)
}
