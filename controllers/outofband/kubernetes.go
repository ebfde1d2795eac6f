package outofband

import (
	"context"
	"errors"
	"fmt"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/controllers/clusters"
)

// session is the real effects of one pass over one machine.
type session struct {
	*Reconciler

	request Request
	// reader and writer are of the Nodes' cluster, both live.
	reader client.Reader
	writer client.Client

	update   v1alpha1.NodeUpdate
	pool     v1alpha1.HostPool
	host     *metal3.BareMetalHost
	nodeUUID string

	machine machine
	release func()
	// view is the host as it was loaded last, and opened the one that machine was opened for.
	view, opened HostView
	// reached tells that the way to the power was open in this pass.
	reached bool
	// bmcErr is the error on the way to the BMC in this pass.
	bmcErr error
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
	if view.NotFound == "" && view.Busy == "" && view.ViaMetal3 {
		view.Busy, err = pendingServicing(ctx, s.home, &host)
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

// observe implements effects.
func (s *session) observe(ctx context.Context) (bmc.Observation, error) {
	if _, err := s.backoffs.active(s.request, s.clock.Now()); err != nil {
		s.bmcErr = err

		return bmc.Observation{}, err
	}
	seen, err := s.look(ctx)
	if err != nil {
		s.bmcFailed(err)

		return bmc.Observation{}, err
	}

	return seen, nil
}

func (s *session) look(ctx context.Context) (bmc.Observation, error) {
	if err := s.open(ctx); err != nil {
		return bmc.Observation{}, err
	}
	offered, err := s.machine.Actions(ctx)
	if err != nil {
		return bmc.Observation{}, err
	}
	at := s.clock.Now()
	power, err := s.machine.Power(ctx)
	if err != nil {
		return bmc.Observation{}, err
	}

	return bmc.Observation{Power: power, At: at, Offered: offered}, nil
}

// open takes the machine for this pass.
func (s *session) open(ctx context.Context) error {
	if s.machine != nil && s.opened.ViaMetal3 == s.view.ViaMetal3 {
		return nil
	}
	if err := s.close(ctx); err != nil {
		return err
	}
	s.opened = s.view
	if s.view.ViaMetal3 {
		s.machine = &metal3Machine{reader: s.home, writer: s.hosts, host: s.host, busy: s.metal3Busy}
		s.reached = true

		return nil
	}

	return s.connect(ctx)
}

// metal3Busy looks at a host anew, before it is written.
func (s *session) metal3Busy(ctx context.Context, host *metal3.BareMetalHost) (string, error) {
	switch view := viewHost(&s.pool, host, s.update.Spec.OutOfBand.PowerVia); {
	case view.NotFound != "":
		return view.NotFound, nil
	case view.Busy != "":
		return view.Busy, nil
	case !view.ViaMetal3:
		return fmt.Sprintf("BareMetalHost %s/%s is not Metal3's any more", host.Namespace, host.Name), nil
	default:
		return pendingServicing(ctx, s.home, host)
	}
}

// connect takes the BMC for this pass and connects to it.
func (s *session) connect(ctx context.Context) error {
	address, err := bmc.ParseAddress(s.host.Spec.BMC.Address)
	if err != nil {
		return err
	}
	secret, err := s.secret(ctx)
	if err != nil {
		return err
	}
	if s.release == nil {
		if s.release, err = s.locks.Acquire(ctx, address.HostPort()); err != nil {
			return err
		}
	}
	opened, err := s.options.Open(ctx, bmc.Options{
		Address: address, Credentials: credentials(secret), UUID: s.nodeUUID,
		SkipVerify: s.host.Spec.BMC.DisableCertificateVerification, CA: s.options.BMCCA,
	})
	if err != nil {
		return err
	}
	s.machine, s.reached = opened, true

	return nil
}

// secret reads the BMC's credentials live: no right to list Secrets is needed, and a corrected one works at once.
func (s *session) secret(ctx context.Context) (*corev1.Secret, error) {
	var secret corev1.Secret
	name := types.NamespacedName{Namespace: s.host.Namespace, Name: s.host.Spec.BMC.CredentialsName}
	err := s.home.Get(ctx, name, &secret)
	switch {
	case apierrors.IsNotFound(err) || name.Name == "":
		return nil, &bmc.Error{
			Kind: bmc.Auth, Op: "reading the BMC's credentials",
			Detail: fmt.Sprintf("there is no Secret %s; create it with keys username and password, or correct "+
				"spec.bmc.credentialsName of the BareMetalHost", name),
		}
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s: %w", name, err)
	default:
		return &secret, nil
	}
}

// send implements effects.
func (s *session) send(ctx context.Context, action bmc.Action) error {
	err := s.machine.Do(ctx, action)
	if err == nil || bmc.KindOf(err) == bmc.Unknown {
		s.metrics.actions.WithLabelValues(string(action)).Inc()
	}
	if err != nil {
		s.bmcFailed(err)
	}

	return err
}

func (s *session) bmcFailed(err error) {
	s.bmcErr = err
	s.backoffs.failed(s.request, err, s.clock.Now())
	s.metrics.errors.WithLabelValues(string(bmc.KindOf(err))).Inc()
}

// close ends the connection with the BMC and lets others use it.
func (s *session) close(ctx context.Context) error {
	var err error
	if s.machine != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
		defer cancel()
		err = s.machine.Close(ctx)
	}
	if s.release != nil {
		s.release()
	}
	s.machine, s.release = nil, nil

	return err
}

// report tells people and metrics of a change of phase, reason or intent.
func (s *session) report(before, after *v1alpha1.OutOfBandStatus) {
	s.metrics.observe(s.request, after)
	if before != nil && before.Attempt == after.Attempt && before.Phase == after.Phase &&
		before.Reason == after.Reason && equality.Semantic.DeepEqual(before.Intent, after.Intent) {
		return
	}
	if after.Phase == v1alpha1.OutOfBandWatching || s.host == nil {
		return
	}
	kind := corev1.EventTypeWarning
	if after.Phase == v1alpha1.OutOfBandRecovered {
		kind = corev1.EventTypeNormal
	}
	note := v1alpha1.Cut(fmt.Sprintf("Node %s: %s", s.request.Node, after.Message), v1alpha1.MaxNote)
	for _, object := range []runtime.Object{s.host, &s.pool} {
		s.events.Eventf(object, nil, kind, string(after.Reason), eventAction, "%s", note)
	}
}

const eventAction = "OutOfBand"
