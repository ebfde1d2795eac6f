package pool

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/clusters"
	"github.com/stayput-dev/stayput/test/apiserver"
	"github.com/stayput-dev/stayput/test/fakeagent"
)

const (
	waitFor = 90 * time.Second
	every   = 100 * time.Millisecond
)

var server *apiserver.Server //nolint:gochecknoglobals // one API server for the package's tests

func TestMain(m *testing.M) {
	os.Exit(func() int {
		ctrl.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
		var err error
		if server, err = apiserver.Start(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)

			return 1
		}
		code := m.Run()
		if err := server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)

			return 1
		}

		return code
	}())
}

// registry is a made-up registry: registry.test/os:<version> is version <version>.
type registry struct{}

var errNoImage = errors.New("no image")

func (registry) Resolve(_ context.Context, request ImageRequest) (Image, error) {
	_, version, found := strings.Cut(request.Image, ":")
	if !found {
		return Image{}, fmt.Errorf("%w %s", errNoImage, request.Image)
	}

	return Image{Digest: digestOf(version), Version: version}, nil
}

func digestOf(version string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(version))) }

// scenario is one pool with its hosts, nodes and agents, and a manager that sees only them.
type scenario struct {
	*gomega.WithT

	t     *testing.T
	ctx   context.Context //nolint:containedctx // the test's
	name  string
	home  client.Client
	nodes client.Client
	fleet *fakeagent.Fleet
	// images resolves; the made-up registry unless it is set before a manager is started.
	images Resolver
	stop   func()
}

// start makes a namespace and a manager. Nodes live on the cluster of nodes.
func start(t *testing.T, name string, nodes *apiserver.Server) *scenario {
	t.Helper()

	return startWith(t, name, nodes, registry{})
}

// startWith does so with another registry.
func startWith(t *testing.T, name string, nodes *apiserver.Server, images Resolver) *scenario {
	t.Helper()
	s := &scenario{
		images: images,
		WithT:  gomega.NewWithT(t), t: t, ctx: t.Context(), name: name, home: server.Client, nodes: nodes.Client,
		fleet: &fakeagent.Fleet{Client: nodes.Client, Prefix: name + "-"},
	}
	s.SetDefaultEventuallyTimeout(waitFor)
	s.SetDefaultEventuallyPollingInterval(every)
	s.create(s.home, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.fleet.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	s.manage(server.Config)

	return s
}

// manage starts a manager with these rights; stop ends it.
func (s *scenario) manage(rights *rest.Config) {
	s.t.Helper()
	mgr, r := s.reconciler(rights)
	s.Expect(r.register(mgr)).To(gomega.Succeed())
	s.run(mgr)
}

// reconciler makes one, and the manager whose caches it reads.
func (s *scenario) reconciler(rights *rest.Config) (ctrl.Manager, *Reconciler) {
	s.t.Helper()
	scheme, err := apiserver.Scheme()
	s.Expect(err).NotTo(gomega.HaveOccurred())
	options := clusters.CacheOptions(scheme)
	options.DefaultNamespaces = map[string]cache.Config{s.name: {}}
	mgr, err := ctrl.NewManager(rights, ctrl.Options{
		Scheme: scheme, Cache: options, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	})
	s.Expect(err).NotTo(gomega.HaveOccurred())
	connections, err := clusters.New(mgr, clusters.Options{ProbeInterval: 300 * time.Millisecond})
	s.Expect(err).NotTo(gomega.HaveOccurred())
	s.Expect(mgr.Add(connections)).To(gomega.Succeed())
	counters, err := NewMetrics(prometheus.NewRegistry())
	s.Expect(err).NotTo(gomega.HaveOccurred())

	return mgr, &Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clusters: connections, Resolver: s.images,
		Events: mgr.GetEventRecorder("test"), Metrics: counters, Clock: clock.RealClock{},
	}
}

// run starts a manager; stop ends it.
func (s *scenario) run(mgr ctrl.Manager) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stopped := false
	s.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	}
	s.t.Cleanup(s.stop)
}

