package outofband

import (
	"strings"
	"testing"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

func freeHost() *metal3.BareMetalHost {
	return &metal3.BareMetalHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "h1", Labels: map[string]string{"pool": "gpu"}},
		Spec: metal3.BareMetalHostSpec{
			Online: true, BMC: metal3.BMCDetails{Address: "redfish://10.0.0.1", CredentialsName: "h1-bmc"},
			Image: &metal3.Image{URL: "http://images.example/os"},
		},
		Status: metal3.BareMetalHostStatus{
			OperationalStatus: metal3.OperationalStatusOK,
			Provisioning: metal3.ProvisionStatus{
				State: metal3.StateProvisioned, Image: metal3.Image{URL: "http://images.example/os"},
			},
		},
	}
}

func detach(h *metal3.BareMetalHost) {
	h.Annotations = map[string]string{"baremetalhost.metal3.io/detached": ""}
	h.Status.OperationalStatus = metal3.OperationalStatusDetached
}

func TestHostBusy(t *testing.T) {
	t.Parallel()
	annotate := func(name string) func(*metal3.BareMetalHost) {
		return func(h *metal3.BareMetalHost) { h.Annotations = map[string]string{name: ""} }
	}
	cases := map[string]struct {
		change func(*metal3.BareMetalHost)
		want   string
	}{
		"free":                   {func(*metal3.BareMetalHost) {}, ""},
		"externally provisioned": {func(h *metal3.BareMetalHost) { h.Status.Provisioning.State = metal3.StateExternallyProvisioned }, ""},
		"our own annotation":     {annotate("reboot.metal3.io/stayput"), ""},
		"another annotation":     {annotate("inspect.metal3.io"), ""},
		"deleted":                {func(h *metal3.BareMetalHost) { h.DeletionTimestamp = new(metav1.Now()) }, "is being deleted"},
		"deprovisioning": {
			func(h *metal3.BareMetalHost) { h.Status.Provisioning.State = metal3.StateDeprovisioning }, `state "deprovisioning"`,
		},
		"available":      {func(h *metal3.BareMetalHost) { h.Status.Provisioning.State = metal3.StateAvailable }, `state "available"`},
		"paused":         {annotate("baremetalhost.metal3.io/paused"), "is paused"},
		"being detached": {annotate("baremetalhost.metal3.io/detached"), "is being detached"},
		"detached":       {detach, ""},
		"being attached": {
			func(h *metal3.BareMetalHost) { h.Status.OperationalStatus = metal3.OperationalStatusDetached }, "attached to Metal3 again",
		},
		"paused and detached": {func(h *metal3.BareMetalHost) { detach(h); h.Annotations["baremetalhost.metal3.io/paused"] = "" }, "is paused"},
		"detached, kept off":  {func(h *metal3.BareMetalHost) { detach(h); h.Spec.Online = false }, "spec.online"},
		"detached and wanted": {func(h *metal3.BareMetalHost) { detach(h); h.Annotations["reboot.metal3.io"] = "" }, "reboot.metal3.io"},
		"kept off":            {func(h *metal3.BareMetalHost) { h.Spec.Online = false }, "spec.online"},
		"servicing":           {func(h *metal3.BareMetalHost) { h.Status.OperationalStatus = metal3.OperationalStatusServicing }, "serviced"},
		"error":               {func(h *metal3.BareMetalHost) { h.Status.OperationalStatus = metal3.OperationalStatusError }, "has error"},
		"rebooted":            {annotate("reboot.metal3.io"), "reboot.metal3.io"},
		"kept off by another": {annotate("reboot.metal3.io/metal3-remediation-1"), "metal3-remediation-1"},
	}
	for name, c := range cases {
		host := freeHost()
		c.change(host)
		got := hostBusy(host)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestViewHost(t *testing.T) {
	t.Parallel()
	pool := &v1alpha1.HostPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "gpu"},
		Spec:       v1alpha1.HostPoolSpec{HostSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": "gpu"}}},
	}
	host := freeHost()
	host.Spec.DisablePowerOff = true
	if got := viewHost(pool, host, v1alpha1.PowerViaBMC); got != (HostView{KeepPowered: true}) {
		t.Errorf("got %+v", got)
	}
	// While our key is there the machine is kept off, whatever its BMC is told.
	host.Annotations = map[string]string{ownRebootAnnotation: ""}
	if got := viewHost(pool, host, v1alpha1.PowerViaBMC); !strings.Contains(got.Busy, "own annotation") {
		t.Errorf("got %+v", got)
	}
	host.Spec.BMC.Address = ""
	if got := viewHost(pool, host, v1alpha1.PowerViaBMC); !strings.Contains(got.NotFound, "spec.bmc.address") {
		t.Errorf("got %+v", got)
	}
	// A NodeUpdate of another cluster must not reach hosts that its pool does not select.
	host = freeHost()
	host.Labels = nil
	if got := viewHost(pool, host, v1alpha1.PowerViaBMC); !strings.Contains(got.NotFound, "not selected") {
		t.Errorf("got %+v", got)
	}
}

func TestCredentialsAreTrimmed(t *testing.T) {
	t.Parallel()
	got := credentials(&corev1.Secret{Data: map[string][]byte{"username": []byte(" admin\n"), "password": []byte("s3 cret\r\n")}})
	if want := (bmc.Credentials{Username: "admin", Password: "s3 cret"}); got != want {
		t.Errorf("got %q %q", got.Username, got.Password)
	}
}

func TestLastSign(t *testing.T) {
	t.Parallel()
	at := func(minutes int) *metav1.Time {
		return new(metav1.NewTime(testStart().Add(time.Duration(minutes) * time.Minute)))
	}
	node := func(bootID string, beat int) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{BootID: bootID},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastHeartbeatTime: *at(beat)}},
		}}
	}
	cases := map[string]struct {
		heartbeat *metav1.Time
		node      *corev1.Node
		want      *metav1.Time
	}{
		"nothing":                      {nil, nil, nil},
		"the write of the reboot":      {at(0), node("old", -1), nil},
		"the agent writes":             {at(2), node("old", -1), at(2)},
		"the old boot's kubelet":       {at(0), node("old", 1), nil},
		"the new boot's kubelet":       {at(0), node("new", 3), at(3)},
		"the kubelet is newer":         {at(2), node("new", 3), at(3)},
		"the agent is newer":           {at(4), node("new", 3), at(4)},
		"no boot ID":                   {at(0), node("", 3), nil},
		"a kubelet from before":        {at(0), node("new", -5), nil},
		"a heartbeat before rebooting": {at(-3), nil, nil},
	}
	for name, c := range cases {
		update := &v1alpha1.NodeUpdate{Status: v1alpha1.NodeUpdateStatus{RebootedAt: at(0), Heartbeat: c.heartbeat, BootID: "old"}}
		got := lastSign(update, c.node, testStart().Add(time.Hour))
		if c.want == nil && !got.IsZero() || c.want != nil && !got.Equal(c.want.Time) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// The API server's time of the kubelet's write counts, whatever the node's clock says.
func TestTheKubeletsClock(t *testing.T) {
	t.Parallel()
	at := func(minutes int) metav1.Time {
		return metav1.NewTime(testStart().Add(time.Duration(minutes) * time.Minute))
	}
	const now = 10
	for _, c := range []struct {
		name                 string
		beat                 int // by the node's clock
		manager, subresource string
		written              int
		want                 int // 0: no sign
	}{
		{"ahead", 120, "kubelet", "status", 5, 5},
		{"behind", -120, "kubelet", "status", 5, 5},
		{"right", 5, "kubelet", "status", 5, 5},
		{"the API server's is ahead of ours", 5, "kubelet", "status", now + 3, now},
		{"ahead, unnamed", 120, "agetty", "status", 5, 0},
		{"behind, unnamed", -120, "agetty", "status", 5, 0},
		{"right, unnamed", 4, "agetty", "status", 5, 4},
		{"the node controller's write", 4, "kube-controller-manager", "status", 9, 4},
		{"its labels", 4, "kubelet", "", 9, 4},
	} {
		for _, phase := range []v1alpha1.Phase{v1alpha1.PhaseRebooting, v1alpha1.PhaseProving} {
			update := &v1alpha1.NodeUpdate{Status: v1alpha1.NodeUpdateStatus{Phase: phase, BootID: "b1", RebootedAt: new(at(0))}}
			node := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
					{Manager: c.manager, Subresource: c.subresource, Time: new(at(c.written))},
				}},
				Status: corev1.NodeStatus{
					NodeInfo:   corev1.NodeSystemInfo{BootID: "b2"},
					Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: at(c.beat)}},
				},
			}
			got := newWorld(update, node, at(now).Time).LastSign
			if want := at(c.want); c.want == 0 && !got.IsZero() || c.want != 0 && !got.Equal(want.Time) {
				t.Errorf("%s, %s: got %s, want minute %d", c.name, phase, got, c.want)
			}
		}
	}
}

