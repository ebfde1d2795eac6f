package outofband

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/connect"
	"github.com/stayput-dev/stayput/controllers/clusters"
	"github.com/stayput-dev/stayput/controllers/powerlease"
	"github.com/stayput-dev/stayput/test/apiserver"
	"github.com/stayput-dev/stayput/test/lab/redfish"
)

const (
	bmcUser     = "admin"
	bmcPassword = "a-password-of-the-bmc"
	eventually  = 60 * time.Second
)

// machines is how many machines the tests use, one each.
const machines = 7

func uuidOf(machine int) string { return fmt.Sprintf("27946b59-9e44-4fa7-8e91-f3527a1ef%03d", machine) }

// TestController runs the controller against a real API server and sushy-tools' emulator.
func TestController(t *testing.T) { //nolint:tparallel // the last part moves the clock on, after the others
	t.Parallel()
	log.SetLogger(logr.Discard())
	server, err := apiserver.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	systems := make([]redfish.FakeSystem, 0, machines)
	for i := range machines {
		systems = append(systems, redfish.FakeSystem{UUID: uuidOf(i), Name: fmt.Sprintf("machine-%d", i), PoweredOn: true})
	}
	emulator, err := redfish.Start(t.Context(), redfish.Options{
		StateDir: t.TempDir(), Username: bmcUser, Password: bmcPassword, Fake: systems,
	})
	if err != nil {
		t.Fatal(err)
	}
	lab := &lab{client: server.Client, emulator: emulator, clock: &movedClock{}}
	lab.make(t, NewWithT(t))
	t.Cleanup(func() {
		for _, stop := range []func() error{emulator.Stop, server.Stop} {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	})
	lab.start(t, server)
	t.Run("in real time", func(t *testing.T) {
		t.Run("silent machine", func(t *testing.T) { t.Parallel(); lab.silentMachine(t) })
		t.Run("found intent", func(t *testing.T) { t.Parallel(); lab.foundIntent(t) })
		t.Run("wrong machine", func(t *testing.T) { t.Parallel(); lab.wrongMachine(t) })
		t.Run("gives up", func(t *testing.T) { t.Parallel(); lab.givesUp(t) })
		t.Run("wrong password", func(t *testing.T) { t.Parallel(); lab.wrongPassword(t) })
		t.Run("keys that were left", func(t *testing.T) { t.Parallel(); lab.leftKeys(t) })
		t.Run("killed while Metal3 keeps it off", func(t *testing.T) { t.Parallel(); lab.killedWhileHeld(t) })
		t.Run("back while Metal3 keeps it off", func(t *testing.T) { t.Parallel(); lab.backWhileHeld(t) })
	})
	t.Run("silent after it was back", func(t *testing.T) { lab.silentAfterItWasBack(t) })
}

// movedClock is the real clock, moved on.
type movedClock struct{ by atomic.Int64 }

func (c *movedClock) move(by time.Duration) { c.by.Add(int64(by)) }

// Now implements clock.PassiveClock.
func (c *movedClock) Now() time.Time { return time.Now().Add(time.Duration(c.by.Load())) }

// Since implements clock.PassiveClock.
func (c *movedClock) Since(at time.Time) time.Duration { return c.Now().Sub(at) }

type lab struct {
	client   client.Client
	emulator *redfish.Emulator
	clock    *movedClock
}

// make makes the objects that all tests share.
func (l *lab) make(t *testing.T, g Gomega) {
	t.Helper()
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "metal"}},
		&v1alpha1.HostPool{
			ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "gpu"},
			Spec: v1alpha1.HostPoolSpec{
				HostSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": "gpu"}},
				Release:      v1alpha1.Release{OS: v1alpha1.ImageSource{Image: "registry.example/os:1"}},
			},
		},
	} {
		g.Expect(l.client.Create(t.Context(), object)).To(Succeed())
	}
}

