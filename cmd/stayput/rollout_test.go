package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

func fakeCluster(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme, err := rolloutScheme()
	if err != nil {
		t.Fatal(err)
	}

	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

func haltedPool() *v1alpha1.HostPool {
	pool := &v1alpha1.HostPool{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "gpu"}}
	pool.Spec.Release.OS.Image = "registry.example/os:1.2.0"
	pool.Status = v1alpha1.HostPoolStatus{
		Nodes: 2, Updated: 1, Failed: 1,
		Release: &v1alpha1.ResolvedRelease{Image: "registry.example/os:1.2.0", Digest: "sha256:bad", Version: "1.2.0"},
		Poisoned: []v1alpha1.PoisonedRelease{
			{Digest: "sha256:bad", Version: "1.2.0", Node: "n1"}, {Digest: "sha256:worse", Version: "1.3.0", Node: "n2"},
		},
		Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionHalted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReleaseFailed, Message: "failed on n1"},
			{Type: v1alpha1.ConditionClusterReachable, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReachable, Message: "hidden"},
		},
	}

	return pool
}

func TestStatusAnswersWhereEachNodeIs(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	update := &v1alpha1.NodeUpdate{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	update.Spec.Door = v1alpha1.Door{Kind: v1alpha1.DoorHostPool, Namespace: "metal", Name: "gpu", Host: "h1"}
	update.Spec.Attempt = "a1"
	update.Spec.Release.OS.Version = "1.2.0"
	update.Status = v1alpha1.NodeUpdateStatus{
		Attempt: "a1", Phase: v1alpha1.PhaseRebooting, Reason: v1alpha1.ReasonWaitingForBoot,
		Running:   v1alpha1.SlotStatus{Name: "a", Version: "1.1.0"},
		Progress:  &v1alpha1.Progress{BytesDone: 5 << 20, BytesTotal: 9 << 20},
		Deadline:  &metav1.Time{Time: now.Add(90 * time.Second)},
		OutOfBand: &v1alpha1.OutOfBandStatus{Attempt: "a1", Phase: v1alpha1.OutOfBandSilent, Reason: v1alpha1.OutOfBandDeadlinePassed},
	}
	fresh := update.DeepCopy()
	fresh.Name, fresh.Spec.Attempt = "n2", "a2"
	foreign := update.DeepCopy()
	foreign.Name, foreign.Spec.Door.Name = "n3", "other"
	unfit := update.DeepCopy()
	unfit.Name, unfit.Generation = "n4", 3
	unfit.Status = v1alpha1.NodeUpdateStatus{
		Phase: v1alpha1.PhaseIdle, Reason: v1alpha1.ReasonSchemeUnsupported, ObservedGeneration: 3,
		Message: "the slots cannot be read, trying again: neither /usr nor / is on a dm-verity device",
	}
	home := fakeCluster(t, haltedPool(), update, fresh, foreign, unfit)

	var out strings.Builder
	if err := printPools(t.Context(), &out, home, "metal", "gpu", now); err != nil {
		t.Fatal(err)
	}
	fields := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"HostPool metal/gpu: 1.2.0 (registry.example/os:1.2.0), 1 of 2 nodes updated, 0 updating, 1 failed",
		"Halted=True ReleaseFailed: failed on n1",
		"n1 Rebooting a 1.1.0 1.2.0 5/9 MiB in 1m30s WaitingForBoot (BMC: Silent, DeadlinePassed)",
		"n2 Idle a 1.1.0 1.2.0 5/9 MiB in 1m30s WaitingForAgent",
		"n4 Idle - - 1.2.0 - - SchemeUnsupported",
		"n4: the slots cannot be read, trying again: neither /usr nor / is on a dm-verity device",
	} {
		if !strings.Contains(fields, want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	for _, unwanted := range []string{"n3", "hidden"} {
		if strings.Contains(fields, unwanted) {
			t.Errorf("the table has %q:\n%s", unwanted, out.String())
		}
	}
}

func TestStatusOfAnotherClusterNeedsItsKubeconfig(t *testing.T) {
	t.Parallel()
	pool := haltedPool()
	pool.Spec.Cluster = &v1alpha1.ClusterReference{KubeconfigSecretName: "prod"}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "prod"}}

	for _, home := range []client.Client{fakeCluster(t, pool), fakeCluster(t, pool, secret)} {
		var out strings.Builder
		err := printPools(t.Context(), &out, home, "metal", "", time.Now())
		if err == nil || !strings.Contains(err.Error(), "prod") {
			t.Errorf("got %v, want an error that names the Secret", err)
		}
	}
}

