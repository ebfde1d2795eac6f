package pool

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

const (
	// startTime is how long after its kubelet an agent may start to write: they start at one time, but the API server may be
	// busy, and a trial boot's network slow.
	startTime = 5 * time.Minute
	// rungTime is how much later than an agent its machine may count as silent: the node controller takes a minute to see
	// that a kubelet is gone, and the BMC rung some more to read the power. A silent machine is the rung's to tell.
	rungTime = 5 * time.Minute
	// stagingTime is the least time that an agent may stage without a word: it tells each fifth of the image, and each 10
	// minutes that it cannot fetch it.
	stagingTime = time.Hour
	// maxQuoted bounds what an agent or a rung says within a longer text, in bytes, so that its end, which names the next
	// action, is not cut off.
	maxQuoted = 400
)

// debt is an answer that an agent owes.
type debt struct {
	// since is when it was asked; zero: it owes none.
	since time.Time
	// grace is added to spec.reboot.silentAfter; the sum is no less than least.
	grace, least time.Duration
	// notBefore is when that may be said at the earliest; zero: at any time. It is not asked of what was said already.
	notBefore time.Time
	// what says what was asked.
	what string
	// answered tells that the agent speaks of the attempt, but of something else that is in its way.
	answered bool
}

// debt is what the agent of an open attempt owes. Of a machine that is silent itself, package outofband tells.
func (m *member) debt(now time.Time) debt {
	if m.open() == "" || m.node == nil || m.update.SilentMachine() != nil {
		return debt{}
	}
	switch {
	case m.away():
		return m.debtOfLiving(now)
	case m.told():
		return m.debtOfTold(now)
	case m.answers() && m.update.Status.Phase == v1alpha1.PhaseStaging:
		return debt{
			since: m.wrote(m.record.offeredAt, now), least: stagingTime,
			what: "it has told of no progress of staging", answered: m.hindered(),
		}
	case m.answers(), m.update.NotTakenUp(now):
		return debt{}
	default:
		return debt{since: m.record.offeredAt, what: "it was offered the attempt, and has said nothing of it"}
	}
}

// debtOfTold is what the agent owes of a node that was told to go, and has not gone or is back for good.
func (m *member) debtOfTold(now time.Time) debt {
	told, phase := m.toldAt(), m.update.Status.Phase
	switch {
	case told.IsZero():
		return debt{}
	case m.owesAnswer():
		return debt{since: m.wrote(told, now), what: fmt.Sprintf("it has said %s, but has not answered on the Node", phase)}
	case m.answers() && phase.Ended():
		return debt{} // an attempt that has ended, and was answered, is closed in this very pass
	default:
		return debt{since: told, what: "the node is drained and was told to go, and has not gone", answered: m.hindered()}
	}
}

// debtOfLiving is what the agent owes once it goes: it is done with arming soon, and writes each minute once it is back. It
// owes that only while the machine lives; one that does not is the BMC rung's.
func (m *member) debtOfLiving(now time.Time) debt {
	phase, rung, grace := m.update.Status.Phase, m.update.Status.OutOfBand, rungTime
	if !m.lives() {
		return debt{}
	}
	if phase == v1alpha1.PhaseArming {
		grace = v1alpha1.ArmDeadline
	}
	since := m.wrote(m.toldAt(), now)
	if rung != nil && rung.Attempt == m.open() && rung.Intent != nil && rung.Intent.DecidedAt.After(since) {
		since = rung.Intent.DecidedAt.Time // the boot after a reset is another one
	}

	return debt{
		since: since, grace: grace, notBefore: m.backSince(now).Add(startTime),
		what: fmt.Sprintf("it has said %s and has not written since, though the machine shows life", phase),
	}
}

// backSince is when the Node became Ready, or not Ready, after it was Unknown perhaps; zero: that is not known. A time to
// come is of a wrong clock.
func (m *member) backSince(now time.Time) time.Time {
	if ready := protocol.ReadyCondition(m.node); ready != nil && !ready.LastTransitionTime.After(now) {
		return ready.LastTransitionTime.Time
	}

	return time.Time{}
}

// lives tells whether the machine shows life now: its kubelet renews its Lease, whether it is Ready or not. Of one that was
// told to reboot, the BMC rung must have said so, too, or the kubelet tell another boot than the one that was left.
func (m *member) lives() bool {
	status, boot := m.update.Status, m.node.Status.NodeInfo.BootID
	// Unknown: the node controller sees that the Lease is not renewed. No condition: no kubelet has written yet.
	if ready := protocol.ReadyCondition(m.node); ready == nil || ready.Status == corev1.ConditionUnknown {
		return false
	}
	if rung := status.OutOfBand; rung != nil && rung.Attempt == m.open() && rung.Phase == v1alpha1.OutOfBandRecovered {
		return true
	}

	return status.Phase != v1alpha1.PhaseRebooting || (boot != "" && status.BootID != "" && boot != status.BootID)
}