// start runs the controller until the test ends.
func (l *lab) start(t *testing.T, server *apiserver.Server) {
	t.Helper()
	g := NewWithT(t)
	scheme, err := apiserver.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	mgr, err := ctrl.NewManager(server.Config, ctrl.Options{
		Scheme: scheme, Cache: clusters.CacheOptions(scheme), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	g.Expect(err).NotTo(HaveOccurred())
	registry, err := clusters.New(mgr, clusters.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(mgr.Add(registry)).To(Succeed())
	g.Expect(SetupWithManager(mgr, registry, Options{
		BMCCA: l.emulator.CA(), Registerer: prometheus.NewRegistry(), Clock: l.clock,
	})).To(Succeed())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// machine makes a host, its Secret, its Node and its NodeUpdate.
func (l *lab) machine(t *testing.T, g Gomega, name, uuid, password string, silentAfterReset time.Duration) {
	t.Helper()
	host := &metal3.BareMetalHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: name, Labels: map[string]string{"pool": "gpu"}},
		Spec: metal3.BareMetalHostSpec{
			Online: true, BMC: metal3.BMCDetails{Address: l.emulator.Address(uuid), CredentialsName: name + "-bmc"},
			Image: &metal3.Image{URL: "http://images.example/os"},
		},
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, object := range []client.Object{
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: name + "-bmc"},
			Data:       map[string][]byte{"username": []byte(bmcUser), "password": []byte(password + "\n")},
		},
		host, node,
		&v1alpha1.NodeUpdate{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.NodeUpdateSpec{
				Door:    v1alpha1.Door{Kind: v1alpha1.DoorHostPool, Namespace: "metal", Name: "gpu", Host: name},
				Attempt: "a1",
				Release: v1alpha1.NodeRelease{OS: v1alpha1.OSRelease{
					Image: "registry.example/os@sha256:" + strings.Repeat("0", 64), Version: "1",
				}},
				Reboot:    v1alpha1.RebootSettings{SilentAfter: metav1.Duration{Duration: time.Second}},
				OutOfBand: v1alpha1.OutOfBandSettings{SilentAfterReset: metav1.Duration{Duration: silentAfterReset}},
			},
		},
	} {
		g.Expect(l.client.Create(t.Context(), object)).To(Succeed())
	}
	host.Status.Provisioning.State, host.Status.Provisioning.Image = metal3.StateProvisioned, *host.Spec.Image
	host.Status.OperationalStatus = metal3.OperationalStatusOK
	host.Status.HardwareProfile = "unknown"
	g.Expect(l.client.Status().Update(t.Context(), host)).To(Succeed())
	node.Status.NodeInfo.SystemUUID = uuid
	node.Status.NodeInfo.BootID = "old"
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	g.Expect(l.client.Status().Update(t.Context(), node)).To(Succeed())
}

// agent writes what the agent of the first boot would.
func (l *lab) agent(t *testing.T, g Gomega, name string, phase v1alpha1.Phase) {
	t.Helper()
	l.agentIn(t, g, "old", name, phase)
}

// agentIn writes what the agent would in a boot.
func (l *lab) agentIn(t *testing.T, g Gomega, bootID, name string, phase v1alpha1.Phase) {
	t.Helper()
	now := time.Now().UTC().Format(time.RFC3339)
	status := map[string]any{"attempt": "a1", "phase": string(phase), "bootID": bootID, "heartbeat": now}
	if phase == v1alpha1.PhaseRebooting {
		status["rebootedAt"] = now
	}
	g.Expect(l.client.Status().Apply(t.Context(), client.ApplyConfigurationFromUnstructured(
		&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "stayput.dev/v1alpha1", "kind": "NodeUpdate", "metadata": map[string]any{"name": name}, "status": status,
		}}), client.FieldOwner(v1alpha1.FieldManagerAgent))).To(Succeed())
}

