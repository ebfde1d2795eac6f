package pool

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// ActionKind is what to do to one node.
type ActionKind string

// The kinds. All are safe to repeat.
const (
	// Offer writes the NodeUpdate with a new attempt.
	Offer ActionKind = "Offer"
	// Mark makes the Node a candidate for the open attempt.
	Mark ActionKind = "Mark"
	// Begin stores that the node goes out of service, then selects and cordons it.
	Begin ActionKind = "Begin"
	// Drain cordons, makes one eviction pass, and tells the node to go when it is empty.
	Drain ActionKind = "Drain"
	// Close stores the outcome of the attempt, then releases the Node, but for NeedsHuman.
	Close ActionKind = "Close"
	// Clean takes marks of an attempt that is not open off the Node.
	Clean ActionKind = "Clean"
	// Remove deletes the NodeUpdate.
	Remove ActionKind = "Remove"
	// Miss stores that the agent is silent, and tells it once; Hear stores that it is not any more.
	Miss ActionKind = "Miss"
	Hear ActionKind = "Hear"
	// Adjust brings what the NodeUpdate says of a silent machine in line with the pool.
	Adjust ActionKind = "Adjust"
)

// Action is one thing to do.
type Action struct {
	Kind    ActionKind
	Node    string
	Host    string
	Attempt string
	// Outcome, Reason and Message are set for Close, Message and Since for Miss.
	Outcome Outcome
	Reason  string
	Message string
	Since   time.Time
}

// routine tells whether the action only goes on with what was decided before: a stale cache cannot make it wrong.
func (a Action) routine() bool { return a.Kind == Mark || a.Kind == Drain }

// Wait says what a node waits for.
type Wait string

// The waits.
const (
	WaitNothing   Wait = ""
	WaitStaging   Wait = "Staging"
	WaitSelection Wait = "Selection"
	WaitBudget    Wait = "Budget"
	WaitDrain     Wait = "Drain"
	WaitAgent     Wait = "Agent"
	WaitRetry     Wait = "Retry"
	WaitHuman     Wait = "Human"
)

// NodeSummary is where a node stands after the decision.
type NodeSummary struct {
	Name, Host string
	Phase      v1alpha1.Phase
	Wait       Wait
	Since      time.Time
	Message    string
	// Silent says since when the agent owes an answer, and what to do; empty: it owes none, or not for long.
	Silent string
	// Hindrance is what an agent that cannot stage the release says; empty: nothing is in its way.
	Hindrance   string
	Updated     bool
	Updating    bool
	Failed      bool
	Unavailable bool
	Foreign     string
}

// Decision is what one pass does, and what it found.
type Decision struct {
	Actions []Action
	// Poison are digests to be stored in the pool's status before any action.
	Poison []v1alpha1.PoisonedRelease
	// Halted tells whether the wanted release is poisoned, by now.
	Halted bool
	// Nodes are in order of their names.
	Nodes []NodeSummary
	// Recheck is when to decide again though nothing changes, 0 for never.
	Recheck time.Duration
}

// Decide is the pure heart of the package.
func Decide(world World) Decision {
	p := &pass{world: world, wanted: world.wanted(), members: world.members(), waits: map[string]Wait{}, silent: map[string]string{}}
	p.halted = p.wanted != nil && world.poisoned(p.wanted.Digest)
	for _, m := range p.members {
		if m.foreign == "" {
			p.end(m)
		}
	}
	var ready []*member
	for _, m := range p.members {
		if m.foreign == "" && !p.acted(m) && p.step(m) {
			ready = append(ready, m)
		}
	}
	p.begin(ready)
	for _, m := range p.members {
		if m.foreign == "" {
			p.adjust(m)
			p.listen(m)
		}
	}

	return Decision{
		Actions: p.actions, Poison: p.poison, Halted: p.halted, Nodes: p.summaries(), Recheck: p.recheck,
	}
}

// pass is one run of Decide.
type pass struct {
	world   World
	wanted  *v1alpha1.ResolvedRelease
	members []*member
	halted  bool
	actions []Action
	poison  []v1alpha1.PoisonedRelease
	waits   map[string]Wait
	silent  map[string]string
	recheck time.Duration
}

func (p *pass) do(m *member, kind ActionKind) {
	p.actions = append(p.actions, Action{Kind: kind, Node: m.name, Host: m.host, Attempt: m.open()})
}

