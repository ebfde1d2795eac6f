package pool

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"pgregory.net/rapid"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/hosts"
)

// simulation is a pool in memory. Its effects are those of act.go, cut into steps between which the controller may die.
type simulation struct {
	world    World
	attempts int
	// byPerson are the nodes that a person cordoned; bad the versions that fail.
	byPerson map[string]bool
	bad      map[string]bool
	running  map[string]string
	// dead are the nodes whose agent does nothing; asked is since when an agent owes an answer, and missed the nodes of
	// which it was told that their agent is silent.
	dead   map[string]bool
	asked  map[string]time.Time
	missed map[string]bool
}

func newSimulation(nodes int, maxUnavailable intstr.IntOrString, dialect v1alpha1.ProtocolDialect) *simulation {
	s := &simulation{byPerson: map[string]bool{}, bad: map[string]bool{}, running: map[string]string{}}
	s.dead, s.asked, s.missed = map[string]bool{}, map[string]time.Time{}, map[string]bool{}
	pool := &v1alpha1.HostPool{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "pool"}}
	pool.Spec.Strategy.MaxUnavailable = &maxUnavailable
	pool.Spec.Strategy.Dialect = dialect
	pool.Spec.Drain.Timeout.Duration = time.Hour
	s.world = World{
		Now: time.Date(2026, 11, 29, 0, 0, 0, 0, time.UTC), Pool: pool,
		Nodes: map[string]*corev1.Node{}, Updates: map[string]*v1alpha1.NodeUpdate{},
	}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		s.world.Links = append(s.world.Links, hosts.Link{Host: "h" + name, Node: name, By: hosts.ByProviderID})
		s.join(name)
	}
	s.release("1.1.0")

	return s
}

// join makes a fresh Node: it bears no marks.
func (s *simulation) join(name string) {
	s.world.Nodes[name] = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	delete(s.byPerson, name)
}

func setReady(node *corev1.Node, status corev1.ConditionStatus) {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == corev1.NodeReady {
			node.Status.Conditions[i].Status = status
		}
	}
}

func (s *simulation) release(version string) {
	image := "registry.test/os:" + version
	s.world.Pool.Spec.Release.OS.Image = image
	s.world.Pool.Status.Release = &v1alpha1.ResolvedRelease{Image: image, Digest: digestOf(version), Version: version}
}

func (s *simulation) patch(name string, patch *protocol.Patch) {
	if node := s.world.Nodes[name]; node != nil {
		s.world.Nodes[name] = patched(node, patch)
	}
}

// patched is the node after the patch.
func patched(node *corev1.Node, patch *protocol.Patch) *corev1.Node {
	if patch == nil {
		return node
	}
	before, err := json.Marshal(node)
	if err != nil {
		panic(err)
	}
	// For what these patches hold, a merge patch and a strategic one come to the same.
	after, err := strategicpatch.StrategicMergePatch(before, patch.Data, corev1.Node{})
	if err != nil {
		panic(err)
	}
	result := &corev1.Node{}
	if err := json.Unmarshal(after, result); err != nil {
		panic(err)
	}

	return result
}

func (s *simulation) reason(name string, reason protocol.Reason) {
	if node := s.world.Nodes[name]; node != nil {
		s.patch(name, protocol.SetReason(node, protocol.Dialect(s.world.Pool.Spec.Strategy.Dialect), reason, "", s.world.Now))
	}
}

func (s *simulation) record(name string, change func(*record)) {
	update := s.world.Updates[name].DeepCopy()
	rec := recordOf(update)
	change(&rec)
	update.Annotations = rec.annotations()
	s.world.Updates[name] = update
}

