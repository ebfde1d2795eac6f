package pool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/clusters"
	"github.com/stayput-dev/stayput/controllers/hosts"
	"github.com/stayput-dev/stayput/osimage"
)

// maxMessage bounds a condition's message, in bytes; the API allows 32 KiB, a person reads less.
const maxMessage = 1024

// report turns what a pass has found into the pool's status.
type report struct {
	now          time.Time
	resolveError error
	// keysError is why the pool's public keys cannot be used; trusted is which signatures it asks for, when they can.
	keysError error
	trusted   trusted
	// held tells that it is not known whether the release may be rolled out.
	held  bool
	again time.Duration
}

// trouble is the reason why the release cannot be rolled out, "" when it can.
func (r *report) trouble(pool *v1alpha1.HostPool) string {
	release := pool.Status.Release
	switch {
	case r.keysError != nil:
		return v1alpha1.ReasonPublicKeysInvalid
	case errors.Is(r.resolveError, osimage.ErrUntrusted), r.resolveError == nil && release != nil && release.Signature.Refused():
		return v1alpha1.ReasonReleaseUntrusted
	case r.resolveError != nil:
		return v1alpha1.ReasonResolveFailed
	default:
		return ""
	}
}

func (r *report) set(pool *v1alpha1.HostPool, conditionType string, holds bool, reason, message string) {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&pool.Status.Conditions, metav1.Condition{
		Type: conditionType, Status: status, Reason: reason, Message: v1alpha1.Cut(message, maxMessage),
		ObservedGeneration: pool.Generation, LastTransitionTime: metav1.NewTime(r.now),
	})
}

// unreachable is the status of a pool whose Nodes cannot be seen; all else stays as it was last seen.
func (r *report) unreachable(pool *v1alpha1.HostPool, kind clusters.ErrorKind, err error) {
	reason := v1alpha1.ReasonUnreachable
	if kind == clusters.KubeconfigInvalid {
		reason = v1alpha1.ReasonKubeconfigInvalid
	}
	r.set(pool, v1alpha1.ConditionClusterReachable, false, reason, err.Error())
	r.set(pool, v1alpha1.ConditionReady, false, reason, err.Error())
}

func (r *report) fill(pool *v1alpha1.HostPool, world World, decision Decision, drains map[string]string) {
	status := &pool.Status
	status.ObservedGeneration = pool.Generation
	status.Hosts = int32(len(world.Links)) //nolint:gosec // a pool has no two thousand million hosts
	status.Nodes, status.Updated, status.Updating, status.Unavailable, status.Failed = 0, 0, 0, 0, 0
	for _, node := range decision.Nodes {
		if node.Foreign != "" {
			continue
		}
		status.Nodes++
		status.Updated += one(node.Updated)
		status.Updating += one(node.Updating)
		status.Unavailable += one(node.Unavailable)
		status.Failed += one(node.Failed)
	}
	r.set(pool, v1alpha1.ConditionClusterReachable, true, v1alpha1.ReasonReachable, "the cluster of the Nodes answers")
	r.release(pool)
	r.verified(pool)
	r.links(pool, world, decision)
	r.halted(pool, world, decision)
	r.progress(pool, decision, drains)
}

func one(b bool) int32 {
	if b {
		return 1
	}

	return 0
}

func (r *report) release(pool *v1alpha1.HostPool) {
	release := pool.Status.Release
	switch {
	case r.resolveError != nil:
		r.set(pool, v1alpha1.ConditionReleaseResolved, false, r.trouble(pool), r.resolveError.Error())
	case r.keysError != nil && (release == nil || release.Image != pool.Spec.Release.OS.Image):
		r.set(pool, v1alpha1.ConditionReleaseResolved, false, v1alpha1.ReasonPublicKeysInvalid, r.keysError.Error())
	case release != nil:
		r.set(pool, v1alpha1.ConditionReleaseResolved, true, v1alpha1.ReasonResolved,
			fmt.Sprintf("%s is version %s, %s", release.Image, release.Version, release.Digest))
	}
}

