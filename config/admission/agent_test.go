package admission_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// populate makes a node with its update and a pod.
func populate(t *testing.T, node string) {
	t.Helper()

	pod := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(podText("pod-of-"+node, node)), &pod.Object); err != nil {
		t.Fatal(err)
	}

	status := update(node)
	for _, object := range []client.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name:        node,
			Labels:      map[string]string{"kubernetes.io/hostname": node, "pool": "gpu"},
			Annotations: map[string]string{"team": "metal", protocol.AnnotationAttempt: "a1"},
		}},
		pod, status,
	} {
		if err := admin(t).Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}

	status.Object["status"] = map[string]any{
		"attempt": "a1", "phase": "Staging",
		"outOfBand": map[string]any{"attempt": "a1", "phase": "Resetting", "reason": "PowerActionSent", "resets": int64(2)},
	}
	if err := admin(t).Status().Update(t.Context(), status, client.FieldOwner(v1alpha1.FieldManagerOutOfBand)); err != nil {
		t.Fatal(err)
	}
}

// bystanders are objects of no node.
func bystanders(t *testing.T) {
	t.Helper()

	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "powerful", Namespace: "default"}}
	if err := admin(t).Create(t.Context(), account); err != nil {
		t.Fatal(err)
	}

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pending", Namespace: "default"}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}

	if err := admin(t).Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

// world is everything that a break-out could change, with resourceVersions.
func world(t *testing.T) string {
	t.Helper()

	var text strings.Builder

	for _, kind := range []string{
		"v1 Node", "v1 Pod", "v1 Secret", "v1 Event", "stayput.dev/v1alpha1 NodeUpdate", "stayput.dev/v1alpha1 HostPool",
	} {
		version, name, _ := strings.Cut(kind, " ")
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(version)
		list.SetKind(name + "List")

		if err := admin(t).List(t.Context(), list); err != nil {
			t.Fatal(err)
		}

		for _, item := range list.Items {
			fmt.Fprintf(&text, "%s %s/%s %s\n", name, item.GetNamespace(), item.GetName(), item.GetResourceVersion())
		}
	}

	return text.String()
}

// Not in parallel with others: it compares the whole world before and after.
func TestAnAgentCannotBreakOut(t *testing.T) {
	populate(t, "own")
	populate(t, "other")
	bystanders(t)

	asShipped := agent(t, "own")

	masters := agent(t, "own", "system:masters")

	before := world(t)

	t.Run("as shipped", func(t *testing.T) {
		all := writes()
		maps.Copy(all, powers())
		tryAll(t, asShipped, all)
	})
	t.Run("the policy alone", func(t *testing.T) { tryAll(t, masters, writes()) })

	if after := world(t); after != before {
		t.Errorf("something has changed; before:\n%s\nafter:\n%s", before, after)
	}
}

func tryAll(t *testing.T, own *identity, attempts map[string]attempt) {
	t.Helper()

	for name, try := range attempts {
		t.Run(name, func(t *testing.T) {
			err := try(t.Context(), own, "other")
			if !apierrors.IsForbidden(err) {
				t.Errorf("got %v, want it forbidden", err)
			}

			t.Log(err)
		})
	}
}

// The API server drops what a patch of the Node says of its status before the policy sees it.
func TestAnAgentCannotSetAConditionThroughTheNodeItself(t *testing.T) {
	populate(t, "conditions")

	own := agent(t, "conditions")

	body := `{"status":{"conditions":[{"type":"InPlaceUpdate","status":"True","reason":"ReadyForUpdate"}]}}`
	if err := patchNode(t.Context(), own, "conditions", body); err != nil && !apierrors.IsForbidden(err) {
		t.Fatal(err)
	}

	node := &corev1.Node{}
	if err := admin(t).Get(t.Context(), types.NamespacedName{Name: "conditions"}, node); err != nil {
		t.Fatal(err)
	}

	if len(node.Status.Conditions) > 0 {
		t.Errorf("the agent has set %+v", node.Status.Conditions)
	}
}

// A certificate with the group but without the form of the name, or with the name but without the group, opens nothing.
func TestAnIdentityOfAnotherFormMayNothing(t *testing.T) {
	populate(t, "form")

	for name, groups := range map[string][]string{
		"form": {agents}, "system:node:form": {agents}, "stayput:agent:form": nil, "stayput:agent:": {agents},
	} {
		t.Run(name, func(t *testing.T) {
			own := user(t, name, "form", groups...)

			err := patchNode(t.Context(), own, "form", `{"metadata":{"labels":{"node.machine.sapcloud.io/update-result":"failed"}}}`)
			if !apierrors.IsForbidden(err) {
				t.Errorf("got %v, want it forbidden", err)
			}
		})
	}
}

func TestAnAgentCanDoItsWork(t *testing.T) {
	populate(t, "worker")

	own := agent(t, "worker")

	for _, dialect := range []protocol.Dialect{protocol.Shipped, protocol.GEP0031} {
		for _, answer := range []func(*corev1.Node) *protocol.Patch{
			func(node *corev1.Node) *protocol.Patch { return protocol.Fail(node, dialect, "a1", "gate kubelet") },
			func(node *corev1.Node) *protocol.Patch { return protocol.Succeed(node, dialect, "a1") },
		} {
			node, err := own.kube.CoreV1().Nodes().Get(t.Context(), "worker", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}

			patch := answer(node)

			node, err = own.kube.CoreV1().Nodes().Patch(t.Context(), "worker", patch.Type, patch.Data,
				metav1.PatchOptions{FieldManager: v1alpha1.FieldManagerAgent})
			if err != nil {
				t.Fatalf("answering in %s: %v", dialect, err)
			}

			if protocol.Read(node).ResultFor("a1") == protocol.NoResult {
				t.Errorf("the answer in %s did not arrive: %v", dialect, node.Labels)
			}
		}
	}

	steps := map[string]error{
		"apply its status":  applyUpdate(t.Context(), own, "worker", v1alpha1.FieldManagerAgent, `{"attempt":"a1","phase":"Staged"}`),
		"patch its status":  patchUpdate(t.Context(), own, "worker", types.MergePatchType, `{"status":{"phase":"Arming"}}`, "status"),
		"delete its pod":    own.kube.CoreV1().Pods("default").Delete(t.Context(), "pod-of-worker", metav1.DeleteOptions{}),
		"watch its update":  watch(t.Context(), own),
		"list its own pods": listPods(t.Context(), own),
	}
	for what, err := range steps {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func watch(ctx context.Context, own *identity) error {
	events, err := own.dynamic.Resource(nodeUpdates).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + own.node})
	if err == nil {
		events.Stop()
	}

	return err
}

func listPods(ctx context.Context, own *identity) error {
	_, err := own.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + own.node})

	return err
}
