package outofband

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/powerlease"
)

// Only a kubelet of that name tells that the machine lives: a proxy accepts for a dead one, and a firewall refuses.
func TestKubeletAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		serve func(t *testing.T, listener net.Listener)
		want  bool
	}{
		"self-signed":       {kubeletOf("n0@1796028382"), true},
		"signed":            {kubeletOf("system:node:n0"), true},
		"another":           {kubeletOf("system:node:n01"), false},
		"another's own":     {kubeletOf("n01@1796028382"), false},
		"something else":    {kubeletOf(""), false},
		"a proxy":           {func(*testing.T, net.Listener) {}, false},
		"a proxy that ends": {hangUp, false},
		"refused": {func(t *testing.T, listener net.Listener) {
			t.Helper()
			if err := listener.Close(); err != nil {
				t.Error(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var config net.ListenConfig
			listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() })
			c.serve(t, listener)
			port := int32(listener.Addr().(*net.TCPAddr).Port) //nolint:forcetypeassert // it is one
			if got := kubeletAnswers(t.Context(), "n0", []string{"127.0.0.1"}, port); got != c.want {
				t.Errorf("answers: %t", got)
			}
		})
	}
	if kubeletAnswers(t.Context(), "n0", nil, 1) {
		t.Error("a Node without addresses answers")
	}
}

// kubeletOf serves with a certificate of that name.
func kubeletOf(common string) func(t *testing.T, listener net.Listener) {
	return func(t *testing.T, listener net.Listener) {
		t.Helper()
		public, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: common}}
		certificate, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0), TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: private}},
		}}
		t.Cleanup(func() { _ = server.Close() })
		go func() { _ = server.ServeTLS(listener, "", "") }()
	}
}

func hangUp(_ *testing.T, listener net.Listener) {
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_ = connection.Close()
		}
	}()
}

// fleet is a session of Node n0 of a pool, in a cluster that holds all its Nodes.
func fleet(t *testing.T, objects ...client.Object) *session {
	t.Helper()

	return &session{
		Reconciler: &Reconciler{clock: clocktesting.NewFakePassiveClock(testStart()), pace: newPace(1)},
		request:    Request{Node: "n0"}, writer: serverWith(t, nil, objects...),
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
		"somebody has cordoned them": {of(cordoned(member("n1", "gpu", idle, unknown)), cordoned(member("n2", "gpu", idle, unknown))), ""},
		"they are rebooting, too": {
			of(member("n1", "gpu", v1alpha1.PhaseRebooting, unknown), member("n2", "gpu", v1alpha1.PhaseProving, unknown)), "",
		},
		"of another pool": {of(member("n1", "cpu", idle, unknown), member("n2", "cpu", idle, unknown)), ""},
		// Their Nodes were deleted.
		"gone": {of(member("n1", "gpu", idle, unknown)[:1], member("n2", "gpu", idle, unknown)[:1]), ""},
	} {
		s := fleet(t, c.objects...)
		w := World{LastSign: testStart(), Settings: Settings{MaxSilent: intstr.FromString("20%")}}
		stop, err := s.permit(t.Context(), w)
		if err != nil || stop.Reason != c.want {
			t.Errorf("%s: %+v, %v, want %q", name, stop, err, c.want)
		}
		// Only what is sent counts: asking costs nothing.
		for range 3 {
			again, err := s.permit(t.Context(), w)
			if err != nil || again != stop {
				t.Errorf("%s: asked again: %+v, %v", name, again, err)
			}
		}
		s.pace.spend(testStart())
		again, err := s.permit(t.Context(), w)
		if err != nil || c.want == "" && again.Reason != v1alpha1.OutOfBandPowerLimited {
			t.Errorf("%s: in a minute that has no room: %+v, %v", name, again, err)
		}
	}
	// It is not known who fell silent with a machine that never gave a sign.
	s := fleet(t, of(member("n1", "gpu", idle, unknown), member("n2", "gpu", idle, unknown))...)
	if stop, err := s.permit(t.Context(), World{Settings: Settings{MaxSilent: intstr.FromString("20%")}}); err != nil || stop != (Problem{}) {
		t.Errorf("%+v, %v", stop, err)
	}
}

func cordoned(objects []client.Object) []client.Object {
	for _, object := range objects {
		if node, ok := object.(*corev1.Node); ok {
			node.Spec.Unschedulable = true
		}
	}

	return objects
}

// An installation of before the Lease lacks the right to it: that is said where people look.
func TestAloneWithoutTheRight(t *testing.T) {
	t.Parallel()
	cluster := kubefake.NewClientset()
	cluster.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, "x", errRefusal)
	})
	leases, err := powerlease.New(powerlease.Options{Leases: cluster.CoordinationV1(), Holder: "a test"})
	if err != nil {
		t.Fatal(err)
	}
	host := freeHost()
	host.UID = "u1"
	s := &session{Reconciler: &Reconciler{leases: leases}, host: host}
	called := false
	stop, err := s.alone(t.Context(), func(context.Context) error { called = true; return nil })
	if err != nil || called || stop.Reason != v1alpha1.OutOfBandPowerInUse || !strings.Contains(stop.Text, "config/rbac") {
		t.Errorf("%+v, %v, called %t", stop, err, called)
	}
}
