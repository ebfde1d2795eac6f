package pool

import (
	"testing"
	"time"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/clusters"
)

// An agent was silent for hours, which was noted, and has just written again. A pass that has nothing to do ends on the
// caches, so they must tell that it wrote, whatever its node's clock makes of the time.
func TestAnAgentThatIsBackIsHeardWhateverItsClockSays(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]time.Duration{"ahead": 2 * time.Hour, "behind": -2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &scenario{WithT: gomega.NewWithT(t), t: t, ctx: t.Context(), name: name, home: server.Client, nodes: server.Client}
			s.create(s.home, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}})
			node := s.addNode(1)
			s.addPool("1.1.0")
			mgr, r := s.reconciler(server.Config)
			cluster, err := r.Clusters.Get(s.ctx, clusters.Key{})
			s.Expect(err).NotTo(gomega.HaveOccurred())
			s.offerNoted(cluster, node)
			s.agentWrites(node, v1alpha1.PhaseProving, time.Now().Add(wrong))

			s.run(mgr)
			s.Expect(mgr.GetCache().WaitForCacheSync(s.ctx)).To(gomega.BeTrue())
			pool := &v1alpha1.HostPool{}
			s.Expect(r.Client.Get(s.ctx, client.ObjectKey{Namespace: s.name, Name: "pool"}, pool)).To(gomega.Succeed())
			world, decision, err := r.decide(s.ctx, pool.DeepCopy(), cluster, &report{})
			s.Expect(err).NotTo(gomega.HaveOccurred())
			s.Expect(decision.Nodes).To(gomega.HaveLen(1))
			s.Expect(decision.Nodes[0].Silent).To(gomega.BeEmpty())
			a := &actor{cluster: cluster, world: world, now: time.Now, drains: map[string]string{}}
			s.Expect(r.actAll(s.ctx, a, decision)).To(gomega.Succeed())
			s.Expect(s.silentSince(node)()).To(gomega.BeEmpty(), "the note stays")
		})
	}
}

// offerNoted makes a NodeUpdate of a node that was told to go three hours ago, and whose agent is known to be silent.
func (s *scenario) offerNoted(cluster *clusters.Cluster, node string) {
	s.t.Helper()
	pool, ago := s.pool(), time.Now().Add(-3*time.Hour)
	a := &actor{cluster: cluster, world: World{Pool: pool}, now: time.Now}
	s.Expect(a.applyUpdate(s.ctx, node, "", v1alpha1.NodeUpdateSpec{
		Door:    v1alpha1.Door{Kind: v1alpha1.DoorHostPool, Namespace: s.name, Name: pool.Name, Host: node},
		Attempt: "a1",
		Release: v1alpha1.NodeRelease{OS: v1alpha1.OSRelease{Image: "registry.test/os@" + digestOf("1.1.0"), Version: "1.1.0"}},
		Reboot:  pool.Spec.Reboot, OutOfBand: pool.Spec.OutOfBand,
	}, record{offeredAt: ago, begunAt: ago, toldAt: ago, silentSince: ago})).To(gomega.Succeed())
	s.Expect(s.silentSince(node)()).NotTo(gomega.BeEmpty())
}

// agentSays writes what the agent of a node would.
func (s *scenario) agentSays(name string, phase v1alpha1.Phase) {
	s.t.Helper()
	s.agentWrites(name, phase, time.Now())
}

// agentWrites is agentSays by the node's clock.
func (s *scenario) agentWrites(name string, phase v1alpha1.Phase, now time.Time) {
	s.t.Helper()
	update := &v1alpha1.NodeUpdate{}
	s.Expect(s.nodes.Get(s.ctx, client.ObjectKey{Name: name}, update)).To(gomega.Succeed())
	s.Expect(s.nodes.Status().Apply(s.ctx, client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeUpdate", "metadata": map[string]any{"name": name},
		"status": map[string]any{
			"attempt": update.Spec.Attempt, "phase": string(phase), "heartbeat": now.UTC().Format(time.RFC3339),
		},
	}}), client.FieldOwner(v1alpha1.FieldManagerAgent))).To(gomega.Succeed())
}
