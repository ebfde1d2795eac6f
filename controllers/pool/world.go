package pool

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/hosts"
)

// World is what a decision is made from.
type World struct {
	// Now is the time of the pass.
	Now time.Time
	// Pool is the pool, with its status as it is stored.
	Pool *v1alpha1.HostPool
	// Links are the pool's hosts.
	Links []hosts.Link
	// Nodes are the Nodes of the cluster, by name: at least those of the links and of the updates.
	Nodes map[string]*corev1.Node
	// Updates are the NodeUpdates of the cluster, by name: at least those of the links and those that the pool owns.
	Updates map[string]*v1alpha1.NodeUpdate
	// Retry is the digest that a person wants to be tried again, "" for none.
	Retry string
	// Verification is which signatures the nodes are to see, nil for none.
	Verification *v1alpha1.NodeVerification
	// Held tells that it is not known whether the release may be rolled out: nothing is begun.
	Held bool
}

// wanted is the release that the nodes shall run, nil while it is not resolved.
func (w World) wanted() *v1alpha1.ResolvedRelease {
	release := w.Pool.Status.Release
	if release == nil || release.Image != w.Pool.Spec.Release.OS.Image {
		return nil
	}

	return release
}

// refused tells whether no trusted key signed the release, any more.
func (w World) refused() bool {
	wanted := w.wanted()

	return wanted != nil && wanted.Signature.Refused()
}

func (w World) deleting() bool { return !w.Pool.DeletionTimestamp.IsZero() }

// poisoned tells whether the digest failed on a node of this pool.
func (w World) poisoned(digest string) bool {
	return digest != w.Retry && slices.ContainsFunc(w.Pool.Status.Poisoned, func(p v1alpha1.PoisonedRelease) bool {
		return p.Digest == digest
	})
}

// owns tells whether the pool is the door of the update.
func (w World) owns(update *v1alpha1.NodeUpdate) bool {
	door := update.Spec.Door

	return door.Kind == v1alpha1.DoorHostPool && door.Namespace == w.Pool.Namespace && door.Name == w.Pool.Name
}

// member is one node of the pool, or one that it must still let go.
type member struct {
	name, host string
	// node is nil when the Node does not exist.
	node *corev1.Node
	view protocol.View
	// update is nil when the pool has none for this node.
	update *v1alpha1.NodeUpdate
	record record
	// linked tells whether a host of the pool has this node now; leaving whether the host is no longer the pool's.
	linked, leaving bool
	// foreign says, when it is set, who else holds the node.
	foreign string
}

// open is the attempt that is asked for and not closed, "" for none.
func (m *member) open() string {
	if m.update == nil || m.record.closedAs != "" {
		return ""
	}

	return m.update.Spec.Attempt
}

func (m *member) begun() bool { return m.open() != "" && !m.record.begunAt.IsZero() }

// held tells whether the last attempt needs a person, and no other was begun since.
func (m *member) held() bool { return m.update != nil && m.record.closedAs == NeedsHuman }

// answers tells whether the agent's status is about the update's attempt.
func (m *member) answers() bool {
	return m.update != nil && m.update.Status.Attempt == m.update.Spec.Attempt
}

// staged tells whether the release is in the spare slot.
func (m *member) staged() bool { return m.answers() && m.update.Status.Phase == v1alpha1.PhaseStaged }

// away tells whether the agent is past the point of return.
func (m *member) away() bool {
	if !m.answers() {
		return false
	}
	switch m.update.Status.Phase {
	case v1alpha1.PhaseArming, v1alpha1.PhaseRebooting, v1alpha1.PhaseProving, v1alpha1.PhaseReporting:
		return true
	default:
		return false
	}
}

// told tells whether the node was told to go for its open attempt, even if a hand took the selected label off since.
// A reason that an earlier attempt left behind tells nothing: the agent does not go on it, either.
func (m *member) told() bool {
	if m.open() == "" || m.view.Attempt != m.open() {
		return false
	}

	return m.view.Ready || (m.view.Reason == protocol.ReasonReady && m.view.ReasonAttempt == m.open())
}