func TestAPoolWhoseNodesCannotBeReadDoesNotHideTheOthers(t *testing.T) {
	t.Parallel()
	away, near := haltedPool(), haltedPool()
	away.Name, away.Spec.Cluster = "away", &v1alpha1.ClusterReference{KubeconfigSecretName: "prod"}
	var out strings.Builder
	err := printPools(t.Context(), &out, fakeCluster(t, away, near), "metal", "", time.Now())
	if err == nil || !strings.Contains(err.Error(), "prod") {
		t.Errorf("got %v, want an error that names the Secret", err)
	}
	for _, want := range []string{"HostPool metal/away", "HostPool metal/" + near.Name, "NODE "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, out.String())
		}
	}
}

func TestRetry(t *testing.T) {
	t.Parallel()
	key := types.NamespacedName{Namespace: "metal", Name: "gpu"}
	healthy := haltedPool()
	healthy.Status.Poisoned = nil
	moved := haltedPool()
	moved.Status.Release.Digest = "sha256:good"
	for name, tt := range map[string]struct {
		pool   *v1alpha1.HostPool
		digest string
		want   string
		err    error
	}{
		"the present release":   {haltedPool(), "", "sha256:bad", nil},
		"a named one":           {haltedPool(), "sha256:worse", "sha256:worse", nil},
		"one that did not fail": {haltedPool(), "sha256:good", "", errDigestNotFound},
		"nothing failed":        {healthy, "", "", errNothingPoisoned},
		"which one?":            {moved, "", "", errSeveralPoisoned},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home := fakeCluster(t, tt.pool)
			var out strings.Builder
			err := retryPool(t.Context(), &out, home, key, tt.digest)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if errors.Is(err, errSeveralPoisoned) && !strings.Contains(err.Error(), "sha256:worse") {
				t.Errorf("the error does not say what there is to choose: %v", err)
			}
			var pool v1alpha1.HostPool
			if err := home.Get(t.Context(), key, &pool); err != nil {
				t.Fatal(err)
			}
			if got := pool.Annotations[v1alpha1.AnnotationRetry]; got != tt.want {
				t.Errorf("annotation %q, want %q", got, tt.want)
			}
		})
	}
}

// runRollout runs a command of the rollout with a kubeconfig.
func runRollout(t *testing.T, kubeconfig string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	root := newRootCommand()
	root.SetOut(&out)
	root.SetArgs(append(args, "--kubeconfig", file))
	err := root.ExecuteContext(t.Context())

	return out.String(), err
}

func TestRolloutMistakesNameTheFix(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler()) // as a cluster without the CRDs answers
	t.Cleanup(server.Close)
	other := `{"clusters": [{"name": "c", "cluster": {"server": "` + server.URL + `"}}],` +
		` "contexts": [{"name": "c", "context": {"cluster": "c"}}], "current-context": "c"}`
	for name, tt := range map[string]struct {
		kubeconfig string
		args       []string
		says       string
	}{
		"no kubeconfig":    {"", []string{"status"}, "no kubeconfig is found"},
		"no YAML":          {"[", []string{"status"}, "--context"},
		"no CRDs":          {other, []string{"status"}, "does not know Stayput's objects"},
		"no CRDs, a pool":  {other, []string{"status", "workers"}, "does not know Stayput's objects"},
		"no CRDs, a retry": {other, []string{"retry", "workers"}, "does not know Stayput's objects"},
		"two pools":        {other, []string{"status", "a", "b"}, "usage: stayput status [POOL]"},
		"one of all":       {other, []string{"status", "workers", "-A"}, "-n NAMESPACE"},
		"no pool":          {other, []string{"retry"}, "usage: stayput retry POOL"},
		"an unset pool":    {other, []string{"retry", ""}, "empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := runRollout(t, tt.kubeconfig, tt.args...)
			if err == nil || !strings.Contains(err.Error(), tt.says) || out != "" {
				t.Errorf("printed %q, got %v, want an error that says %q", out, err, tt.says)
			}
		})
	}
}

// An API server that accepts the connection and says nothing: the interrupt ends the command.
func TestStatusOfASilentServerCanBeInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		cancel()
		<-request.Context().Done()
	}))
	t.Cleanup(server.Close)
	root := newRootCommand()
	root.SetArgs([]string{"status", "--server", server.URL, "--kubeconfig", os.DevNull})
	if err := root.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestMissingPool(t *testing.T) {
	t.Parallel()
	err := printPools(t.Context(), io.Discard, fakeCluster(t), "metal", "gpu", time.Now())
	if err == nil || !strings.Contains(err.Error(), "status -A") {
		t.Errorf("got %v", err)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestStatusThatCannotBePrintedFails(t *testing.T) {
	t.Parallel()
	for name, cluster := range map[string]client.Client{"no pool": fakeCluster(t), "a pool": fakeCluster(t, haltedPool())} {
		if err := printPools(t.Context(), fullDisk{}, cluster, "", "", time.Now()); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
