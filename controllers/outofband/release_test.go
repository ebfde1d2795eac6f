package outofband

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

const otherKey = "reboot.metal3.io/another"

// held makes a machine whose pool says Metal3, and whose host Metal3 keeps off, for us and for another.
func (l *lab) held(t *testing.T, g Gomega, name string) {
	t.Helper()
	l.machine(t, g, name, uuidOf(5), bmcPassword, time.Hour)
	l.viaMetal3(t, g, name)
	l.annotate(t, g, name, map[string]any{ownRebootAnnotation: hardReboot, otherKey: `{"mode":"soft"}`})
}

// viaMetal3 sets the NodeUpdate as a pool with powerVia Metal3 has it.
func (l *lab) viaMetal3(t *testing.T, g Gomega, name string) {
	t.Helper()
	update := &v1alpha1.NodeUpdate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.Expect(l.client.Patch(t.Context(), update, client.RawPatch("application/merge-patch+json",
		[]byte(`{"spec":{"outOfBand":{"powerVia":"Metal3"}}}`)))).To(Succeed())
}

func (l *lab) annotate(t *testing.T, g Gomega, name string, annotations map[string]any) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(l.client.Patch(t.Context(), &metal3.BareMetalHost{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: name}},
		client.RawPatch("application/merge-patch+json", patch), client.FieldOwner("a test"))).To(Succeed())
}

func (l *lab) keys(t *testing.T, name string) func() ([]string, error) {
	t.Helper()

	return func() ([]string, error) {
		var host metal3.BareMetalHost
		err := l.client.Get(t.Context(), client.ObjectKey{Namespace: "metal", Name: name}, &host)
		var keys []string
		for annotation := range host.Annotations {
			if strings.HasPrefix(annotation, metal3.RebootAnnotationPrefix) {
				keys = append(keys, annotation)
			}
		}

		return keys, err
	}
}

// intent stores what a process leaves that was killed after it had asked Metal3 to keep the machine off.
func (l *lab) intent(t *testing.T, g Gomega, name string, decided time.Time) {
	t.Helper()
	left, err := applyStatus(name, "", &v1alpha1.OutOfBandStatus{
		Attempt: "a1", Phase: v1alpha1.OutOfBandResetting, Reason: v1alpha1.OutOfBandDeadlinePassed, Resets: 1,
		Intent: &v1alpha1.PowerIntent{
			ID: "a1-1-ForceOff", Action: "ForceOff", DecidedAt: metav1.NewMicroTime(decided), ObservedPower: v1alpha1.PowerOn,
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	unstructured.RemoveNestedField(left.Object, "metadata", "resourceVersion")
	g.Expect(l.client.Status().Apply(t.Context(), client.ApplyConfigurationFromUnstructured(left),
		client.FieldOwner(v1alpha1.FieldManagerOutOfBand))).To(Succeed())
}

// leftKeys are hosts with our key: what was left behind goes, what a reset needs stays, and what is not ours stays.
func (l *lab) leftKeys(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	// Its pool never was, or was deleted.
	l.machine(t, g, "left-pool", uuidOf(5), bmcPassword, time.Hour)
	l.relabel(t, g, "left-pool")
	l.annotate(t, g, "left-pool", map[string]any{ownRebootAnnotation: hardReboot, otherKey: ""})
	// No reset was ever begun.
	l.held(t, g, "no-reset")
	l.agent(t, g, "no-reset", v1alpha1.PhaseStaged)
	for _, name := range []string{"left-pool", "no-reset"} {
		g.Eventually(l.keys(t, name)).WithTimeout(eventually).Should(ConsistOf(otherKey), name)
		g.Eventually(func() ([]string, error) { return l.reasons(t, name) }).WithTimeout(eventually).Should(ContainElement(reasonPowerReleased))
	}
}

// killedWhileHeld is a process that was killed between setting the key and taking it off.
func (l *lab) killedWhileHeld(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	const name = "held"
	l.machine(t, g, name, uuidOf(5), bmcPassword, time.Hour)
	l.viaMetal3(t, g, name)
	l.intent(t, g, name, nextSecond(g))
	l.agent(t, g, name, v1alpha1.PhaseRebooting)
	l.annotate(t, g, name, map[string]any{ownRebootAnnotation: hardReboot})
	before, err := l.emulator.Resets(uuidOf(5))
	g.Expect(err).NotTo(HaveOccurred())
	g.Consistently(l.keys(t, name)).WithTimeout(4*time.Second).Should(ConsistOf(ownRebootAnnotation), "the reset is under way")
	// Metal3 has taken the power away: the next process ends the reset.
	l.powered(t, g, name, false)
	g.Eventually(l.keys(t, name)).WithTimeout(eventually).Should(BeEmpty())
	g.Eventually(l.status(t, name)).WithTimeout(eventually).Should(HaveField("Intent.ID", "a1-1-On"))
	l.powered(t, g, name, true)
	g.Expect(l.emulator.Resets(uuidOf(5))).To(Equal(before), "the BMC was asked, too")
}

// backWhileHeld is a machine that comes back although Metal3 was asked to keep it off.
func (l *lab) backWhileHeld(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	const name = "back-while-held"
	l.machine(t, g, name, uuidOf(5), bmcPassword, time.Hour)
	l.viaMetal3(t, g, name)
	l.intent(t, g, name, nextSecond(g))
	l.agent(t, g, name, v1alpha1.PhaseRebooting)
	l.annotate(t, g, name, map[string]any{ownRebootAnnotation: hardReboot})
	g.Consistently(l.keys(t, name)).WithTimeout(4*time.Second).Should(ConsistOf(ownRebootAnnotation), "the reset is under way")
	l.comesBack(t, g, "new", name)
	g.Eventually(l.keys(t, name)).WithTimeout(eventually).Should(BeEmpty())
}

func (l *lab) relabel(t *testing.T, g Gomega, name string) {
	t.Helper()
	g.Expect(l.client.Patch(t.Context(), &metal3.BareMetalHost{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: name}},
		client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"pool":"gone"}}}`)))).To(Succeed())
}

// powered writes what baremetal-operator sees of the power.
func (l *lab) powered(t *testing.T, g Gomega, name string, on bool) {
	t.Helper()
	patch := `{"status":{"poweredOn":false}}`
	if on {
		patch = `{"status":{"poweredOn":true}}`
	}
	g.Expect(l.client.Status().Patch(t.Context(), &metal3.BareMetalHost{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: name}},
		client.RawPatch("application/merge-patch+json", []byte(patch)))).To(Succeed())
}
