package health_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/health"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

type nodeReader struct {
	node *corev1.Node
	err  error
}

func (n nodeReader) ReadNode(context.Context) (*corev1.Node, error) { return n.node, n.err }

func readyNode(bootID string, status corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{BootID: bootID},
			Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
				{Type: corev1.NodeReady, Status: status, Reason: "KubeletNotReady", Message: "no network"},
			},
		},
	}
}

func TestNodeReadyGate(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	put(t, filepath.Join(root, "usr/lib/os-release"), "IMAGE_VERSION=1.1.0\n")

	for name, tt := range map[string]struct {
		node    nodeReader
		version string
		want    string
	}{
		"ready":           {nodeReader{node: readyNode("now", corev1.ConditionTrue)}, "1.1.0", ""},
		"trial lost":      {nodeReader{node: readyNode("now", corev1.ConditionTrue)}, "", ""},
		"other OS":        {nodeReader{node: readyNode("now", corev1.ConditionTrue)}, "1.2.0", "IMAGE_VERSION"},
		"not ready":       {nodeReader{node: readyNode("now", corev1.ConditionFalse)}, "1.1.0", "no network"},
		"unknown":         {nodeReader{node: readyNode("now", corev1.ConditionUnknown)}, "1.1.0", "Ready=Unknown"},
		"an earlier boot": {nodeReader{node: readyNode("before", corev1.ConditionTrue)}, "1.1.0", "before"},
		"no condition":    {nodeReader{node: &corev1.Node{}}, "1.1.0", "boot ID"},
		"no API server":   {nodeReader{err: errSick}, "1.1.0", "sick"},
	} {
		gate := health.NodeReady{Node: tt.node, System: boot.System{Root: root}}

		err := gate.Check(t.Context(), health.Boot{ID: "now", Version: tt.version})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func TestAPIServerGateUsesTheKubeconfig(t *testing.T) {
	t.Parallel()

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/nodes/n1" {
			http.Error(w, "no", http.StatusForbidden)

			return
		}

		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"}}`)) // the client sees a lost write
	}))
	defer server.Close()

	file := filepath.Join(t.TempDir(), "kubeconfig")
	gate := health.APIServer{Node: health.KubeconfigNode{Kubeconfig: file, Name: "n1"}}

	if err := gate.Check(t.Context(), health.Boot{}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("without a kubeconfig: %v", err)
	}

	put(t, file, `{"clusters":[{"name":"c","cluster":{"server":"`+server.URL+`"}}],
		"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`)

	if err := gate.Check(t.Context(), health.Boot{}); err != nil {
		t.Errorf("Check() = %v", err)
	}

	gate.Node = health.KubeconfigNode{Kubeconfig: file, Name: "n2"}

	if err := gate.Check(t.Context(), health.Boot{}); err == nil {
		t.Error("a Node that cannot be read passes")
	}
}

func TestKubeletGate(t *testing.T) {
	t.Parallel()

	status := http.StatusInternalServerError
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "syncloop is stuck", status)
	}))
	gate := health.Kubelet{Healthz: server.URL + "/healthz"}

	if err := gate.Check(t.Context(), health.Boot{}); err == nil || !strings.Contains(err.Error(), "syncloop is stuck") {
		t.Errorf("a sick kubelet: %v", err)
	}

	status = http.StatusOK

	if err := gate.Check(t.Context(), health.Boot{}); err != nil {
		t.Errorf("a healthy kubelet: %v", err)
	}

	server.Close()

	if err := gate.Check(t.Context(), health.Boot{}); err == nil {
		t.Error("no kubelet passes")
	}
}

type runtimeServer struct {
	cri.UnimplementedRuntimeServiceServer
}

func (runtimeServer) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeName: "containerd"}, nil
}

func TestContainerRuntimeGate(t *testing.T) {
	t.Parallel()

	socket := filepath.Join(t.TempDir(), "cri.sock")
	gate := health.ContainerRuntime{Socket: socket}

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()

	if err := gate.Check(ctx, health.Boot{}); err == nil || !strings.Contains(err.Error(), socket) {
		t.Errorf("without a socket: %v", err)
	}

	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}

	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, runtimeServer{})

	go func() { _ = server.Serve(listener) }() // ends with Stop

	defer server.Stop()

	if err := gate.Check(ctx, health.Boot{}); err != nil {
		t.Errorf("with containerd: %v", err)
	}
}

func TestDeadlineDefaults(t *testing.T) {
	t.Parallel()

	settings := v1alpha1.HealthSettings{NodeReady: metav1.Duration{Duration: time.Second}}

	for gate, want := range map[health.GateName]time.Duration{
		health.GateAPIServer: 5 * time.Minute, health.GateKubelet: 5 * time.Minute,
		health.GateContainerRuntime: 5 * time.Minute, health.GateNodeReady: time.Second,
	} {
		if got := health.Deadline(settings, gate); got != want {
			t.Errorf("Deadline(%s) = %s, want %s", gate, got, want)
		}
	}

	if got := health.Deadline(v1alpha1.HealthSettings{}, health.GateNodeReady); got != 10*time.Minute {
		t.Errorf("the default of nodeReady is %s", got)
	}
}
