package outofband

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/test/apiserver"
	"github.com/stayput-dev/stayput/test/lab/bmo"
	"github.com/stayput-dev/stayput/test/lab/redfish"
)

// What baremetal-operator promises, by internal/controller/metal3.io/baremetalhost_controller.go of v0.13.2:
//
//   - While any reboot annotation is on a provisioned host, with or without a key, it drives the power off, and on, as
//     spec.online says, when none is (manageHostPower, which asks hasRebootAnnotation). It does not keep who came first,
//     and waits for nobody: one that asks for a hard reboot has it for all.
//   - It takes the annotation without a key off itself, once the power is off. One with a key it leaves to its owner
//     (manageHostPower); it takes all of them when it inspects, provisions or deprovisions (clearRebootAnnotations).
//   - It compares what is with what shall be, now and then. A key that came and went between two looks was never there.
//   - It switches the power at most once between two writes of status.poweredOn: until the host says what the provisioner
//     sees, it only writes that (the first lines of manageHostPower).
//
// So these tests wait for what a host becomes, in a history that has each write of it, and bring two holders together only
// where one cannot have gone before the other has come.

const (
	theirs = `{"mode":"soft"}`
	note   = "example.com/note"
)

// TestBesideMetal3 runs the controller beside baremetal-operator itself, and looks at each write of the hosts. In its
// test mode all machines have one power, so that it has one host to look after at a time, and the others are detached.
func TestBesideMetal3(t *testing.T) {
	t.Parallel()
	log.SetLogger(logr.Discard())
	server, err := apiserver.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"alone", "second", "met", "never-off"}
	systems := make([]redfish.FakeSystem, 0, len(names))
	for i, name := range names {
		systems = append(systems, redfish.FakeSystem{UUID: uuidOf(i), Name: name, PoweredOn: true})
	}
	b := &metal3Lab{lab: &lab{
		client: server.Client, clock: &movedClock{}, emulator: redfish.StartFake(t, bmcUser, bmcPassword, systems...),
	}, server: server}
	g := NewWithT(t)
	b.make(t, g)
	for i, name := range names {
		b.machine(t, g, name, uuidOf(i), bmcPassword, time.Hour)
		b.viaMetal3(t, g, name)
		b.external(t, g, name)
	}
	b.spec(t, g, "never-off", `{"disablePowerOff":true}`)
	b.operator, err = bmo.Start(t.Context(), bmo.Options{
		Kubeconfig: server.Kubeconfig, Namespace: "metal", Dir: t.TempDir(), Report: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("baremetal-operator's log:\n%s", b.operator.Tail(60))
		}
		for _, stop := range []func() error{b.operator.Stop, server.Stop} {
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	})
	b.start(t, server)
	for _, name := range names {
		b.becomes(t, g, name, HaveField("Status.OperationalStatus", metal3.OperationalStatusDetached))
	}
	detached := b.detachedHost(t, "alone", uuidOf(0))
	b.theirsFirst(t, "second", uuidOf(1))
	b.theirsMeanwhile(t, "met", uuidOf(2))
	b.leftBehind(t, "met")
	b.quiet(t, "met")
	b.letGo(t, g, "met")
	b.neverOff(t, "never-off", uuidOf(3))
	b.becomes(t, g, "alone", HaveField("ResourceVersion", detached))
}

// metal3Lab is a lab in which baremetal-operator runs.
type metal3Lab struct {
	*lab

	server   *apiserver.Server
	operator *bmo.Operator
}

// external makes a host one whose machine Metal3 has not provisioned, and which is detached.
func (b *metal3Lab) external(t *testing.T, g Gomega, name string) {
	t.Helper()
	b.spec(t, g, name, `{"externallyProvisioned":true}`)
	host := &metal3.BareMetalHost{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: name}}
	g.Expect(b.client.Status().Patch(t.Context(), host, client.RawPatch("application/merge-patch+json",
		[]byte(`{"status":{"provisioning":{"state":"externally provisioned"}}}`)))).To(Succeed())
	b.annotate(t, g, name, map[string]any{metal3.DetachedAnnotation: "by a test"})
}