// verified sets or removes ReleaseVerified.
func (r *report) verified(pool *v1alpha1.HostPool) {
	set := func(holds bool, reason, message string) {
		r.set(pool, v1alpha1.ConditionReleaseVerified, holds, reason, message)
	}
	var signature *v1alpha1.ReleaseSignature
	if release := pool.Status.Release; release != nil && release.Image == pool.Spec.Release.OS.Image {
		signature = release.Signature
	}
	switch {
	case r.keysError != nil:
		set(false, v1alpha1.ReasonPublicKeysInvalid, r.keysError.Error())
	case errors.Is(r.resolveError, osimage.ErrUntrusted):
		set(false, v1alpha1.ReasonReleaseUntrusted, r.resolveError.Error())
	case r.held:
		set(false, v1alpha1.ReasonResolveFailed, r.resolveError.Error())
	case r.trusted.off() || signature == nil:
		meta.RemoveStatusCondition(&pool.Status.Conditions, v1alpha1.ConditionReleaseVerified)
	case signature.Verified:
		set(true, v1alpha1.ReasonVerified, fmt.Sprintf("signed by the key %s (form %s)", signature.Key, signature.Form))
	default:
		set(false, v1alpha1.ReasonReleaseUntrusted, unverified(signature))
	}
}

func (r *report) links(pool *v1alpha1.HostPool, world World, decision Decision) {
	var ambiguous, missing, foreign []string
	for _, link := range world.Links {
		switch link.Problem {
		case hosts.Ambiguous:
			ambiguous = append(ambiguous, link.Message)
		case hosts.NoNode:
			missing = append(missing, link.Message)
		}
	}
	for _, node := range decision.Nodes {
		if node.Foreign != "" {
			foreign = append(foreign, fmt.Sprintf(
				"Node %s is held by %s; take it out of one of the two, or delete NodeUpdate %s if that owner is gone",
				node.Name, node.Foreign, node.Name))
		}
	}
	set := func(reason string, messages []string) {
		r.set(pool, v1alpha1.ConditionHostsLinked, false, reason, strings.Join(messages, "; "))
	}
	switch {
	case len(world.Links) == 0:
		set(v1alpha1.ReasonNoHosts, []string{"spec.hostSelector picks no BareMetalHost of this namespace"})
	case len(ambiguous) > 0:
		set(v1alpha1.ReasonAmbiguousNode, ambiguous)
	case len(foreign) > 0:
		set(v1alpha1.ReasonNodeOwnedByAnother, foreign)
	case len(missing) > 0:
		set(v1alpha1.ReasonNoNode, missing)
	default:
		r.set(pool, v1alpha1.ConditionHostsLinked, true, v1alpha1.ReasonLinked, "every host has its Node")
	}
}

func (r *report) halted(pool *v1alpha1.HostPool, world World, decision Decision) {
	if !decision.Halted {
		r.set(pool, v1alpha1.ConditionHalted, false, v1alpha1.ReasonNotHalted, "the release has failed on no node")

		return
	}
	message := ""
	for _, p := range pool.Status.Poisoned {
		if p.Digest == world.wanted().Digest {
			message = fmt.Sprintf("release %s failed on node %s: %s. Give spec.release.os.image another image, or run "+
				"`stayput retry -n %s %s` to try this one again", p.Version, p.Node, p.Reason, pool.Namespace, pool.Name)
		}
	}
	r.set(pool, v1alpha1.ConditionHalted, true, v1alpha1.ReasonReleaseFailed, message)
}

// progress sets Ready and Progressing.
func (r *report) progress(pool *v1alpha1.HostPool, decision Decision, drains map[string]string) {
	status := &pool.Status
	done := status.Nodes > 0 && status.Updated == status.Nodes && r.trouble(pool) == "" &&
		meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionHostsLinked)
	r.set(pool, v1alpha1.ConditionReady, done, r.reason(pool, decision, done), r.message(pool, decision, drains))
	moving := false
	for _, node := range decision.Nodes {
		moving = moving || node.Updating || node.Wait == WaitStaging
	}
	reason := v1alpha1.ReasonUpdating
	if !moving {
		reason = r.reason(pool, decision, done)
	}
	r.set(pool, v1alpha1.ConditionProgressing, moving, reason, r.message(pool, decision, drains))
}

