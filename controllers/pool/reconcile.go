package pool

import (
	"context"
	"errors"
	"fmt"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/clusters"
	"github.com/stayput-dev/stayput/controllers/hosts"
)

const (
	// resync is how often a pool is looked at though nothing has changed: what an event missed is found then.
	resync = 5 * time.Minute
	// drainInterval is the pause between two eviction passes over a node.
	drainInterval = 5 * time.Second
	// retryInterval is the pause before an image or a cluster that failed is tried again.
	retryInterval  = 30 * time.Second
	resolveTimeout = 30 * time.Second
	// poisonedKept is the length of status.poisoned.
	poisonedKept = 16
)

// Reconciler brings pools to their releases. Fill every field, or use SetupWithManager.
type Reconciler struct {
	// Client reads and writes the management cluster; reads of HostPools and BareMetalHosts come from a cache.
	Client client.Client
	// Live reads the management cluster's API server.
	Live client.Reader
	// Clusters are the clusters of the Nodes.
	Clusters *clusters.Registry
	// Resolver looks images up.
	Resolver Resolver
	// Events records events on HostPools.
	Events events.EventRecorder
	// Metrics count.
	Metrics *Metrics
	// Clock tells the time.
	Clock clock.PassiveClock
}

// Reconcile makes one pass over a pool.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	pool := &v1alpha1.HostPool{}
	if err := r.Client.Get(ctx, request.NamespacedName, pool); err != nil {
		if apierrors.IsNotFound(err) {
			r.Metrics.forget(request.Namespace, request.Name)

			return ctrl.Result{}, nil
		}

		return ctrl.Result{}, fmt.Errorf("reading HostPool %s: %w", request, err)
	}
	result, err := r.pass(ctx, pool.DeepCopy())
	switch {
	case apierrors.IsConflict(err):
		// Somebody wrote in between; the next pass sees it.
		r.Metrics.failed(pool, "conflict")
		log.FromContext(ctx).V(1).Info("trying again after a conflict", "error", err.Error())

		return ctrl.Result{RequeueAfter: time.Second}, nil
	case err != nil:
		r.Metrics.failed(pool, "api")

		return ctrl.Result{}, err
	}

	return result, nil
}

func (r *Reconciler) pass(ctx context.Context, pool *v1alpha1.HostPool) (ctrl.Result, error) {
	if pool.DeletionTimestamp.IsZero() && controllerutil.AddFinalizer(pool, Finalizer) {
		if err := r.patchMetadata(ctx, pool); err != nil {
			return ctrl.Result{}, err
		}
	}
	cluster, err := r.Clusters.Get(ctx, clusters.KeyOf(pool))
	if err != nil {
		return r.withoutCluster(ctx, pool, err)
	}
	report := &report{now: r.Clock.Now()}
	if err := r.resolveOnce(ctx, pool, report); err != nil {
		return ctrl.Result{}, err
	}
	world, decision, err := r.decide(ctx, pool, cluster, report)
	if err != nil {
		return ctrl.Result{}, err
	}
	pool = world.Pool // it may have been read live since
	before := pool.Status.DeepCopy()
	if err := r.storePoison(ctx, world, decision); err != nil {
		return ctrl.Result{}, err
	}
	actor := &actor{cluster: cluster, world: world, now: r.Clock.Now, drains: map[string]string{}}
	problem := r.actAll(ctx, actor, decision)
	report.fill(pool, world, decision, actor.drains)
	r.Metrics.observe(pool, decision)
	if err := r.writeStatus(ctx, pool, before); err != nil {
		return ctrl.Result{}, errors.Join(problem, err)
	}
	r.tellUntrusted(pool, before)
	if problem != nil {
		return ctrl.Result{}, problem
	}
	if err := r.finishMetadata(ctx, world, decision); err != nil {
		return ctrl.Result{}, err
	}

	return ctrl.Result{RequeueAfter: soonest(resync, decision.Recheck, actor.again, report.again)}, nil
}

func soonest(first time.Duration, others ...time.Duration) time.Duration {
	for _, d := range others {
		if d > 0 && d < first {
			first = d
		}
	}

	return first
}

// withoutCluster says why the cluster of the Nodes is not there. A pool that is deleted goes when nothing can be
// reached by its kubeconfig any more, since a person has taken that away.
func (r *Reconciler) withoutCluster(ctx context.Context, pool *v1alpha1.HostPool, err error) (ctrl.Result, error) {
	kind := clusters.KindOf(err)
	if kind == "" {
		return ctrl.Result{}, err
	}
	if kind == clusters.Connecting {
		return ctrl.Result{RequeueAfter: retryInterval}, nil // an event comes first
	}
	r.Metrics.failed(pool, string(kind))
	if kind == clusters.KubeconfigInvalid && !pool.DeletionTimestamp.IsZero() && apierrors.IsNotFound(err) {
		controllerutil.RemoveFinalizer(pool, Finalizer)

		return ctrl.Result{}, r.patchMetadata(ctx, pool)
	}
	before := pool.Status.DeepCopy()
	(&report{now: r.Clock.Now()}).unreachable(pool, kind, err)

	return ctrl.Result{RequeueAfter: retryInterval}, r.writeStatus(ctx, pool, before)
}