// spec changes a host's spec, as its operator would.
func (b *metal3Lab) spec(t *testing.T, g Gomega, name, spec string) {
	t.Helper()
	host := &metal3.BareMetalHost{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: name}}
	g.Expect(b.client.Patch(t.Context(), host, client.RawPatch("application/merge-patch+json",
		[]byte(`{"spec":`+spec+`}`)))).To(Succeed())
}

func (b *metal3Lab) host(t *testing.T, name string) func() (*metal3.BareMetalHost, error) {
	t.Helper()

	return func() (*metal3.BareMetalHost, error) {
		var host metal3.BareMetalHost
		err := b.client.Get(t.Context(), client.ObjectKey{Namespace: "metal", Name: name}, &host)

		return &host, err
	}
}

func (b *metal3Lab) becomes(t *testing.T, g Gomega, name string, want OmegaMatcher) {
	t.Helper()
	g.Eventually(b.host(t, name)).WithTimeout(eventually).Should(want, name)
}

// says waits for what the controller says of a machine. It looks at a host that another is busy with every 30 s.
func (b *metal3Lab) says(t *testing.T, g Gomega, name string, want v1alpha1.OutOfBandReason) {
	t.Helper()
	g.Eventually(b.status(t, name)).WithTimeout(2 * eventually).Should(Satisfy(reason(want)))
}

// attach gives a host to Metal3, and follows it from when its machine is on. It also gives how often the power was
// switched before.
func (b *metal3Lab) attach(t *testing.T, g Gomega, name string) (*history, int) {
	t.Helper()
	b.annotate(t, g, name, map[string]any{metal3.DetachedAnnotation: nil, note: "kept"})
	b.becomes(t, g, name, And(HaveField("Status.PoweredOn", true), HaveField("Finalizers", Not(BeEmpty())),
		HaveField("Status.OperationalStatus", metal3.OperationalStatusOK)))
	h := follow(t, g, b.server, name)
	account, err := b.operator.Account(name)
	g.Expect(err).NotTo(HaveOccurred())

	return h, len(account.Switches)
}

// letGo makes Metal3 let the host go.
func (b *metal3Lab) letGo(t *testing.T, g Gomega, name string) {
	t.Helper()
	b.annotate(t, g, name, map[string]any{metal3.DetachedAnnotation: "by a test"})
	b.becomes(t, g, name, HaveField("Status.OperationalStatus", metal3.OperationalStatusDetached))
}

// detachedHost is reset through its BMC although the pool says Metal3, and nobody writes it: it stays at the version
// that is given.
func (b *metal3Lab) detachedHost(t *testing.T, name, uuid string) string {
	t.Helper()
	g := NewWithT(t)
	before, err := b.host(t, name)()
	g.Expect(err).NotTo(HaveOccurred())
	b.agent(t, g, name, v1alpha1.PhaseRebooting)
	b.says(t, g, name, v1alpha1.OutOfBandWaitingAfterReset)
	g.Expect(b.emulator.Resets(uuid)).To(Equal(1))
	b.comesBack(t, g, "new", name)
	after, err := b.host(t, name)()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(after.ResourceVersion).To(Equal(before.ResourceVersion), "the detached host was written")

	return after.ResourceVersion
}

// resetsAfter changes how long a machine may be silent after a reset.
func (b *metal3Lab) resetsAfter(t *testing.T, g Gomega, name string, after time.Duration) {
	t.Helper()
	update := &v1alpha1.NodeUpdate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.Expect(b.client.Patch(t.Context(), update, client.RawPatch("application/merge-patch+json",
		[]byte(`{"spec":{"outOfBand":{"silentAfterReset":"`+after.String()+`"}}}`)))).To(Succeed())
}