func (r *report) reason(pool *v1alpha1.HostPool, decision Decision, done bool) string {
	waits := decision.waits()
	linked := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.ConditionHostsLinked)
	switch {
	case done:
		return v1alpha1.ReasonAllUpdated
	case waits[WaitHuman] > 0:
		return v1alpha1.ReasonNeedsHuman
	case decision.silent() > 0:
		return v1alpha1.ReasonAgentSilent
	case decision.Halted:
		return v1alpha1.ReasonReleaseFailed
	case r.trouble(pool) != "":
		return r.trouble(pool)
	case waits[WaitAgent] > 0 || waits[WaitDrain] > 0:
		return v1alpha1.ReasonUpdating
	case pool.Spec.Paused:
		return v1alpha1.ReasonPaused
	case waits[WaitSelection] > 0:
		return v1alpha1.ReasonWaitingForSelect
	case waits[WaitBudget] > 0:
		return v1alpha1.ReasonWaitingForBudget
	case waits[WaitStaging] > 0:
		return v1alpha1.ReasonWaitingForStaging
	case linked != nil && linked.Status == metav1.ConditionFalse:
		return linked.Reason
	default:
		return v1alpha1.ReasonUpdating
	}
}

// waits counts the nodes by what they wait for.
func (d Decision) waits() map[Wait]int {
	waits := map[Wait]int{}
	for _, node := range d.Nodes {
		waits[node.Wait]++
	}

	return waits
}

func (r *report) message(pool *v1alpha1.HostPool, decision Decision, drains map[string]string) string {
	parts := []string{fmt.Sprintf("%d of %d nodes run the release", pool.Status.Updated, pool.Status.Nodes)}
	// First what a person has to do, since a long message is cut.
	for _, node := range decision.Nodes {
		if node.Wait == WaitHuman {
			parts = append(parts, node.Name+": needs a person: "+node.Message)
		}
	}
	for _, node := range decision.Nodes {
		if node.Silent != "" {
			parts = append(parts, node.Name+": "+node.Silent)
		}
	}
	for _, node := range decision.Nodes {
		if text := waitText(node, drains[node.Name]); text != "" {
			parts = append(parts, node.Name+": "+text)
		}
	}

	return strings.Join(parts, "; ")
}

// waitText says what a node waits for, and what blocks its drain; empty: that is said elsewhere.
func waitText(node NodeSummary, blocked string) string {
	switch node.Wait {
	case WaitDrain:
		text := "draining since " + node.Since.UTC().Format(time.RFC3339)
		if node.Since.IsZero() {
			text = "being selected"
		}

		return strings.TrimSuffix(text+": "+blocked, ": ")
	case WaitAgent:
		return strings.TrimSuffix(fmt.Sprintf("%s: %s", node.Phase, node.Message), ": ")
	case WaitSelection:
		return "staged; select it with the label selected-for-update"
	case WaitRetry:
		return "failed, and is tried again later: " + node.Message
	case WaitStaging:
		if node.Silent != "" {
			return "" // what hinders the agent is said with its silence
		}

		return node.Hindrance
	case WaitHuman, WaitNothing, WaitBudget:
		// What a person has to do is said first. Most nodes of a large pool wait so; the condition's reason says it once.
	}

	return ""
}

// writeStatus writes the status when it has changed.
func (r *Reconciler) writeStatus(ctx context.Context, pool *v1alpha1.HostPool, before *v1alpha1.HostPoolStatus) error {
	if equality.Semantic.DeepEqual(before, &pool.Status) {
		return nil
	}
	if err := r.Client.Status().Update(ctx, pool, client.FieldOwner(v1alpha1.FieldManagerOrchestrator)); err != nil {
		return fmt.Errorf("writing the status of HostPool: %w", client.IgnoreNotFound(err))
	}

	return nil
}