// steps are the effects of an action, one API write each.
func (s *simulation) steps(a Action) []func() {
	onNode := func(change func(*corev1.Node) *protocol.Patch) func() {
		return func() {
			if node := s.world.Nodes[a.Node]; node != nil {
				s.patch(a.Node, change(node))
			}
		}
	}
	release := onNode(func(n *corev1.Node) *protocol.Patch { return protocol.Release(n, a.Attempt) })
	switch a.Kind {
	case Offer:
		return []func(){func() {
			s.attempts++
			update := &v1alpha1.NodeUpdate{ObjectMeta: metav1.ObjectMeta{Name: a.Node}}
			if old := s.world.Updates[a.Node]; old != nil {
				update.Status = old.Status
			}
			wanted := s.world.wanted()
			update.Spec.Door = v1alpha1.Door{Kind: v1alpha1.DoorHostPool, Namespace: "metal", Name: "pool", Host: a.Host}
			update.Spec.Attempt = fmt.Sprintf("a%d", s.attempts)
			update.Spec.Release.OS = v1alpha1.OSRelease{Image: byDigest(wanted.Image, wanted.Digest), Version: wanted.Version}
			update.Spec.Reboot, update.Spec.OutOfBand = s.world.Pool.Spec.Reboot, s.world.Pool.Spec.OutOfBand
			update.Annotations = record{offeredAt: s.world.Now}.annotations()
			s.world.Updates[a.Node] = update
			s.asked[a.Node] = s.world.Now
			delete(s.missed, a.Node)
		}}
	case Mark:
		return []func(){onNode(func(n *corev1.Node) *protocol.Patch { return protocol.MarkCandidate(n, a.Attempt) })}
	case Begin, Drain:
		steps := []func(){
			func() {
				if a.Kind == Begin {
					s.record(a.Node, func(r *record) { r.begunAt = s.world.Now })
				}
			},
			onNode(protocol.Select),
			func() { s.reason(a.Node, protocol.ReasonSelected) },
			onNode(func(n *corev1.Node) *protocol.Patch { return protocol.DisableScaleDown(n, a.Attempt) }),
			onNode(func(n *corev1.Node) *protocol.Patch { return protocol.Cordon(n, a.Attempt) }),
		}
		if a.Kind == Drain {
			steps = append(steps,
				func() { s.record(a.Node, func(r *record) { r.toldAt = s.world.Now }) },
				func() {
					s.reason(a.Node, protocol.ReasonReady)
					s.asked[a.Node] = s.world.Now
				})
		}

		return steps
	case Close:
		store := func() {
			s.record(a.Node, func(r *record) { r.closedAs, r.closedAt, r.closedReason = a.Outcome, s.world.Now, a.Reason })
			s.record(a.Node, func(r *record) { r.silentSince = time.Time{} })
			delete(s.missed, a.Node)
		}
		if a.Outcome == NeedsHuman {
			return []func(){store}
		}

		return []func(){store, func() { s.reason(a.Node, protocol.ReasonUpdateFailed) }, release}
	case Clean:
		return []func(){func() { s.reason(a.Node, protocol.ReasonUpdateFailed) }, release}
	case Remove:
		return []func(){func() { delete(s.world.Updates, a.Node) }}
	case Miss, Hear:
		return []func(){func() {
			s.record(a.Node, func(r *record) { r.silentSince = a.Since })
			s.missed[a.Node] = a.Kind == Miss
		}}
	case Adjust:
		return []func(){func() {
			update := s.world.Updates[a.Node].DeepCopy()
			update.Spec.OutOfBand, update.Spec.Reboot.SilentAfter = s.world.Pool.Spec.OutOfBand, s.world.Pool.Spec.Reboot.SilentAfter
			s.world.Updates[a.Node] = update
		}}
	default:
		panic("unknown action " + string(a.Kind))
	}
}

// agent takes one step of one agent.
func (s *simulation) agent(name string) {
	update, node := s.world.Updates[name], s.world.Nodes[name]
	if update == nil || node == nil || s.dead[name] {
		return
	}
	update = update.DeepCopy()
	s.world.Updates[name] = update
	status, attempt, version := &update.Status, update.Spec.Attempt, update.Spec.Release.OS.Version
	view := protocol.Read(node)
	switch {
	case status.Attempt != attempt && status.Phase == v1alpha1.PhaseRebooting:
		// A new attempt while it is away: it comes back first.
		status.Phase = v1alpha1.PhaseIdle
	case status.Attempt != attempt:
		status.Attempt, status.Phase, status.Reason = attempt, v1alpha1.PhaseStaged, v1alpha1.ReasonWaitingForReady
		delete(s.asked, name)
	case status.Phase == v1alpha1.PhaseStaged && view.Ready && view.Cordoned && view.Attempt == attempt:
		status.Phase = v1alpha1.PhaseRebooting
		delete(s.asked, name)
	case status.Phase == v1alpha1.PhaseRebooting && s.bad[version]:
		s.patch(name, protocol.Fail(node, view.Dialect, attempt, "bad"))
		status.Phase, status.Reason = v1alpha1.PhaseRolledBack, v1alpha1.ReasonHealthGateFailed
	case status.Phase == v1alpha1.PhaseRebooting:
		s.patch(name, protocol.Succeed(node, view.Dialect, attempt))
		slot := v1alpha1.SlotStatus{Name: "b", Version: version, Digest: digestOf(version)}
		status.Phase, status.Running, status.KnownGood = v1alpha1.PhaseSucceeded, slot, slot
	}
}

