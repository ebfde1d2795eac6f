package clusters

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// Back-off between two tries to connect: 2s, 4s, … up to 1m.
const (
	firstRetry = 2 * time.Second
	lastRetry  = time.Minute
)

// CacheOptions are the cache options of every connection, also right for the manager's own cache: only what the
// controllers read is kept, without the parts that nobody reads: a Node's image list, and managed fields, of which a
// NodeUpdate keeps who wrote it when (see v1alpha1.StatusWrittenAt). So what comes from these caches must not be sent
// back whole; NodeUpdates are written by server-side apply of objects of their own.
func CacheOptions(scheme *runtime.Scheme) cache.Options {
	strip := cache.TransformStripManagedFields()

	return cache.Options{
		Scheme:           scheme,
		DefaultTransform: strip,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}: {Transform: func(object any) (any, error) {
				if node, ok := object.(*corev1.Node); ok && node.Status.Images != nil {
					node.Status.Images = nil
				}

				return strip(object)
			}},
			&v1alpha1.NodeUpdate{}: {Transform: stripFieldsWritten},
		},
	}
}

// stripFieldsWritten keeps of the managed fields who wrote when, and takes off which fields. An informer may give an
// object again that is in the cache already, and being read: it must be left as it is.
func stripFieldsWritten(object any) (any, error) {
	update, ok := object.(*v1alpha1.NodeUpdate)
	if !ok {
		return object, nil
	}
	for i := range update.ManagedFields {
		if update.ManagedFields[i].FieldsV1 != nil {
			update.ManagedFields[i].FieldsV1 = nil
		}
	}

	return object, nil
}

// connection is one remote cluster, connected or being connected.
type connection struct {
	registry *Registry
	key      Key
	sum      [32]byte
	life     context.Context //nolint:containedctx // its own lifetime: it ends when the Secret changes
	end      context.CancelFunc
	done     chan struct{}

	mu       sync.Mutex
	cluster  *Cluster
	problem  *Error
	lastUsed time.Time
}

func newConnection(r *Registry, key Key, sum [32]byte) *connection {
	life, end := context.WithCancel(r.life)

	return &connection{
		registry: r, key: key, sum: sum, life: life, end: end, done: make(chan struct{}),
		problem:  &Error{Kind: Connecting, Key: key, Err: errConnecting},
		lastUsed: time.Now(),
	}
}

func (c *connection) get() (*Cluster, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastUsed = time.Now()
	if c.problem != nil {
		return nil, c.problem
	}

	return c.cluster, nil
}

// run connects, then watches over the connection until its life ends or nobody asks for it any more.
func (c *connection) run(kubeconfig []byte) {
	defer close(c.done)
	defer c.registry.forget(c)
	defer c.end()
	retry := firstRetry
	for {
		connected, stop, err := c.connect(kubeconfig)
		if err == nil {
			c.set(connected, nil)
			c.watch(connected)
			stop()

			return
		}
		c.set(nil, err)
		if err.Kind == KubeconfigInvalid {
			// Only a changed Secret can mend it; that makes a new connection.
			c.waitUntilIdle()

			return
		}
		if !c.pause(retry) {
			return
		}
		retry = min(retry*2, lastRetry)
	}
}

// connect makes the clients and fills the caches.
func (c *connection) connect(kubeconfig []byte) (*Cluster, context.CancelFunc, *Error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, nil, &Error{Kind: KubeconfigInvalid, Key: c.key, Err: err}
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, &Error{Kind: KubeconfigInvalid, Key: c.key, Err: fmt.Errorf("making a client: %w", err)}
	}
	// Making the caches already asks the server for its kinds; look first whether it is there.
	if problem := c.probe(config.Host, kube); problem != nil {
		return nil, nil, problem
	}
	scheme := c.registry.local.cluster.GetScheme()
	remote, err := cluster.New(config, func(o *cluster.Options) {
		o.Scheme = scheme
		o.Cache = CacheOptions(scheme)
		o.Logger = log.Log.WithName("clusters").WithValues("cluster", c.key.String())
	})
	if err != nil {
		return nil, nil, &Error{Kind: Unreachable, Key: c.key, Err: fmt.Errorf("making the caches: %w", err)}
	}
	connected := &Cluster{key: c.key, cluster: remote, kubernetes: kube, events: remote.GetEventRecorder(eventSource)}
	life, stop := context.WithCancel(c.life)
	go func() {
		if err := remote.Start(life); err != nil && life.Err() == nil {
			log.Log.WithName("clusters").Error(err, "the caches of a cluster stopped", "cluster", c.key.String())
		}
	}()
	if err := c.fill(connected); err != nil {
		stop()

		return nil, nil, &Error{Kind: Unreachable, Key: c.key, Err: err}
	}

	return connected, stop, nil
}

