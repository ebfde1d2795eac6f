package health

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/kubeconfig"
	"github.com/stayput-dev/stayput/api/protocol"
)

// NodeReader reads this machine's own Node.
type NodeReader interface {
	ReadNode(ctx context.Context) (*corev1.Node, error)
}

// KubeconfigNode reads a Node with the credentials of a kubeconfig. The file is read at each look: it may appear late,
// or be renewed.
type KubeconfigNode struct {
	// Kubeconfig is the path of the agent's credentials.
	Kubeconfig string
	// Name is the Node's name.
	Name string
}

// ReadNode gets the Node from the API server.
func (k KubeconfigNode) ReadNode(ctx context.Context) (*corev1.Node, error) {
	config, err := kubeconfig.Load(k.Kubeconfig)
	if err != nil {
		return nil, err
	}

	client, err := coreClient(config)
	if err != nil {
		return nil, fmt.Errorf("using kubeconfig %s: %w", k.Kubeconfig, err)
	}

	node := &corev1.Node{}
	if err := client.Get().Resource("nodes").Name(k.Name).Do(ctx).Into(node); err != nil {
		return nil, fmt.Errorf("getting Node %s from %s: %w", k.Name, config.Host, err)
	}

	return node, nil
}

// coreClient is a client of the core group alone: the typed client set would carry every API group into the agent's
// memory.
func coreClient(config *rest.Config) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("registering the core API group: %w", err)
	}

	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()

	return rest.RESTClientFor(config)
}

// APIServer passes when the machine gets its own Node from the API server: network, name resolution, TLS and the
// agent's identity work.
type APIServer struct {
	Node NodeReader
}

// Name is GateAPIServer.
func (APIServer) Name() GateName { return GateAPIServer }

// Check gets the Node.
func (g APIServer) Check(ctx context.Context, _ Boot) error {
	if _, err := g.Node.ReadNode(ctx); err != nil {
		return fmt.Errorf("reaching the API server: %w", err)
	}

	return nil
}

// NodeReady passes when the kubelet of this boot has reported its Node Ready, and the OS that runs is the one that was
// armed.
//
// The boot ID says whose report it is. The kubelet writes it and the Ready condition in one request, so a Ready with
// this boot's ID cannot be older than this boot; heartbeat times are not compared, because the clock may have jumped.
type NodeReady struct {
	Node   NodeReader
	System boot.System
}

// Name is GateNodeReady.
func (NodeReady) Name() GateName { return GateNodeReady }

// Check gets the Node and reads os-release.
func (g NodeReady) Check(ctx context.Context, boot Boot) error {
	if err := g.checkVersion(boot); err != nil {
		return err
	}

	node, err := g.Node.ReadNode(ctx)
	if err != nil {
		return err
	}

	if node.Status.NodeInfo.BootID != boot.ID {
		return fmt.Errorf("node %s: %w: it has boot ID %q instead of %q", node.Name, errNotReported,
			node.Status.NodeInfo.BootID, boot.ID)
	}

	switch ready := protocol.ReadyCondition(node); {
	case ready == nil:
		return fmt.Errorf("node %s: %w: it has no Ready condition", node.Name, errNotReady)
	case ready.Status != corev1.ConditionTrue:
		return fmt.Errorf("node %s: %w: Ready=%s: %s: %s", node.Name, errNotReady, ready.Status, ready.Reason, ready.Message)
	default:
		return nil
	}
}

func (g NodeReady) checkVersion(boot Boot) error {
	if boot.Version == "" {
		return nil
	}

	release, err := g.System.OSRelease()
	if err != nil {
		return fmt.Errorf("reading the running OS version: %w", err)
	}

	if running := release["IMAGE_VERSION"]; running != boot.Version {
		return fmt.Errorf("os-release says IMAGE_VERSION=%q, but version %q was armed: %w", running, boot.Version, errWrongOS)
	}

	return nil
}

var (
	errWrongOS     = errors.New("another OS runs than the one that is on trial")
	errNotReady    = errors.New("the kubelet is not ready")
	errNotReported = errors.New("the kubelet of this boot has not reported yet")
)
