package pool

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/apiserver"
	"github.com/stayput-dev/stayput/test/fakeagent"
)

const (
	allUpdated = "True/" + v1alpha1.ReasonAllUpdated
	halted     = "True/" + v1alpha1.ReasonReleaseFailed
)

func TestThreeNodesOneAtATime(t *testing.T) {
	t.Parallel()
	s := start(t, "three", server)
	names := []string{s.addNode(1), s.addNode(2), s.addNode(3)}
	s.addPool("1.1.0")
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(allUpdated))
	s.clean(names...)
	s.Expect(s.fleet.MostOut()).To(gomega.Equal(1), "nodes out at one time")
	status := s.pool().Status
	s.Expect([]int32{status.Hosts, status.Nodes, status.Updated, status.Failed}).To(gomega.Equal([]int32{3, 3, 3, 0}))
	s.Expect(s.node(names[0]).Status.Conditions).To(gomega.ContainElement(gomega.HaveField("Reason", string(protocol.ReasonUpdateSuccessful))))
}

func TestGEP0031AndForeignCordon(t *testing.T) {
	t.Parallel()
	s := start(t, "gep", server)
	first, second := s.addNode(1), s.addNode(2)
	node := s.node(first)
	node.Spec.Unschedulable = true
	s.Expect(s.nodes.Update(s.ctx, node)).To(gomega.Succeed())
	s.addPool("1.1.0", func(p *v1alpha1.HostPool) {
		p.Spec.Strategy.Dialect = v1alpha1.DialectGEP0031
		p.Spec.Strategy.MaxUnavailable = new(intstr.FromString("100%"))
	})
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(allUpdated))
	s.clean(second)
	s.Expect(s.node(first).Spec.Unschedulable).To(gomega.BeTrue(), "a person's cordon was removed")
}

func pod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{"app": "db"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "db", UID: "db", Controller: new(true),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
}

// The PDB has no status, since no controller-manager runs: it forbids every eviction until it is deleted. Meanwhile the
// controller is killed and started anew.
func TestABudgetBlocksTheDrainAcrossARestart(t *testing.T) {
	t.Parallel()
	s := start(t, "pdb", server)
	name := s.addNode(1)
	s.create(s.nodes, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "default"}})
	running := pod(s.name, "db-0", name)
	s.create(s.nodes, running)
	running.Status.Phase = corev1.PodRunning // a budget says nothing of a pod that is pending
	s.Expect(s.nodes.Status().Update(s.ctx, running)).To(gomega.Succeed())
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "db"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
		},
	}
	s.create(s.nodes, budget)
	s.addPool("1.1.0")
	blocked := gomega.And(gomega.ContainSubstring("PodDisruptionBudget pdb/db"), gomega.ContainSubstring("pod pdb/db-0"))
	s.Eventually(func() string { return s.message(v1alpha1.ConditionReady) }).Should(blocked)
	attempt := s.node(name).Annotations[protocol.AnnotationCordonedBy]
	s.Expect(attempt).NotTo(gomega.BeEmpty())
	s.stop()
	s.manage(server.Config)
	s.Expect(s.nodes.Delete(s.ctx, budget)).To(gomega.Succeed())
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(allUpdated))
	s.clean(name)
	update := &v1alpha1.NodeUpdate{}
	s.Expect(s.nodes.Get(s.ctx, client.ObjectKey{Name: name}, update)).To(gomega.Succeed())
	s.Expect(update.Spec.Attempt).To(gomega.Equal(attempt), "the restart began another attempt")
}