// resolveOnce resolves the image when spec has a value that was not resolved yet, verifies it anew when the pool asks for
// other signatures than before, and stores the result at once. A registry that fails, an image that is refused and keys
// that cannot be read are reported, not returned: what is under way goes on.
func (r *Reconciler) resolveOnce(ctx context.Context, pool *v1alpha1.HostPool, report *report) error {
	if !pool.DeletionTimestamp.IsZero() {
		return nil
	}
	var err error
	if report.trusted, err = r.trusts(ctx, pool); err != nil {
		r.Metrics.failed(pool, "resolve")
		report.keysError, report.held, report.again = err, true, retryInterval

		return nil //nolint:nilerr // the report carries the error into the status; the pass goes on
	}
	if !report.trusted.off() {
		report.again = retryInterval // to see when the keys change
	}
	if !r.resolveNow(ctx, pool, report) {
		return nil
	}
	if err := r.Client.Status().Update(ctx, pool, client.FieldOwner(v1alpha1.FieldManagerOrchestrator)); err != nil {
		return fmt.Errorf("storing the resolved release: %w", err)
	}

	return nil
}

// resolveNow does so, and tells whether the status is to be stored.
func (r *Reconciler) resolveNow(ctx context.Context, pool *v1alpha1.HostPool, report *report) bool {
	image := pool.Spec.Release.OS.Image
	if known := pool.Status.Release; known != nil && known.Image == image {
		return !report.trusted.settled(known.Signature) && r.verify(ctx, pool, report)
	}
	release, err := r.resolve(ctx, pool, image, report.trusted)
	if err != nil {
		r.Metrics.failed(pool, "resolve")
		report.resolveError, report.again = err, retryInterval

		return false
	}
	pool.Status.Release = release

	return true
}

// decide observes and decides, on the caches first. When more would be done than routine, it does both again on a
// world that is read live.
func (r *Reconciler) decide(
	ctx context.Context, pool *v1alpha1.HostPool, cluster *clusters.Cluster, report *report,
) (World, Decision, error) {
	world, err := r.observe(ctx, pool, r.Client, cluster.Client(), cluster)
	if err != nil {
		return World{}, Decision{}, err
	}
	world.Verification, world.Held = report.trusted.verification, report.held
	decision := Decide(world)
	routine := len(decision.Poison) == 0 && world.Retry == "" && world.Pool.DeletionTimestamp.IsZero()
	for _, action := range decision.Actions {
		routine = routine && action.routine()
	}
	if routine {
		return world, decision, nil
	}
	fresh := &v1alpha1.HostPool{}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(pool), fresh); err != nil {
		return World{}, Decision{}, fmt.Errorf("reading HostPool live: %w", client.IgnoreNotFound(err))
	}
	if fresh.Generation != pool.Generation || fresh.UID != pool.UID || fresh.DeletionTimestamp.IsZero() != pool.DeletionTimestamp.IsZero() {
		return World{}, Decision{}, apierrors.NewConflict(
			v1alpha1.GroupVersion.WithResource("hostpools").GroupResource(), pool.Name, errSpecChanged)
	}
	world, err = r.observe(ctx, fresh, r.Live, cluster.Live(), cluster)
	if err != nil {
		return World{}, Decision{}, err
	}
	world.Verification, world.Held = report.trusted.verification, report.held

	return world, Decide(world), nil
}

var errSpecChanged = errors.New("the spec changed during the pass")