// cluster is the cluster of the nodes for one who acts without a manager: its cache is empty and not asked.
func (s *scenario) cluster() *clusters.Cluster {
	s.t.Helper()
	scheme, err := apiserver.Scheme()
	s.Expect(err).NotTo(gomega.HaveOccurred())
	mgr, err := ctrl.NewManager(server.Config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	s.Expect(err).NotTo(gomega.HaveOccurred())
	connections, err := clusters.New(mgr, clusters.Options{})
	s.Expect(err).NotTo(gomega.HaveOccurred())
	cluster, err := connections.Get(s.ctx, clusters.Key{})
	s.Expect(err).NotTo(gomega.HaveOccurred())

	return cluster
}

func (s *scenario) create(c client.Client, object client.Object) {
	s.t.Helper()
	s.Expect(c.Create(s.ctx, object)).To(gomega.Succeed())
}

// addNode makes a host and its ready Node, linked by providerID.
func (s *scenario) addNode(number int) string {
	s.t.Helper()

	return s.addNodeNamed(fmt.Sprintf("%s-%d", s.name, number))
}

// addNodeNamed may give a name that the fleet does not know: then the node has no agent.
func (s *scenario) addNodeNamed(name string) string {
	s.t.Helper()
	s.create(s.home, &metal3.BareMetalHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name, Labels: map[string]string{"pool": "p"}},
	})
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: "metal3://" + s.name + "/" + name + "/m"},
	}
	s.create(s.nodes, node)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	s.Expect(s.nodes.Status().Update(s.ctx, node)).To(gomega.Succeed())

	return name
}

func (s *scenario) addPool(version string, changes ...func(*v1alpha1.HostPool)) {
	s.t.Helper()
	pool := &v1alpha1.HostPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "pool"},
		Spec: v1alpha1.HostPoolSpec{
			HostSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": "p"}},
			Release:      v1alpha1.Release{OS: v1alpha1.ImageSource{Image: "registry.test/os:" + version}},
			Drain:        v1alpha1.DrainSettings{Timeout: metav1.Duration{Duration: time.Hour}},
		},
	}
	for _, change := range changes {
		change(pool)
	}
	s.create(s.home, pool)
}

func (s *scenario) pool() *v1alpha1.HostPool {
	pool := &v1alpha1.HostPool{}
	s.Expect(s.home.Get(s.ctx, client.ObjectKey{Namespace: s.name, Name: "pool"}, pool)).To(gomega.Succeed())

	return pool
}

func (s *scenario) change(what func(*v1alpha1.HostPool)) {
	s.t.Helper()
	s.Eventually(func() error {
		pool := s.pool()
		what(pool)

		return s.home.Update(s.ctx, pool)
	}).Should(gomega.Succeed())
}

func (s *scenario) node(name string) *corev1.Node {
	node := &corev1.Node{}
	s.Expect(s.nodes.Get(s.ctx, client.ObjectKey{Name: name}, node)).To(gomega.Succeed())

	return node
}

// condition is "True/Reason" of a pool's condition.
func (s *scenario) condition(conditionType string) func() string {
	return func() string {
		for _, c := range s.pool().Status.Conditions {
			if c.Type == conditionType {
				return string(c.Status) + "/" + c.Reason
			}
		}

		return ""
	}
}

func (s *scenario) message(conditionType string) string {
	for _, c := range s.pool().Status.Conditions {
		if c.Type == conditionType {
			return c.Message
		}
	}

	return ""
}

// clean checks that nothing of ours is on the Node.
func (s *scenario) clean(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.Eventually(func() string {
			node := s.node(name)
			var left []string
			if node.Spec.Unschedulable {
				left = append(left, "cordoned")
			}
			for key := range node.Labels {
				if strings.HasPrefix(key, "node.machine.sapcloud.io/") {
					left = append(left, key)
				}
			}
			for key := range node.Annotations {
				if strings.HasPrefix(key, "stayput.dev/") || strings.Contains(key, "autoscaler") || strings.Contains(key, "update-fail") {
					left = append(left, key)
				}
			}

			return strings.Join(left, " ")
		}).Should(gomega.BeEmpty(), "left on node %s", name)
	}
	s.Expect(s.fleet.Violations()).To(gomega.BeEmpty())
}