func TestManualWaitsForAPerson(t *testing.T) {
	t.Parallel()
	s := start(t, "manual", server)
	first, second := s.addNode(1), s.addNode(2)
	s.addPool("1.1.0", func(p *v1alpha1.HostPool) { p.Spec.Strategy.Type = v1alpha1.ManualInPlaceUpdate })
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal("False/" + v1alpha1.ReasonWaitingForSelect))
	s.Expect(s.node(first).Spec.Unschedulable).To(gomega.BeFalse())
	for i, name := range []string{second, first} {
		s.Eventually(func() error {
			node := s.node(name)
			node.Labels[protocol.LabelSelected] = "true"

			return s.nodes.Update(s.ctx, node)
		}).Should(gomega.Succeed())
		s.Eventually(func() int32 { return s.pool().Status.Updated }).Should(gomega.Equal(int32(i + 1)))
		s.clean(name)
	}
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(allUpdated))
}

func TestAFailureHaltsUntilRetry(t *testing.T) {
	t.Parallel()
	s := start(t, "fail", server)
	s.fleet.Ends("1.2.0", fakeagent.Ending{
		Phase: v1alpha1.PhaseRolledBack, Reason: v1alpha1.ReasonKernelOrInitrdFailed, Message: "3 tries used up",
	})
	names := []string{s.addNode(1), s.addNode(2)}
	s.addPool("1.2.0")
	s.Eventually(s.condition(v1alpha1.ConditionHalted)).Should(gomega.Equal(halted))
	s.clean(names...)
	s.Expect(s.message(v1alpha1.ConditionHalted)).To(gomega.And(
		gomega.ContainSubstring("stayput retry"), gomega.ContainSubstring("3 tries used up"), gomega.ContainSubstring(names[0])))
	poisoned := s.pool().Status.Poisoned
	s.Expect(poisoned).To(gomega.HaveLen(1))
	s.Expect(poisoned[0].Digest).To(gomega.Equal(digestOf("1.2.0")))

	// Another release is free of it.
	s.change(func(p *v1alpha1.HostPool) { p.Spec.Release.OS.Image = "registry.test/os:1.1.0" })
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(allUpdated))

	// The old one stays poisoned until a person lifts it.
	s.change(func(p *v1alpha1.HostPool) { p.Spec.Release.OS.Image = "registry.test/os:1.2.0" })
	s.Eventually(s.condition(v1alpha1.ConditionHalted)).Should(gomega.Equal(halted))
	s.fleet.Ends("1.2.0", fakeagent.Succeeds())
	s.change(func(p *v1alpha1.HostPool) {
		p.Annotations = map[string]string{v1alpha1.AnnotationRetry: digestOf("1.2.0")}
	})
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(allUpdated))
	s.Eventually(func() map[string]string { return s.pool().Annotations }).ShouldNot(gomega.HaveKey(v1alpha1.AnnotationRetry))
	s.Expect(s.pool().Status.Poisoned).To(gomega.BeEmpty())
	s.clean(names...)
}

func TestARefusedImageHaltsWithoutAnOutage(t *testing.T) {
	t.Parallel()
	s := start(t, "refuse", server)
	s.fleet.Ends("1.1.0", fakeagent.Ending{Phase: v1alpha1.PhaseRefused, Reason: v1alpha1.ReasonImageInvalid, Message: "wrong digest"})
	names := []string{s.addNode(1), s.addNode(2)}
	s.addPool("1.1.0")
	s.Eventually(s.condition(v1alpha1.ConditionHalted)).Should(gomega.Equal(halted))
	s.clean(names...)
	s.Expect(s.fleet.MostOut()).To(gomega.Equal(0))
}

// The events API refuses a note of more than 1024 bytes, and nobody hears of that.
func TestAnAgentThatSaysMuchStillMakesEvents(t *testing.T) {
	t.Parallel()
	s := start(t, "much", server)
	s.fleet.Ends("1.2.0", fakeagent.Ending{
		Phase: v1alpha1.PhaseRolledBack, Reason: v1alpha1.ReasonHealthGateFailed, Message: strings.Repeat("é", v1alpha1.MaxMessage/2),
	})
	s.addNode(1)
	s.addPool("1.2.0")
	for reason, begins := range map[string]string{
		"Halted": "release 1.2.0 failed on node much-1: HealthGateFailed: éé", string(RolledBack): "attempt ",
	} {
		s.Eventually(func() string { return s.note(reason) }).Should(gomega.HavePrefix(begins), "the event %s", reason)
		note := s.note(reason)
		s.Expect(utf8.ValidString(note)).To(gomega.BeTrue(), note)
		s.Expect(note).To(gomega.HaveSuffix("é …"))
	}
}