// theirsFirst is a machine that another keeps off: it is reset after their turn, in one of its own.
func (b *metal3Lab) theirsFirst(t *testing.T, name, uuid string) {
	t.Helper()
	g := NewWithT(t)
	h, before := b.attach(t, g, name)
	b.resetsAfter(t, g, name, 15*time.Second)
	b.annotate(t, g, name, map[string]any{otherKey: theirs})
	h.await(t, g, "off for another", off())
	b.agent(t, g, name, v1alpha1.PhaseRebooting)
	b.says(t, g, name, v1alpha1.OutOfBandHostBusy)
	g.Expect(b.keys(t, name)()).To(ConsistOf(otherKey), "another's turn")
	b.annotate(t, g, name, map[string]any{otherKey: nil})
	h.await(t, g, "on after another", on())
	b.says(t, g, name, v1alpha1.OutOfBandWaitingForMachine) // they may have rebooted it
	h.await(t, g, "our key", held())
	b.resetsAfter(t, g, name, time.Hour)
	h.await(t, g, "on after our key", on())
	b.says(t, g, name, v1alpha1.OutOfBandWaitingAfterReset)
	g.Expect(b.switches(t, name, before)()).To(HaveExactElements(bmo.Off, bmo.On, bmo.Off, bmo.On), "theirs and ours")
	b.wasReset(t, g, name, uuid, h)
	b.letGo(t, g, name)
}

// theirsMeanwhile is a machine that another keeps off, too, from the middle of our turn on: both have what they want of
// one cycle of the power, and neither takes the other's key.
func (b *metal3Lab) theirsMeanwhile(t *testing.T, name, uuid string) {
	t.Helper()
	g := NewWithT(t)
	h, before := b.attach(t, g, name)
	// Our key stays while Metal3 does not answer it, also when we look again; so theirs comes before it goes.
	g.Expect(b.operator.Pause()).To(Succeed())
	b.agent(t, g, name, v1alpha1.PhaseRebooting)
	h.await(t, g, "our key", held())
	g.Eventually(b.status(t, name)).WithTimeout(eventually).Should(And(
		HaveField("Power", v1alpha1.PowerState(bmc.PowerTransition)), Satisfy(reason(v1alpha1.OutOfBandPowerActionSent))))
	g.Expect(b.keys(t, name)()).To(ConsistOf(ownRebootAnnotation), "a machine that is still on")
	b.annotate(t, g, name, map[string]any{otherKey: theirs})
	g.Expect(b.operator.Resume()).To(Succeed())
	h.await(t, g, "off for both", off())
	b.says(t, g, name, v1alpha1.OutOfBandHostBusy)
	g.Expect(b.host(t, name)()).To(And(
		HaveField("Annotations", HaveKeyWithValue(otherKey, theirs)), HaveField("Status.PoweredOn", false)), "another's turn")
	b.annotate(t, g, name, map[string]any{otherKey: nil})
	h.await(t, g, "on after both", on())
	b.says(t, g, name, v1alpha1.OutOfBandWaitingAfterReset)
	g.Expect(b.switches(t, name, before)()).To(HaveExactElements(bmo.Off, bmo.On), "one for both")
	b.wasReset(t, g, name, uuid, h)
}

// switches are what Metal3 has done to the power since it had switched it so many times.
func (b *metal3Lab) switches(t *testing.T, name string, before int) func() ([]bmo.Switch, error) {
	t.Helper()

	return func() ([]bmo.Switch, error) {
		account, err := b.operator.Account(name)

		return account.Switches[min(before, len(account.Switches)):], err
	}
}

// wasReset checks a reset that was asked of Metal3 and of nobody else, and lets the machine come back.
func (b *metal3Lab) wasReset(t *testing.T, g Gomega, name, uuid string, h *history) {
	t.Helper()
	got, err := b.status(t, name)()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got.Intent).To(HaveField("Action", "On"))
	g.Expect(got.Resets).To(BeEquivalentTo(1))
	g.Expect(b.emulator.Resets(uuid)).To(BeZero(), "the BMC was asked, too")
	versions := h.read()
	set, taken := keyWrites(g, versions)
	g.Expect([]int{set, taken}).To(Equal([]int{1, 1}), "how often our key was set and taken off")
	last := versions[len(versions)-1]
	g.Expect(last).To(And(on(), HaveField("Annotations", HaveKeyWithValue(note, "kept"))))
	b.comesBack(t, g, "new", name)
}