// nextSecond is later than what is written within half a second from now, whose times are whole seconds, and not so late
// that the controller takes it for a clock's that is ahead.
func nextSecond(g Gomega) time.Time {
	var now time.Time
	g.Eventually(func() time.Duration {
		now = time.Now()

		return now.Sub(now.Truncate(time.Second))
	}).WithPolling(time.Millisecond).Should(BeNumerically("<", time.Second/2))

	return now.Truncate(time.Second).Add(time.Second)
}

// node writes a Node's status in the name of a field manager.
func (l *lab) node(t *testing.T, g Gomega, name, manager string, change func(*corev1.NodeStatus)) {
	t.Helper()
	var node corev1.Node
	g.Expect(l.client.Get(t.Context(), client.ObjectKey{Name: name}, &node)).To(Succeed())
	change(&node.Status)
	g.Expect(l.client.Status().Update(t.Context(), &node, client.FieldOwner(manager))).To(Succeed())
}

// comesBack lets the agent write every now and then, as it does, until the machine counts as back. Times of the API are
// whole seconds, so the first write may look older than the reset.
func (l *lab) comesBack(t *testing.T, g Gomega, bootID, name string) {
	t.Helper()
	g.Eventually(func() (v1alpha1.OutOfBandStatus, error) {
		l.agentIn(t, g, bootID, name, v1alpha1.PhaseProving)

		return l.status(t, name)()
	}).WithTimeout(eventually).WithPolling(200 * time.Millisecond).Should(Satisfy(reason(v1alpha1.OutOfBandMachineBack)))
}

func (l *lab) status(t *testing.T, name string) func() (v1alpha1.OutOfBandStatus, error) {
	t.Helper()

	return func() (v1alpha1.OutOfBandStatus, error) {
		var update v1alpha1.NodeUpdate
		err := l.client.Get(t.Context(), client.ObjectKey{Name: name}, &update)

		return ptr.Deref(update.Status.OutOfBand, v1alpha1.OutOfBandStatus{}), err
	}
}

func reason(want v1alpha1.OutOfBandReason) func(v1alpha1.OutOfBandStatus) bool {
	return func(status v1alpha1.OutOfBandStatus) bool { return status.Reason == want }
}

func (l *lab) silentMachine(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	l.machine(t, g, "silent", uuidOf(0), bmcPassword, time.Hour)
	var before metal3.BareMetalHost
	g.Expect(l.client.Get(t.Context(), client.ObjectKey{Namespace: "metal", Name: "silent"}, &before)).To(Succeed())
	l.agent(t, g, "silent", v1alpha1.PhaseRebooting)
	g.Eventually(l.status(t, "silent")).WithTimeout(eventually).
		Should(Satisfy(reason(v1alpha1.OutOfBandWaitingAfterReset)))
	got, err := l.status(t, "silent")()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got.Intent).To(HaveField("ID", "a1-1-ForceRestart"))
	g.Expect(got.Intent.SentAt).NotTo(BeNil())
	g.Expect(got.Resets).To(BeEquivalentTo(1))
	g.Expect(l.emulator.Resets(uuidOf(0))).To(Equal(1))

	l.comesBack(t, g, "old", "silent")
	g.Expect(l.emulator.Resets(uuidOf(0))).To(Equal(1))

	var after metal3.BareMetalHost
	g.Expect(l.client.Get(t.Context(), client.ObjectKey{Namespace: "metal", Name: "silent"}, &after)).To(Succeed())
	g.Expect(after.ResourceVersion).To(Equal(before.ResourceVersion), "the BareMetalHost was written")
	l.owns(t, g, "silent")
	g.Eventually(func() ([]string, error) { return l.reasons(t, "silent") }).WithTimeout(eventually).
		Should(ContainElements("DeadlinePassed", "PowerActionSent", "MachineBack"))
	g.Eventually(func() ([]string, error) { return l.reasonsOf(t, "NodeUpdate", "silent") }).WithTimeout(eventually).
		Should(ContainElements("DeadlinePassed", "PowerActionSent", "MachineBack"))
	l.leaseIsFree(t, g, "silent")
}

