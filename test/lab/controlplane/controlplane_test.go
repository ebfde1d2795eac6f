package controlplane_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/stayput-dev/stayput/test/lab/controlplane"
	"github.com/stayput-dev/stayput/test/lab/tools"
)

// start brings a cluster up, with the programs of the cache, which `make lab-tools` has put there.
func start(t *testing.T, options controlplane.Options) *controlplane.Cluster {
	t.Helper()

	root, err := tools.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}

	if options.Programs, err = tools.Ensure(t.Context(), root, tools.Kubernetes(), t.Logf); err != nil {
		t.Fatal(err)
	}

	options.Dir = filepath.Join(t.TempDir(), "cluster")
	began := time.Now()

	cluster, err := controlplane.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}

	t.Logf("control plane up in %s: %v", time.Since(began).Round(time.Millisecond), cluster.Took())
	t.Cleanup(func() {
		if err := cluster.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})

	return cluster
}

func client(t *testing.T, cluster *controlplane.Cluster, identity controlplane.Identity) kubernetes.Interface {
	t.Helper()

	config, err := cluster.RESTConfig(identity)
	if err != nil {
		t.Fatal(err)
	}

	return kubernetes.NewForConfigOrDie(config)
}

func TestNodesMayWriteThemselvesOnly(t *testing.T) {
	t.Parallel()

	cluster := start(t, controlplane.Options{Audit: true})
	ctx := t.Context()
	began := time.Now().Add(-time.Second)
	one, two := client(t, cluster, controlplane.Node("one")), client(t, cluster, controlplane.Node("two"))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}

	if _, err := one.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatalf("node one cannot register itself: %v", err)
	}

	label := []byte(`{"metadata":{"labels":{"example.org/a":"b"}}}`)

	_, err := two.CoreV1().Nodes().Patch(ctx, "one", "application/merge-patch+json", label, metav1.PatchOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("node two labels node one: %v, want forbidden", err)
	}

	agent := client(t, cluster, controlplane.Agent("one"))
	if _, err := agent.CoreV1().Nodes().Get(ctx, "one", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("an agent without RBAC reads a node: %v, want forbidden", err)
	}

	writes, err := cluster.Writes(began, func(w controlplane.Write) bool { return w.User == "system:node:two" })
	if err != nil || len(writes) != 1 || writes[0].Code != 403 || writes[0].Name != "one" {
		t.Errorf("writes of node two are %+v, %v, want one that was refused", writes, err)
	}
}

func TestControllersWorkAndTheClusterIsFoundAgain(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	cluster := start(t, controlplane.Options{})
	ctx := t.Context()

	config, err := cluster.Admin()
	g.Expect(err).NotTo(HaveOccurred())

	admin := kubernetes.NewForConfigOrDie(config)

	// The controller manager makes the service account of a new namespace, the scheduler places its pod.
	_, err = admin.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Status:     corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}},
	}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error {
		_, err := admin.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})

		return err
	}).WithTimeout(30 * time.Second).Should(Succeed())

	_, err = admin.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{
			Containers:  []corev1.Container{{Name: "c", Image: "example.org/none"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() string {
		pod, err := admin.CoreV1().Pods("default").Get(ctx, "p", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}

		return pod.Spec.NodeName
	}).WithTimeout(30 * time.Second).Should(Equal("one"))

	root, err := tools.RepositoryRoot()
	g.Expect(err).NotTo(HaveOccurred())

	crds, err := os.ReadFile(filepath.Join(root, "config/crd/bases/stayput.dev_nodeupdates.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cluster.Apply(ctx, crds)).To(Succeed())
	g.Expect(cluster.WaitEstablished(ctx)).To(Succeed())

	again, err := controlplane.Open(filepath.Dir(cluster.KubeconfigFile()))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.Healthy(ctx)).To(Succeed())
	g.Expect(again.Stop(ctx)).To(Succeed())
	g.Expect(again.Healthy(ctx)).NotTo(Succeed())
}
