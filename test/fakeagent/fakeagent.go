package fakeagent

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// Ending is how an attempt ends.
type Ending struct {
	// Phase is Succeeded, RolledBack, Refused or NeedsHuman. Refused comes instead of staging.
	Phase v1alpha1.Phase
	// Reason and Message go with it.
	Reason  v1alpha1.Reason
	Message string
}

// Succeeds is the good ending.
func Succeeds() Ending {
	return Ending{Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonCommitted}
}

// Fleet is the agents of all nodes of one cluster.
type Fleet struct {
	// Client is an uncached client of the cluster.
	Client client.Client
	// Prefix, when set, keeps the fleet to nodes whose names start with it.
	Prefix string
	// Poll is the pause between two looks. Default 50ms.
	Poll time.Duration

	mu         sync.Mutex
	endings    map[string]Ending
	running    map[string]v1alpha1.SlotStatus
	violations []string
	mostOut    int
}

const (
	defaultPoll  = 50 * time.Millisecond
	firstVersion = "1.0.0"
)

// Ends says how attempts at a version end; a version that was not named succeeds.
func (f *Fleet) Ends(version string, ending Ending) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.endings == nil {
		f.endings = map[string]Ending{}
	}
	f.endings[version] = ending
}

// Violations are promises of the orchestrator that were broken.
func (f *Fleet) Violations() []string {
	f.mu.Lock()
	defer f.mu.Unlock()

	return append([]string(nil), f.violations...)
}

// MostOut is the largest number of nodes that were unschedulable at one time, as far as a look was taken.
func (f *Fleet) MostOut() int {
	f.mu.Lock()
	defer f.mu.Unlock()

	return f.mostOut
}

// Run answers until ctx ends. Errors of single steps are tried again at the next look, as an agent would.
func (f *Fleet) Run(ctx context.Context) {
	poll := f.Poll
	if poll <= 0 {
		poll = defaultPoll
	}
	_ = wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
		f.look(ctx)

		return false, nil
	})
}

func (f *Fleet) look(ctx context.Context) {
	var updates v1alpha1.NodeUpdateList
	var nodes corev1.NodeList
	if f.Client.List(ctx, &nodes) != nil || f.Client.List(ctx, &updates) != nil {
		return
	}
	byName := map[string]*corev1.Node{}
	cordoned := 0
	for i := range nodes.Items {
		if !strings.HasPrefix(nodes.Items[i].Name, f.Prefix) {
			continue
		}
		byName[nodes.Items[i].Name] = &nodes.Items[i]
		if nodes.Items[i].Spec.Unschedulable {
			cordoned++
		}
	}
	f.mu.Lock()
	f.mostOut = max(f.mostOut, cordoned)
	f.mu.Unlock()
	for i := range updates.Items {
		if node := byName[updates.Items[i].Name]; node != nil {
			f.answer(ctx, node, &updates.Items[i])
		}
	}
}

// answer takes one step of one agent.
func (f *Fleet) answer(ctx context.Context, node *corev1.Node, update *v1alpha1.NodeUpdate) {
	spec, status := update.Spec, update.Status
	ending := f.ending(spec.Release.OS.Version)
	_, digest, _ := strings.Cut(spec.Release.OS.Image, "@")
	running := f.slot(node.Name)
	switch {
	case status.Attempt != spec.Attempt && running.Digest == digest:
		f.report(ctx, update, v1alpha1.PhaseSucceeded, v1alpha1.ReasonUpToDate, "")
	case status.Attempt != spec.Attempt && ending.Phase == v1alpha1.PhaseRefused:
		f.report(ctx, update, v1alpha1.PhaseRefused, ending.Reason, ending.Message)
	case status.Attempt != spec.Attempt:
		f.report(ctx, update, v1alpha1.PhaseStaging, v1alpha1.ReasonDownloading, "")
	case status.Phase == v1alpha1.PhaseStaging:
		f.report(ctx, update, v1alpha1.PhaseStaged, v1alpha1.ReasonWaitingForReady, "")
	case status.Phase == v1alpha1.PhaseStaged:
		view := protocol.Read(node)
		if view.Ready && view.Attempt == spec.Attempt {
			f.check(ctx, node, view)
			f.report(ctx, update, v1alpha1.PhaseRebooting, v1alpha1.ReasonWaitingForBoot, "")
		}
	case status.Phase == v1alpha1.PhaseRebooting:
		f.finish(ctx, node, update, ending)
	case status.Phase.Ended():
		f.tell(ctx, node, update)
	}
}

