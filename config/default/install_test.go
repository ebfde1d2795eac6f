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
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/clusters"
	"github.com/stayput-dev/stayput/controllers/outofband"
	"github.com/stayput-dev/stayput/controllers/pool"
	"github.com/stayput-dev/stayput/osimage/trust/trusttest"
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

// A whole rollout in the controller's own cluster and one in a cluster of Nodes only, each with a pod to evict, a pull
// Secret, a ConfigMap of public keys, and a deleted pool at its end, as the service accounts.
func TestTheInstalledRightsAreEnough(t *testing.T) {
	t.Parallel()
	g := gomega.NewWithT(t)
	g.SetDefaultEventuallyTimeout(waitFor)
	var log strings.Builder
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	home, far := start(t), start(t)
	install(t, home, ".")
	dropCRDs(t, far)
	install(t, far, "../nodes")
	prepareHosts(t, home, far)
	pools := map[string]*apiserver.Server{"near": home, "far": far}
	fleets := make([]*fakeagent.Fleet, 0, len(pools))
	for name, server := range pools {
		prepareNode(t, server, name)
		fleets = append(fleets, &fakeagent.Fleet{Client: server.Client})
	}
	stop := runAll(t, home, fleets)

	for name, server := range pools {
		key := client.ObjectKey{Namespace: namespace, Name: name}
		hostPool := &v1alpha1.HostPool{}
		g.Eventually(func() []metav1.Condition {
			_ = home.Client.Get(t.Context(), key, hostPool)

			return hostPool.Status.Conditions
		}).Should(gomega.ContainElement(gomega.And(
			gomega.HaveField("Type", v1alpha1.ConditionReady), gomega.HaveField("Reason", v1alpha1.ReasonAllUpdated))))
		g.Eventually(func() []string { return eventReasons(t, server) }).
			Should(gomega.ContainElements("Selected", "Drained", "Succeeded"))
		g.Expect(home.Client.Delete(t.Context(), hostPool)).To(gomega.Succeed())
		g.Eventually(func() bool { return apierrors.IsNotFound(home.Client.Get(t.Context(), key, hostPool)) }).Should(gomega.BeTrue())
	}
	stop()
	for _, fleet := range fleets {
		g.Expect(fleet.Violations()).To(gomega.BeEmpty())
	}
	g.Expect(log.String()).NotTo(gomega.ContainSubstring("forbidden"), "a right is missing")
}

func start(t *testing.T) *apiserver.Server {
	t.Helper()
	server, err := apiserver.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})

	return server
}

// dropCRDs takes away the custom resources that a test's server comes with, so that only what is installed is there.
func dropCRDs(t *testing.T, server *apiserver.Server) {
	t.Helper()
	kubectl(t, server, "delete", "customresourcedefinitions", "--all", "--wait")
}

func install(t *testing.T, server *apiserver.Server, folder string) {
	t.Helper()
	kubectl(t, server, "apply", "-k", folder)
	kubectl(t, server, "wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinitions", "--all")
}

func kubectl(t *testing.T, server *apiserver.Server, args ...string) string {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, server.Kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}

	return run(t, append(args, "--kubeconfig", kubeconfig)...)
}

// run runs kubectl.
func run(t *testing.T, args ...string) string {
	t.Helper()
	program, err := apiserver.Kubectl()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}

	return string(out)
}

// prepareHosts makes two pools with a host each. The Node of the one is in the same cluster, that of the other is far.
func prepareHosts(t *testing.T, home, far *apiserver.Server) {
	t.Helper()
	create(t, home,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pull"}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nodes-kubeconfig"},
			Data:       map[string][]byte{"value": accountKubeconfig(t, far)},
		},
	)
	create(t, home, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "release-keys"},
		Data:       map[string]string{"cosign.pub": string(trusttest.PublicPEM(t, trusttest.Ed25519(t)))},
	})
	create(t, far,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}},
	)
	for _, name := range []string{"near", "far"} {
		labels := map[string]string{"pool": name}
		hostPool := &v1alpha1.HostPool{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		hostPool.Spec.HostSelector.MatchLabels = labels
		hostPool.Spec.Release.OS = v1alpha1.ImageSource{Image: "registry.test/os:1.1.0", PullSecretName: "pull"}
		hostPool.Spec.Verification = v1alpha1.VerificationSettings{
			Policy: v1alpha1.VerificationWarn, PublicKeys: &v1alpha1.PublicKeySource{ConfigMapName: "release-keys"},
		}
		if name == "far" {
			hostPool.Spec.Cluster = &v1alpha1.ClusterReference{KubeconfigSecretName: "nodes-kubeconfig"}
		}
		create(t, home,
			&metal3.BareMetalHost{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "host-" + name, Labels: labels}}, hostPool)
	}
}

// accountKubeconfig is the kubeconfig of the service account that config/nodes makes, as the quick start writes it.
func accountKubeconfig(t *testing.T, server *apiserver.Server) []byte {
	t.Helper()
	kube, err := kubernetes.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	token, err := kube.CoreV1().ServiceAccounts("stayput-system").
		CreateToken(t.Context(), "stayput-controller", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["nodes"] = &clientcmdapi.Cluster{
		Server: server.Config.Host, CertificateAuthorityData: server.Config.CAData,
	}
	config.AuthInfos["stayput"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["nodes"] = &clientcmdapi.Context{Cluster: "nodes", AuthInfo: "stayput"}
	config.CurrentContext = "nodes"
	kubeconfig, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}

	return kubeconfig
}

// prepareNode makes the Node of a pool's host, with a pod on it.
func prepareNode(t *testing.T, server *apiserver.Server, pool string) {
	t.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-" + pool},
		Spec:       corev1.NodeSpec{ProviderID: "metal3://" + namespace + "/host-" + pool + "/m1"},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web", OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: new(true),
		}}},
		Spec: corev1.PodSpec{
			NodeName: node.Name, TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
	create(t, server, node, pod)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := server.Client.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, server *apiserver.Server, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		if err := server.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
}

// runAll runs the agents, and the controllers as the service account. The function that it gives ends both.
func runAll(t *testing.T, server *apiserver.Server, fleets []*fakeagent.Fleet) func() {
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
	for _, fleet := range fleets {
		go fleet.Run(ctx)
	}
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