// out is computed from the objects alone, not by the code under test.
func (s *simulation) out() map[string]bool {
	out := map[string]bool{}
	for _, link := range s.world.Links {
		node, update := s.world.Nodes[link.Node], s.world.Updates[link.Node]
		if node != nil && (node.Spec.Unschedulable || !nodeReady(node)) {
			out[link.Node] = true
		}
		if update == nil {
			continue
		}
		open := update.Annotations[AnnotationBegunAt] != "" && update.Annotations[AnnotationClosedAs] == ""
		away := update.Status.Attempt == update.Spec.Attempt && update.Status.Phase == v1alpha1.PhaseRebooting
		if open || away {
			out[link.Node] = true
		}
	}

	return out
}

// pass decides and acts; it dies after some of the steps.
func (s *simulation) pass(t *rapid.T, survives int) {
	before := s.out()
	decision := Decide(s.world)
	begins := 0
	for _, a := range decision.Actions {
		if a.Kind == Begin {
			begins++
			before[a.Node] = true
		}
		if a.Kind == Offer && s.world.Retry == "" && s.world.poisoned(s.world.wanted().Digest) {
			t.Fatalf("node %s is offered a poisoned release", a.Node)
		}
	}
	s.checkSilence(t, decision)
	allowed := limit(s.world.Pool.Spec.Strategy.MaxUnavailable, len(s.world.Links))
	if begins > 0 && len(before) > allowed {
		t.Fatalf("%d nodes are out with the %d that begin, %d are allowed: %v", len(before), begins, allowed, before)
	}
	s.world.Pool.Status.Poisoned = poisonedAfter(s.world.Pool.Status.Poisoned, s.world.Retry, decision.Poison)
	for _, a := range decision.Actions {
		for _, step := range s.steps(a) {
			if survives--; survives < 0 {
				return
			}
			step()
		}
	}
	s.world.Retry = ""
}

// checkSilence checks that an agent counts as silent only when it owes an answer for long, that this is told once, and
// that nothing else follows from it.
func (s *simulation) checkSilence(t *rapid.T, decision Decision) {
	for _, node := range decision.Nodes {
		asked, owes := s.asked[node.Name]
		if node.Silent != "" && (!owes || s.world.Now.Sub(asked) < s.world.Updates[node.Name].Spec.Reboot.Patience()) {
			t.Fatalf("the agent of node %s is said to be silent, asked at %s (%t): %s", node.Name, asked, owes, node.Silent)
		}
	}
	// What differs between the pool and an update goes on doing so, to the Adjust that follows from it.
	patient := s.world
	patient.Pool = s.world.Pool.DeepCopy()
	patient.Pool.Spec.Reboot.SilentAfter.Duration += 1e6 * time.Hour
	patient.Updates = map[string]*v1alpha1.NodeUpdate{}
	for name, update := range s.world.Updates {
		patient.Updates[name] = update.DeepCopy()
		patient.Updates[name].Spec.Reboot.SilentAfter.Duration += 1e6 * time.Hour
	}
	var with, without []Action
	for _, a := range decision.Actions {
		if a.Kind == Miss && s.missed[a.Node] {
			t.Fatalf("the silence of node %s's agent is told twice", a.Node)
		}
		if a.Kind != Miss && a.Kind != Hear {
			with = append(with, a)
		}
	}
	for _, a := range Decide(patient).Actions {
		if a.Kind != Hear {
			without = append(without, a)
		}
	}
	if !slices.Equal(with, without) {
		t.Fatalf("a silent agent changes what is done: %+v instead of %+v", with, without)
	}
}

func (s *simulation) check(t *rapid.T) {
	for name := range s.byPerson {
		if node := s.world.Nodes[name]; node != nil && !node.Spec.Unschedulable {
			t.Fatalf("a person's cordon of node %s was removed", name)
		}
	}
}

const forEver = 1 << 30

