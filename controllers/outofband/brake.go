package outofband

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	// together is how long before a machine others may have fallen silent and still do so with it: signs of life
	// come up to 5 minutes apart (nodeStatusReportFrequency of the kubelet), and the node controller takes up to a minute to
	// miss the Lease.
	together = 15 * time.Minute
	// maxNamed is how many Nodes a text names.
	maxNamed = 3
)

// peer is a Node of the pool, as far as the brake needs it.
type peer struct {
	Node string
	// LostAt is since when it has been silent; zero: it is not.
	LostAt time.Time
	// Excused: it may be silent, since it is being updated, or somebody has cordoned it.
	Excused bool
}

// brake tells whether the reset of Node own, which has been silent since silentSince, must wait, since too many of the
// pool's other Nodes are silent, too; "" is no. Nodes that are being updated say nothing of it, nor do those that were
// silent long before: a dead machine must not keep others from being reset for ever. Those that fell silent later count
// however much later it was: while the network is away, a machine that was reset before cannot show that it is back.
func brake(peers []peer, own string, silentSince time.Time, most intstr.IntOrString) (text string) {
	others, silent := 0, []string(nil)
	for _, p := range peers {
		if p.Node == own || p.Excused {
			continue
		}
		others++
		if !p.LostAt.IsZero() && !p.LostAt.Before(silentSince.Add(-together)) {
			silent = append(silent, p.Node)
		}
	}
	if len(silent) <= tolerated(most, others) {
		return ""
	}

	return fmt.Sprintf("%d of the pool's %d other Nodes have fallen silent, too (%s), so the network or the cluster is likelier to be "+
		"at fault than the machines; look at the network between the Nodes and the API server. Resets go on by themselves when "+
		"the Nodes are back; to have them at once, raise spec.outOfBand.maxSilent, which is %s",
		len(silent), others, named(silent), most.String())
}

// tolerated is how many Nodes may be silent: one is no sign of anything.
func tolerated(most intstr.IntOrString, others int) int {
	scaled, err := intstr.GetScaledValueFromIntOrPercent(&most, others, false)
	if err != nil {
		return 1 // the API server lets no other texts through
	}

	return max(scaled, 1)
}

// named names the first Nodes, always in the same order: a text that changes is one more event.
func named(nodes []string) string {
	slices.Sort(nodes)
	if more := len(nodes) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(nodes[:maxNamed], ", "), more)
	}

	return strings.Join(nodes, ", ")
}

// pace allows some power actions in any minute, also all of them at once. It knows those of this process only: after a
// restart the count begins anew. Safe for concurrent use.
type pace struct {
	mu sync.Mutex
	// last are the times of the last actions, a ring; the oldest is at next.
	last []time.Time
	next int
}

func newPace(perMinute int) *pace { return &pace{last: make([]time.Time, max(perMinute, 1))} }

// take counts an action now, if it is allowed; if not, it says after how long to ask again, at most a minute.
func (p *pace) take(now time.Time) (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wait = p.left(now); wait == 0 {
		p.count(now)
	}

	return wait
}

// wait is what take would give, and counts nothing.
func (p *pace) wait(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.left(now)
}

// left is after how long an action is allowed; mu is held.
func (p *pace) left(now time.Time) time.Duration {
	oldest := p.last[p.next]
	if age := now.Sub(oldest); !oldest.IsZero() && age < time.Minute {
		return min(time.Minute-age, time.Minute)
	}

	return 0
}

// spend counts an action that cannot wait.
func (p *pace) spend(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count(now)
}

// count puts an action in the place of the oldest; mu is held.
func (p *pace) count(now time.Time) {
	p.last[p.next] = now
	p.next = (p.next + 1) % len(p.last)
}
