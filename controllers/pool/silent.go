package pool

import (
	"fmt"
	"strings"
	"time"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

const (
	// defaultSilentAfter is the API's default of spec.reboot.silentAfter, for objects that were made before it was.
	defaultSilentAfter = 15 * time.Minute
	// armTime is how long an agent may say Arming before it goes or refuses: its own deadline.
	armTime = 10 * time.Minute
)

// debt is an answer that an agent owes.
type debt struct {
	// since is when it was asked; zero: it owes none.
	since time.Time
	// grace is added to spec.reboot.silentAfter.
	grace time.Duration
	// what says what was asked.
	what string
}

// debt is what the agent of an open attempt owes before the machine goes down. Afterwards the BMC rung watches.
func (m *member) debt() debt {
	if m.open() == "" || m.node == nil {
		return debt{}
	}
	switch {
	case m.told():
		return m.debtOfTold()
	case m.away(), m.answers(), m.cannotTakeUp():
		return debt{}
	default:
		return debt{since: m.record.offeredAt, what: "it was offered the attempt, and has said nothing of it"}
	}
}

// debtOfTold is what the agent owes of a node that was told to go.
func (m *member) debtOfTold() debt {
	told, phase := m.toldAt(), m.update.Status.Phase
	if told.IsZero() {
		return debt{}
	}
	wrote := told
	if beat := m.update.Status.Heartbeat; beat != nil && beat.After(told) {
		wrote = beat.Time
	}
	switch {
	case m.owesAnswer():
		return debt{since: wrote, what: fmt.Sprintf("it has said %s, but has not answered on the Node", phase)}
	case m.answers() && phase == v1alpha1.PhaseArming:
		return debt{since: wrote, grace: armTime, what: "it has said Arming, and the machine has not gone"}
	case m.away(), m.answers() && phase.Ended():
		return debt{} // an attempt that has ended, and was answered, is closed in this very pass
	default:
		return debt{since: told, what: "the node is drained and was told to go, and has not gone"}
	}
}

// toldAt is when the node was told to go, zero when that is not known.
func (m *member) toldAt() time.Time {
	if m.record.toldAt.IsZero() && m.view.ReasonAttempt == m.open() {
		return m.view.ReasonSince
	}

	return m.record.toldAt
}

// cannotTakeUp tells whether the agent has seen the attempt and says why it does not take it up, as where it cannot
// read the slots: it is idle then, and names no attempt.
func (m *member) cannotTakeUp() bool {
	status := m.update.Status

	return status.Attempt == "" && status.Phase == v1alpha1.PhaseIdle && status.Reason != "" &&
		status.ObservedGeneration == m.update.Generation
}

// listen finds the agent that owes an answer for longer than spec.reboot.silentAfter. It says so, and no more: the agent
// may be about to reboot, so neither the machine nor the drain is touched.
func (p *pass) listen(m *member) {
	owed := m.debt()
	if after := m.silentAfter() + owed.grace; !owed.since.IsZero() {
		left := owed.since.Add(after).Sub(p.world.Now)
		p.again(left)
		if left <= 0 {
			p.silent[m.name] = silence(m, owed, after)
		}
	}
	text, noted := p.silent[m.name], !m.record.silentSince.IsZero()
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

func (m *member) silentAfter() time.Duration {
	if m.update == nil || m.update.Spec.Reboot.SilentAfter.Duration <= 0 {
		return defaultSilentAfter
	}

	return m.update.Spec.Reboot.SilentAfter.Duration
}

// silence is the text for a person.
func silence(m *member, owed debt, after time.Duration) string {
	beat := "it has never written"
	if at := m.update.Status.Heartbeat; at != nil {
		beat = "its last heartbeat is of " + at.UTC().Format(time.RFC3339)
	}
	state := "nothing is done to the node"
	if m.begun() {
		state = "the node stays cordoned and is not reset, since the agent may be about to reboot it"
	}

	return strings.Join([]string{
		fmt.Sprintf("its agent is silent since %s, for longer than %s: %s", owed.since.UTC().Format(time.RFC3339), after, owed.what),
		beat, state,
		"on the node, run `systemctl status stayput-agent` and `journalctl -u stayput-agent`, and start it; the attempt then goes on by itself",
	}, "; ")
}