// Once the agent has said that it is back, its boot's kubelet counts, too: by what it wrote, and by its Lease.
func TestSignsOfAMachineThatIsBack(t *testing.T) {
	t.Parallel()
	at := func(minutes int) metav1.Time {
		return metav1.NewTime(testStart().Add(time.Duration(minutes) * time.Minute))
	}
	for _, c := range []struct {
		name    string
		phase   v1alpha1.Phase
		bootID  string
		ready   corev1.ConditionStatus
		written int // by the agent's field manager, at the API server's time; 0: not known
		want    metav1.Time
		lease   Lease
	}{
		{"ready", v1alpha1.PhaseProving, "b2", corev1.ConditionTrue, 0, at(5), Lease{Live: true}},
		{"not ready", v1alpha1.PhaseReporting, "b2", corev1.ConditionFalse, 0, at(5), Lease{Live: true}},
		{"unknown", v1alpha1.PhaseProving, "b2", corev1.ConditionUnknown, 0, at(5), Lease{LostAt: at(7).Time}},
		{"a later boot", v1alpha1.PhaseProving, "b3", corev1.ConditionTrue, 0, at(5), Lease{Live: true}},
		{"no boot ID", v1alpha1.PhaseProving, "", corev1.ConditionTrue, 0, at(3), Lease{}},
		{"the new boot, told to reboot", v1alpha1.PhaseRebooting, "b3", corev1.ConditionTrue, 4, at(5), Lease{Live: true}},
		{"the new boot has died", v1alpha1.PhaseRebooting, "b3", corev1.ConditionUnknown, 4, at(5), Lease{LostAt: at(7).Time}},
		{"on its way down", v1alpha1.PhaseRebooting, "b2", corev1.ConditionTrue, 0, at(3), Lease{}},
		{"the agent's clock is wrong", v1alpha1.PhaseProving, "b2", corev1.ConditionUnknown, 9, at(9), Lease{LostAt: at(7).Time}},
		{"the write of the reboot", v1alpha1.PhaseRebooting, "b2", corev1.ConditionTrue, 4, at(4), Lease{}},
	} {
		update := &v1alpha1.NodeUpdate{Status: v1alpha1.NodeUpdateStatus{Phase: c.phase, BootID: "b2", Heartbeat: new(at(3))}}
		if c.written > 0 {
			update.ManagedFields = []metav1.ManagedFieldsEntry{
				{Manager: v1alpha1.FieldManagerOutOfBand, Subresource: "status", Time: new(at(99))},
				{Manager: v1alpha1.FieldManagerAgent, Subresource: "status", Time: new(at(c.written))},
			}
		}
		node := &corev1.Node{Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{BootID: c.bootID},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: c.ready, LastHeartbeatTime: at(5), LastTransitionTime: at(7),
			}},
		}}
		w := newWorld(update, node, testStart().Add(time.Hour))
		if !w.LastSign.Equal(c.want.Time) || w.Lease != c.lease {
			t.Errorf("%s: got %s and %+v, want %s and %+v", c.name, w.LastSign, w.Lease, c.want, c.lease)
		}
	}
}

