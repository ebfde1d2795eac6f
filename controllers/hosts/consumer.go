package hosts

import (
	"context"
	"fmt"
	"strings"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The kinds of Cluster API and Metal3 are read as they are on the server, in whichever version: their Go modules are
// large, and a cluster without them is as good.
const (
	metal3MachineKind   = "Metal3Machine"
	infrastructureGroup = "infrastructure.cluster.x-k8s.io"
	machineKind         = "Machine"
	machineGroup        = "cluster.x-k8s.io"
)

func consumerKey(host *metal3.BareMetalHost) (types.NamespacedName, bool) {
	ref := host.Spec.ConsumerRef
	if ref == nil || ref.Kind != metal3MachineKind || ref.Name == "" ||
		!strings.HasPrefix(ref.APIVersion, infrastructureGroup+"/") {
		return types.NamespacedName{}, false
	}
	namespace := ref.Namespace
	if namespace == "" {
		namespace = host.Namespace
	}

	return types.NamespacedName{Namespace: namespace, Name: ref.Name}, true
}

// Consumers reads the Machines that consume the hosts, for World. A kind that the server does not have, or an object
// that is gone, is left out; any other error is returned, since a link that hides a fact could be a wrong one. Hosts
// that a Node's providerID names already are not looked up.
func Consumers(
	ctx context.Context, reader client.Reader, hosts []metal3.BareMetalHost, nodes []corev1.Node,
) (map[types.NamespacedName]string, error) {
	found := map[types.NamespacedName]string{}
	for i := range hosts {
		host := &hosts[i]
		key, ok := consumerKey(host)
		if !ok || len(nodesWhere(nodes, func(n *corev1.Node) bool { return providerIDNames(n, host) })) > 0 {
			continue
		}
		node, err := consumerNode(ctx, reader, key, host.Spec.ConsumerRef.APIVersion)
		if err != nil {
			return nil, fmt.Errorf("following consumerRef of host %s: %w", host.Name, err)
		}
		if node != "" {
			found[key] = node
		}
	}

	return found, nil
}

func consumerNode(ctx context.Context, reader client.Reader, key types.NamespacedName, apiVersion string) (string, error) {
	consumer, err := get(ctx, reader, key, apiVersion, metal3MachineKind)
	if err != nil || consumer == nil {
		return "", err
	}
	owner := machineOwner(consumer.GetOwnerReferences())
	if owner == nil {
		return "", nil
	}
	machine, err := get(ctx, reader, types.NamespacedName{Namespace: key.Namespace, Name: owner.Name}, owner.APIVersion, machineKind)
	if err != nil || machine == nil {
		return "", err
	}
	name, _, err := unstructured.NestedString(machine.Object, "status", "nodeRef", "name")
	if err != nil {
		return "", fmt.Errorf("reading status.nodeRef of Machine %s/%s: %w", key.Namespace, owner.Name, err)
	}

	return name, nil
}

func machineOwner(owners []metav1.OwnerReference) *metav1.OwnerReference {
	for i := range owners {
		if owners[i].Kind == machineKind && strings.HasPrefix(owners[i].APIVersion, machineGroup+"/") {
			return &owners[i]
		}
	}

	return nil
}

// get reads an object; nil when it, or its kind, does not exist.
func get(
	ctx context.Context, reader client.Reader, key types.NamespacedName, apiVersion, kind string,
) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	switch err := reader.Get(ctx, key, object); {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil, nil //nolint:nilnil // absent is an answer
	case err != nil:
		return nil, fmt.Errorf("reading %s %s: %w", kind, key, err)
	}

	return object, nil
}
