package protocol_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/test/apiserver"
)

var shared apiserver.Shared //nolint:gochecknoglobals // one server for the package

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

type onServer struct {
	t     *testing.T
	nodes typedcorev1.NodeInterface
	name  string
}

// newNode makes a node on the server, with a condition of the kubelet.
func newNode(t *testing.T, name string) *onServer {
	t.Helper()

	server := shared.Server(t)

	clients, err := kubernetes.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}

	nodes := clients.CoreV1().Nodes()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": "gpu"}}}

	if node, err = nodes.Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	if _, err := nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	return &onServer{t: t, nodes: nodes, name: name}
}

func (o *onServer) read() *corev1.Node {
	o.t.Helper()

	node, err := o.nodes.Get(o.t.Context(), o.name, metav1.GetOptions{})
	if err != nil {
		o.t.Fatal(err)
	}

	return node
}

func (o *onServer) try(patch *protocol.Patch) error {
	var subresources []string
	if patch.Subresource != "" {
		subresources = append(subresources, patch.Subresource)
	}

	_, err := o.nodes.Patch(o.t.Context(), o.name, patch.Type, patch.Data, metav1.PatchOptions{}, subresources...)

	return err
}

func (o *onServer) apply(patch *protocol.Patch) {
	o.t.Helper()

	if patch == nil {
		o.t.Fatal("nothing to apply")
	}

	if err := o.try(patch); err != nil {
		o.t.Fatalf("%s: %v", patch.Data, err)
	}
}

// Gardener's documented way to retry appends a second condition by a JSON patch (gardener issue 15386).
func TestTheServerReplacesDuplicateConditions(t *testing.T) {
	t.Parallel()

	node := newNode(t, "duplicates")
	now := time.Date(2026, 11, 29, 19, 0, 0, 0, time.UTC)
	node.apply(protocol.MarkCandidate(node.read(), "a1"))
	node.apply(protocol.SetReason(node.read(), protocol.Shipped, protocol.ReasonUpdateFailed, "", now))
	node.apply(protocol.Select(node.read()))

	duplicate := []byte(`[{"op":"add","path":"/status/conditions/-",
		"value":{"type":"InPlaceUpdate","status":"True","reason":"ReadyForUpdate"}}]`)
	if _, err := node.nodes.Patch(t.Context(), node.name, types.JSONPatchType, duplicate, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}

	if view := protocol.Read(node.read()); view.Ready || len(view.Anomalies) == 0 {
		t.Errorf("with two conditions: %+v", view)
	}

	node.apply(protocol.SetReason(node.read(), protocol.Shipped, protocol.ReasonReady, "", now))

	healed := node.read()

	kinds := make([]string, 0, len(healed.Status.Conditions))
	for _, condition := range healed.Status.Conditions {
		kinds = append(kinds, string(condition.Type)+" "+condition.Reason)
	}

	slices.Sort(kinds)

	if !slices.Equal(kinds, []string{"InPlaceUpdate ReadyForUpdate", "Ready KubeletReady"}) {
		t.Errorf("conditions: %v", kinds)
	}

	if view := protocol.Read(healed); !view.Ready || view.ReasonAttempt != "a1" || len(view.Anomalies) > 0 {
		t.Errorf("healed: %+v", view)
	}
}

func TestTheServerRefusesAPatchOfAnOldReading(t *testing.T) {
	t.Parallel()

	node := newNode(t, "old-reading")
	old := node.read()
	node.apply(protocol.MarkCandidate(old, "a1"))

	for _, patch := range []*protocol.Patch{
		protocol.MarkCandidate(old, "a2"), protocol.Cordon(old, "a1"), protocol.DisableScaleDown(old, "a1"), protocol.Select(old),
		protocol.SetReason(old, protocol.Shipped, protocol.ReasonReady, "", time.Now()),
		protocol.SetReason(old, protocol.GEP0031, protocol.ReasonReady, "", time.Now()),
	} {
		if err := node.try(patch); !apierrors.IsConflict(err) {
			t.Errorf("%s: got %v, want a conflict", patch.Data, err)
		}
	}
}

func TestARoundOnTheServer(t *testing.T) {
	t.Parallel()

	for _, dialect := range []protocol.Dialect{protocol.Shipped, protocol.GEP0031} {
		t.Run(string(dialect), func(t *testing.T) {
			t.Parallel()

			name := map[protocol.Dialect]string{protocol.Shipped: "round-shipped", protocol.GEP0031: "round-gep"}[dialect]
			node := newNode(t, name)
			before := node.read()

			node.apply(protocol.MarkCandidate(node.read(), "a1"))
			node.apply(protocol.Select(node.read()))
			node.apply(protocol.Cordon(node.read(), "a1"))
			node.apply(protocol.DisableScaleDown(node.read(), "a1"))
			node.apply(protocol.SetReason(node.read(), dialect, protocol.ReasonReady, "", time.Now()))

			view := protocol.Read(node.read())
			if !view.Ready || !view.Cordoned || view.Dialect != dialect {
				t.Fatalf("not asked to go: %+v", view)
			}

			node.apply(protocol.Fail(node.read(), view.Dialect, "a1", "gate kubelet\nfailed"))
			node.apply(protocol.Succeed(node.read(), view.Dialect, "a1"))

			if state := protocol.Read(node.read()).StateFor("a1"); state != protocol.StateSucceeded {
				t.Errorf("state %s", state)
			}

			if patch := protocol.SetReason(node.read(), dialect, protocol.ReasonUpdateSuccessful, "", time.Now()); patch != nil {
				node.apply(patch)
			}

			node.apply(protocol.Release(node.read(), "a1"))

			if err := same(before, node.read()); err != nil {
				t.Error(err)
			}
		})
	}
}

var errChanged = errors.New("the round left the node changed")

func same(before, after *corev1.Node) error {
	if fmt.Sprint(before.Labels, before.Annotations, before.Spec) != fmt.Sprint(after.Labels, after.Annotations, after.Spec) {
		return fmt.Errorf("%w: %v %v %+v", errChanged, after.Labels, after.Annotations, after.Spec)
	}

	return nil
}
