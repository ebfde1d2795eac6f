package clusters

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// Key names a cluster: the Secret with its kubeconfig. The zero Key is the cluster that the controller runs in.
type Key struct {
	Namespace, Secret string
}

// KeyOf is the key of the cluster where a pool's Nodes live.
func KeyOf(pool *v1alpha1.HostPool) Key {
	if pool.Spec.Cluster == nil {
		return Key{}
	}

	return Key{Namespace: pool.Namespace, Secret: pool.Spec.Cluster.KubeconfigSecretName}
}

// Local tells whether it is the cluster that the controller runs in.
func (k Key) Local() bool { return k == Key{} }

// String is for messages.
func (k Key) String() string {
	if k.Local() {
		return "(local)"
	}

	return k.Namespace + "/" + k.Secret
}

// Cluster is a connected cluster. Use it for one pass and ask the Registry again.
type Cluster struct {
	key        Key
	cluster    cluster.Cluster
	kubernetes kubernetes.Interface
	events     events.EventRecorder
}

// Key names the cluster.
func (c *Cluster) Key() Key { return c.key }

// Client reads Nodes and NodeUpdates from a cache and everything else live; writes are direct. Treat what it returns
// as read-only.
func (c *Cluster) Client() client.Client { return c.cluster.GetClient() }

// Live reads from the API server.
func (c *Cluster) Live() client.Reader { return c.cluster.GetAPIReader() }

// Config is the client configuration.
func (c *Cluster) Config() *rest.Config { return c.cluster.GetConfig() }

// Kubernetes is a typed client, for the drain library.
func (c *Cluster) Kubernetes() kubernetes.Interface { return c.kubernetes }

// Events records events on objects of this cluster.
func (c *Cluster) Events() events.EventRecorder { return c.events }

// Options tune a Registry. The zero value is for production.
type Options struct {
	// ProbeInterval is the time between two looks at a remote cluster. Default 10s.
	ProbeInterval time.Duration
	// ProbeTimeout bounds one look, and the first filling of the caches. Default 20s.
	ProbeTimeout time.Duration
	// IdleAfter is how long a connection that nobody asks for is kept. Default 1h; asking is what a reconcile does, so
	// it must be longer than the controllers' resync.
	IdleAfter time.Duration
}

const (
	defaultProbeInterval = 10 * time.Second
	defaultProbeTimeout  = 20 * time.Second
	defaultIdleAfter     = time.Hour

	eventSource = "stayput"
)

func (o Options) withDefaults() Options {
	if o.ProbeInterval <= 0 {
		o.ProbeInterval = defaultProbeInterval
	}
	if o.ProbeTimeout <= 0 {
		o.ProbeTimeout = defaultProbeTimeout
	}
	if o.IdleAfter <= 0 {
		o.IdleAfter = defaultIdleAfter
	}

	return o
}

// Registry holds one connection for each cluster. It is safe for concurrent use.
type Registry struct {
	local   *Cluster
	options Options

	// life ends every connection; Start binds it to the manager's.
	life context.Context //nolint:containedctx // it is the registry's own lifetime, not a caller's
	end  context.CancelFunc

	mu          sync.Mutex
	connections map[Key]*connection
	subscribers map[int]subscriber
	nextID      int
}

// New makes a registry around the controller's own cluster (a manager is one). Add it to the manager.
func New(local cluster.Cluster, options Options) (*Registry, error) {
	kube, err := kubernetes.NewForConfigAndClient(local.GetConfig(), local.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("making a client of the local cluster: %w", err)
	}
	life, end := context.WithCancel(context.Background())

	return &Registry{
		local: &Cluster{
			cluster: local, kubernetes: kube, events: local.GetEventRecorder(eventSource),
		},
		options:     options.withDefaults(),
		life:        life,
		end:         end,
		connections: map[Key]*connection{},
		subscribers: map[int]subscriber{},
	}, nil
}

// Start implements manager.Runnable: it keeps the connections until ctx ends.
func (r *Registry) Start(ctx context.Context) error {
	<-ctx.Done()
	r.end()
	r.mu.Lock()
	connections := make([]*connection, 0, len(r.connections))
	for _, c := range r.connections {
		connections = append(connections, c)
	}
	r.mu.Unlock()
	for _, c := range connections {
		<-c.done
	}

	return nil
}

// Get gives the cluster of a key, or an *Error. It reads the Secret and never waits for a remote cluster; with a kind
// of Connecting or Unreachable an event follows when the state changes.
func (r *Registry) Get(ctx context.Context, key Key) (*Cluster, error) {
	if key.Local() {
		return r.local, nil
	}
	kubeconfig, err := r.readKubeconfig(ctx, key)
	if err != nil {
		return nil, err
	}

	return r.connectionFor(key, kubeconfig).get() //nolint:contextcheck // a connection outlives the call that asks for it
}

// readKubeconfig reads the Secret live, so that no right to list Secrets is needed.
func (r *Registry) readKubeconfig(ctx context.Context, key Key) ([]byte, error) {
	var secret corev1.Secret
	name := types.NamespacedName{Namespace: key.Namespace, Name: key.Secret}
	switch err := r.local.Live().Get(ctx, name, &secret); {
	case apierrors.IsNotFound(err):
		r.drop(key)

		return nil, &Error{Kind: KubeconfigInvalid, Key: key, Err: fmt.Errorf(
			"there is no Secret %s in namespace %s; create it, or mend spec.cluster.kubeconfigSecretName: %w",
			key.Secret, key.Namespace, err)}
	case err != nil:
		return nil, fmt.Errorf("reading kubeconfig Secret %s: %w", key, err)
	}
	kubeconfig, err := kubeconfigOf(&secret)
	if err != nil {
		return nil, &Error{Kind: KubeconfigInvalid, Key: key, Err: err}
	}

	return kubeconfig, nil
}

// connectionFor gives the connection that was made from these bytes, a new one when they have changed.
func (r *Registry) connectionFor(key Key, kubeconfig []byte) *connection {
	sum := sha256.Sum256(kubeconfig)
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.connections[key]; ok {
		if old.sum == sum && old.life.Err() == nil {
			return old
		}
		old.end()
	}
	c := newConnection(r, key, sum)
	r.connections[key] = c
	go c.run(kubeconfig)

	return c
}

// drop ends the connection of a key.
func (r *Registry) drop(key Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.connections[key]; ok {
		c.end()
		delete(r.connections, key)
	}
}

// forget removes a connection that has ended by itself, unless it was replaced meanwhile.
func (r *Registry) forget(c *connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.connections[c.key] == c {
		delete(r.connections, c.key)
	}
}