// hindered tells whether the agent speaks of the attempt and names a reason that does not belong to a good one.
func (m *member) hindered() bool {
	switch m.update.Status.Reason {
	case "", v1alpha1.ReasonReadingSlots, v1alpha1.ReasonDownloading, v1alpha1.ReasonWaitingForReady:
		return false
	default:
		return m.answers()
	}
}

// hindrance is what an agent that cannot stage the release says, "" when nothing is in its way or it says nothing.
func (m *member) hindrance(now time.Time) string {
	if m.open() == "" || m.staged() || (!m.hindered() && !m.update.NotTakenUp(now)) {
		return ""
	}

	return m.says()
}

// says is where the agent stands, in its words.
func (m *member) says() string {
	status := m.update.Status

	return fmt.Sprintf("%s, %s: %s", status.Phase, status.Reason, v1alpha1.Cut(status.Message, maxQuoted))
}

// wrote is when the agent wrote last, from asked on.
func (m *member) wrote(asked, now time.Time) time.Time {
	if at := m.update.AgentWroteAt(now); at.After(asked) {
		return at
	}

	return asked
}

// toldAt is when the node was told to go, zero when that is not known.
func (m *member) toldAt() time.Time {
	if m.record.toldAt.IsZero() && m.view.ReasonAttempt == m.open() {
		return m.view.ReasonSince
	}

	return m.record.toldAt
}

// listen finds the agent that owes an answer for longer than spec.reboot.silentAfter. It says so, and no more: the agent
// may be about to reboot, so neither the machine nor the drain is touched.
func (p *pass) listen(m *member) {
	owed, noted := m.debt(p.world.Now), !m.record.silentSince.IsZero()
	if after := max(m.silentAfter()+owed.grace, owed.least); !owed.since.IsZero() {
		due := owed.since.Add(after)
		if !noted && owed.notBefore.After(due) {
			due = owed.notBefore
		}
		left := due.Sub(p.world.Now)
		p.again(left)
		if left <= 0 {
			p.silent[m.name] = silence(m, owed, after)
		}
	}
	text := p.silent[m.name]
	switch {
	case p.acted(m), (text != "") == noted:
	case noted:
		p.do(m, Hear)
	default:
		p.actions = append(p.actions, Action{
			Kind: Miss, Node: m.name, Host: m.host, Attempt: m.open(), Message: text, Since: owed.since,
		})
	}
}

// silent counts the nodes whose agent is silent.
func (d Decision) silent() int {
	count := 0
	for _, node := range d.Nodes {
		if node.Silent != "" {
			count++
		}
	}

	return count
}

// silentAfter is how long the agent may owe an answer.
func (m *member) silentAfter() time.Duration {
	if m.update == nil {
		return v1alpha1.DefaultSilentAfter
	}

	return m.update.Spec.Reboot.Patience()
}

// lookAtAgent is what a person does first about an agent that does not go on.
const lookAtAgent = "on the node, run `systemctl status stayput-agent` and `journalctl -u stayput-agent`, "

// beat says when the agent wrote last, by its node's clock.
func (m *member) beat() string {
	if at := m.update.Status.Heartbeat; at != nil {
		return "its last heartbeat is of " + at.UTC().Format(time.RFC3339)
	}

	return "it has never written"
}

// plea is what a person is asked of a node that is held: by its agent or by the BMC rung, while that cannot do more.
// Otherwise the machine is back, and the agent must end the attempt; its last words may be from before the reboot.
func (m *member) plea() string {
	status, rung := m.update.Status, m.update.SilentMachine()
	switch {
	case rung != nil:
		return rung.Message
	case m.answers() && status.Phase.Ended() && status.Message != "":
		return status.Message
	}
	says := "its agent says nothing of the attempt"
	if m.answers() {
		says = "its agent says " + m.says()
	}
	parts := []string{strings.TrimSpace(m.record.closedReason + " at " + m.record.closedAt.UTC().Format(time.RFC3339))}
	if back := status.OutOfBand; back != nil && back.Attempt == m.update.Spec.Attempt && back.Message != "" {
		parts = append(parts, "since then: "+v1alpha1.Cut(back.Message, maxQuoted))
	}

	return strings.Join(append(parts,
		says+" ("+m.beat()+")",
		lookAtAgent+"and start it if it does not run; the attempt is closed anew when the agent has ended it",
	), "; ")
}

// silence is the text for a person.
func silence(m *member, owed debt, after time.Duration) string {
	beat := m.beat()
	how, state, next := "is silent", "nothing is done to the node", "and start it; the attempt then goes on by itself"
	switch {
	case m.away():
		state = "the node stays cordoned, and is not reset while the machine shows life"
	case m.begun():
		state = "the node stays cordoned and is not reset, since the agent may be about to reboot it"
	}
	if owed.answered {
		how = "does not go on"
		beat = fmt.Sprintf("it says %s (%s)", m.says(), beat)
		next = "and see to what it says; the attempt then goes on by itself"
	}

	return strings.Join([]string{
		fmt.Sprintf("its agent %s since %s, for longer than %s: %s", how, owed.since.UTC().Format(time.RFC3339), after, owed.what),
		beat, state,
		lookAtAgent + next,
	}, "; ")
}
