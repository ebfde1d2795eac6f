package outofband

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/connect"
	"github.com/stayput-dev/stayput/controllers/clusters"
	"github.com/stayput-dev/stayput/controllers/powerlease"
)

// Request names a machine: a Node, and the cluster that it is in.
type Request struct {
	Cluster clusters.Key
	Node    string
}

// Options of the controller. The zero value is for production.
type Options struct {
	// BMCCA is PEM certificates to verify BMCs with, in place of the system's. A host may switch verification off.
	BMCCA []byte
	// Concurrency is how many machines are looked after at a time. Default 8: a BMC that hangs holds one up.
	Concurrency int
	// Registerer takes the metrics. Default: controller-runtime's.
	Registerer prometheus.Registerer
	// PowerActionsPerMinute is how many power actions may be sent in a minute in all. Default DefaultPowerActionsPerMinute.
	PowerActionsPerMinute int
	// Holder names this process to people who find that it uses a host's power. Default: the host name.
	Holder string
	// Clock, Open and Answers are for tests. Default: the real clock; connect.Open; and a TLS connection to the kubelet of
	// the Node, at any of its addresses, which tells that its operating system is alive.
	Clock   clock.PassiveClock
	Open    func(context.Context, bmc.Options) (bmc.Machine, error)
	Answers func(ctx context.Context, node string, addresses []string, port int32) bool
}

// DefaultPowerActionsPerMinute lets a person see what happens before a fleet is reset.
const DefaultPowerActionsPerMinute = 10

const (
	controllerName     = "outofband"
	defaultConcurrency = 8
	pollCluster        = time.Minute
	// hangUpTimeout leaves a part of the manager's graceful shutdown (30 s) to others.
	hangUpTimeout = 20 * time.Second
	// passTimeout bounds one pass with all its requests; the longest is two observations and one action at a slow BMC.
	passTimeout = 10 * time.Minute
)

func (o Options) withDefaults() Options {
	if o.Concurrency <= 0 {
		o.Concurrency = defaultConcurrency
	}
	if o.Registerer == nil {
		o.Registerer = ctrlmetrics.Registry
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Open == nil {
		o.Open = connect.Open
	}
	if o.Answers == nil {
		o.Answers = kubeletAnswers
	}
	if o.PowerActionsPerMinute <= 0 {
		o.PowerActionsPerMinute = DefaultPowerActionsPerMinute
	}
	if o.Holder == "" {
		o.Holder, _ = os.Hostname()
	}

	return o
}

// Reconciler looks after the machines that were told to reboot, until their agents are done.
type Reconciler struct {
	options  Options
	registry *clusters.Registry
	// home reads HostPools, BareMetalHosts and Secrets, live.
	home client.Reader
	// hosts writes our key of BareMetalHosts, and nothing else.
	hosts   client.Client
	events  events.EventRecorder
	clock   clock.PassiveClock
	metrics *metrics
	bmcs    *connect.Pool
	leases  *powerlease.Leases
	pace    *pace
}

// SetupWithManager adds the controller. It must run under leader election: one process at a time talks to a BMC.
func SetupWithManager(mgr ctrl.Manager, registry *clusters.Registry, options Options) error {
	reconciler, err := newReconciler(mgr, registry, options)
	if err != nil {
		return err
	}
	if err := mgr.Add(manager.RunnableFunc(reconciler.hangUp)); err != nil {
		return fmt.Errorf("setting up the controller %s: %w", controllerName, err)
	}
	err = builder.TypedControllerManagedBy[Request](mgr).
		Named(controllerName).
		WithOptions(controller.TypedOptions[Request]{MaxConcurrentReconciles: reconciler.options.Concurrency}).
		WatchesRawSource(clusters.Subscribe(registry, requestsFor)).
		Complete(reconciler)
	if err != nil {
		return fmt.Errorf("setting up the controller %s: %w", controllerName, err)
	}

	return newReleaser(reconciler).setUp(mgr)
}

func newReconciler(mgr ctrl.Manager, registry *clusters.Registry, options Options) (*Reconciler, error) {
	options = options.withDefaults()
	leasesClient, err := powerlease.Client(mgr.GetConfig())
	if err != nil {
		return nil, err
	}
	leases, err := powerlease.New(powerlease.Options{Leases: leasesClient, Holder: "stayput-controller " + options.Holder})
	if err != nil {
		return nil, err
	}
	measured, err := newMetrics(options.Registerer)
	if err != nil {
		return nil, err
	}

	return &Reconciler{
		options: options, registry: registry, home: mgr.GetAPIReader(), hosts: mgr.GetClient(),
		events: mgr.GetEventRecorder("stayput-" + controllerName),
		clock:  options.Clock, metrics: measured, leases: leases, pace: newPace(options.PowerActionsPerMinute),
		bmcs: connect.NewPool(connect.PoolOptions{Open: options.Open}),
	}, nil
}

// hangUp ends the sessions with BMCs when the process ends.
func (r *Reconciler) hangUp(ctx context.Context) error {
	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUpTimeout)
	defer cancel()
	if err := r.bmcs.Close(ctx); err != nil {
		ctrl.LoggerFrom(ctx).Info("not every session with a BMC was closed; it ends by itself", "error", err.Error())
	}

	return nil
}

// requestsFor: Node and NodeUpdate have the same name.
func requestsFor(_ context.Context, key clusters.Key, object client.Object) []Request {
	if object == nil {
		return nil
	}

	return []Request{{Cluster: key, Node: object.GetName()}}
}

// Reconcile implements reconcile.TypedReconciler.
func (r *Reconciler) Reconcile(ctx context.Context, request Request) (reconcile.Result, error) {
	cluster, err := r.registry.Get(ctx, request.Cluster)
	switch clusters.KindOf(err) {
	case clusters.Connecting, clusters.Unreachable:
		// The pool says so in its condition. Machines of a cluster that does not answer cannot be told from silent
		// ones, so nothing is done to them.
		return reconcile.Result{RequeueAfter: pollCluster}, nil
	case clusters.KubeconfigInvalid:
		// A corrected one makes a new connection, which tells of all its NodeUpdates. It may also be gone for good, and
		// nobody is to be called for a machine of which nothing is known.
		r.forget(request)

		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("finding the cluster of Node %s: %w", request.Node, err)
	}
	wanted, err := r.wanted(ctx, cluster.Client(), request)
	if err != nil || !wanted {
		return reconcile.Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	s := &session{
		Reconciler: r, request: request, reader: cluster.Live(), writer: cluster.Client(), nodeEvents: cluster.Events(),
	}
	after, err := pass(ctx, s, r.clock)
	switch {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: retryAtOnce}, nil
	case err != nil:
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}

	return reconcile.Result{RequeueAfter: after}, nil
}

// wanted looks into the cache whether there is anything to do, so that the many events of machines that are not being
// rebooted cost nothing.
func (r *Reconciler) wanted(ctx context.Context, cached client.Reader, request Request) (bool, error) {
	var update v1alpha1.NodeUpdate
	err := cached.Get(ctx, client.ObjectKey{Name: request.Node}, &update)
	now := r.clock.Now()
	if err == nil && Decide(newWorld(&update, nil, now), now).Verb != Rest {
		return true, nil
	}
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading NodeUpdate %s: %w", request.Node, err)
	}
	r.forget(request)

	return false, nil
}

func (r *Reconciler) forget(request Request) {
	r.metrics.observe(request, nil)
}