// digest is that of the release in the update, "" without one.
func (m *member) digest() string {
	if m.update == nil {
		return ""
	}
	_, digest, _ := strings.Cut(m.update.Spec.Release.OS.Image, "@")

	return digest
}

// runs tells whether the node runs the release, committed. After an attempt of ours that succeeded the version is
// enough: an agent that lost its journal still knows the version, but not which image it came from.
func (m *member) runs(release *v1alpha1.ResolvedRelease) bool {
	if m.update == nil {
		return false
	}
	status := m.update.Status
	if status.Running.Digest == release.Digest && status.KnownGood.Digest == release.Digest {
		return true
	}

	return m.record.closedAs == Succeeded && m.digest() == release.Digest && status.Running.Version == release.Version &&
		(status.Running.Digest == "" || status.Running.Digest == release.Digest)
}

// stray is an attempt whose marks are on the Node though it is not open, "" for none.
func (m *member) stray() string {
	if m.node == nil || m.foreign != "" {
		return ""
	}
	for _, attempt := range []string{
		m.view.Attempt, m.view.CordonedBy, m.view.ResultAttempt, m.node.Annotations[protocol.AnnotationScaleDownDisabledByUs],
	} {
		if attempt != "" && attempt != m.open() {
			return attempt
		}
	}

	return ""
}

// unavailable tells whether the node costs budget: see the package's documentation.
func (m *member) unavailable() bool {
	return m.begun() || m.held() || m.away() || (m.node != nil && (!nodeReady(m.node) || m.node.Spec.Unschedulable))
}

func nodeReady(node *corev1.Node) bool {
	ready := protocol.ReadyCondition(node)

	return ready != nil && ready.Status == corev1.ConditionTrue
}

// members collects the nodes of the pool and those that it must let go, in order of their names.
func (w World) members() []*member {
	byName := map[string]*member{}
	ofHost := map[string]hosts.Link{}
	for _, link := range w.Links {
		ofHost[link.Host] = link
		if link.Node != "" {
			byName[link.Node] = &member{name: link.Node, host: link.Host, linked: true}
		}
	}
	for name, update := range w.Updates {
		if !w.owns(update) {
			if m := byName[name]; m != nil {
				m.foreign = "HostPool " + update.Spec.Door.Namespace + "/" + update.Spec.Door.Name
			}

			continue
		}
		m := byName[name]
		if m == nil {
			_, ours := ofHost[update.Spec.Door.Host]
			m = &member{name: name, host: update.Spec.Door.Host, leaving: !ours || w.deleting()}
			byName[name] = m
		}
		m.update, m.record = update, recordOf(update)
	}
	members := make([]*member, 0, len(byName))
	for _, m := range byName {
		m.leaving = m.leaving || w.deleting()
		if m.node = w.Nodes[m.name]; m.node != nil {
			m.view = protocol.Read(m.node)
			if m.foreign == "" && m.update == nil && markedByAnother(m.view) {
				m.foreign = "another orchestrator (label " + protocol.LabelCandidate + " without annotation " +
					protocol.AnnotationAttempt + ")"
			}
		}
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b *member) int { return strings.Compare(a.name, b.name) })

	return members
}

// markedByAnother tells whether somebody who does not name an attempt has put the labels on the Node.
func markedByAnother(view protocol.View) bool {
	return view.Attempt == "" && (view.Candidate || view.Selected)
}

// limit is maxUnavailable for a pool of this size.
func limit(maxUnavailable *intstr.IntOrString, total int) int {
	if maxUnavailable == nil {
		return 1
	}
	scaled, err := intstr.GetScaledValueFromIntOrPercent(maxUnavailable, total, false)
	if err != nil {
		return 1
	}

	return max(scaled, 1)
}
