package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

const (
	resourceNodes       = "nodes"
	resourcePods        = "pods"
	resourceNodeUpdates = "nodeupdates"
	fieldName           = "metadata.name"
	fieldNodeName       = "spec.nodeName"
	// connectRetry is the default of Options.Retry.
	connectRetry = 15 * time.Second
	// podsPage bounds one answer to the list of pods.
	podsPage = 250
)

// ErrNotConnected is returned while there are no usable credentials.
var ErrNotConnected = errors.New("not connected to the API server: there are no usable credentials yet")

// Options say which node, and how to get at the API server.
type Options struct {
	// Node is the name of the Node, and of the NodeUpdate.
	Node string
	// Config reads the credentials. It is called until it succeeds, and again when the process starts anew.
	Config func() (*rest.Config, error)
	// Retry is how soon unusable credentials are read again. Default 15 seconds.
	Retry time.Duration
	// Log gets no secrets.
	Log logr.Logger
}

// Cluster implements agent.Cluster. Its methods may be called from any goroutine.
type Cluster struct {
	options Options
	changed chan struct{}

	mutex         sync.Mutex
	core, stayput rest.Interface
	update        *v1alpha1.NodeUpdate
	updateKnown   bool
	node          *corev1.Node
}

// New makes a Cluster that knows nothing yet; Run makes it watch.
func New(options Options) *Cluster {
	if options.Retry <= 0 {
		options.Retry = connectRetry
	}

	return &Cluster{options: options, changed: make(chan struct{}, 1)}
}

// Run connects and watches until the context ends.
func (c *Cluster) Run(ctx context.Context) {
	err := wait.PollUntilContextCancel(ctx, c.options.Retry, true, func(context.Context) (bool, error) {
		if err := c.connect(); err != nil {
			c.options.Log.Error(err, "cannot connect to the API server; trying again", "after", c.options.Retry.String())

			return false, nil
		}

		return true, nil
	})
	if err != nil {
		return
	}

	nodes := c.watch(c.core, resourceNodes, &corev1.Node{}, func(object any) { c.sawNode(object) })
	updates := c.watch(c.stayput, resourceNodeUpdates, &v1alpha1.NodeUpdate{}, func(object any) { c.sawUpdate(object) })

	var group sync.WaitGroup

	group.Go(func() { nodes.RunWithContext(ctx) })
	group.Go(func() { updates.RunWithContext(ctx) })
	group.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), updates.HasSynced) {
			c.mutex.Lock()
			c.updateKnown = true
			c.mutex.Unlock()
			c.tell()
		}
	})
	group.Wait()
}

func (c *Cluster) connect() error {
	config, err := c.options.Config()
	if err != nil {
		return err
	}

	core, stayput, err := clients(config)
	if err != nil {
		return err
	}

	c.mutex.Lock()
	defer c.mutex.Unlock()

	c.core, c.stayput = core, stayput

	return nil
}

// clients are REST clients for the core group and for ours, on one connection.
func clients(config *rest.Config) (core, stayput rest.Interface, err error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, nil, fmt.Errorf("registering API types: %w", err)
		}
	}

	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.UserAgent = v1alpha1.FieldManagerAgent

	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, fmt.Errorf("using the credentials: %w", err)
	}

	one := func(path string, version schema.GroupVersion) (rest.Interface, error) {
		config := rest.CopyConfig(config)
		config.APIPath, config.GroupVersion = path, &version

		return rest.RESTClientForConfigAndClient(config, httpClient)
	}

	if core, err = one("/api", corev1.SchemeGroupVersion); err != nil {
		return nil, nil, fmt.Errorf("making a client of the core group: %w", err)
	}

	if stayput, err = one("/apis", v1alpha1.GroupVersion); err != nil {
		return nil, nil, fmt.Errorf("making a client of %s: %w", v1alpha1.GroupVersion, err)
	}

	return core, stayput, nil
}

func (c *Cluster) watch(client rest.Interface, resource string, object runtime.Object, saw func(object any)) cache.Controller {
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client, resource, metav1.NamespaceNone,
			fields.OneTermEqualSelector(fieldName, c.options.Node)),
		ObjectType: object,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    saw,
			UpdateFunc: func(_, object any) { saw(object) },
			DeleteFunc: func(any) { saw(nil) },
		},
	})

	return controller
}

func (c *Cluster) sawNode(object any) {
	node, _ := object.(*corev1.Node) // nil when the Node was deleted

	c.mutex.Lock()

	// A watch lags behind what a patch of ours has returned.
	if node == nil || !older(node, c.node) {
		c.node = node
	}

	c.mutex.Unlock()
	c.tell()
}