// check notes what the orchestrator promised and did not keep.
func (f *Fleet) check(ctx context.Context, node *corev1.Node, view protocol.View) {
	if !view.Cordoned {
		f.notef("node %s was told to go and is not cordoned", node.Name)
	}
	var pods corev1.PodList
	if err := f.Client.List(ctx, &pods, client.MatchingFields{"spec.nodeName": node.Name}); err != nil {
		f.notef("listing the pods of node %s: %v", node.Name, err)
	}
	for i := range pods.Items {
		owner := metav1.GetControllerOf(&pods.Items[i])
		if owner == nil || owner.Kind != "DaemonSet" {
			f.notef("node %s was told to go and still has pod %s", node.Name, pods.Items[i].Name)
		}
	}
}

func (f *Fleet) notef(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.violations = append(f.violations, fmt.Sprintf(format, args...))
}

// finish ends the attempt in the status. The answer on the Node follows, as the real agent's does.
func (f *Fleet) finish(ctx context.Context, node *corev1.Node, update *v1alpha1.NodeUpdate, ending Ending) {
	if ending.Phase == v1alpha1.PhaseSucceeded {
		_, digest, _ := strings.Cut(update.Spec.Release.OS.Image, "@")
		f.setSlot(node.Name, v1alpha1.SlotStatus{Name: "b", Version: update.Spec.Release.OS.Version, Digest: digest})
	}
	f.report(ctx, update, ending.Phase, ending.Reason, ending.Message)
}

// tell answers on the Node when it still asks.
func (f *Fleet) tell(ctx context.Context, node *corev1.Node, update *v1alpha1.NodeUpdate) {
	dialect, attempt, status := protocol.Read(node).Dialect, update.Spec.Attempt, update.Status
	patch := protocol.Succeed(node, dialect, attempt)
	if status.Phase != v1alpha1.PhaseSucceeded {
		patch = protocol.Fail(node, dialect, attempt, string(status.Reason)+": "+status.Message)
	}
	if patch == nil || status.Phase == v1alpha1.PhaseNeedsHuman {
		return
	}
	err := f.Client.Patch(ctx, node, client.RawPatch(patch.Type, patch.Data), client.FieldOwner(v1alpha1.FieldManagerAgent))
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		f.notef("answering on node %s: %v", node.Name, err)
	}
}

// report writes the status.
func (f *Fleet) report(
	ctx context.Context, update *v1alpha1.NodeUpdate, phase v1alpha1.Phase, reason v1alpha1.Reason, message string,
) {
	slot := f.slot(update.Name)
	status := v1alpha1.NodeUpdateStatus{
		ObservedGeneration: update.Generation, Attempt: update.Spec.Attempt, Phase: phase, Reason: reason, Message: message,
		Scheme: "dps", Running: slot, KnownGood: slot,
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return
	}
	object := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("NodeUpdate"))
	object.SetName(update.Name)
	// An error is an agent that could not write: the next look tries again.
	_ = f.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object),
		client.FieldOwner(v1alpha1.FieldManagerAgent), client.ForceOwnership)
}

func (f *Fleet) ending(version string) Ending {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ending, ok := f.endings[version]; ok {
		return ending
	}

	return Succeeds()
}

func (f *Fleet) slot(node string) v1alpha1.SlotStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slot, ok := f.running[node]; ok {
		return slot
	}

	return v1alpha1.SlotStatus{Name: "a", Version: firstVersion}
}

func (f *Fleet) setSlot(node string, slot v1alpha1.SlotStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running == nil {
		f.running = map[string]v1alpha1.SlotStatus{}
	}
	f.running[node] = slot
}