func (p *pass) acted(m *member) bool {
	return slices.ContainsFunc(p.actions, func(a Action) bool { return a.Node == m.name })
}

func (p *pass) wait(m *member, wait Wait) { p.waits[m.name] = wait }

// again makes sure that the pool is looked at after d at the latest.
func (p *pass) again(d time.Duration) {
	if d > 0 && (p.recheck == 0 || d < p.recheck) {
		p.recheck = d
	}
}

// end closes the attempt of a node when it has ended, and poisons its digest where that follows.
func (p *pass) end(m *member) {
	outcome, reason, message := p.outcome(m)
	if outcome == "" || (m.held() && outcome == NeedsHuman) {
		return
	}
	poisons := outcome == RolledBack || outcome == NeedsHuman || (outcome == Refused && imageIsToBlame(v1alpha1.Reason(reason)))
	if poisons && !m.held() {
		p.poisonDigest(m, reason, message)
	}
	p.actions = append(p.actions, Action{
		Kind: Close, Node: m.name, Host: m.host, Attempt: m.update.Spec.Attempt,
		Outcome: outcome, Reason: reason, Message: message,
	})
}

// outcome is how the attempt ended, "" while it has not. An attempt that needs a person may still end by itself.
func (p *pass) outcome(m *member) (outcome Outcome, reason, message string) {
	if m.open() == "" && !m.held() {
		return "", "", ""
	}
	if m.owesAnswer() {
		return "", "", ""
	}
	if outcome, reason, message = m.answer(); outcome != "" {
		return outcome, reason, message
	}

	return p.unanswered(m)
}

// answer is the outcome that the agent tells, in its status or on the Node.
func (m *member) answer() (outcome Outcome, reason, message string) {
	status := m.update.Status
	result := m.view.ResultFor(m.update.Spec.Attempt)
	phase := v1alpha1.PhaseIdle
	if m.answers() {
		phase, reason, message = status.Phase, string(status.Reason), status.Message
	}
	switch {
	case phase == v1alpha1.PhaseRefused && status.Reason == v1alpha1.ReasonAttemptSuperseded:
		return Withdrawn, reason, message
	case phase == v1alpha1.PhaseRefused:
		return Refused, reason, message
	case phase == v1alpha1.PhaseNeedsHuman:
		return NeedsHuman, reason, message
	case result == protocol.Successful, phase == v1alpha1.PhaseSucceeded, m.answers() && status.Reason == v1alpha1.ReasonUpToDate:
		return Succeeded, reason, message
	case phase == v1alpha1.PhaseRolledBack:
		return RolledBack, reason, message
	case result == protocol.Failed:
		return RolledBack, string(protocol.ReasonUpdateFailed), m.view.Failure
	default:
		return "", "", ""
	}
}

// owesAnswer tells whether the agent, whose status says that the attempt has ended, is still to answer on the Node. Once
// told to go it always does, after its status; closing the attempt sooner would take the question away under it, and those
// who read the protocol would never see how it ended.
func (m *member) owesAnswer() bool {
	phase := m.update.Status.Phase

	return m.told() && m.answers() && phase.Ended() && phase != v1alpha1.PhaseNeedsHuman &&
		m.view.ResultFor(m.update.Spec.Attempt) == protocol.NoResult
}

// unanswered is the outcome of an attempt to which the agent gives none.
func (p *pass) unanswered(m *member) (outcome Outcome, reason, message string) {
	bmc, attempt := m.update.Status.OutOfBand, m.update.Spec.Attempt
	switch {
	case m.away() && bmc != nil && bmc.Attempt == attempt && bmc.Phase == v1alpha1.OutOfBandNeedsHuman:
		return NeedsHuman, string(bmc.Reason), bmc.Message
	case m.told() && !m.away() && m.node != nil && !m.view.Cordoned:
		// The agent does not go without a cordon, and pods may have come: only a new attempt can drain again.
		return Withdrawn, string(Withdrawn), "the node was uncordoned before it went"
	case m.begun() && !m.told() && !m.away() && p.drainOver(m):
		return DrainTimeout, string(DrainTimeout), fmt.Sprintf("the node was not empty %s after %s; see spec.drain.timeout",
			p.world.Pool.Spec.Drain.Timeout.Duration, m.record.begunAt.UTC().Format(time.RFC3339))
	default:
		return "", "", ""
	}
}