// leftBehind is our key, with theirs beside it, on a host of a machine that is back: ours is taken off, and theirs keeps
// the machine off until they are done.
func (b *metal3Lab) leftBehind(t *testing.T, name string) {
	t.Helper()
	g := NewWithT(t)
	h := follow(t, g, b.server, name)
	b.annotate(t, g, name, map[string]any{ownRebootAnnotation: hardReboot, otherKey: theirs})
	h.await(t, g, "our key", held())
	h.await(t, g, "theirs alone", onlyTheirs())
	b.becomes(t, g, name, And(off(), onlyTheirs()))
	b.annotate(t, g, name, map[string]any{otherKey: nil})
	h.await(t, g, "on after another", on())
	onlyOurKey(g, h.read())
}

// neverOff is a host of Metal3's whose machine must not be switched off: it is restarted through its BMC, and Metal3 sees
// nothing of it.
func (b *metal3Lab) neverOff(t *testing.T, name, uuid string) {
	t.Helper()
	g := NewWithT(t)
	h, before := b.attach(t, g, name)
	b.agent(t, g, name, v1alpha1.PhaseRebooting)
	b.says(t, g, name, v1alpha1.OutOfBandWaitingAfterReset)
	got, err := b.status(t, name)()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(got.Intent).To(HaveField("Action", "ForceRestart"))
	g.Expect(b.emulator.Resets(uuid)).To(Equal(1))
	b.comesBack(t, g, "new", name)
	b.annotate(t, g, name, map[string]any{note: "last"})
	h.await(t, g, "the last poke", HaveField("Annotations", HaveKeyWithValue(note, "last")))
	g.Expect(h.read()).To(HaveEach(on()))
	g.Expect(onlyOurKey(g, h.read())).To(BeZero(), "versions in which our field manager has anything")
	g.Expect(b.switches(t, name, before)()).To(BeEmpty())
}

// quiet looks at the host while there is nothing to do: whatever makes Metal3 look at it again, neither takes back what
// the other has done, nor writes anything at all.
func (b *metal3Lab) quiet(t *testing.T, name string) {
	t.Helper()
	g := NewWithT(t)
	const pokes = 3
	h := follow(t, g, b.server, name)
	looks := func() (int, error) { account, err := b.operator.Account(name); return account.Looks, err }
	h.await(t, g, "what it is", on())
	for range pokes {
		before, err := looks()
		g.Expect(err).NotTo(HaveOccurred())
		b.annotate(t, g, name, map[string]any{note: time.Now().String()})
		g.Eventually(looks).WithTimeout(eventually).Should(BeNumerically(">", before), "Metal3 does not look at the host")
	}
	b.annotate(t, g, name, map[string]any{note: "last"})
	h.await(t, g, "the last poke", HaveField("Annotations", HaveKeyWithValue(note, "last")))
	versions := h.read()
	g.Expect(versions).To(HaveEach(on()))
	g.Expect(versions).To(HaveLen(1+pokes+1), "the host was written by others than this test")
}

// held, on and off are what a host may become.
func held() OmegaMatcher {
	return HaveField("Annotations", HaveKeyWithValue(ownRebootAnnotation, hardReboot))
}

func off() OmegaMatcher { return HaveField("Status.PoweredOn", false) }

// on is a machine that is on, and that nobody wants off.
func on() OmegaMatcher {
	return And(HaveField("Status.PoweredOn", true), Not(held()), WithTransform(rebootedByAnother, BeEmpty()))
}

// onlyTheirs is a host that another alone keeps off.
func onlyTheirs() OmegaMatcher {
	return And(HaveField("Annotations", HaveKeyWithValue(otherKey, theirs)), Not(held()))
}

// keyWrites checks each write of our key, and counts them: it is set on a machine that is on and that nobody else wants
// off, and taken off when the power was seen off.
func keyWrites(g Gomega, versions []*metal3.BareMetalHost) (set, taken int) {
	owned := onlyOurKey(g, versions)
	for i, after := range versions[1:] {
		before := versions[i]
		switch had, has := has(before, ownRebootAnnotation), has(after, ownRebootAnnotation); {
		case !had && has:
			set++
			g.Expect(before).To(on(), "a host that got our key")
			g.Expect(after).To(held())
		case had && !has:
			taken++
			g.Expect(before).To(off(), "a host that lost our key")
		}
	}
	g.Expect(owned).To(BeNumerically(">", 0), "versions in which our field manager has our key")

	return set, taken
}

