package clusters

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// MapFunc turns an event of a Node or NodeUpdate into requests. object is nil when a connection came or went: then
// only the key says which. Treat object as read-only, and do not block.
type MapFunc[R comparable] func(ctx context.Context, key Key, object client.Object) []R

type subscriber func(key Key, object client.Object)

// Subscribe is a source of the Nodes and NodeUpdates of the local cluster and of every cluster that is connected, now
// or later. Give it to a controller with builder.WatchesRawSource.
func Subscribe[R comparable](registry *Registry, mapFunc MapFunc[R]) source.TypedSyncingSource[R] {
	return &subscription[R]{registry: registry, mapFunc: mapFunc, synced: make(chan error, 1)}
}

type subscription[R comparable] struct {
	registry *Registry
	mapFunc  MapFunc[R]
	synced   chan error
}

// Start implements source.TypedSource; it does not block.
func (s *subscription[R]) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[R]) error {
	deliver := func(key Key, object client.Object) {
		for _, request := range s.mapFunc(ctx, key, object) {
			queue.Add(request)
		}
	}
	leave := s.registry.join(deliver)
	context.AfterFunc(ctx, leave)
	go func() { s.synced <- s.registry.watchLocal(ctx, deliver) }()

	return nil
}

// WaitForSync implements source.TypedSyncingSource: it waits for the local cluster's caches only, since a remote
// cluster may be dead.
func (s *subscription[R]) WaitForSync(ctx context.Context) error {
	select {
	case err := <-s.synced:
		return err
	case <-ctx.Done():
		return fmt.Errorf("waiting for the local cluster's caches: %w", ctx.Err())
	}
}

// String names the source in logs.
func (s *subscription[R]) String() string { return "nodes of every connected cluster" }

// watchLocal lets one subscriber hear of the local cluster; the manager runs its caches.
func (r *Registry) watchLocal(ctx context.Context, deliver subscriber) error {
	for _, object := range []client.Object{&corev1.Node{}, &v1alpha1.NodeUpdate{}} {
		informer, err := r.local.cluster.GetCache().GetInformer(ctx, object)
		if err != nil {
			return fmt.Errorf("filling the local cache of %T: %w", object, err)
		}
		registration, err := informer.AddEventHandler(eventHandler(func(seen client.Object) { deliver(Key{}, seen) }))
		if err != nil {
			return fmt.Errorf("watching %T of the local cluster: %w", object, err)
		}
		context.AfterFunc(ctx, func() {
			// The informer outlives the subscription only while the process ends; nothing can be done about an error.
			_ = informer.RemoveEventHandler(registration)
		})
	}

	return nil
}

func (r *Registry) join(deliver subscriber) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.nextID
	r.nextID++
	r.subscribers[id] = deliver

	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.subscribers, id)
	}
}

// publish tells every subscriber, outside the lock since they may ask the registry.
func (r *Registry) publish(from Key, object client.Object) {
	r.mu.Lock()
	all := make([]subscriber, 0, len(r.subscribers))
	for _, deliver := range r.subscribers {
		all = append(all, deliver)
	}
	r.mu.Unlock()
	for _, deliver := range all {
		deliver(from, object)
	}
}