func (p *pass) drainOver(m *member) bool {
	timeout := p.world.Pool.Spec.Drain.Timeout.Duration
	if timeout <= 0 {
		return false
	}
	left := m.record.begunAt.Add(timeout).Sub(p.world.Now)
	p.again(left)

	return left <= 0
}

// imageIsToBlame tells whether every other node would refuse the image, too.
func imageIsToBlame(reason v1alpha1.Reason) bool {
	switch reason {
	case v1alpha1.ReasonImageInvalid, v1alpha1.ReasonImageUntrusted, v1alpha1.ReasonImageTooLarge, v1alpha1.ReasonWrongArchitecture,
		v1alpha1.ReasonVersionNotNewer, v1alpha1.ReasonSourceTooOld:
		return true
	default:
		return false
	}
}

func (p *pass) poisonDigest(m *member, reason, message string) {
	digest := m.digest()
	if p.wanted != nil && p.wanted.Digest == digest {
		p.halted = true
	}
	known := func(list []v1alpha1.PoisonedRelease) bool {
		return slices.ContainsFunc(list, func(r v1alpha1.PoisonedRelease) bool { return r.Digest == digest })
	}
	if known(p.poison) || (known(p.world.Pool.Status.Poisoned) && digest != p.world.Retry) {
		return
	}
	p.poison = append(p.poison, v1alpha1.PoisonedRelease{
		Digest: digest, Version: m.update.Spec.Release.OS.Version, Node: m.name, Attempt: m.update.Spec.Attempt,
		Reason: strings.TrimSuffix(reason+": "+message, ": "), At: metav1.NewTime(p.world.Now),
	})
}

// step moves a node on by one step. It tells whether the node may begin once the budget allows.
func (p *pass) step(m *member) bool {
	switch {
	case m.open() == "":
		p.stepIdle(m)

		return false
	case m.away() || m.told():
		p.wait(m, WaitAgent)

		return false
	case p.withdrawn(m) != "":
		p.actions = append(p.actions, Action{
			Kind: Close, Node: m.name, Host: m.host, Attempt: m.open(), Outcome: Withdrawn,
			Reason: string(Withdrawn), Message: p.withdrawn(m),
		})

		return false
	case !m.linked || m.node == nil:
		// The host is ours, but its Node is gone or doubtful: nothing is begun, nothing is taken back.
		p.wait(m, WaitAgent)

		return false
	case m.view.Attempt != m.open() || !m.view.Candidate:
		p.do(m, Mark)
		p.wait(m, WaitStaging)

		return false
	case m.begun():
		p.do(m, Drain)
		p.wait(m, WaitDrain)

		return false
	case !m.staged():
		p.wait(m, WaitStaging)

		return false
	default:
		return p.mayBegin(m)
	}
}

// withdrawn says why an attempt that was not told to go is taken back, "" when it is not.
func (p *pass) withdrawn(m *member) string {
	switch {
	case m.leaving:
		return "the host left the pool"
	case p.world.poisoned(m.digest()) || p.isPoisonedNow(m.digest()):
		return "the release failed on another node"
	case p.wanted != nil && m.digest() != p.wanted.Digest:
		return "the pool has another release"
	case p.world.refused():
		return "no trusted key has signed the release"
	case !p.world.Held && !m.begun() && !m.staged() && !equality.Semantic.DeepEqual(m.update.Spec.Verification, p.world.Verification):
		// The agent has still to verify it. One that is staged was verified, and is not staged once more for a key that came.
		return "the pool asks for other signatures"
	default:
		return ""
	}
}

func (p *pass) isPoisonedNow(digest string) bool {
	return slices.ContainsFunc(p.poison, func(r v1alpha1.PoisonedRelease) bool { return r.Digest == digest })
}

// stepIdle is for a node without an open attempt.
func (p *pass) stepIdle(m *member) {
	stray := m.stray()
	switch {
	case stray != "" && (!m.held() || m.leaving) && !m.away():
		p.actions = append(p.actions, Action{Kind: Clean, Node: m.name, Host: m.host, Attempt: stray})
	case m.leaving:
		if m.update != nil && !m.away() {
			p.do(m, Remove)
		}
	case m.held():
		p.wait(m, WaitHuman)
		if p.mayOffer(m) {
			p.do(m, Offer)
		}
	case p.mayOffer(m):
		p.do(m, Offer)
		p.wait(m, WaitStaging)
	}
}