// onlyOurKey checks that no write changed the spec, that with our key nothing else went, and that our field manager has
// our key and nothing else of the host. It gives in how many versions it has it.
func onlyOurKey(g Gomega, versions []*metal3.BareMetalHost) (owned int) {
	for i, now := range versions {
		owned += ownedFields(g, now)
		if i == 0 {
			continue
		}
		before := versions[i-1]
		g.Expect(now.Generation).To(Equal(before.Generation), "the spec was written")
		if has(before, ownRebootAnnotation) && !has(now, ownRebootAnnotation) {
			rest := maps.Clone(before.Annotations)
			delete(rest, ownRebootAnnotation)
			g.Expect(now.Annotations).To(Equal(rest), "what is left without our key")
		}
	}

	return owned
}

// ownedFields is 1 when our field manager has our key, and 0 when it has nothing.
func ownedFields(g Gomega, host *metal3.BareMetalHost) int {
	owned := 0
	for _, entry := range host.ManagedFields {
		if entry.Manager != v1alpha1.FieldManagerOutOfBand {
			continue
		}
		owned++
		g.Expect(entry.Subresource).To(BeEmpty())
		g.Expect(entry.FieldsV1.GetRawBytes()).To(Or(
			MatchJSON(`{"f:metadata":{"f:annotations":{"f:`+ownRebootAnnotation+`":{}}}}`),
			MatchJSON(`{"f:metadata":{"f:annotations":{".":{},"f:`+ownRebootAnnotation+`":{}}}}`)), "what is ours of the host")
	}

	return owned
}

// history has each version of a host, from the one that it had when it was begun.
type history struct {
	mu       sync.Mutex
	versions []*metal3.BareMetalHost
	// next is the first version that was not awaited yet.
	next int
}

func (h *history) add(host *metal3.BareMetalHost) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.versions = append(h.versions, host)
}

func (h *history) read() []*metal3.BareMetalHost {
	h.mu.Lock()
	defer h.mu.Unlock()

	return slices.Clone(h.versions)
}

// await waits for a version like this, later than the one that was awaited before.
func (h *history) await(t *testing.T, g Gomega, what string, want OmegaMatcher) {
	t.Helper()
	g.Eventually(func() (bool, error) {
		for versions := h.read(); h.next < len(versions); {
			h.next++
			if match, err := want.Match(versions[h.next-1]); match || err != nil {
				return match, err
			}
		}

		return false, nil
	}).WithTimeout(2*eventually).WithPolling(50*time.Millisecond).Should(BeTrue(), "%s did not come; %s", what, h)
}

// String has the keys and the power of each version.
func (h *history) String() string {
	var text strings.Builder
	for _, host := range h.read() {
		fmt.Fprintf(&text, "%s: on %t, %v\n", host.ResourceVersion, host.Status.PoweredOn, host.Annotations)
	}

	return text.String()
}

// follow begins a history, which has what is then, and each write until the test ends.
func follow(t *testing.T, g Gomega, server *apiserver.Server, name string) *history {
	t.Helper()
	scheme, err := apiserver.Scheme()
	g.Expect(err).NotTo(HaveOccurred())
	watcher, err := client.NewWithWatch(server.Config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(t.Context())
	events, err := watcher.Watch(ctx, &metal3.BareMetalHostList{}, client.InNamespace("metal"), client.MatchingFields{"metadata.name": name})
	g.Expect(err).NotTo(HaveOccurred())
	h, done := &history{}, make(chan struct{})
	go func() {
		defer close(done)
		for event := range events.ResultChan() {
			if host, ok := event.Object.(*metal3.BareMetalHost); ok {
				h.add(host)
			}
		}
	}()
	t.Cleanup(func() { cancel(); events.Stop(); <-done })

	return h
}
