package outofband

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/test/apiserver"
)

// sweepFor lets no controller run but the releaser.
func (s *simulation) sweepFor(d time.Duration) {
	for end := s.clock.Now().Add(d); s.clock.Now().Before(end); s.advance(time.Minute) {
		s.sweep()
	}
	s.sweep()
}

// However long Metal3 takes, each reset is one key that is set and taken off, and in the end nothing is kept off.
func TestSilentMachineThroughMetal3(t *testing.T) {
	t.Parallel()
	for delay, want := range map[time.Duration]string{
		time.Second:                  "ForceOff On ForceOff On ForceOff On",
		2 * time.Minute:              "ForceOff On ForceOff On ForceOff On",
		metal3Limit - 10*time.Second: "ForceOff On ForceOff On ForceOff On",
		// baremetal-operator does not run.
		1000 * time.Hour: strings.TrimSpace(strings.Repeat("ForceOff ", 3)),
	} {
		s := newSimulation()
		s.throughMetal3(delay)
		s.runFor(t, 3*time.Hour)
		if s.actions() != want || s.keyWrites != 6 {
			t.Errorf("Metal3 takes %s: sent %q with %d writes, want %q with 6", delay, s.actions(), s.keyWrites, want)
		}
		if s.key || s.power != bmc.PowerOn || s.status.Reason != v1alpha1.OutOfBandResetsUsedUp {
			t.Errorf("Metal3 takes %s: in the end key %t, power %s, %+v", delay, s.key, s.power, s.status)
		}
	}
}

// The operating system answers: Metal3 asks it, and takes its time.
func TestAMachineThatAnswersThroughMetal3(t *testing.T) {
	t.Parallel()
	for delay, want := range map[time.Duration]string{
		time.Minute:                      "GracefulShutdown On ForceOff On ForceOff On",
		metal3SoftLimit - 10*time.Second: "GracefulShutdown On" + strings.Repeat(" ForceOff", 2),
	} {
		s := newSimulation()
		s.throughMetal3(delay)
		s.osAnswers = true
		s.runFor(t, 3*time.Hour)
		if s.actions() != want || s.key || s.power != bmc.PowerOn {
			t.Errorf("Metal3 takes %s: sent %q, want %q; in the end key %t, power %s", delay, s.actions(), want, s.key, s.power)
		}
	}
}

// A machine that Metal3 already keeps off for us is let go, as an action that is counted.
func TestAKeyThatWasLeftIsAMachineThatIsOff(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.throughMetal3(time.Second)
	s.key, s.power = true, bmc.PowerOff
	for s.status == nil || s.status.Resets == 0 {
		after, _, err := s.run()
		if err != nil {
			t.Fatal(err)
		}
		s.advance(max(after, time.Second))
	}
	if s.actions() != "On" || s.key {
		t.Errorf("sent %q, key %t", s.actions(), s.key)
	}
}

// What ends a reset before its end lets the machine go.
func TestWhatEndsAResetTakesTheKeyOff(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*simulation){
		"the machine is back":    func(s *simulation) { s.says(v1alpha1.PhaseProving, life{agent: true}) },
		"the agent is done":      func(s *simulation) { s.says(v1alpha1.PhaseRolledBack, life{agent: true}) },
		"its kubelet writes":     func(s *simulation) { s.bootUp(); s.lives(life{kubelet: true}) },
		"another attempt":        func(s *simulation) { s.world.Attempt = "a2" },
		"power is forbidden":     func(s *simulation) { s.world.Settings.Disabled = true },
		"powerVia BMC":           func(s *simulation) { s.world.Host.ViaMetal3 = false },
		"the host left":          func(s *simulation) { s.world.Host.NotFound = "it is not selected" },
		"Metal3 does not answer": func(s *simulation) { s.advance(holdLimit) },
	} {
		s := newSimulation()
		s.throughMetal3(1000 * time.Hour)
		for !s.key {
			s.runFor(t, time.Second)
		}
		s.runFor(t, time.Minute)
		if !s.key {
			t.Errorf("%s: the key is gone in the middle of a reset", name)
		}
		end(s)
		if s.sweep(); s.key {
			t.Errorf("%s: the key is still there; status %+v", name, s.status)
		}
	}
}

