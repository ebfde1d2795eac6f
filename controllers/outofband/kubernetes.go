package outofband

import (
	"context"
	"errors"
	"fmt"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/clusters"
)

// session is the real effects of one pass over one machine.
type session struct {
	*Reconciler

	request Request
	// reader and writer are of the Nodes' cluster, both live; nodeEvents are its events.
	reader     client.Reader
	writer     client.Client
	nodeEvents events.EventRecorder

	update   v1alpha1.NodeUpdate
	pool     v1alpha1.HostPool
	host     *metal3.BareMetalHost
	nodeUUID string

	// view is the host as it was loaded last.
	view HostView
	// addresses are the Node's, and kubeletPort where its kubelet listens.
	addresses   []string
	kubeletPort int32
	// keyed is the power through Metal3, with the host as it was read last.
	keyed *metal3Machine
	// lookedAt is when the last look at the power ended.
	lookedAt time.Time
}

var _ effects = (*session)(nil)

// load implements effects.
func (s *session) load(ctx context.Context) (World, error) {
	s.update = v1alpha1.NodeUpdate{}
	if err := s.reader.Get(ctx, types.NamespacedName{Name: s.request.Node}, &s.update); err != nil {
		return World{}, fmt.Errorf("reading NodeUpdate %s: %w", s.request.Node, err)
	}
	var node corev1.Node
	err := s.reader.Get(ctx, types.NamespacedName{Name: s.request.Node}, &node)
	if client.IgnoreNotFound(err) != nil {
		return World{}, fmt.Errorf("reading Node %s: %w", s.request.Node, err)
	}
	w := newWorld(&s.update, &node, s.clock.Now())
	s.nodeUUID = node.Status.NodeInfo.SystemUUID
	s.addresses, s.kubeletPort = addressesOf(&node), node.Status.DaemonEndpoints.KubeletEndpoint.Port
	// A process that has just begun to lead knows of no silent machine, and a status that stays is never stored.
	s.metrics.observe(s.request, w.Status)
	w.Host, err = s.loadHost(ctx, w.Settings.PowerVia)
	s.view = w.Host

	return w, err
}

// loadHost finds the host through the pool that owns the NodeUpdate.
func (s *session) loadHost(ctx context.Context, path v1alpha1.PowerPath) (HostView, error) {
	door := s.update.Spec.Door
	s.host, s.pool = nil, v1alpha1.HostPool{}
	err := s.home.Get(ctx, types.NamespacedName{Namespace: door.Namespace, Name: door.Name}, &s.pool)
	switch {
	case apierrors.IsNotFound(err):
		return HostView{NotFound: fmt.Sprintf("there is no HostPool %s/%s", door.Namespace, door.Name)}, nil
	case err != nil:
		return HostView{}, fmt.Errorf("reading HostPool %s/%s: %w", door.Namespace, door.Name, err)
	case clusters.KeyOf(&s.pool) != s.request.Cluster:
		return HostView{NotFound: fmt.Sprintf(
			"HostPool %s/%s is about another cluster than this NodeUpdate's", door.Namespace, door.Name)}, nil
	}
	var host metal3.BareMetalHost
	err = s.home.Get(ctx, types.NamespacedName{Namespace: s.pool.Namespace, Name: door.Host}, &host)
	switch {
	case apierrors.IsNotFound(err):
		return HostView{NotFound: fmt.Sprintf("there is no BareMetalHost %s/%s", s.pool.Namespace, door.Host)}, nil
	case err != nil:
		return HostView{}, fmt.Errorf("reading BareMetalHost %s/%s: %w", s.pool.Namespace, door.Host, err)
	}
	s.host = &host
	view := viewHost(&s.pool, &host, path)
	if view.NotFound != "" || view.Busy != "" || detached(&host) || view.KeepPowered {
		return view, nil
	}
	pending, err := pendingServicing(ctx, s.home, &host)
	switch {
	case apierrors.IsForbidden(err):
		view.Busy = err.Error() + "; give the controller the rights of config/rbac"

		return view, nil
	case view.ViaMetal3:
		view.Busy = pending
	case pending != "":
		// Metal3 begins it when it sees the machine off.
		view.KeepPowered = true
	}

	return view, err
}

// store implements effects.
func (s *session) store(ctx context.Context, status *v1alpha1.OutOfBandStatus) error {
	before := s.update.Status.OutOfBand
	config, err := applyStatus(s.update.Name, s.update.ResourceVersion, status)
	if err != nil {
		return err
	}
	err = s.writer.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(config),
		client.FieldOwner(v1alpha1.FieldManagerOutOfBand), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("storing status.outOfBand of NodeUpdate %s: %w", s.update.Name, err)
	}
	s.update.ResourceVersion = config.GetResourceVersion()
	s.update.Status.OutOfBand = status
	s.report(before, status)

	return nil
}

// restore implements effects. The agent of a machine that has just come back may write at the same time.
func (s *session) restore(ctx context.Context, intent string, status *v1alpha1.OutOfBandStatus) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var update v1alpha1.NodeUpdate
		if err := s.reader.Get(ctx, types.NamespacedName{Name: s.request.Node}, &update); err != nil {
			return err
		}
		stored := update.Status.OutOfBand
		if stored == nil || stored.Intent == nil || stored.Intent.ID != intent || stored.Attempt != status.Attempt {
			return errOvertaken
		}
		s.update = update

		return s.store(ctx, status)
	})
	if err != nil {
		return fmt.Errorf("storing what came of intent %s: %w", intent, err)
	}

	return nil
}

var errOvertaken = errors.New("status.outOfBand was written by another meanwhile")

// applyStatus is a server-side apply of our part of the status, valid for one resource version.
func applyStatus(name, resourceVersion string, status *v1alpha1.OutOfBandStatus) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return nil, fmt.Errorf("encoding status.outOfBand: %w", err)
	}

	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(),
		"kind":       "NodeUpdate",
		"metadata":   map[string]any{"name": name, "resourceVersion": resourceVersion},
		"status":     map[string]any{"outOfBand": content},
	}}, nil
}

// report tells people and metrics of a change of phase, reason or intent.
func (s *session) report(before, after *v1alpha1.OutOfBandStatus) {
	s.metrics.observe(s.request, after)
	if before != nil && before.Attempt == after.Attempt && before.Phase == after.Phase &&
		before.Reason == after.Reason && equality.Semantic.DeepEqual(before.Intent, after.Intent) {
		return
	}
	if after.Phase == v1alpha1.OutOfBandWatching {
		return
	}
	kind := corev1.EventTypeWarning
	if after.Phase == v1alpha1.OutOfBandRecovered {
		kind = corev1.EventTypeNormal
	}
	note := v1alpha1.Cut(fmt.Sprintf("Node %s: %s", s.request.Node, after.Message), v1alpha1.MaxNote)
	if s.host != nil {
		s.events.Eventf(s.host, nil, kind, string(after.Reason), eventAction, "%s", note)
	}
	if s.pool.Name != "" {
		s.events.Eventf(&s.pool, nil, kind, string(after.Reason), eventAction, "%s", note)
	}
	// The NodeUpdate may be in another cluster than those two.
	s.nodeEvents.Eventf(&s.update, nil, kind, string(after.Reason), eventAction, "%s", note)
}

const eventAction = "OutOfBand"
