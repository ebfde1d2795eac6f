package config

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/clusters"
	"github.com/stayput-dev/stayput/controllers/outofband"
	"github.com/stayput-dev/stayput/controllers/pool"
	"github.com/stayput-dev/stayput/test/apiserver"
	"github.com/stayput-dev/stayput/test/fakeagent"
)

const (
	waitFor   = 90 * time.Second
	namespace = "metal"
	account   = "system:serviceaccount:stayput-system:stayput-controller"
)

type oneImage struct{}

func (oneImage) Resolve(context.Context, pool.ImageRequest) (pool.Image, error) {
	return pool.Image{Digest: "sha256:" + strings.Repeat("ab", 32), Version: "1.1.0"}, nil
}

// A whole rollout with a pod to evict, a pull Secret, and a deleted pool at its end, as the service account.
func TestTheInstalledRightsAreEnough(t *testing.T) {
	t.Parallel()
	g := gomega.NewWithT(t)
	g.SetDefaultEventuallyTimeout(waitFor)
	var log strings.Builder
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	server, err := apiserver.Start(t.Context())
	g.Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	install(t, server)
	prepare(t, server)
	fleet := &fakeagent.Fleet{Client: server.Client}
	stop := runAll(t, server, fleet)

	key := client.ObjectKey{Namespace: namespace, Name: "gpu"}
	hostPool := &v1alpha1.HostPool{}
	g.Eventually(func() []metav1.Condition {
		_ = server.Client.Get(t.Context(), key, hostPool)

		return hostPool.Status.Conditions
	}).Should(gomega.ContainElement(gomega.And(
		gomega.HaveField("Type", v1alpha1.ConditionReady), gomega.HaveField("Reason", v1alpha1.ReasonAllUpdated))))
	g.Eventually(func() []string { return eventReasons(t, server) }).Should(gomega.ContainElements("Selected", "Drained", "Succeeded"))
	g.Expect(server.Client.Delete(t.Context(), hostPool)).To(gomega.Succeed())
	g.Eventually(func() bool { return apierrors.IsNotFound(server.Client.Get(t.Context(), key, hostPool)) }).Should(gomega.BeTrue())
	stop()
	g.Expect(fleet.Violations()).To(gomega.BeEmpty())
	g.Expect(log.String()).NotTo(gomega.ContainSubstring("forbidden"), "a right is missing")
}

func install(t *testing.T, server *apiserver.Server) {
	t.Helper()
	kubectl, err := apiserver.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, server.Kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), kubectl, "--kubeconfig", kubeconfig, "apply", "-k", ".")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply -k config/default: %v\n%s", err, out)
	}
}

// prepare makes a host with its Node, a pod on it, and a pool.
func prepare(t *testing.T, server *apiserver.Server) {
	t.Helper()
	labels := map[string]string{"pool": "gpu"}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{ProviderID: "metal3://" + namespace + "/h1/m1"},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: new(true),
		}}},
		Spec: corev1.PodSpec{
			NodeName: "n1", TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
	hostPool := &v1alpha1.HostPool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gpu"}}
	hostPool.Spec.HostSelector.MatchLabels = labels
	hostPool.Spec.Release.OS = v1alpha1.ImageSource{Image: "registry.test/os:1.1.0", PullSecretName: "pull"}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pull"}},
		&metal3.BareMetalHost{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "h1", Labels: labels}},
		node, pod, hostPool,
	} {
		if err := server.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := server.Client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

// runAll runs the agents, and the controllers as the service account. The function that it gives ends both.
func runAll(t *testing.T, server *apiserver.Server, fleet *fakeagent.Fleet) func() {
	t.Helper()
	scheme, err := apiserver.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	rights := rest.CopyConfig(server.Config)
	rights.Impersonate = rest.ImpersonationConfig{
		UserName: account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:stayput-system", "system:authenticated"},
	}
	mgr, err := ctrl.NewManager(rights, ctrl.Options{
		Scheme: scheme, Cache: clusters.CacheOptions(scheme), Metrics: metricsserver.Options{BindAddress: "0"},
		LeaderElection: true, LeaderElectionID: "controller.stayput.dev", LeaderElectionNamespace: "stayput-system",
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	registry, err := clusters.New(mgr, clusters.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		mgr.Add(registry),
		pool.SetupWithManager(mgr, registry, oneImage{}),
		outofband.SetupWithManager(mgr, registry, outofband.Options{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go fleet.Run(ctx)
	go func() { done <- mgr.Start(ctx) }()
	ended := false
	stop := func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)

	return stop
}

func eventReasons(t *testing.T, server *apiserver.Server) []string {
	t.Helper()
	var events eventsv1.EventList
	if err := server.Client.List(t.Context(), &events); err != nil {
		t.Fatal(err)
	}
	reasons := make([]string, 0, len(events.Items))
	for i := range events.Items {
		reasons = append(reasons, events.Items[i].Reason)
	}

	return reasons
}