// The host on which an intent was decided is another when it is to be sent.
func TestAnotherWayToThePowerWithdrawsAnIntent(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.throughMetal3(time.Second)
	s.runFor(t, testSilentAfter)
	s.advance(time.Second)
	s.after = func(_ int, name string) {
		if name == "store" {
			s.world.Host.ViaMetal3 = false
		}
	}
	if _, _, err := s.run(); err != nil {
		t.Fatal(err)
	}
	if s.actions() != "" || s.status.Intent != nil {
		t.Errorf("sent %q, status %+v", s.actions(), s.status)
	}
}

func TestMetal3Power(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key, on bool
		want    bmc.Power
	}{
		{false, true, bmc.PowerOn}, {true, false, bmc.PowerOff}, {true, true, bmc.PowerTransition}, {false, false, bmc.PowerTransition},
	} {
		host := freeHost()
		host.Status.PoweredOn = c.on
		if c.key {
			host.Annotations = map[string]string{ownRebootAnnotation: hardReboot}
		}
		if got := metal3Power(host); got != c.want {
			t.Errorf("key %t, on %t: %s, want %s", c.key, c.on, got, c.want)
		}
	}
}

// serverWith is an API server with one host, whose patches fail with an error where one is given.
func serverWith(t *testing.T, failure error, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme, err := apiserver.Scheme()
	if err != nil {
		t.Fatal(err)
	}

	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if failure != nil {
				return failure
			}

			return c.Patch(ctx, object, patch, options...)
		},
	}).Build()
}

func free(context.Context, *metal3.BareMetalHost) (string, error) { return "", nil }