// note is that of the event of a reason about one of the scenario's objects, "" for none.
func (s *scenario) note(reason string) string {
	var list eventsv1.EventList
	s.Expect(s.nodes.List(s.ctx, &list)).To(gomega.Succeed())
	for _, event := range list.Items {
		if event.Reason == reason && (event.Regarding.Namespace == s.name || strings.HasPrefix(event.Regarding.Name, s.name+"-")) {
			return event.Note
		}
	}

	return ""
}

func TestAnotherCluster(t *testing.T) {
	t.Parallel()
	away, err := apiserver.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := away.Stop(); err != nil {
			t.Error(err)
		}
	})
	s := start(t, "away", away)
	name := s.addNode(1)
	s.addPool("1.1.0", func(p *v1alpha1.HostPool) {
		p.Spec.Cluster = &v1alpha1.ClusterReference{KubeconfigSecretName: "prod-kubeconfig"}
	})
	s.Eventually(s.condition(v1alpha1.ConditionClusterReachable)).Should(gomega.Equal("False/" + v1alpha1.ReasonKubeconfigInvalid))
	s.create(s.home, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "prod-kubeconfig"}, Data: map[string][]byte{"value": away.Kubeconfig},
	})
	s.change(func(p *v1alpha1.HostPool) { p.Labels = map[string]string{"touched": "yes"} })
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(allUpdated))
	s.Expect(s.condition(v1alpha1.ConditionClusterReachable)()).To(gomega.Equal("True/" + v1alpha1.ReasonReachable))
	s.clean(name)
	err = server.Client.Get(s.ctx, client.ObjectKey{Name: name}, &v1alpha1.NodeUpdate{})
	s.Expect(client.IgnoreNotFound(err)).To(gomega.Succeed())
	s.Expect(err).To(gomega.HaveOccurred(), "a NodeUpdate was written into the wrong cluster")
}

func TestAmbiguousAndForeignNodesAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, "twins", server)
	first, second := s.addNode(1), s.addNode(2)
	twin := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "twins-x"}, Spec: corev1.NodeSpec{ProviderID: "metal3://twins/" + first + "/old"},
	}
	s.create(s.nodes, twin)
	s.addPool("1.1.0")
	s.Eventually(s.condition(v1alpha1.ConditionHostsLinked)).Should(gomega.Equal("False/" + v1alpha1.ReasonAmbiguousNode))
	s.Expect(s.message(v1alpha1.ConditionHostsLinked)).To(gomega.And(gomega.ContainSubstring("twins-x"), gomega.ContainSubstring(first)))
	s.Eventually(func() int32 { return s.pool().Status.Updated }).Should(gomega.Equal(int32(1)))
	s.clean(second)

	other := s.pool()
	other.ObjectMeta = metav1.ObjectMeta{Namespace: s.name, Name: "rival"}
	s.create(s.home, other)
	s.Eventually(func() string {
		rival := &v1alpha1.HostPool{}
		s.Expect(s.home.Get(s.ctx, client.ObjectKey{Namespace: s.name, Name: "rival"}, rival)).To(gomega.Succeed())
		s.Expect(s.nodes.Delete(s.ctx, twin)).To(gomega.Or(gomega.Succeed(), gomega.HaveOccurred()))
		for _, c := range rival.Status.Conditions {
			if c.Type == v1alpha1.ConditionHostsLinked {
				return c.Reason
			}
		}

		return ""
	}).Should(gomega.Equal(v1alpha1.ReasonNodeOwnedByAnother))
}

