package clusters

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

const waitFor = time.Minute

func kubeconfigFor(server, user string) string {
	return `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"k","user":"u"}}],` +
		`"clusters":[{"name":"k","cluster":{"server":"` + server + `"}}],"users":[{"name":"u","user":` + user + `}]}`
}

func TestKubeconfigsThatReachOutsideTheSecretAreRefused(t *testing.T) {
	t.Parallel()
	for user, want := range map[string]string{
		`{"token":"t"}`: "",
		`{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"/bin/sh","interactiveMode":"Never"}}`: `"exec"`,
		`{"tokenFile":"/var/run/secrets/token"}`:                             `"tokenFile"`,
		`{"auth-provider":{"name":"gcp"}}`:                                   `"auth-provider"`,
		`{"client-certificate":"/etc/cert.pem","client-key":"/etc/key.pem"}`: `"client-certificate"`,
		`{"client-key":"/etc/key.pem"}`:                                      `"client-key"`,
	} {
		_, err := restConfig([]byte(kubeconfigFor("https://127.0.0.1:1", user)))
		if (want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("user %s: error %v, want one that names %s", user, err, want)
		}
	}
	_, err := restConfig([]byte("token: s3cret\n- broken"))
	if err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a broken kubeconfig gave %v; want an error that does not quote it", err)
	}
}

// The cluster of the hosts has more to be installed than one that has the Nodes only.
func TestAnAPIThatIsNotServedNamesWhatToApply(t *testing.T) {
	t.Parallel()
	missing := &meta.NoKindMatchError{GroupKind: v1alpha1.GroupVersion.WithKind("NodeUpdate").GroupKind()}
	for key, want := range map[Key]string{
		{}:                                      "apply config/default to that cluster",
		{Namespace: "metal", Secret: "workers"}: "apply config/nodes to that cluster",
	} {
		err := cacheError(key, &v1alpha1.NodeUpdate{}, missing)
		if !strings.Contains(err.Error(), want) || !meta.IsNoMatchError(err) {
			t.Errorf("%s: got %q, want %q", key, err, want)
		}
		err = cacheError(key, &v1alpha1.NodeUpdate{}, context.DeadlineExceeded)
		if strings.Contains(err.Error(), "apply") || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: got %q of a cluster that is slow", key, err)
		}
	}
}

// The whole life of a connection: dead, connected, changed Secret, gone Secret, on two API servers.
func TestConnections(t *testing.T) {
	t.Parallel()
	g := gomega.NewWithT(t)
	home, away := startServer(t), startServer(t)
	registry, queue := startRegistry(t, home)
	ctx := t.Context()
	key := Key{Namespace: "default", Secret: "prod"}

	_, err := registry.Get(ctx, key)
	g.Expect(KindOf(err)).To(gomega.Equal(KubeconfigInvalid), "no Secret: %v", err)

	// It answers nothing until it dies.
	dying := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		<-dying
		panic(http.ErrAbortHandler)
	}))
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Secret},
		Data:       map[string][]byte{"value": []byte(kubeconfigFor(silent.URL, `{"token":"t"}`))},
	}
	g.Expect(home.Client.Create(ctx, secret)).To(gomega.Succeed())
	_, err = registry.Get(ctx, key)
	close(dying)
	silent.Close()
	g.Expect(KindOf(err)).To(gomega.Equal(Connecting), "Get must not wait for a cluster that does not answer")
	g.Eventually(func() error {
		_, err := registry.Get(ctx, key)

		return err
	}, waitFor).Should(gomega.WithTransform(KindOf, gomega.Equal(Unreachable)))
	g.Eventually(queue.next, waitFor).Should(gomega.Equal("default/prod -"), "the change of state was not told")

	secret.Data["value"] = away.Kubeconfig
	g.Expect(home.Client.Update(ctx, secret)).To(gomega.Succeed())
	var connected *Cluster
	g.Eventually(func() error {
		connected, err = registry.Get(ctx, key)

		return err
	}, waitFor).Should(gomega.Succeed())

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "far"}}
	g.Expect(away.Client.Create(ctx, node)).To(gomega.Succeed())
	g.Eventually(queue.next, waitFor).Should(gomega.Equal("default/prod far"))
	g.Expect(connected.Client().Get(ctx, client.ObjectKey{Name: "far"}, &corev1.Node{})).To(gomega.Succeed())
	near := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "near"}}
	g.Expect(home.Client.Create(ctx, near)).To(gomega.Succeed())
	g.Eventually(queue.next, waitFor).Should(gomega.Equal("(local) near"))

	g.Expect(home.Client.Delete(ctx, secret)).To(gomega.Succeed())
	_, err = registry.Get(ctx, key)
	g.Expect(KindOf(err)).To(gomega.Equal(KubeconfigInvalid))
	local, err := registry.Get(ctx, Key{})
	g.Expect(err).NotTo(gomega.HaveOccurred(), "a lost remote cluster must not touch the local one")
	g.Expect(local.Client().Get(ctx, client.ObjectKey{Name: "near"}, &corev1.Node{})).To(gomega.Succeed())
}

