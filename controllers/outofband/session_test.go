package outofband

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/apiserver"
)

// A machine that waits for a person keeps its status for hours: a process that begins to lead meanwhile counts it.
func TestASilentMachineIsCountedAfterAFailover(t *testing.T) {
	t.Parallel()
	for phase, want := range map[v1alpha1.OutOfBandPhase]float64{
		v1alpha1.OutOfBandNeedsHuman: 1, v1alpha1.OutOfBandSilent: 1, v1alpha1.OutOfBandResetting: 1,
		v1alpha1.OutOfBandWatching: 0, v1alpha1.OutOfBandRecovered: 0,
	} {
		scheme, err := apiserver.Scheme()
		if err != nil {
			t.Fatal(err)
		}
		cluster := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&v1alpha1.NodeUpdate{
			ObjectMeta: metav1.ObjectMeta{Name: "n1"},
			Status: v1alpha1.NodeUpdateStatus{
				Attempt: "a1", Phase: v1alpha1.PhaseRebooting, OutOfBand: &v1alpha1.OutOfBandStatus{Attempt: "a1", Phase: phase},
			},
		}).Build()
		m, err := newMetrics(prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		s := &session{
			Reconciler: &Reconciler{home: cluster, metrics: m, clock: clocktesting.NewFakePassiveClock(testStart())},
			request:    Request{Node: "n1"}, reader: cluster,
		}
		if _, err := s.load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := testutil.ToFloat64(m.silent); got != want {
			t.Errorf("%s: %v machines are counted, want %v", phase, got, want)
		}
	}
}