// offers tells whether the pool has a release to offer.
func (p *pass) offers() bool {
	return p.wanted != nil && !p.halted && !p.world.Pool.Spec.Paused && !p.world.deleting() && !p.world.Held && !p.world.refused()
}

// mayOffer tells whether the node shall get a new attempt for the wanted release.
func (p *pass) mayOffer(m *member) bool {
	if !p.offers() || m.leaving || !m.linked || m.node == nil || m.away() || m.runs(p.wanted) {
		return false
	}
	if m.update == nil || m.digest() != p.wanted.Digest || p.world.Retry == p.wanted.Digest || m.record.atOnce() {
		return true
	}
	left := m.record.closedAt.Add(RetryDelay).Sub(p.world.Now)
	p.again(left)
	if left > 0 {
		p.wait(m, WaitRetry)
	}

	return left <= 0
}

// mayBegin tells whether only the budget keeps a staged node from going out of service.
func (p *pass) mayBegin(m *member) bool {
	if p.world.Pool.Spec.Paused || p.halted || p.wanted == nil || p.world.Held {
		return false
	}
	if p.world.Pool.Spec.Strategy.Type == v1alpha1.ManualInPlaceUpdate && !m.view.Selected {
		p.wait(m, WaitSelection)

		return false
	}
	p.wait(m, WaitBudget)

	return true
}

// begin lets nodes begin within the budget: first those that a person selected, then by name.
func (p *pass) begin(ready []*member) {
	used, total := map[string]bool{}, 0
	for _, m := range p.members {
		if m.linked {
			total++
		}
		if m.unavailable() && m.foreign == "" {
			used[m.name] = true
		}
	}
	allowed := limit(p.world.Pool.Spec.Strategy.MaxUnavailable, total)
	slices.SortStableFunc(ready, func(a, b *member) int {
		switch {
		case a.view.Selected == b.view.Selected:
			return 0
		case a.view.Selected:
			return -1
		default:
			return 1
		}
	})
	for _, m := range ready {
		cost := len(used)
		if !used[m.name] {
			cost++
		}
		if cost > allowed {
			continue
		}
		used[m.name] = true
		p.do(m, Begin)
		p.wait(m, WaitDrain)
	}
}

// adjust lets a change of the pool reach a machine that was told to go, is being rebooted or waits for a person: that is
// when somebody allows power actions, or more of them. All else of an attempt stays as it was offered.
func (p *pass) adjust(m *member) {
	if p.acted(m) || (!m.away() && !m.told() && !m.held()) {
		return
	}
	was, now := m.update.Spec, p.world.Pool.Spec
	if was.Reboot.SilentAfter != now.Reboot.SilentAfter || !equality.Semantic.DeepEqual(was.OutOfBand, now.OutOfBand) {
		p.actions = append(p.actions, Action{Kind: Adjust, Node: m.name, Host: m.host, Attempt: was.Attempt})
	}
}

func (p *pass) summaries() []NodeSummary {
	summaries := make([]NodeSummary, 0, len(p.members))
	for _, m := range p.members {
		if !m.linked && m.leaving {
			continue
		}
		s := NodeSummary{
			Name: m.name, Host: m.host, Wait: p.waits[m.name], Since: m.record.begunAt, Phase: v1alpha1.PhaseIdle,
			Updating: m.begun() || m.away(), Unavailable: m.unavailable(), Foreign: m.foreign,
			Silent: p.silent[m.name],
		}
		if m.answers() {
			s.Phase, s.Message = m.update.Status.Phase, m.update.Status.Message
		}
		switch {
		case m.held():
			s.Message = m.plea()
		case m.update != nil && m.update.SilentMachine() != nil:
			s.Message = m.update.SilentMachine().Message
		}
		s.Hindrance = m.hindrance(p.world.Now)
		if p.wanted != nil && m.foreign == "" {
			s.Updated = m.runs(p.wanted)
			s.Failed = !s.Updated && m.digest() == p.wanted.Digest && failure(m.record.closedAs)
		}
		summaries = append(summaries, s)
	}

	return summaries
}

func failure(outcome Outcome) bool {
	switch outcome {
	case RolledBack, Refused, NeedsHuman, DrainTimeout:
		return true
	default:
		return false
	}
}
