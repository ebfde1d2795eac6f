package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/agent/cluster"
	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/apiserver"
)

const patience = 20 * time.Second

var server *apiserver.Server //nolint:gochecknoglobals // One API server for the package, started by TestMain.

func TestMain(m *testing.M) {
	code, err := withServer(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}

	os.Exit(code)
}

func withServer(m *testing.M) (code int, err error) {
	if server, err = apiserver.Start(context.Background()); err != nil {
		return 1, err
	}

	defer func() { err = errors.Join(err, server.Stop()) }()

	return m.Run(), nil
}

// connect makes a Node and a Cluster that watches it.
func connect(t *testing.T, name string) *cluster.Cluster {
	t.Helper()

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{protocol.LabelCandidate: "true", protocol.LabelSelected: "true"},
		Annotations: map[string]string{protocol.AnnotationAttempt: "a1"},
	}}
	if err := server.Client.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}

	return watch(t, name, func() (*rest.Config, error) { return server.Config, nil })
}

func watch(t *testing.T, name string, config func() (*rest.Config, error)) *cluster.Cluster {
	t.Helper()

	api := cluster.New(cluster.Options{Node: name, Config: config, Log: logr.Discard(), Retry: time.Second})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})

	go func() {
		defer close(done)
		api.Run(ctx)
	}()

	t.Cleanup(func() {
		cancel()
		<-done
	})

	return api
}

func newUpdate(t *testing.T, name string) *v1alpha1.NodeUpdate {
	t.Helper()

	update := &v1alpha1.NodeUpdate{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.NodeUpdateSpec{
			Door: v1alpha1.Door{Kind: v1alpha1.DoorHostPool, Namespace: "metal", Name: "gpu", Host: name}, Attempt: "a1",
			Release: v1alpha1.NodeRelease{OS: v1alpha1.OSRelease{
				Image: "registry.example/os@sha256:" + strings.Repeat("0", 64), Version: "1.1.0",
			}},
		},
	}
	if err := server.Client.Create(t.Context(), update); err != nil {
		t.Fatal(err)
	}

	return update
}

func TestViewsFollowTheNodesOwnObjectsOnly(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	newUpdate(t, "views-other")

	api := connect(t, "views")

	g.Eventually(func() bool { _, known := api.Update(); return known }, patience).Should(BeTrue())

	update, _ := api.Update()
	g.Expect(update).To(BeNil(), "the NodeUpdate of another node was taken for ours")

	own := newUpdate(t, "views")

	g.Eventually(func() string {
		if update, _ := api.Update(); update != nil {
			return update.Spec.Attempt
		}

		return ""
	}, patience).Should(Equal("a1"))
	g.Expect(api.Node().Name).To(Equal("views"))
	g.Expect(api.Changed()).To(Receive())

	g.Expect(server.Client.Delete(t.Context(), own)).To(Succeed())
	g.Eventually(func() *v1alpha1.NodeUpdate { update, _ := api.Update(); return update }, patience).Should(BeNil())
}

func TestStatusLeavesTheOutOfBandPartAlone(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	api := connect(t, "status")
	update := newUpdate(t, "status")

	update.Status.OutOfBand = &v1alpha1.OutOfBandStatus{
		Attempt: "a1", Phase: v1alpha1.OutOfBandWatching, Reason: v1alpha1.OutOfBandWaitingForMachine, Resets: 2,
	}
	g.Expect(server.Client.Status().Update(t.Context(), update, client.FieldOwner(v1alpha1.FieldManagerOutOfBand))).To(Succeed())

	now := metav1.Now().Rfc3339Copy()
	status := v1alpha1.NodeUpdateStatus{
		Attempt: "a1", Phase: v1alpha1.PhaseRebooting, Reason: v1alpha1.ReasonWaitingForBoot, BootID: "b", Heartbeat: &now,
		Rungs:    []v1alpha1.RungStatus{{Rung: v1alpha1.RungBootTries, State: v1alpha1.RungReady}},
		Progress: &v1alpha1.Progress{BytesDone: 1, BytesTotal: 2}, RebootedAt: &now,
		// A view that is old must not bring back what the other writer has changed since.
		OutOfBand: &v1alpha1.OutOfBandStatus{Attempt: "old"},
	}

	g.Eventually(func() error { return api.ApplyStatus(t.Context(), status) }, patience).Should(Succeed())
	g.Expect(server.Client.Get(t.Context(), client.ObjectKeyFromObject(update), update)).To(Succeed())
	g.Expect(update.Status.Phase).To(Equal(v1alpha1.PhaseRebooting))
	g.Expect(update.Status.OutOfBand.Resets).To(BeEquivalentTo(2))
	g.Expect(update.Spec.Attempt).To(Equal("a1"), "the spec was touched")

	// What the agent does not say any more is taken off.
	status.RebootedAt, status.Phase, status.Reason = nil, v1alpha1.PhaseProving, v1alpha1.ReasonWaitingForHealth
	g.Expect(api.ApplyStatus(t.Context(), status)).To(Succeed())
	g.Expect(server.Client.Get(t.Context(), client.ObjectKeyFromObject(update), update)).To(Succeed())
	g.Expect(update.Status.RebootedAt).To(BeNil())
	g.Expect(update.Status.OutOfBand.Resets).To(BeEquivalentTo(2))

	for _, entry := range update.ManagedFields {
		if entry.Manager == v1alpha1.FieldManagerAgent {
			g.Expect(entry.FieldsV1.GetRawString()).NotTo(ContainSubstring("outOfBand"))
		}
	}
}