func TestAServerThatDiesIsFoundAndReconnected(t *testing.T) {
	t.Parallel()
	g := gomega.NewWithT(t)
	home, away := startServer(t), startServer(t)
	registry, _ := startRegistry(t, home)
	ctx := t.Context()
	key := Key{Namespace: "default", Secret: "flaky"}
	proxy := newGate(t, away.Config)
	front := httptest.NewServer(proxy)
	t.Cleanup(func() {
		proxy.down.Store(true)
		front.CloseClientConnections()
		front.Close()
	})
	g.Expect(home.Client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Secret},
		Data:       map[string][]byte{"kubeconfig": []byte(kubeconfigFor(front.URL, `{}`))},
	})).To(gomega.Succeed())
	kind := func() ErrorKind {
		_, err := registry.Get(ctx, key)

		return KindOf(err)
	}
	g.Eventually(kind, waitFor).Should(gomega.BeEmpty())
	proxy.down.Store(true)
	g.Eventually(kind, waitFor).Should(gomega.Equal(Unreachable))
	proxy.down.Store(false)
	g.Eventually(kind, waitFor).Should(gomega.BeEmpty())
}

// By the cache's answer it is decided whether an agent is silent, whatever the clock of its node says.
func TestACachedNodeUpdateTellsWhenItsAgentWrote(t *testing.T) {
	t.Parallel()
	g := gomega.NewWithT(t)
	home := startServer(t)
	registry, _ := startRegistry(t, home)
	ctx, now := t.Context(), time.Now().Add(time.Hour) // the API server's clock is not held against it
	local, err := registry.Get(ctx, Key{})
	g.Expect(err).NotTo(gomega.HaveOccurred())
	update := &v1alpha1.NodeUpdate{ObjectMeta: metav1.ObjectMeta{Name: "far"}}
	update.Spec = v1alpha1.NodeUpdateSpec{
		Door: v1alpha1.Door{Kind: v1alpha1.DoorHostPool, Namespace: "metal", Name: "pool", Host: "far"}, Attempt: "a1",
		Release: v1alpha1.NodeRelease{OS: v1alpha1.OSRelease{
			Image: "registry.test/os@sha256:" + strings.Repeat("a", 64), Version: "1.1.0",
		}},
	}
	g.Expect(home.Client.Create(ctx, update, client.FieldOwner(v1alpha1.FieldManagerOrchestrator))).To(gomega.Succeed())
	g.Expect(home.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeUpdate", "metadata": map[string]any{"name": "far"},
		"status": map[string]any{"attempt": "a1", "phase": string(v1alpha1.PhaseProving)},
	}}), client.FieldOwner(v1alpha1.FieldManagerAgent))).To(gomega.Succeed())

	live, cached := &v1alpha1.NodeUpdate{}, &v1alpha1.NodeUpdate{}
	g.Expect(local.Live().Get(ctx, client.ObjectKey{Name: "far"}, live)).To(gomega.Succeed())
	written := v1alpha1.StatusWrittenAt(live, v1alpha1.FieldManagerAgent, now)
	g.Expect(written).To(gomega.BeTemporally("~", time.Now(), time.Minute))
	g.Eventually(func() string {
		g.Expect(client.IgnoreNotFound(local.Client().Get(ctx, client.ObjectKey{Name: "far"}, cached))).To(gomega.Succeed())

		return cached.ResourceVersion
	}, waitFor).Should(gomega.Equal(live.ResourceVersion))
	g.Expect(v1alpha1.StatusWrittenAt(cached, v1alpha1.FieldManagerAgent, now)).To(gomega.BeTemporally("==", written))
	g.Expect(cached.ManagedFields).To(gomega.HaveLen(len(live.ManagedFields)))
	for i, entry := range cached.ManagedFields {
		want := live.ManagedFields[i]
		want.FieldsV1 = nil // it is as large as all else of the object
		g.Expect(entry).To(gomega.Equal(want))
	}
}