// older tells whether a was read before b, of the same object.
func older(a, b *corev1.Node) bool {
	if b == nil || a.UID != b.UID {
		return false
	}

	left, leftErr := strconv.ParseUint(a.ResourceVersion, 10, 64)
	right, rightErr := strconv.ParseUint(b.ResourceVersion, 10, 64)

	return leftErr == nil && rightErr == nil && left < right
}

func (c *Cluster) sawUpdate(object any) {
	update, _ := object.(*v1alpha1.NodeUpdate) // nil when it was deleted

	c.mutex.Lock()
	c.update, c.updateKnown = update, true
	c.mutex.Unlock()
	c.tell()
}

func (c *Cluster) tell() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Changed implements agent.Cluster.
func (c *Cluster) Changed() <-chan struct{} { return c.changed }

// Update implements agent.Cluster.
func (c *Cluster) Update() (*v1alpha1.NodeUpdate, bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()

	return c.update, c.updateKnown
}

// Node implements agent.Cluster.
func (c *Cluster) Node() *corev1.Node {
	c.mutex.Lock()
	defer c.mutex.Unlock()

	return c.node
}

func (c *Cluster) clients() (core, stayput rest.Interface, err error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()

	if c.core == nil {
		return nil, nil, ErrNotConnected
	}

	return c.core, c.stayput, nil
}

// ApplyStatus implements agent.Cluster. The BMC rung's part is left to its own writer.
func (c *Cluster) ApplyStatus(ctx context.Context, status v1alpha1.NodeUpdateStatus) error {
	_, client, err := c.clients()
	if err != nil {
		return err
	}

	status.OutOfBand = nil

	// Built by hand: a typed object would carry an empty spec.
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(),
		"kind":       "NodeUpdate",
		"metadata":   map[string]any{"name": c.options.Node},
		"status":     status,
	})
	if err != nil {
		return fmt.Errorf("encoding the status: %w", err)
	}

	force := true

	err = client.Patch(types.ApplyPatchType).Resource(resourceNodeUpdates).Name(c.options.Node).SubResource("status").
		VersionedParams(&metav1.PatchOptions{FieldManager: v1alpha1.FieldManagerAgent, Force: &force}, metav1.ParameterCodec).
		Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("applying the status of NodeUpdate %s: %w", c.options.Node, err)
	}

	return nil
}

// PatchNode implements agent.Cluster.
func (c *Cluster) PatchNode(ctx context.Context, patch protocol.Patch) error {
	client, _, err := c.clients()
	if err != nil {
		return err
	}

	request := client.Patch(patch.Type).Resource(resourceNodes).Name(c.options.Node)
	if patch.Subresource != "" {
		request = request.SubResource(patch.Subresource)
	}

	node := &corev1.Node{}

	err = request.VersionedParams(&metav1.PatchOptions{FieldManager: v1alpha1.FieldManagerAgent}, metav1.ParameterCodec).
		Body(patch.Data).Do(ctx).Into(node)
	if err != nil {
		return fmt.Errorf("patching Node %s: %w", c.options.Node, err)
	}

	c.sawNode(node)

	return nil
}

// DeletePods implements agent.Cluster. Each pod gets its own grace period. Pods that are going already, and pods that
// went or were replaced in the meantime, are left alone.
func (c *Cluster) DeletePods(ctx context.Context) (int, error) {
	client, _, err := c.clients()
	if err != nil {
		return 0, err
	}

	deleted := 0
	options := metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(fieldNodeName, c.options.Node).String(), Limit: podsPage,
	}

	for {
		var pods corev1.PodList

		err := client.Get().Resource(resourcePods).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(&pods)
		if err != nil {
			return deleted, fmt.Errorf("listing the pods of node %s: %w", c.options.Node, err)
		}

		for i := range pods.Items {
			done, err := deletePod(ctx, client, &pods.Items[i])
			if err != nil {
				return deleted, err
			}

			deleted += done
		}

		if options.Continue = pods.Continue; options.Continue == "" {
			return deleted, nil
		}
	}
}

func deletePod(ctx context.Context, client rest.Interface, pod *corev1.Pod) (int, error) {
	// A mirror pod stands for a static pod, which only the kubelet can stop.
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror || pod.DeletionTimestamp != nil {
		return 0, nil
	}

	err := client.Delete().Namespace(pod.Namespace).Resource(resourcePods).Name(pod.Name).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return 0, fmt.Errorf("deleting pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}

	return 1, nil
}