// settle lets everything come to rest, and checks that nothing is forgotten.
func (s *simulation) settle(t *rapid.T) {
	clear(s.dead)
	for _, link := range s.world.Links {
		if s.world.Nodes[link.Node] == nil {
			s.join(link.Node)
		}
		setReady(s.world.Nodes[link.Node], corev1.ConditionTrue)
	}
	for range 300 {
		s.pass(t, forEver)
		for _, link := range s.world.Links {
			s.agent(link.Node)
		}
		s.check(t)
		s.world.Now = s.world.Now.Add(time.Minute)
	}
	if left := Decide(s.world).Actions; len(left) > 0 && len(s.byPerson) == 0 {
		t.Fatalf("it does not come to rest: %+v", left)
	}
	if len(s.byPerson) > 0 {
		return // a person's cordons may use up the budget for ever
	}
	for _, link := range s.world.Links {
		node := s.world.Nodes[link.Node]
		view := protocol.Read(node)
		open := s.world.Updates[link.Node] != nil && s.world.Updates[link.Node].Annotations[AnnotationClosedAs] == ""
		if node.Spec.Unschedulable || view.CordonedBy != "" || (!open && (view.Candidate || view.Selected)) {
			t.Fatalf("node %s is left with marks: cordoned %t, %+v", link.Node, node.Spec.Unschedulable, view)
		}
	}
	for _, node := range Decide(s.world).Nodes {
		if at := s.world.Updates[node.Name]; node.Silent != "" || (at != nil && at.Annotations[AnnotationSilentSince] != "") {
			t.Fatalf("the agent of node %s still counts as silent: %s", node.Name, node.Silent)
		}
	}
	if s.world.Pool.Spec.Paused || s.world.poisoned(s.world.wanted().Digest) {
		return
	}
	for _, node := range Decide(s.world).Nodes {
		if !node.Updated {
			t.Fatalf("node %s was never updated: %+v", node.Name, node)
		}
	}
}

func TestBudgetCordonsAndPoisonHoldThroughAnything(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.SampledFrom([]intstr.IntOrString{
			intstr.FromInt32(1), intstr.FromInt32(2), intstr.FromString("50%"), intstr.FromString("10%"),
		})
		dialect := rapid.SampledFrom([]v1alpha1.ProtocolDialect{v1alpha1.DialectShipped, v1alpha1.DialectGEP0031})
		s := newSimulation(rapid.IntRange(1, 5).Draw(t, "nodes"), budget.Draw(t, "budget"), dialect.Draw(t, "dialect"))
		s.bad["1.2.0"] = true
		node := rapid.Custom(func(t *rapid.T) string {
			return s.world.Links[rapid.IntRange(0, len(s.world.Links)-1).Draw(t, "node")].Node
		})
		t.Repeat(map[string]func(*rapid.T){
			"":              s.check,
			"pass":          func(t *rapid.T) { s.pass(t, forEver) },
			"pass and die":  func(t *rapid.T) { s.pass(t, rapid.IntRange(0, 12).Draw(t, "steps")) },
			"agent":         func(t *rapid.T) { s.agent(node.Draw(t, "of")) },
			"an agent dies": func(t *rapid.T) { s.dead[node.Draw(t, "of")] = true },
			"agents live":   func(*rapid.T) { clear(s.dead) },
			"time":          func(*rapid.T) { s.world.Now = s.world.Now.Add(10 * time.Minute) },
			"pause":         func(*rapid.T) { s.world.Pool.Spec.Paused = !s.world.Pool.Spec.Paused },
			"other release": func(t *rapid.T) { s.release(rapid.SampledFrom([]string{"1.1.0", "1.2.0", "1.3.0"}).Draw(t, "version")) },
			"other settings": func(t *rapid.T) {
				s.world.Pool.Spec.Reboot.SilentAfter.Duration = rapid.SampledFrom([]time.Duration{
					0, 5 * time.Minute, 15 * time.Minute, time.Hour,
				}).Draw(t, "silentAfter")
				s.world.Pool.Spec.OutOfBand.MaxResets = new(rapid.Int32Range(1, 3).Draw(t, "maxResets"))
			},
			"retry": func(*rapid.T) { s.world.Retry = s.world.wanted().Digest },
			"flap": func(t *rapid.T) {
				if n := s.world.Nodes[node.Draw(t, "of")]; n != nil {
					setReady(n, rapid.SampledFrom([]corev1.ConditionStatus{
						corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown,
					}).Draw(t, "ready"))
				}
			},
			"delete or join": func(t *rapid.T) {
				name := node.Draw(t, "of")
				if s.world.Nodes[name] == nil {
					s.join(name)
				} else {
					delete(s.world.Nodes, name)
					delete(s.byPerson, name)
				}
			},
			"a person cordons": func(t *rapid.T) {
				name := node.Draw(t, "of")
				if n := s.world.Nodes[name]; n != nil && !n.Spec.Unschedulable {
					n.Spec.Unschedulable = true
					if protocol.Read(n).CordonedBy == "" {
						s.byPerson[name] = true
					}
				}
			},
			"a person uncordons": func(t *rapid.T) {
				name := node.Draw(t, "of")
				if n := s.world.Nodes[name]; n != nil {
					n.Spec.Unschedulable = false
					delete(s.byPerson, name)
				}
			},
		})
		s.settle(t)
	})
}