// The key is written, and nothing beside it; and it is not written to a host that has changed since it was looked at.
func TestOnlyOurKeyIsWritten(t *testing.T) {
	t.Parallel()
	host := freeHost()
	host.Status.PoweredOn = true
	host.Annotations = map[string]string{"another": "annotation", "reboot.metal3.io/remediation": `{"mode":"soft"}`}
	cluster := serverWith(t, nil, host)
	read := func() *metal3.BareMetalHost {
		var now metal3.BareMetalHost
		if err := cluster.Get(t.Context(), client.ObjectKeyFromObject(host), &now); err != nil {
			t.Fatal(err)
		}

		return &now
	}
	before := read()
	m := &metal3Machine{reader: cluster, writer: cluster, host: host, busy: free}
	if _, err := m.Power(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Do(t.Context(), bmc.ActionForceOff); err != nil {
		t.Fatal(err)
	}
	after := read()
	if after.Annotations[ownRebootAnnotation] != `{"mode":"hard"}` || len(after.Annotations) != 3 {
		t.Errorf("annotations are %v", after.Annotations)
	}
	if !equality.Semantic.DeepEqual(after.Spec, before.Spec) {
		t.Errorf("the spec was written")
	}
	// Another has written the host since Power.
	if err := m.Do(t.Context(), bmc.ActionForceOff); bmc.KindOf(err) != bmc.Conflict {
		t.Errorf("a stale host gives %v", err)
	}
	if err := m.Do(t.Context(), bmc.ActionOn); err != nil {
		t.Fatal(err)
	}
	if now := read(); len(now.Annotations) != 2 || now.Annotations["reboot.metal3.io/remediation"] != `{"mode":"soft"}` {
		t.Errorf("annotations are %v", now.Annotations)
	}
	if err := m.Do(t.Context(), bmc.ActionForceRestart); bmc.KindOf(err) != bmc.Unsupported {
		t.Errorf("ForceRestart gives %v", err)
	}
}

var errRefusal = errors.New("it changed, or there is no right")

func TestErrorsOfTheKey(t *testing.T) {
	t.Parallel()
	resource := schema.GroupResource{Group: "metal3.io", Resource: "baremetalhosts"}
	for want, failure := range map[bmc.Kind]error{
		bmc.Conflict:    apierrors.NewConflict(resource, "h1", errRefusal),
		bmc.NotFound:    apierrors.NewNotFound(resource, "h1"),
		bmc.Unsupported: apierrors.NewForbidden(resource, "h1", errRefusal),
		bmc.Busy:        apierrors.NewTooManyRequests("slow down", 7),
		// It may have been written.
		bmc.Unknown: apierrors.NewTimeoutError("it took too long", 1),
	} {
		cluster := serverWith(t, failure, freeHost())
		m := &metal3Machine{reader: cluster, writer: cluster, host: freeHost(), busy: free}
		err := m.Do(t.Context(), bmc.ActionForceOff)
		if bmc.KindOf(err) != want || !strings.Contains(err.Error(), ownRebootAnnotation) {
			t.Errorf("%v gives %s: %v, want %s", failure, bmc.KindOf(err), err, want)
		}
		if wait := bmc.RetryAfter(err); want == bmc.Busy && wait != 7*time.Second {
			t.Errorf("a wait of %s", wait)
		}
	}
}

// Another begins with the host between the look at it and the look at its power.
func TestABusyHostHasNoPowerToAct(t *testing.T) {
	t.Parallel()
	cluster := serverWith(t, nil, freeHost())
	m := &metal3Machine{
		reader: cluster, writer: cluster, host: freeHost(),
		busy: func(context.Context, *metal3.BareMetalHost) (string, error) { return "it is rebooted by another", nil },
	}
	if _, err := m.Power(t.Context()); bmc.KindOf(err) != bmc.Busy || !strings.Contains(err.Error(), "by another") {
		t.Errorf("got %v", err)
	}
}

func TestViaMetal3(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		path   v1alpha1.PowerPath
		change func(*metal3.BareMetalHost)
		want   bool
	}{
		"asked for":      {v1alpha1.PowerViaMetal3, func(*metal3.BareMetalHost) {}, true},
		"not asked for":  {v1alpha1.PowerViaBMC, func(*metal3.BareMetalHost) {}, false},
		"before it was":  {"", func(*metal3.BareMetalHost) {}, false},
		"detached":       {v1alpha1.PowerViaMetal3, detach, false},
		"being detached": {v1alpha1.PowerViaMetal3, func(h *metal3.BareMetalHost) { detach(h); h.Status.OperationalStatus = "OK" }, true},
		// baremetal-operator 0.13 would reboot it again and again.
		"never off": {v1alpha1.PowerViaMetal3, func(h *metal3.BareMetalHost) { h.Spec.DisablePowerOff = true }, false},
	} {
		host := freeHost()
		c.change(host)
		if got := viaMetal3(host, c.path); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestPendingServicing(t *testing.T) {
	t.Parallel()
	named := metav1.ObjectMeta{Namespace: "metal", Name: "h1", Generation: 2}
	policy := func(settings, updates metal3.UpdatePolicy) *metal3.HostUpdatePolicy {
		return &metal3.HostUpdatePolicy{
			ObjectMeta: named, Spec: metal3.HostUpdatePolicySpec{FirmwareSettings: settings, FirmwareUpdates: updates},
		}
	}
	conditions := func(change, valid metav1.ConditionStatus, observed int64) []metav1.Condition {
		return []metav1.Condition{
			{Type: "ChangeDetected", Status: change, ObservedGeneration: observed}, {Type: "Valid", Status: valid, ObservedGeneration: observed},
		}
	}
	settings := func(c []metav1.Condition) *metal3.HostFirmwareSettings {
		return &metal3.HostFirmwareSettings{ObjectMeta: named, Status: metal3.HostFirmwareSettingsStatus{Conditions: c}}
	}
	components := func(c []metav1.Condition) *metal3.HostFirmwareComponents {
		return &metal3.HostFirmwareComponents{ObjectMeta: named, Status: metal3.HostFirmwareComponentsStatus{Conditions: c}}
	}
	const onReboot, onPreparing = metal3.HostUpdatePolicyOnReboot, metal3.HostUpdatePolicyOnPreparing
	yes, no := metav1.ConditionTrue, metav1.ConditionFalse
	for name, c := range map[string]struct {
		objects []client.Object
		want    string
	}{
		"nothing":   {nil, ""},
		"no policy": {[]client.Object{settings(conditions(yes, yes, 2))}, ""},
		"nothing changed": {
			[]client.Object{policy(onReboot, onReboot), settings(conditions(no, yes, 2)), components(conditions(no, yes, 2))}, "",
		},
		"settings":             {[]client.Object{policy(onReboot, onPreparing), settings(conditions(yes, yes, 2))}, "HostFirmwareSettings"},
		"settings, not valid":  {[]client.Object{policy(onReboot, onPreparing), settings(conditions(yes, no, 2))}, ""},
		"settings, not looked": {[]client.Object{policy(onReboot, onPreparing), settings(conditions(no, yes, 1))}, "HostFirmwareSettings"},
		"settings, preparing":  {[]client.Object{policy(onPreparing, onReboot), settings(conditions(yes, yes, 2))}, ""},
		"components":           {[]client.Object{policy("", onReboot), components(conditions(yes, yes, 2))}, "HostFirmwareComponents"},
		"components, later":    {[]client.Object{policy(onReboot, ""), components(conditions(yes, yes, 2))}, ""},
	} {
		got, err := pendingServicing(t.Context(), serverWith(t, nil, c.objects...), freeHost())
		if err != nil || (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
	host := freeHost()
	host.Spec.Firmware = &metal3.FirmwareConfig{} //nolint:staticcheck // hosts that were made before may have it
	got, err := pendingServicing(t.Context(), serverWith(t, nil, policy(onReboot, "")), host)
	if err != nil || !strings.Contains(got, "spec.firmware") {
		t.Errorf("%q, %v", got, err)
	}
}

// An installation of before a kind was read lacks the right to it: that is said where people look, and nothing is done.
func TestPendingServicingWithoutTheRight(t *testing.T) {
	t.Parallel()
	pool := &v1alpha1.HostPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "gpu"},
		Spec:       v1alpha1.HostPoolSpec{HostSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": "gpu"}}},
	}
	reader := interceptor.NewClient(serverWith(t, nil, freeHost(), pool), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, o ...client.GetOption) error {
			if _, ok := object.(*metal3.DataImage); ok {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "dataimages"}, key.Name, errRefusal)
			}

			return c.Get(ctx, key, object, o...)
		},
	})
	for _, path := range []v1alpha1.PowerPath{v1alpha1.PowerViaBMC, v1alpha1.PowerViaMetal3} {
		s := &session{Reconciler: &Reconciler{home: reader}}
		s.update.Spec.Door = v1alpha1.Door{Kind: v1alpha1.DoorHostPool, Namespace: "metal", Name: "gpu", Host: "h1"}
		view, err := s.loadHost(t.Context(), path)
		if err != nil || !strings.Contains(view.Busy, "dataimages") || !strings.Contains(view.Busy, "config/rbac") {
			t.Errorf("%s: %+v, %v", path, view, err)
		}
	}
}

// Releases of Metal3 that do not have a kind service nothing by it.
func TestPendingServicingWithoutTheKinds(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]error{
		"no kind": &meta.NoKindMatchError{}, "no resource": &meta.NoResourceMatchError{},
		"the server does not know it": apierrors.NewNotFound(schema.GroupResource{Resource: "hostupdatepolicies"}, "h1"),
	} {
		reader := interceptor.NewClient(serverWith(t, nil), interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				return failure
			},
		})
		if got, err := pendingServicing(t.Context(), reader, freeHost()); got != "" || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