// observe reads the world.
func (r *Reconciler) observe(
	ctx context.Context, pool *v1alpha1.HostPool, management, nodes client.Reader, cluster *clusters.Cluster,
) (World, error) {
	world := World{
		Now: r.Clock.Now(), Pool: pool, Retry: pool.Annotations[v1alpha1.AnnotationRetry],
		Nodes: map[string]*corev1.Node{}, Updates: map[string]*v1alpha1.NodeUpdate{},
	}
	selector, err := metav1.LabelSelectorAsSelector(&pool.Spec.HostSelector)
	if err != nil {
		return World{}, fmt.Errorf("reading spec.hostSelector: %w", err)
	}
	var hostList metal3.BareMetalHostList
	err = management.List(ctx, &hostList, client.InNamespace(pool.Namespace), client.MatchingLabelsSelector{Selector: selector})
	if err != nil {
		return World{}, fmt.Errorf("listing BareMetalHosts: %w", err)
	}
	var nodeList corev1.NodeList
	if err := nodes.List(ctx, &nodeList); err != nil {
		return World{}, fmt.Errorf("listing Nodes of cluster %s: %w", cluster.Key(), err)
	}
	var updateList v1alpha1.NodeUpdateList
	if err := nodes.List(ctx, &updateList); err != nil {
		return World{}, fmt.Errorf("listing NodeUpdates of cluster %s: %w", cluster.Key(), err)
	}
	consumers, err := hosts.Consumers(ctx, r.Live, hostList.Items, nodeList.Items)
	if err != nil {
		return World{}, err
	}
	world.Links = hosts.Resolve(hosts.World{Hosts: hostList.Items, Nodes: nodeList.Items, Consumers: consumers})
	for i := range nodeList.Items {
		world.Nodes[nodeList.Items[i].Name] = &nodeList.Items[i]
	}
	for i := range updateList.Items {
		world.Updates[updateList.Items[i].Name] = &updateList.Items[i]
	}

	return world, nil
}

// storePoison makes the pool's status name the poisoned digests before anything follows from them.
func (r *Reconciler) storePoison(ctx context.Context, world World, decision Decision) error {
	if len(decision.Poison) == 0 && world.Retry == "" {
		return nil
	}
	pool := world.Pool
	pool.Status.Poisoned = poisonedAfter(pool.Status.Poisoned, world.Retry, decision.Poison)
	if err := r.Client.Status().Update(ctx, pool, client.FieldOwner(v1alpha1.FieldManagerOrchestrator)); err != nil {
		return fmt.Errorf("storing poisoned releases: %w", err)
	}
	for _, p := range decision.Poison {
		r.Events.Eventf(pool, nil, corev1.EventTypeWarning, "Halted", "Update", "%s",
			notef("release %s failed on node %s: %s", p.Version, p.Node, p.Reason))
	}

	return nil
}

// poisonedAfter is the list without the digest to be retried and with the new ones, the newest kept.
func poisonedAfter(list []v1alpha1.PoisonedRelease, retry string, added []v1alpha1.PoisonedRelease) []v1alpha1.PoisonedRelease {
	var after []v1alpha1.PoisonedRelease
	for _, p := range list {
		if p.Digest != retry {
			after = append(after, p)
		}
	}
	after = append(after, added...)

	return after[max(0, len(after)-poisonedKept):]
}

// actAll carries out every action; the trouble of one node does not keep the others waiting.
func (r *Reconciler) actAll(ctx context.Context, actor *actor, decision Decision) error {
	var problems []error
	for _, action := range decision.Actions {
		if err := actor.act(ctx, action); err != nil {
			problems = append(problems, err)
			actor.drains[action.Node] = err.Error()

			continue
		}
		log.FromContext(ctx).V(1).Info("acted", "action", action.Kind, "node", action.Node, "attempt", action.Attempt,
			"outcome", action.Outcome, "reason", action.Reason)
		if action.Kind == Close {
			r.Metrics.closed(actor.world.Pool, actor.world.Updates[action.Node], action.Outcome)
		}
	}

	return errors.Join(problems...)
}

// finishMetadata removes the retry annotation once it was acted on, and the finalizer once nothing is left to take back.
func (r *Reconciler) finishMetadata(ctx context.Context, world World, decision Decision) error {
	pool := world.Pool.DeepCopy()
	changed := false
	if world.Retry != "" {
		delete(pool.Annotations, v1alpha1.AnnotationRetry)
		changed = true
	}
	if world.deleting() && len(decision.Actions) == 0 && world.lettingGo() == 0 {
		changed = controllerutil.RemoveFinalizer(pool, Finalizer) || changed
	}
	if !changed {
		return nil
	}

	return r.patchMetadata(ctx, pool)
}

// lettingGo counts the NodeUpdates that the pool owns.
func (w World) lettingGo() int {
	count := 0
	for _, update := range w.Updates {
		if w.owns(update) {
			count++
		}
	}

	return count
}

// patchMetadata writes annotations and finalizers, if nobody has written the object since it was read.
func (r *Reconciler) patchMetadata(ctx context.Context, pool *v1alpha1.HostPool) error {
	written := pool.DeepCopy()
	if err := r.Client.Update(ctx, written, client.FieldOwner(v1alpha1.FieldManagerOrchestrator)); err != nil {
		return fmt.Errorf("writing the metadata of HostPool: %w", err)
	}
	pool.ResourceVersion = written.ResourceVersion

	return nil
}