func TestNewWorld(t *testing.T) {
	t.Parallel()
	update := &v1alpha1.NodeUpdate{Status: v1alpha1.NodeUpdateStatus{
		Attempt: "a2", OutOfBand: &v1alpha1.OutOfBandStatus{Attempt: "a1", Resets: 3},
	}}
	w := newWorld(update, nil, testStart())
	if w.Status != nil {
		t.Error("the status of another attempt counts")
	}
	if w.SilentAfter != 15*time.Minute || w.Settings != (Settings{
		MaxResets: 4, SilentAfterReset: 10 * time.Minute, MaxSilent: intstr.FromString("20%"),
	}) {
		t.Errorf("defaults: got %+v", w)
	}
	update.Spec.OutOfBand.MaxResets = new(int32)
	if got := newWorld(update, nil, testStart()).Settings.MaxResets; got != 0 {
		t.Errorf("maxResets 0: got %d", got)
	}
}

func TestSilentGauge(t *testing.T) {
	t.Parallel()
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		node  string
		phase v1alpha1.OutOfBandPhase
		want  float64
	}{
		{"n1", v1alpha1.OutOfBandWatching, 0},
		{"n1", v1alpha1.OutOfBandSilent, 1},
		{"n1", v1alpha1.OutOfBandResetting, 1},
		{"n2", v1alpha1.OutOfBandNeedsHuman, 2},
		{"n1", v1alpha1.OutOfBandRecovered, 1},
	} {
		m.observe(Request{Node: c.node}, &v1alpha1.OutOfBandStatus{Phase: c.phase})
		if got := testutil.ToFloat64(m.silent); got != c.want {
			t.Errorf("after %s %s: got %v, want %v", c.node, c.phase, got, c.want)
		}
	}
	m.observe(Request{Node: "n2"}, nil)
	if got := testutil.ToFloat64(m.silent); got != 0 {
		t.Errorf("got %v, want 0", got)
	}
}
