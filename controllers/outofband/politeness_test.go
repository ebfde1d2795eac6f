package outofband

import (
	"strings"
	"testing"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

// answer is what a silent machine gets: an action by one of the ways to its power, or the reason why it waits.
type answer struct {
	by     bmcOrMetal3
	reason v1alpha1.OutOfBandReason
	// text is a part of what is said about the reason.
	text string
}

type bmcOrMetal3 string

const (
	byBMC    bmcOrMetal3 = "the BMC"
	byMetal3 bmcOrMetal3 = "Metal3"
)

// courtesy is a row of the table: what is done about the machine of a host by spec.outOfBand.powerVia.
type courtesy struct {
	host        func(h *metal3.BareMetalHost)
	beside      []client.Object
	bmc, metal3 answer
	// keepPowered tells that Metal3 would do more than switch it on, if it saw it off.
	keepPowered bool
}

// acts is a host that nobody is busy with.
func acts(host func(h *metal3.BareMetalHost)) courtesy {
	return courtesy{host: host, bmc: answer{by: byBMC}, metal3: answer{by: byMetal3}}
}

// actsByBMC is a host that Metal3 could not reset, or has let go.
func actsByBMC(host func(h *metal3.BareMetalHost)) courtesy {
	return courtesy{host: host, bmc: answer{by: byBMC}, metal3: answer{by: byBMC}}
}

// waits is a host that another is busy with, whatever the way to its power.
func waits(text string, host func(h *metal3.BareMetalHost)) courtesy {
	busy := answer{reason: v1alpha1.OutOfBandHostBusy, text: text}

	return courtesy{host: host, bmc: busy, metal3: busy}
}

// isNone is a host that may not be used.
func isNone(text string, host func(h *metal3.BareMetalHost)) courtesy {
	none := answer{reason: v1alpha1.OutOfBandHostNotFound, text: text}

	return courtesy{host: host, bmc: none, metal3: none}
}

// waitsForMetal3 is a host that Metal3 would not just reset. A reset by its BMC is another matter.
func waitsForMetal3(text string, host func(h *metal3.BareMetalHost), beside ...client.Object) courtesy {
	return courtesy{
		host: host, beside: beside, bmc: answer{by: byBMC}, keepPowered: true,
		metal3: answer{reason: v1alpha1.OutOfBandHostBusy, text: text},
	}
}

func with(row courtesy, beside ...client.Object) courtesy {
	row.beside = beside

	return row
}

func asItIs(*metal3.BareMetalHost) {}

func inState(state metal3.ProvisioningState) func(*metal3.BareMetalHost) {
	return func(h *metal3.BareMetalHost) { h.Status.Provisioning.State = state }
}

func operational(status metal3.OperationalStatus) func(*metal3.BareMetalHost) {
	return func(h *metal3.BareMetalHost) { h.Status.OperationalStatus = status }
}

// annotated adds annotations, which come in pairs of name and value.
func annotated(pairs ...string) func(*metal3.BareMetalHost) {
	return func(h *metal3.BareMetalHost) {
		if h.Annotations == nil {
			h.Annotations = map[string]string{}
		}
		for i := 0; i < len(pairs); i += 2 {
			h.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func keepPowered(h *metal3.BareMetalHost) { h.Spec.DisablePowerOff = true }

func noAddress(h *metal3.BareMetalHost) { h.Spec.BMC.Address = "" }

func failed(h *metal3.BareMetalHost) { h.Status.ErrorType = metal3.PowerManagementError }

func keepOff(h *metal3.BareMetalHost) { h.Spec.Online = false }

func all(changes ...func(*metal3.BareMetalHost)) func(*metal3.BareMetalHost) {
	return func(h *metal3.BareMetalHost) {
		for _, change := range changes {
			change(h)
		}
	}
}

// states are all that the API of Metal3 has.
func states() map[string]courtesy {
	rows := map[string]courtesy{
		"provisioned":            acts(inState(metal3.StateProvisioned)),
		"externally provisioned": acts(inState(metal3.StateExternallyProvisioned)),
		// Of these Metal3 has no address.
		"no address":                isNone("no spec.bmc.address", all(inState(metal3.StateUnmanaged), noAddress)),
		"unmanaged, not looked yet": waits(`state "unmanaged"`, inState(metal3.StateUnmanaged)),
	}
	for _, state := range []metal3.ProvisioningState{
		metal3.StateNone, metal3.StateRegistering, metal3.StateMatchProfile, metal3.StateInspecting, metal3.StatePreparing,
		metal3.StateReady, metal3.StateAvailable, metal3.StateProvisioning, metal3.StateDeprovisioning,
		metal3.StatePoweringOffBeforeDelete, metal3.StateDeleting,
	} {
		rows["state "+string(state)] = waits(`state "`+string(state)+`"`, inState(state))
		// Detached by force: Metal3 has let it go in the middle of that.
		rows["detached in state "+string(state)] = waits(`state "`+string(state)+`"`, all(detach, inState(state)))
	}

	return rows
}

// operations are what Metal3 does in a state, or was told not to do.
func operations() map[string]courtesy {
	const detached, paused = metal3.DetachedAnnotation, metal3.PausedAnnotation

	return map[string]courtesy{
		"OK":                           acts(operational(metal3.OperationalStatusOK)),
		"not looked":                   acts(operational("")),
		"discovered":                   waits(`operational status "discovered"`, operational(metal3.OperationalStatusDiscovered)),
		"delayed":                      waits(`operational status "delayed"`, operational(metal3.OperationalStatusDelayed)),
		"servicing":                    waits("serviced", operational(metal3.OperationalStatusServicing)),
		"error":                        waits(`error "power management error"`, all(operational(metal3.OperationalStatusError), failed)),
		"paused":                       waits("is paused", annotated(paused, "")),
		"paused by Cluster API":        waits("is paused", annotated(paused, "metal3.io/capm3")),
		"detached":                     actsByBMC(detach),
		"being detached":               waits("being detached", annotated(detached, "")),
		"being detached by force":      waits("being detached", annotated(detached, `{"force":true}`)),
		"being attached":               waits("attached to Metal3 again", operational(metal3.OperationalStatusDetached)),
		"detached and paused":          waits("is paused", all(detach, annotated(paused, ""))),
		"detached and kept off":        waits("spec.online", all(detach, keepOff)),
		"detached after an error":      actsByBMC(all(detach, failed)),
		"detached and being deleted":   waits("being deleted", all(detach, deleted)),
		"detached and without address": isNone("no spec.bmc.address", all(detach, noAddress)),
		"being deleted":                waits("being deleted", deleted),
		"kept off":                     waits("spec.online", keepOff),
		"never off":                    actsByBMC(keepPowered),
		"never off, detached":          actsByBMC(all(keepPowered, detach)),
		"never off, kept off":          waits("spec.online", all(keepPowered, keepOff)),
		"not the pool's":               isNone("not selected", func(h *metal3.BareMetalHost) { h.Labels = nil }),
		"another image":                waits("deprovisioned", func(h *metal3.BareMetalHost) { h.Spec.Image.URL += "-2" }),
		"no image":                     waits("deprovisioned", func(h *metal3.BareMetalHost) { h.Spec.Image = nil }),
		"an empty image":               waits("deprovisioned", func(h *metal3.BareMetalHost) { h.Spec.Image.URL = "" }),
		"deployed its own way":         acts(ownWay("a", "a")),
		"another way, of its own":      waits("deprovisioned", ownWay("a", "b")),
		"no way of its own any more":   waits("deprovisioned", ownWay("a", "")),
		"no image, externally": acts(all(inState(metal3.StateExternallyProvisioned), func(h *metal3.BareMetalHost) {
			h.Spec.Image = nil
		})),
		"to be inspected": acts(annotated(metal3.InspectAnnotationPrefix, "")),
		"of Cluster API": acts(func(h *metal3.BareMetalHost) {
			h.Spec.ConsumerRef = &corev1.ObjectReference{Kind: "Metal3Machine", Name: "m1"}
		}),
		"it failed before, and is well": acts(func(h *metal3.BareMetalHost) { h.Status.ErrorCount = 3 }),
	}
}

// ownWay is a host that was deployed without an image, by a method of its own.
func ownWay(was, wanted string) func(*metal3.BareMetalHost) {
	return func(h *metal3.BareMetalHost) {
		h.Spec.Image, h.Status.Provisioning.Image = nil, metal3.Image{}
		h.Spec.CustomDeploy = &metal3.CustomDeploy{Method: wanted}
		h.Status.Provisioning.CustomDeploy = &metal3.CustomDeploy{Method: was}
	}
}

func deleted(h *metal3.BareMetalHost) {
	h.DeletionTimestamp, h.Finalizers = new(metav1.Now()), []string{metal3.BareMetalHostFinalizer}
}

// holders are who has asked Metal3 for a reboot.
func holders() map[string]courtesy {
	const plain = metal3.RebootAnnotationPrefix
	remediation := plain + "/metal3-remediation-1"

	return map[string]courtesy{
		"rebooted":                    waits("annotation "+plain+")", annotated(plain, "")),
		"rebooted by force":           waits("annotation "+plain+")", annotated(plain, `{"mode":"hard","force":true}`)),
		"kept off":                    waits(remediation, annotated(remediation, "")),
		"kept off, hard":              waits(remediation, annotated(remediation, hardReboot)),
		"a key without a name":        waits("annotation "+plain+"/)", annotated(plain+"/", "")),
		"a name that begins as ours":  waits(ownRebootAnnotation+"-2", annotated(ownRebootAnnotation+"-2", "")),
		"kept off, never off":         waits(remediation, all(keepPowered, annotated(remediation, ""))),
		"kept off, detached":          waits(remediation, all(detach, annotated(remediation, ""))),
		"kept off for us and another": waits(remediation, annotated(remediation, "", ownRebootAnnotation, hardReboot)),
		"no annotation of Metal3":     acts(annotated(plain+".example/key", "", "example.com/"+plain, "")),
		// Metal3 holds the machine for us: by the BMC nothing is done before the key is gone.
		"kept off for us": {
			host: annotated(ownRebootAnnotation, hardReboot), metal3: answer{by: byMetal3},
			bmc: answer{reason: v1alpha1.OutOfBandHostBusy, text: "Stayput's own annotation"},
		},
		"kept off for us, detached since":  waits("Stayput's own annotation", all(detach, annotated(ownRebootAnnotation, hardReboot))),
		"kept off for us, never off since": waits("Stayput's own annotation", all(keepPowered, annotated(ownRebootAnnotation, hardReboot))),
	}
}

// firmware is what makes a reboot by Metal3 longer than a reboot.
func firmware() map[string]courtesy {
	named := metav1.ObjectMeta{Namespace: "metal", Name: "h1", Generation: 2}
	changed := []metav1.Condition{
		{Type: "ChangeDetected", Status: metav1.ConditionTrue, ObservedGeneration: 2},
		{Type: "Valid", Status: metav1.ConditionTrue, ObservedGeneration: 2},
	}
	policy := func(settings, updates metal3.UpdatePolicy) client.Object {
		return &metal3.HostUpdatePolicy{
			ObjectMeta: named, Spec: metal3.HostUpdatePolicySpec{FirmwareSettings: settings, FirmwareUpdates: updates},
		}
	}
	settings := &metal3.HostFirmwareSettings{ObjectMeta: named, Status: metal3.HostFirmwareSettingsStatus{Conditions: changed}}
	components := &metal3.HostFirmwareComponents{ObjectMeta: named, Status: metal3.HostFirmwareComponentsStatus{Conditions: changed}}
	const onReboot, onPreparing = metal3.HostUpdatePolicyOnReboot, metal3.HostUpdatePolicyOnPreparing

	return map[string]courtesy{
		"settings at the next reboot": waitsForMetal3("HostFirmwareSettings", asItIs, policy(onReboot, onPreparing), settings),
		"updates at the next reboot":  waitsForMetal3("HostFirmwareComponents", asItIs, policy(onPreparing, onReboot), components),
		"not at the next reboot":      with(acts(asItIs), policy(onPreparing, onPreparing), settings, components),
		"no policy":                   with(acts(asItIs), settings, components),
		"nothing to change":           with(acts(asItIs), policy(onReboot, onReboot)),
		// Metal3 does not see these machines off.
		"at the next reboot, detached":  with(actsByBMC(detach), policy(onReboot, onReboot), settings, components),
		"at the next reboot, never off": with(actsByBMC(keepPowered), policy(onReboot, onReboot), settings, components),
		"an image to attach": waitsForMetal3("DataImage", asItIs, &metal3.DataImage{
			ObjectMeta: named, Spec: metal3.DataImageSpec{URL: "http://images.example/data"},
		}),
		"an image to detach": waitsForMetal3("DataImage", asItIs, &metal3.DataImage{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "metal", Name: "h1", DeletionTimestamp: new(metav1.Now()), Finalizers: []string{"example.com/one"},
			},
			Spec:   metal3.DataImageSpec{URL: "http://images.example/data"},
			Status: metal3.DataImageStatus{AttachedImage: metal3.AttachedImageReference{URL: "http://images.example/data"}},
		}),
		"an image that is attached": with(acts(asItIs), &metal3.DataImage{
			ObjectMeta: named, Spec: metal3.DataImageSpec{URL: "http://images.example/data"},
			Status: metal3.DataImageStatus{AttachedImage: metal3.AttachedImageReference{URL: "http://images.example/data"}},
		}),
		// What comes first is said.
		"at the next reboot, in another's hands": with(waits("reboot.metal3.io/another", annotated(otherKey, "")),
			policy(onReboot, onReboot), settings),
	}
}

// TestPoliteness is what is done about a silent machine for everything that Metal3 and others may be doing with its host.
func TestPoliteness(t *testing.T) {
	t.Parallel()
	for title, rows := range map[string]map[string]courtesy{
		"states": states(), "operations": operations(), "holders": holders(), "firmware": firmware(),
	} {
		for name, row := range rows {
			for path, want := range map[v1alpha1.PowerPath]answer{
				v1alpha1.PowerViaBMC: row.bmc, "": row.bmc, v1alpha1.PowerViaMetal3: row.metal3,
			} {
				got := row.answer(t, path)
				if got.by != want.by || got.reason != want.reason || !strings.Contains(got.text, want.text) {
					t.Errorf("%s, %s, powerVia %q: got %+v, want %+v", title, name, path, got, want)
				}
			}
		}
	}
}

// answer asks what is done about a machine that is silent for longer than it may be.
func (row courtesy) answer(t *testing.T, path v1alpha1.PowerPath) answer {
	t.Helper()
	w := silentWorld(row.view(t, path))
	w.Settings.PowerVia = path
	decision := Decide(w, testStart())
	if decision.Verb == Observe {
		return answer{by: bmcOrMetal3(w.through())}
	}
	if decision.Verb != Wait || decision.After <= 0 {
		t.Errorf("decided %+v; a host that is busy is looked at again", decision)
	}

	return answer{reason: decision.Status.Reason, text: decision.Status.Message}
}

// view is the row's host as a pass loads it.
func (row courtesy) view(t *testing.T, path v1alpha1.PowerPath) HostView {
	t.Helper()
	host := freeHost()
	row.host(host)
	pool := &v1alpha1.HostPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "gpu"},
		Spec:       v1alpha1.HostPoolSpec{HostSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": "gpu"}}},
	}
	s := &session{Reconciler: &Reconciler{home: serverWith(t, nil, append(row.beside, host, pool)...)}}
	s.update.Spec.Door = v1alpha1.Door{Kind: v1alpha1.DoorHostPool, Namespace: "metal", Name: "gpu", Host: "h1"}
	view, err := s.loadHost(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if want := host.Spec.DisablePowerOff || row.keepPowered && path != v1alpha1.PowerViaMetal3; view.KeepPowered != want {
		t.Errorf("what is known of the host is %+v; that it must not be switched off is %t", view, want)
	}

	return view
}

// silentWorld is a machine whose deadline has passed, with such a host.
func silentWorld(view HostView) World {
	return World{
		Attempt: "a1", Phase: v1alpha1.PhaseRebooting, SilentAfter: testSilentAfter, LastSign: testStart().Add(-time.Hour),
		Settings: Settings{MaxResets: 3, SilentAfterReset: testSilentAfterReset},
		Status: &v1alpha1.OutOfBandStatus{
			Attempt: "a1", Phase: v1alpha1.OutOfBandWatching, Reason: v1alpha1.OutOfBandWaitingForMachine,
			Deadline: new(metav1.NewTime(testStart().Add(-time.Minute))),
		},
		Host: view,
	}
}

// Another who begins in the middle of our turn is waited for. Our key stays for as long as Metal3 may need it, and goes
// then, whatever the other does.
func TestAnotherBeginsDuringAReset(t *testing.T) {
	t.Parallel()
	busy := courtesy{host: annotated(ownRebootAnnotation, hardReboot, otherKey, "")}
	for _, c := range []struct {
		action bmc.Action
		sent   bool
		since  time.Duration
		holds  bool
	}{
		{bmc.ActionForceOff, true, time.Minute, true},
		{bmc.ActionForceOff, false, time.Minute, true},
		{bmc.ActionForceOff, true, holdLimit, false},
		{bmc.ActionOn, true, time.Second, false},
	} {
		w := silentWorld(busy.view(t, v1alpha1.PowerViaMetal3))
		decided := testStart().Add(-c.since)
		w.Status.Phase, w.Status.Reason, w.Status.Resets = v1alpha1.OutOfBandResetting, v1alpha1.OutOfBandPowerActionSent, 1
		w.Status.Intent = &v1alpha1.PowerIntent{ID: "a1-1", Action: string(c.action), DecidedAt: metav1.NewMicroTime(decided)}
		if c.sent {
			w.Status.Intent.SentAt = new(metav1.NewMicroTime(decided))
		}
		decision := Decide(w, testStart())
		if decision.Verb != Wait || decision.Status.Reason != v1alpha1.OutOfBandHostBusy || decision.Status.Phase != v1alpha1.OutOfBandResetting {
			t.Errorf("%+v: decided %+v", c, decision)
		}
		if got := w.holds(testStart()); got != c.holds {
			t.Errorf("%+v: holds the key: %t", c, got)
		}
	}
}