// leaseIsFree checks that the power of a host was taken, and given back.
func (l *lab) leaseIsFree(t *testing.T, g Gomega, host string) {
	t.Helper()
	var lease coordinationv1.Lease
	g.Expect(l.client.Get(t.Context(), client.ObjectKey{Namespace: "metal", Name: powerlease.Name(host)}, &lease)).To(Succeed())
	g.Expect(ptr.Deref(lease.Spec.HolderIdentity, "")).To(BeEmpty())
	g.Expect(lease.OwnerReferences).To(ConsistOf(HaveField("Name", host)))
}

// givesUp has a machine that nothing wakes. The second and last reset takes its power away and asks for the disk.
func (l *lab) givesUp(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	const name = "dead"
	// Longer than the emulator keeps a machine off that it restarts.
	l.machine(t, g, name, uuidOf(6), bmcPassword, 15*time.Second)
	var update v1alpha1.NodeUpdate
	g.Expect(l.client.Get(t.Context(), client.ObjectKey{Name: name}, &update)).To(Succeed())
	update.Spec.OutOfBand.MaxResets = new(int32(2))
	g.Expect(l.client.Update(t.Context(), &update)).To(Succeed())
	// Another uses its power at first.
	holder := "a person at a desk"
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: powerlease.Name(name)},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(3600)), RenewTime: new(metav1.NowMicro()),
		},
	}
	g.Expect(l.client.Create(t.Context(), lease)).To(Succeed())
	l.agent(t, g, name, v1alpha1.PhaseRebooting)
	g.Eventually(l.status(t, name)).WithTimeout(eventually).Should(Satisfy(reason(v1alpha1.OutOfBandPowerInUse)))
	got, err := l.status(t, name)()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got.Message).To(ContainSubstring(holder))
	g.Expect(got.Intent).To(BeNil())
	g.Expect(l.emulator.Resets(uuidOf(6))).To(BeZero())
	lease.Spec.HolderIdentity = nil
	g.Expect(l.client.Update(t.Context(), lease)).To(Succeed())

	g.Eventually(l.status(t, name)).WithTimeout(3 * eventually).Should(HaveField("Evidence", Not(BeNil())))
	got, err = l.status(t, name)()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got.Reason).To(Equal(v1alpha1.OutOfBandResetsUsedUp))
	g.Expect(got.Intent).To(And(HaveField("Action", "On"), HaveField("BootFrom", "Disk")))
	// How the power looks in between is the emulator's: it takes its time, and keeps a machine off that it restarts.
	var acts []string
	for _, event := range got.History {
		if event.Action != "" {
			acts = append(acts, event.Action)
		}
	}
	g.Expect(acts).To(Equal([]string{"ForceRestart", "ForceOff", "On"}))
	g.Expect(got.History[len(got.History)-1].Power).To(Equal(v1alpha1.PowerOn))
	g.Expect(got.Evidence.Console).To(BeFalse(), "sushy-tools keeps no console")
	// sushy-tools keeps every override until it is changed.
	g.Expect(got.BootOverride).To(Equal("asked to boot from disk once; the BMC keeps: Disk until it is changed UEFI"))
	g.Expect(l.bootTarget(t, g, uuidOf(6))).To(Equal(bmc.BootDisk))
	l.leaseIsFree(t, g, name)
}

