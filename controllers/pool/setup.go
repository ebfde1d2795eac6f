package pool

import (
	"context"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/clusters"
)

// controllerName names the controller in logs and metrics.
const controllerName = "hostpool"

// concurrentPools is how many pools are worked on at once. A pass waits for no node, but it may wait for a registry.
const concurrentPools = 4

// SetupWithManager registers the controller.
func SetupWithManager(mgr ctrl.Manager, registry *clusters.Registry, resolver Resolver) error {
	counters, err := NewMetrics(nil)
	if err != nil {
		return err
	}
	r := &Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clusters: registry, Resolver: resolver,
		Events: mgr.GetEventRecorder("stayput"), Metrics: counters, Clock: clock.RealClock{},
	}

	return r.register(mgr)
}

func (r *Reconciler) register(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named(controllerName).
		For(&v1alpha1.HostPool{}).
		Watches(&metal3.BareMetalHost{}, handler.EnqueueRequestsFromMapFunc(r.poolsOfHost)).
		WatchesRawSource(clusters.Subscribe(r.Clusters, r.poolsOfNode)).
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrentPools}).
		Complete(r)
}

// poolsOfHost are the pools whose selector picks the host. It is asked for a host as it was and as it is, so that the
// pool that a host leaves hears of it, too.
func (r *Reconciler) poolsOfHost(ctx context.Context, host client.Object) []reconcile.Request {
	return r.pools(ctx, func(pool *v1alpha1.HostPool) bool {
		selector, err := metav1.LabelSelectorAsSelector(&pool.Spec.HostSelector)

		return err == nil && pool.Namespace == host.GetNamespace() && selector.Matches(labels.Set(host.GetLabels()))
	})
}

// poolsOfNode are the pools whose Nodes are in the cluster; for a NodeUpdate it is its door.
func (r *Reconciler) poolsOfNode(ctx context.Context, key clusters.Key, object client.Object) []reconcile.Request {
	if update, ok := object.(*v1alpha1.NodeUpdate); ok {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{
			Namespace: update.Spec.Door.Namespace, Name: update.Spec.Door.Name,
		}}}
	}

	return r.pools(ctx, func(pool *v1alpha1.HostPool) bool { return clusters.KeyOf(pool) == key })
}

func (r *Reconciler) pools(ctx context.Context, keep func(*v1alpha1.HostPool) bool) []reconcile.Request {
	var list v1alpha1.HostPoolList
	if err := r.Client.List(ctx, &list); err != nil {
		return nil // the cache answers, or the process is ending
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if keep(&list.Items[i]) {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}

	return requests
}