func TestTheAnswerIsSeenAtOnce(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	api := connect(t, "answer")

	g.Eventually(api.Node, patience).ShouldNot(BeNil())

	patch := protocol.Succeed(api.Node(), protocol.Shipped, "a1")
	g.Expect(api.PatchNode(t.Context(), *patch)).To(Succeed())
	g.Expect(protocol.Read(api.Node()).ResultFor("a1")).To(Equal(protocol.Successful))
	g.Consistently(func() protocol.Result { return protocol.Read(api.Node()).ResultFor("a1") }, "500ms").
		Should(Equal(protocol.Successful), "an older event took the answer back")
}

func newPod(t *testing.T, node, name string, annotations map[string]string) *corev1.Pod {
	t.Helper()

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: annotations},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if err := server.Client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}

	return pod
}

func TestDeletePodsDeletesAllOfTheNodeButMirrorPods(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	api := connect(t, "pods")

	// The API server refuses pods of a namespace without its service account.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "default"}}
	g.Expect(client.IgnoreAlreadyExists(server.Client.Create(t.Context(), account))).To(Succeed())

	plain := newPod(t, "pods", "plain", nil)
	mirror := newPod(t, "pods", "mirror", map[string]string{corev1.MirrorPodAnnotationKey: "hash"})
	other := newPod(t, "another-node", "other", nil)

	var count int

	g.Eventually(func() (err error) { count, err = api.DeletePods(t.Context()); return err }, patience).Should(Succeed())
	g.Expect(count).To(Equal(1))

	gone := func(pod *corev1.Pod) bool {
		err := server.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)

		return apierrors.IsNotFound(err) || pod.DeletionTimestamp != nil
	}
	g.Expect(gone(plain)).To(BeTrue())
	g.Expect(gone(mirror)).To(BeFalse())
	g.Expect(gone(other)).To(BeFalse())

	count, err := api.DeletePods(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(count).To(BeZero(), "a pod that was going already was deleted again")
}

var errNoFile = errors.New("no such file")

func TestCredentialsMayAppearLate(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)

	var asked atomic.Int32

	api := watch(t, "late", func() (*rest.Config, error) {
		if asked.Add(1) == 1 {
			return nil, errNoFile
		}

		return server.Config, nil
	})

	g.Eventually(asked.Load, patience).Should(BeNumerically(">=", 1))
	g.Expect(api.ApplyStatus(t.Context(), v1alpha1.NodeUpdateStatus{})).To(MatchError(cluster.ErrNotConnected))
	g.Eventually(func() bool { _, known := api.Update(); return known }, patience).Should(BeTrue())
}

func TestDeadlinesAreHeeded(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	api := connect(t, "deadline")

	g.Eventually(api.Node, patience).ShouldNot(BeNil())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	g.Expect(api.ApplyStatus(ctx, v1alpha1.NodeUpdateStatus{})).To(MatchError(context.Canceled))

	_, err := api.DeletePods(ctx)
	g.Expect(err).To(MatchError(context.Canceled))
}