// bootTarget is what a machine's BMC says it boots from.
func (l *lab) bootTarget(t *testing.T, g Gomega, uuid string) bmc.BootTarget {
	t.Helper()
	address, err := bmc.ParseAddress(l.emulator.Address(uuid))
	g.Expect(err).NotTo(HaveOccurred())
	machine, err := connect.Open(t.Context(), bmc.Options{
		Address: address, Credentials: bmc.Credentials{Username: bmcUser, Password: bmcPassword}, CA: l.emulator.CA(),
	})
	g.Expect(err).NotTo(HaveOccurred())
	state, err := machine.Boot(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(machine.Close(t.Context())).To(Succeed())

	return state.Target
}

// owns checks that our field manager has status.outOfBand and nothing else.
func (l *lab) owns(t *testing.T, g Gomega, name string) {
	t.Helper()
	var update v1alpha1.NodeUpdate
	g.Expect(l.client.Get(t.Context(), client.ObjectKey{Name: name}, &update)).To(Succeed())
	g.Expect(update.Status.Phase).To(Equal(v1alpha1.PhaseProving), "the agent's part was lost")
	owned := 0
	for _, entry := range update.ManagedFields {
		if entry.Manager != v1alpha1.FieldManagerOutOfBand {
			continue
		}
		owned++
		var fields map[string]map[string]any
		g.Expect(json.NewDecoder(bytes.NewReader(entry.FieldsV1.GetRawBytes())).Decode(&fields)).To(Succeed())
		g.Expect(fields).To(HaveLen(1))
		g.Expect(fields["f:status"]).To(HaveLen(1))
		g.Expect(fields["f:status"]).To(HaveKey("f:outOfBand"))
	}
	g.Expect(owned).To(Equal(1))
}

func (l *lab) reasons(t *testing.T, host string) ([]string, error) {
	t.Helper()

	return l.reasonsOf(t, "BareMetalHost", host)
}

// reasonsOf are the reasons of the events of an object.
func (l *lab) reasonsOf(t *testing.T, kind, name string) ([]string, error) {
	t.Helper()
	var list eventsv1.EventList
	if err := l.client.List(t.Context(), &list); err != nil {
		return nil, fmt.Errorf("listing events: %w", err)
	}
	var reasons []string
	for _, event := range list.Items {
		if strings.Contains(event.Note, bmcPassword) {
			t.Errorf("an event holds the password: %s", event.Note)
		}
		if event.Regarding.Kind == kind && event.Regarding.Name == name {
			reasons = append(reasons, event.Reason)
		}
	}

	return reasons, nil
}

// foundIntent starts from what a process leaves that was killed between storing an intent and storing that it was
// sent. The action may have been sent, so the next one comes only after the whole wait, as another reset.
func (l *lab) foundIntent(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	const whole = 8 * time.Second
	l.machine(t, g, "killed", uuidOf(1), bmcPassword, whole)
	decided := metav1.NewMicroTime(nextSecond(g))
	left, err := applyStatus("killed", "", &v1alpha1.OutOfBandStatus{
		Attempt: "a1", Phase: v1alpha1.OutOfBandResetting, Reason: v1alpha1.OutOfBandDeadlinePassed, Resets: 1,
		Intent: &v1alpha1.PowerIntent{
			ID: "a1-1-ForceRestart", Action: "ForceRestart", DecidedAt: decided, ObservedPower: v1alpha1.PowerOn,
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	unstructured.RemoveNestedField(left.Object, "metadata", "resourceVersion")
	g.Expect(l.client.Status().Apply(t.Context(), client.ApplyConfigurationFromUnstructured(left),
		client.FieldOwner(v1alpha1.FieldManagerOutOfBand))).To(Succeed())
	l.agent(t, g, "killed", v1alpha1.PhaseRebooting)
	g.Eventually(func() (int, error) { return l.emulator.Resets(uuidOf(1)) }).WithTimeout(eventually).Should(Equal(1))
	g.Expect(time.Since(decided.Time)).To(BeNumerically(">", whole))
	g.Eventually(l.status(t, "killed")).WithTimeout(eventually).
		Should(And(HaveField("Resets", BeEquivalentTo(2)), HaveField("Intent.ID", HavePrefix("a1-2-"))))
}

// silentAfterItWasBack is a machine whose agent has said that it is back, and which hangs while its boot is proved. Its
// clock is two hours ahead.
func (l *lab) silentAfterItWasBack(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	const name, patience = "hangs", v1alpha1.DefaultSilentAfter + time.Minute
	l.machine(t, g, name, uuidOf(4), bmcPassword, 24*time.Hour)
	l.node(t, g, name, managerKubelet, func(status *corev1.NodeStatus) {
		status.NodeInfo.BootID = "new"
		status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(time.Now().Add(2 * time.Hour)),
		}}
	})
	l.agentIn(t, g, "new", name, v1alpha1.PhaseProving)
	g.Eventually(l.status(t, name)).WithTimeout(eventually).Should(HaveField("Deadline", Not(BeNil())))
	first, err := l.status(t, name)()
	g.Expect(err).NotTo(HaveOccurred())
	// Neither the agent nor the kubelet writes anything; that the Node is not Unknown is enough.
	waits := func() (v1alpha1.OutOfBandStatus, error) {
		// Once it is being reset, time goes on as it does.
		if got, err := l.status(t, name)(); err != nil || got.Phase != v1alpha1.OutOfBandWatching {
			return got, err
		}
		l.clock.move(patience)
		l.node(t, g, name, "another", func(status *corev1.NodeStatus) { status.Phase += "." })

		return l.status(t, name)()
	}
	_, err = waits()
	g.Expect(err).NotTo(HaveOccurred())
	later := func(status v1alpha1.OutOfBandStatus) bool { return status.Deadline.After(first.Deadline.Time) }
	g.Eventually(l.status(t, name)).WithTimeout(eventually).Should(Satisfy(later))
	g.Expect(l.emulator.Resets(uuidOf(4))).To(BeZero())

	l.node(t, g, name, "kube-controller-manager", func(status *corev1.NodeStatus) {
		status.Conditions[0].Status, status.Conditions[0].LastTransitionTime = corev1.ConditionUnknown, metav1.Now()
	})
	// A pass that began before may have taken the Node for alive: then the next wait counts.
	g.Eventually(waits).WithTimeout(eventually).WithPolling(2 * time.Second).
		Should(Satisfy(reason(v1alpha1.OutOfBandWaitingAfterReset)))
	g.Expect(l.emulator.Resets(uuidOf(4))).To(Equal(1))
	l.agentIn(t, g, "after the reset", name, v1alpha1.PhaseRolledBack)
	g.Eventually(l.status(t, name)).WithTimeout(eventually).Should(Satisfy(reason(v1alpha1.OutOfBandMachineBack)))
}

// wrongMachine has a Node whose UUID is not that of the machine behind the BMC.
func (l *lab) wrongMachine(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	l.machine(t, g, "wrong", uuidOf(2), bmcPassword, time.Hour)
	var node corev1.Node
	g.Expect(l.client.Get(t.Context(), client.ObjectKey{Name: "wrong"}, &node)).To(Succeed())
	node.Status.NodeInfo.SystemUUID = "00000000-1111-4222-8333-444444444444"
	g.Expect(l.client.Status().Update(t.Context(), &node)).To(Succeed())
	l.agent(t, g, "wrong", v1alpha1.PhaseRebooting)
	g.Eventually(l.status(t, "wrong")).WithTimeout(eventually).Should(Satisfy(reason(v1alpha1.OutOfBandHostNotFound)))
	g.Expect(l.emulator.Resets(uuidOf(2))).To(BeZero())
	got, err := l.status(t, "wrong")()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got.Message).To(ContainSubstring(uuidOf(2)))
	g.Expect(got.Resets).To(BeZero())
}

func (l *lab) wrongPassword(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	l.machine(t, g, "locked", uuidOf(3), "not-the-password", time.Hour)
	l.agent(t, g, "locked", v1alpha1.PhaseRebooting)
	g.Eventually(l.status(t, "locked")).WithTimeout(eventually).Should(Satisfy(reason(v1alpha1.OutOfBandBMCCredentials)))
	got, err := l.status(t, "locked")()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got.Resets).To(BeZero())
	g.Expect(got.Message).NotTo(ContainSubstring("not-the-password"))
	g.Expect(l.emulator.Resets(uuidOf(3))).To(BeZero())
}
