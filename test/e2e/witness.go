package e2e

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/stayput-dev/stayput/test/lab/controlplane"
)

// witness has seen every label that the Nodes ever had, also those that were there for a moment: a result is taken off
// by the controller within milliseconds.
type witness struct {
	mutex  sync.Mutex
	labels map[string]map[string]bool
}

// watchNodes starts a witness. It watches until the context ends.
func watchNodes(ctx context.Context, cluster *controlplane.Cluster) (*witness, error) {
	config, err := cluster.Admin()
	if err != nil {
		return nil, err
	}

	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client to watch Nodes with: %w", err)
	}

	seen := &witness{labels: map[string]map[string]bool{}}
	factory := informers.NewSharedInformerFactory(clients, 0)
	informer := factory.Core().V1().Nodes().Informer()

	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: seen.add, UpdateFunc: func(_, now any) { seen.add(now) },
	})
	if err != nil {
		return nil, fmt.Errorf("watching Nodes: %w", err)
	}

	factory.StartWithContext(ctx)

	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("watching Nodes: %w", context.Cause(ctx))
	}

	return seen, nil
}

func (w *witness) add(object any) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return
	}

	w.mutex.Lock()
	defer w.mutex.Unlock()

	if w.labels[node.Name] == nil {
		w.labels[node.Name] = map[string]bool{}
	}

	for label := range node.Labels {
		w.labels[node.Name][label] = true
	}
}

// saw tells whether the Node ever had the label.
func (w *witness) saw(node, label string) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()

	return w.labels[node][label]
}