func TestADeletedPoolLetsItsNodesGo(t *testing.T) {
	t.Parallel()
	s := start(t, "gone", server)
	name := s.addNode(1)
	s.addPool("1.1.0")
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(allUpdated))
	s.Expect(s.home.Delete(s.ctx, s.pool())).To(gomega.Succeed())
	s.Eventually(func() bool {
		err := s.home.Get(s.ctx, client.ObjectKey{Namespace: s.name, Name: "pool"}, &v1alpha1.HostPool{})

		return err != nil && client.IgnoreNotFound(err) == nil
	}).Should(gomega.BeTrue())
	err := s.nodes.Get(s.ctx, client.ObjectKey{Name: name}, &v1alpha1.NodeUpdate{})
	s.Expect(err).To(gomega.HaveOccurred())
	s.clean(name)
}

// The agent of the only node is dead at first, then takes the attempt up, dies again, and goes in the end. A test writes
// what it would: the fleet does not know the node.
func TestASilentAgentIsToldAndNothingElseIsDone(t *testing.T) {
	t.Parallel()
	s := start(t, "mute", server)
	name := s.addNodeNamed("unattended")
	s.addPool("1.1.0", func(p *v1alpha1.HostPool) { p.Spec.Reboot.SilentAfter.Duration = time.Second })
	silent := "False/" + v1alpha1.ReasonAgentSilent
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(silent))
	s.Expect(s.message(v1alpha1.ConditionReady)).To(gomega.And(
		gomega.ContainSubstring(name), gomega.ContainSubstring("never written"), gomega.ContainSubstring("systemctl status stayput-agent")))
	s.Eventually(s.silentSince(name)).ShouldNot(gomega.BeEmpty())

	s.agentSays(name, v1alpha1.PhaseStaging)
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal("False/" + v1alpha1.ReasonWaitingForStaging))
	s.Eventually(s.silentSince(name)).Should(gomega.BeEmpty())

	s.agentSays(name, v1alpha1.PhaseStaged)
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal(silent))
	s.Expect(s.message(v1alpha1.ConditionReady)).To(gomega.ContainSubstring("was told to go"))
	node := s.node(name)
	s.Expect(node.Spec.Unschedulable).To(gomega.BeTrue(), "the drain was undone")
	s.Expect(protocol.Read(node).Ready).To(gomega.BeTrue(), "the question was taken back")
	s.Eventually(s.silences(name)).Should(gomega.Equal(2))

	s.agentSays(name, v1alpha1.PhaseRebooting)
	s.Eventually(s.condition(v1alpha1.ConditionReady)).Should(gomega.Equal("False/" + v1alpha1.ReasonUpdating))
	s.Eventually(s.silentSince(name)).Should(gomega.BeEmpty())
	s.Expect(s.silences(name)()).To(gomega.Equal(2), "told more than once each time")
	s.adjusts(name)
}

// adjusts checks that other settings of the pool reach a node that is away, and that its attempt and record stay.
func (s *scenario) adjusts(name string) {
	s.t.Helper()
	update := func() *v1alpha1.NodeUpdate {
		found := &v1alpha1.NodeUpdate{}
		s.Expect(s.nodes.Get(s.ctx, client.ObjectKey{Name: name}, found)).To(gomega.Succeed())

		return found
	}
	before := update()
	s.Expect(before.Annotations).To(gomega.And(
		gomega.HaveKey(AnnotationOfferedAt), gomega.HaveKey(AnnotationBegunAt), gomega.HaveKey(AnnotationToldAt)))
	s.change(func(p *v1alpha1.HostPool) {
		p.Spec.OutOfBand.MaxResets, p.Spec.Reboot.SilentAfter.Duration = new(int32(7)), time.Hour
		p.Spec.OutOfBand.PowerVia = v1alpha1.PowerViaMetal3
		p.Spec.Health.Kubelet.Duration = time.Hour
	})
	s.Eventually(func() *int32 { return update().Spec.OutOfBand.MaxResets }).Should(gomega.HaveValue(gomega.Equal(int32(7))))
	s.Expect(update().Spec.OutOfBand.PowerVia).To(gomega.Equal(v1alpha1.PowerViaMetal3))
	after := update()
	s.Expect(after.Annotations).To(gomega.Equal(before.Annotations), "the record changed")
	s.Expect(after.Spec.Attempt).To(gomega.Equal(before.Spec.Attempt))
	s.Expect(after.Spec.Reboot.SilentAfter.Duration).To(gomega.Equal(time.Hour))
	s.Expect(after.Spec.Health).To(gomega.Equal(before.Spec.Health), "a setting that is fixed in an attempt changed")
}

