package v1alpha1_test

import (
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// toApply is an object for server-side apply. A typed object must say nothing of the fields that it leaves alone.
func toApply(t *testing.T, object *v1alpha1.NodeUpdate) runtime.ApplyConfiguration {
	t.Helper()

	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NodeUpdate"))

	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		t.Fatal(err)
	}

	return client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: content})
}

func applySpec(t *testing.T, object *v1alpha1.NodeUpdate, manager string) error {
	t.Helper()

	return api(t).Apply(t.Context(), toApply(t, object), client.FieldOwner(manager))
}

func applyStatus(t *testing.T, object *v1alpha1.NodeUpdate, manager string) error {
	t.Helper()

	return api(t).Status().Apply(t.Context(), toApply(t, object), client.FieldOwner(manager))
}

func named(name string) *v1alpha1.NodeUpdate {
	return &v1alpha1.NodeUpdate{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func wanted(name, attempt, digest string) *v1alpha1.NodeUpdate {
	update := named(name)
	update.Spec.Door = v1alpha1.Door{Kind: v1alpha1.DoorHostPool, Namespace: "metal", Name: "gpu", Host: "host-1"}
	update.Spec.Attempt = attempt
	update.Spec.Release.OS = v1alpha1.OSRelease{Image: "registry.example/os/node@" + digest, Version: "1.1.0"}

	return update
}

func staging(name string, done int64) *v1alpha1.NodeUpdate {
	update := named(name)
	update.Status.Attempt = "a1"
	update.Status.Phase = v1alpha1.PhaseStaging
	update.Status.Reason = v1alpha1.ReasonDownloading
	update.Status.Running = v1alpha1.SlotStatus{Name: "a", Version: "1.0.0"}
	update.Status.Progress = &v1alpha1.Progress{BytesDone: done, BytesTotal: 100}
	update.Status.Counters.BytesDownloaded = done

	return update
}

func silent(name string) *v1alpha1.NodeUpdate {
	update := named(name)
	update.Status.OutOfBand = &v1alpha1.OutOfBandStatus{
		Attempt: "a1", Phase: v1alpha1.OutOfBandResetting, Reason: v1alpha1.OutOfBandPowerActionSent,
		Power: v1alpha1.PowerOn, Resets: 1,
		Intent: &v1alpha1.PowerIntent{
			ID: "a1-1", Action: "ForceRestart", ObservedPower: v1alpha1.PowerOn,
			DecidedAt: metav1.NewMicroTime(time.Date(2026, 11, 29, 19, 0, 0, 0, time.UTC)),
		},
	}

	return update
}

func get(t *testing.T, name string) *v1alpha1.NodeUpdate {
	t.Helper()

	update := named(name)
	if err := api(t).Get(t.Context(), client.ObjectKeyFromObject(update), update); err != nil {
		t.Fatal(err)
	}

	return update
}

func TestThreeFieldManagersShareANodeUpdate(t *testing.T) {
	t.Parallel()

	const name = "shared"
	for _, err := range []error{
		applySpec(t, wanted(name, "a1", digestA), v1alpha1.FieldManagerOrchestrator),
		applyStatus(t, staging(name, 10), v1alpha1.FieldManagerAgent),
		applyStatus(t, silent(name), v1alpha1.FieldManagerOutOfBand),
		applyStatus(t, staging(name, 20), v1alpha1.FieldManagerAgent),
		applySpec(t, wanted(name, "a2", digestB), v1alpha1.FieldManagerOrchestrator),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}

	update := get(t, name)
	if update.Spec.Attempt != "a2" || update.Status.Progress.BytesDone != 20 || update.Status.Running.Name != "a" ||
		update.Status.OutOfBand == nil || update.Status.OutOfBand.Intent == nil || update.Status.OutOfBand.Resets != 1 {
		t.Errorf("somebody's part was lost: %+v", update)
	}

	owned := map[string]string{}
	for _, entry := range update.ManagedFields {
		owned[entry.Manager] += entry.FieldsV1.GetRawString()
	}

	for manager, fields := range map[string]struct{ own, never string }{
		v1alpha1.FieldManagerOrchestrator: {`"f:attempt"`, `"f:status"`},
		v1alpha1.FieldManagerAgent:        {`"f:progress"`, `"f:outOfBand"`},
		v1alpha1.FieldManagerOutOfBand:    {`"f:outOfBand"`, `"f:counters"`},
	} {
		if !strings.Contains(owned[manager], fields.own) || strings.Contains(owned[manager], fields.never) {
			t.Errorf("%s owns %s", manager, owned[manager])
		}
	}

	// An agent that no longer mentions a field gives it up; the other part stays.
	ended := named(name)
	ended.Status.Attempt = "a1"
	ended.Status.Phase = v1alpha1.PhaseIdle

	if err := applyStatus(t, ended, v1alpha1.FieldManagerAgent); err != nil {
		t.Fatal(err)
	}

	update = get(t, name)
	if update.Status.Progress != nil || update.Status.OutOfBand == nil {
		t.Errorf("after the agent gave progress up: %+v", update.Status)
	}
}

func TestAnotherManagersFieldIsAConflict(t *testing.T) {
	t.Parallel()

	const name = "conflict"
	for _, err := range []error{
		applySpec(t, wanted(name, "a1", digestA), v1alpha1.FieldManagerOrchestrator),
		applyStatus(t, silent(name), v1alpha1.FieldManagerOutOfBand),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}

	other := silent(name)
	other.Status.OutOfBand.Resets = 0

	if err := applyStatus(t, other, v1alpha1.FieldManagerAgent); !apierrors.IsConflict(err) {
		t.Errorf("the agent took the BMC rung's part: %v", err)
	}

	if err := applySpec(t, wanted(name, "a2", digestA), "another-door"); !apierrors.IsConflict(err) {
		t.Errorf("another door took the spec: %v", err)
	}
}

func TestAnAttemptIsFixed(t *testing.T) {
	t.Parallel()

	const name = "fixed"

	apply := func(update *v1alpha1.NodeUpdate) error {
		return applySpec(t, update, v1alpha1.FieldManagerOrchestrator)
	}

	if err := apply(wanted(name, "a1", digestA)); err != nil {
		t.Fatal(err)
	}

	checkRefusal(t, apply(wanted(name, "a1", digestB)),
		refusal{path: "spec", want: "release is fixed within an attempt; give attempt a new ID"})

	moved := wanted(name, "a1", digestA)
	moved.Spec.Door.Name = "other"
	checkRefusal(t, apply(moved), refusal{path: "spec", want: "door is fixed within an attempt; give attempt a new ID"})

	trusting := wanted(name, "a1", digestA)
	trusting.Spec.Verification = &v1alpha1.NodeVerification{
		Policy: v1alpha1.VerificationWarn, PublicKeys: []string{"-----BEGIN PUBLIC KEY-----"},
	}
	checkRefusal(t, apply(trusting), refusal{path: "spec", want: "verification is fixed within an attempt; give attempt a new ID"})

	slower := wanted(name, "a1", digestA)
	slower.Spec.Health.NodeReady = metav1.Duration{Duration: time.Hour}

	for what, update := range map[string]*v1alpha1.NodeUpdate{"settings": slower, "new attempt": wanted(name, "a2", digestB)} {
		if err := apply(update); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestDefaultsAreWhatTheDocsSay(t *testing.T) {
	t.Parallel()

	minutes := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Minute} }
	reboot := v1alpha1.RebootSettings{Tries: 3, SilentAfter: metav1.Duration{Duration: v1alpha1.DefaultSilentAfter}}
	health := v1alpha1.HealthSettings{APIServer: minutes(5), ContainerRuntime: minutes(5), Kubelet: minutes(5), NodeReady: minutes(10)}
	outOfBand := v1alpha1.OutOfBandSettings{MaxResets: ptr.To[int32](4), SilentAfterReset: minutes(10), PowerVia: v1alpha1.PowerViaBMC}

	typed := &v1alpha1.HostPool{ObjectMeta: metav1.ObjectMeta{Name: "typed", Namespace: "default"}}
	typed.Spec.HostSelector.MatchLabels = map[string]string{"pool": "gpu"}
	typed.Spec.Release.OS.Image = "registry.example/os/node:1.1.0"

	written := parse(t, smallestPool)
	written.SetName("written")

	for _, object := range []client.Object{written, typed} {
		if err := api(t).Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}

		pool := &v1alpha1.HostPool{}
		if err := api(t).Get(t.Context(), client.ObjectKeyFromObject(object), pool); err != nil {
			t.Fatal(err)
		}

		spec := pool.Spec
		if spec.Orchestrator != v1alpha1.OrchestratorStayput || spec.Paused ||
			spec.Strategy.Type != v1alpha1.AutoInPlaceUpdate || spec.Strategy.Dialect != v1alpha1.DialectShipped ||
			spec.Strategy.MaxUnavailable.String() != "1" || spec.Drain != (v1alpha1.DrainSettings{Timeout: minutes(120)}) {
			t.Errorf("%s: %+v", pool.Name, spec)
		}

		checkShared(t, spec.Reboot == reboot, spec.Health == health, spec.OutOfBand, outOfBand)
	}

	if err := applySpec(t, wanted("defaults", "a1", digestA), v1alpha1.FieldManagerOrchestrator); err != nil {
		t.Fatal(err)
	}

	spec := get(t, "defaults").Spec
	checkShared(t, spec.Reboot == reboot, spec.Health == health, spec.OutOfBand, outOfBand)
}

func checkShared(t *testing.T, reboot, health bool, got, want v1alpha1.OutOfBandSettings) {
	t.Helper()

	if !reboot || !health || got.Disabled || *got.MaxResets != *want.MaxResets || got.SilentAfterReset != want.SilentAfterReset ||
		got.PowerVia != want.PowerVia {
		t.Errorf("reboot as written down: %t, health: %t, outOfBand: %+v", reboot, health, got)
	}
}
