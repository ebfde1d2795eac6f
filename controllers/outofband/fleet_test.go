package outofband

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// A kernel that is alive accepts or refuses; one that is not says nothing. What says nothing is a socket whose queue is
// full.
func TestAnswersTCP(t *testing.T) {
	t.Parallel()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := int32(listener.Addr().(*net.TCPAddr).Port) //nolint:forcetypeassert // it is one
	if !answersTCP(t.Context(), []string{"127.0.0.1"}, port) {
		t.Error("a kubelet that listens does not answer")
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if !answersTCP(t.Context(), []string{"127.0.0.1"}, port) {
		t.Error("a kernel that refuses does not answer")
	}
	if answersTCP(t.Context(), nil, port) {
		t.Error("a Node without addresses answers")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if answersTCP(ended, []string{"127.0.0.1"}, port) {
		t.Error("nobody was asked, and it answers")
	}
}

// fleet is a session of Node n0 of a pool, in a cluster that holds all its Nodes.
func fleet(t *testing.T, objects ...client.Object) *session {
	t.Helper()

	return &session{
		Reconciler: &Reconciler{clock: clocktesting.NewFakePassiveClock(testStart()), pace: newPace(1)},
		request:    Request{Node: "n0"}, writer: hosts(t, nil, objects...),
		pool: v1alpha1.HostPool{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "gpu"}},
	}
}

// member is a Node with its NodeUpdate.
func member(name, pool string, phase v1alpha1.Phase, ready corev1.ConditionStatus) []client.Object {
	return []client.Object{
		&v1alpha1.NodeUpdate{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.NodeUpdateSpec{Door: v1alpha1.Door{Namespace: "metal", Name: pool, Host: name}},
			Status:     v1alpha1.NodeUpdateStatus{Phase: phase},
		},
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: ready, LastTransitionTime: metav1.NewTime(testStart()),
			}}},
		},
	}
}

func TestPermit(t *testing.T) {
	t.Parallel()
	const unknown, ready, idle = corev1.ConditionUnknown, corev1.ConditionTrue, v1alpha1.PhaseStaged
	of := func(members ...[]client.Object) (all []client.Object) {
		for _, each := range append(members, member("n0", "gpu", v1alpha1.PhaseRebooting, unknown)) {
			all = append(all, each...)
		}

		return all
	}
	for name, c := range map[string]struct {
		objects []client.Object
		want    v1alpha1.OutOfBandReason
	}{
		"alone":    {of(), ""},
		"all well": {of(member("n1", "gpu", idle, ready), member("n2", "gpu", idle, ready)), ""},
		"the network": {
			of(member("n1", "gpu", idle, unknown), member("n2", "gpu", idle, unknown)), v1alpha1.OutOfBandPoolSilent,
		},
		"they are rebooting, too": {
			of(member("n1", "gpu", v1alpha1.PhaseRebooting, unknown), member("n2", "gpu", v1alpha1.PhaseProving, unknown)), "",
		},
		"of another pool": {of(member("n1", "cpu", idle, unknown), member("n2", "cpu", idle, unknown)), ""},
		// Their Nodes were deleted.
		"gone": {of(member("n1", "gpu", idle, unknown)[:1], member("n2", "gpu", idle, unknown)[:1]), ""},
	} {
		s := fleet(t, c.objects...)
		w := World{LastSign: testStart(), Settings: Settings{MaxSilent: intstr.FromString("20%")}}
		stop, err := s.permit(t.Context(), w, true)
		if err != nil || stop.Reason != c.want {
			t.Errorf("%s: %+v, %v, want %q", name, stop, err, c.want)
		}
		// What goes on with a reset is always permitted.
		if stop, err := s.permit(t.Context(), w, false); err != nil || stop != (Problem{}) {
			t.Errorf("%s: %+v, %v", name, stop, err)
		}
		// It counts: no reset begins in the same minute.
		if stop, err := s.permit(t.Context(), w, true); err != nil || stop.Reason == "" {
			t.Errorf("%s: a second action in a minute that has room for one: %+v, %v", name, stop, err)
		} else if c.want == "" && (stop.Reason != v1alpha1.OutOfBandPowerLimited || !strings.Contains(stop.Text, time.Minute.String())) {
			t.Errorf("%s: %+v", name, stop)
		}
	}
}