// A drain is decided on a cache, which may not know yet what was written a moment ago.
func TestADrainOnAStaleCacheRevertsNothing(t *testing.T) {
	t.Parallel()
	s := &scenario{WithT: gomega.NewWithT(t), t: t, ctx: t.Context(), name: "stale", home: server.Client, nodes: server.Client}
	s.create(s.home, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}})
	name := s.addNodeNamed("stale-1")
	pool := &v1alpha1.HostPool{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "pool"}}
	world := World{Pool: pool, Nodes: map[string]*corev1.Node{}, Updates: map[string]*v1alpha1.NodeUpdate{}}
	a := &actor{cluster: s.cluster(), world: world, now: time.Now, drains: map[string]string{}}
	spec := v1alpha1.NodeUpdateSpec{
		Door:    v1alpha1.Door{Kind: v1alpha1.DoorHostPool, Namespace: s.name, Name: "pool", Host: name},
		Attempt: "a1",
		Release: v1alpha1.NodeRelease{OS: v1alpha1.OSRelease{Image: "registry.test/os@" + digestOf("1.1.0"), Version: "1.1.0"}},
	}
	begun := record{offeredAt: time.Now(), begunAt: time.Now()}
	s.Expect(a.applyUpdate(s.ctx, name, "", spec, begun)).To(gomega.Succeed())
	cached, live := &v1alpha1.NodeUpdate{}, &v1alpha1.NodeUpdate{}
	s.Expect(s.nodes.Get(s.ctx, client.ObjectKey{Name: name}, cached)).To(gomega.Succeed())
	world.Updates[name] = cached
	spec.OutOfBand.MaxResets = new(int32(7))
	s.Expect(a.applyUpdate(s.ctx, name, cached.UID, spec, begun)).To(gomega.Succeed())

	action := Action{Kind: Drain, Node: name, Host: name, Attempt: "a1"}
	s.Expect(a.mark(s.ctx, action)).To(gomega.Succeed())
	s.Expect(a.drain(s.ctx, action)).To(gomega.Succeed())
	s.Expect(s.nodes.Get(s.ctx, client.ObjectKey{Name: name}, live)).To(gomega.Succeed())
	s.Expect(live.Annotations).To(gomega.HaveKey(AnnotationToldAt))
	s.Expect(live.Spec.OutOfBand.MaxResets).To(gomega.HaveValue(gomega.Equal(int32(7))), "the cache's spec was written")
}

// silentSince is what the NodeUpdate says of its agent's silence.
func (s *scenario) silentSince(name string) func() string {
	return func() string {
		update := &v1alpha1.NodeUpdate{}
		s.Expect(s.nodes.Get(s.ctx, client.ObjectKey{Name: name}, update)).To(gomega.Succeed())

		return update.Annotations[AnnotationSilentSince]
	}
}

// silences counts the events of a Node that tell of a silent agent.
func (s *scenario) silences(name string) func() int {
	return func() int {
		var list eventsv1.EventList
		s.Expect(s.nodes.List(s.ctx, &list)).To(gomega.Succeed())
		count := 0
		for _, event := range list.Items {
			if event.Reason == v1alpha1.ReasonAgentSilent && event.Regarding.Name == name {
				count++
				if event.Series != nil {
					count += int(event.Series.Count) - 1
				}
			}
		}

		return count
	}
}
