package outofband

import (
	"context"
	"fmt"
	"sync"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/clusters"
)

const (
	releaseName = controllerName + "-release"
	// reasonPowerReleased is the event of a key that was left behind.
	reasonPowerReleased = "PowerReleased"
)

// releaser takes our key off hosts that no reset under way keeps off. It looks at every host that has it, at the start
// and again and again while it is there: what ends a reset need not be an event of the host.
type releaser struct {
	*Reconciler

	mu sync.Mutex
	// seen is since when this process knows of a host's key.
	seen map[types.NamespacedName]time.Time
}

func newReleaser(r *Reconciler) *releaser {
	return &releaser{Reconciler: r, seen: map[types.NamespacedName]time.Time{}}
}

// setUp adds the controller, under leader election as the other: no two processes write the key.
func (r *releaser) setUp(mgr ctrl.Manager) error {
	keyed := predicate.NewPredicateFuncs(func(object client.Object) bool {
		_, ok := object.GetAnnotations()[ownRebootAnnotation]

		return ok
	})
	err := builder.ControllerManagedBy(mgr).
		Named(releaseName).
		For(&metal3.BareMetalHost{}, builder.WithPredicates(keyed)).
		WithOptions(controller.Options{MaxConcurrentReconciles: r.options.Concurrency}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("setting up the controller %s: %w", releaseName, err)
	}

	return nil
}

// Reconcile implements reconcile.Reconciler.
func (r *releaser) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var host metal3.BareMetalHost
	err := r.home.Get(ctx, request.NamespacedName, &host)
	gone := apierrors.IsNotFound(err)
	if err != nil && !gone {
		return reconcile.Result{}, fmt.Errorf("reading BareMetalHost %s: %w", request.NamespacedName, err)
	}
	if gone || !has(&host, ownRebootAnnotation) {
		r.forgetKey(request.NamespacedName)

		return reconcile.Result{}, nil
	}
	// The host was read before all that may need the key: what comes to need it meanwhile has written the host.
	wanted, err := r.wantsKey(ctx, &host)
	if err != nil {
		return reconcile.Result{}, err
	}
	if wanted {
		return reconcile.Result{RequeueAfter: pollPower}, nil
	}
	switch err := patchKey(ctx, r.hosts, &host, nil, host.ResourceVersion); {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: retryAtOnce}, nil
	case err != nil:
		return reconcile.Result{}, client.IgnoreNotFound(keyError("releasing the power", &host, err))
	}
	r.forgetKey(request.NamespacedName)
	r.events.Eventf(&host, nil, corev1.EventTypeNormal, reasonPowerReleased, eventAction,
		"removed annotation %s: no reset that is under way needs it, and Metal3 may switch the machine on", ownRebootAnnotation)

	return reconcile.Result{}, nil
}

// wantsKey tells whether any reset needs the key on the host. A cluster that does not answer may hold one, but cannot
// end it: then the key stays no longer than the longest reset would need it.
func (r *releaser) wantsKey(ctx context.Context, host *metal3.BareMetalHost) (bool, error) {
	var pools v1alpha1.HostPoolList
	if err := r.home.List(ctx, &pools, client.InNamespace(host.Namespace)); err != nil {
		return false, fmt.Errorf("listing HostPools of namespace %s: %w", host.Namespace, err)
	}
	since := r.keySince(client.ObjectKeyFromObject(host))
	for i := range pools.Items {
		pool := &pools.Items[i]
		selector, err := metav1.LabelSelectorAsSelector(&pool.Spec.HostSelector)
		if err != nil || !selector.Matches(labels.Set(host.Labels)) {
			continue
		}
		wanted, err := r.poolWantsKey(ctx, pool, host)
		if kind := clusters.KindOf(err); kind != "" {
			wanted, err = r.clock.Now().Before(since.Add(softHoldLimit)), nil
		}
		if err != nil || wanted {
			return wanted, err
		}
	}

	return false, nil
}

// poolWantsKey asks the NodeUpdates that name the pool and the host. Which there are is asked of the cache, and what
// they say of the API server.
func (r *releaser) poolWantsKey(ctx context.Context, pool *v1alpha1.HostPool, host *metal3.BareMetalHost) (bool, error) {
	key := clusters.KeyOf(pool)
	cluster, err := r.registry.Get(ctx, key)
	if err != nil {
		return false, err
	}
	var updates v1alpha1.NodeUpdateList
	if err := cluster.Client().List(ctx, &updates); err != nil {
		return false, fmt.Errorf("listing NodeUpdates of cluster %s: %w", key, err)
	}
	for i := range updates.Items {
		door := updates.Items[i].Spec.Door
		if door.Namespace != pool.Namespace || door.Name != pool.Name || door.Host != host.Name {
			continue
		}
		look := &session{
			Reconciler: r.Reconciler, request: Request{Cluster: key, Node: updates.Items[i].Name},
			reader: cluster.Live(), writer: cluster.Client(),
		}
		w, err := look.load(ctx)
		if client.IgnoreNotFound(err) != nil {
			return false, err
		}
		if err == nil && look.host != nil && look.host.UID == host.UID && w.holds(r.clock.Now()) {
			return true, nil
		}
	}

	return false, nil
}

func (r *releaser) keySince(host types.NamespacedName) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.seen[host]; !ok {
		r.seen[host] = r.clock.Now()
	}

	return r.seen[host]
}

func (r *releaser) forgetKey(host types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.seen, host)
}