// fill waits for the caches and lets the subscribers hear of what is in them.
func (c *connection) fill(connected *Cluster) error {
	ctx, cancel := context.WithTimeout(c.life, c.registry.options.ProbeTimeout)
	defer cancel()
	handler := eventHandler(func(object client.Object) { c.registry.publish(c.key, object) })
	for _, object := range []client.Object{&corev1.Node{}, &v1alpha1.NodeUpdate{}} {
		informer, err := connected.cluster.GetCache().GetInformer(ctx, object)
		if err != nil {
			return cacheError(c.key, object, err)
		}
		if _, err := informer.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watching %T: %w", object, err)
		}
	}

	return nil
}

// cacheError says what to do about a cache that cannot be filled.
func cacheError(key Key, object client.Object, err error) error {
	if !meta.IsNoMatchError(err) {
		return fmt.Errorf("filling the cache of %T: %w", object, err)
	}
	manifests := "config/nodes"
	if key.Local() {
		manifests = "config/default" // it holds the HostPools and runs the controller, too
	}

	return fmt.Errorf("the API of %T is not served there; apply %s to that cluster: %w", object, manifests, err)
}

// watch looks at the cluster now and then, until the connection's life ends or nobody has asked for it for long.
func (c *connection) watch(connected *Cluster) {
	for c.pause(c.registry.options.ProbeInterval) {
		if c.idle() {
			return
		}
		c.set(connected, c.probe(connected.Config().Host, connected.kubernetes))
	}
}

func (c *connection) waitUntilIdle() {
	for c.pause(c.registry.options.ProbeInterval) {
		if c.idle() {
			return
		}
	}
}

func (c *connection) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return time.Since(c.lastUsed) > c.registry.options.IdleAfter
}

// pause waits; false when the connection's life ended.
func (c *connection) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.life.Done():
		return false
	case <-timer.C:
		return true
	}
}

// probe asks the API server a cheap question. Any answer that is not about the credentials means that it is there.
func (c *connection) probe(host string, kube kubernetes.Interface) *Error {
	ctx, cancel := context.WithTimeout(c.life, c.registry.options.ProbeTimeout)
	defer cancel()
	err := kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case apierrors.IsUnauthorized(err):
		return &Error{Kind: KubeconfigInvalid, Key: c.key, Err: fmt.Errorf(
			"the API server refuses the credentials; write a new kubeconfig into the Secret: %w", err)}
	case errors.As(err, &status) && !apierrors.IsServiceUnavailable(err) && !apierrors.IsInternalError(err):
		return nil
	default:
		return &Error{Kind: Unreachable, Key: c.key, Err: fmt.Errorf("asking %s/readyz: %w", host, err)}
	}
}

// set stores the state and tells the subscribers when it has changed.
func (c *connection) set(connected *Cluster, problem *Error) {
	c.mu.Lock()
	before := c.problem
	c.cluster, c.problem = connected, problem
	c.mu.Unlock()
	changed := (before == nil) != (problem == nil) ||
		(before != nil && problem != nil && before.Kind != problem.Kind)
	if changed && c.life.Err() == nil {
		c.registry.publish(c.key, nil)
	}
}

// eventHandler passes on what an informer sees.
func eventHandler(pass func(object client.Object)) toolscache.ResourceEventHandler {
	passAny := func(object any) {
		if typed, ok := object.(client.Object); ok {
			pass(typed)
		}
	}

	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    passAny,
		UpdateFunc: func(_, object any) { passAny(object) },
		DeleteFunc: func(object any) {
			if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			passAny(object)
		},
	}
}
