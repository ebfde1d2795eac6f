package protocol

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const valueTrue = "true"

// MarkCandidate makes the node a candidate for the attempt. What an earlier round left on the node is taken off in the
// same patch: results of other attempts and of none, the GEP's ready label, and the selected label, so that nobody is
// drained on a selection that was made for something else. What our earlier attempt still holds, a cordon or the
// scale-down annotation, passes to this attempt, so that its Release gives it back.
//
// A condition left at ReadyForUpdate is in another subresource; move it with SetReason(…, ReasonCandidate, …) after
// this patch and before Select.
func MarkCandidate(node *corev1.Node, attempt string) *Patch {
	view := Read(node)
	next := newChange(node)
	next.setLabel(LabelCandidate, valueTrue)
	next.setAnnotation(AnnotationAttempt, attempt)
	next.dropStaleResult(view, attempt)

	if view.Attempt != attempt {
		next.dropLabels(LabelSelected, LabelReadyGEP)
	}

	if view.CordonedBy != "" {
		next.setAnnotation(AnnotationCordonedBy, attempt)
	}

	if node.Annotations[AnnotationScaleDownDisabledByUs] != "" {
		next.setAnnotation(AnnotationScaleDownDisabledByUs, attempt)
	}

	return next.patch()
}

// Select selects the candidate, and takes off a result that does not belong to the node's attempt. A selected label
// with any value is left as it is.
func Select(node *corev1.Node) *Patch {
	view := Read(node)
	next := newChange(node)

	if !view.Selected {
		next.setLabel(LabelSelected, valueTrue)
	}

	next.dropStaleResult(view, view.Attempt)

	return next.patch()
}

func (c *change) dropStaleResult(view View, attempt string) {
	if attempt != "" && view.ResultAttempt == attempt {
		return
	}

	c.dropLabels(resultLabels()...)
	c.dropAnnotations(resultAnnotations()...)
}

// SetReason says how far the node is. In Shipped it sets the condition InPlaceUpdate, with status True as there is no
// other, and takes duplicates away; the transition time changes with the reason only. In GEP0031 only ReasonReady has
// a form, the ready label. An empty message stands for the one that machine-controller-manager writes; the message ends
// with the node's attempt, so that a reason that an earlier round left behind is known as such.
func SetReason(node *corev1.Node, dialect Dialect, reason Reason, message string, now time.Time) *Patch {
	if dialect == GEP0031 {
		if reason != ReasonReady || hasLabel(node, LabelReadyGEP) {
			return nil
		}

		next := newChange(node)
		next.setLabel(LabelReadyGEP, valueTrue)

		return next.patch()
	}

	if message == "" {
		message = defaultMessage(node, reason)
	}

	wanted := corev1.NodeCondition{
		Type:               ConditionInPlaceUpdate,
		Status:             corev1.ConditionTrue,
		Reason:             string(reason),
		Message:            withAttempt(message, node.Annotations[AnnotationAttempt]),
		LastHeartbeatTime:  metav1.NewTime(now),
		LastTransitionTime: metav1.NewTime(now),
	}

	view := Read(node)
	if view.Reason == reason && view.ReasonAttempt == view.Attempt && !view.ReasonSince.IsZero() {
		wanted.LastTransitionTime = metav1.NewTime(view.ReasonSince)
	}

	if found := inPlaceConditions(node); len(found) == 1 && sameCondition(found[0], wanted) {
		return nil
	}

	return conditionPatch(node.ResourceVersion, wanted)
}

func sameCondition(a, b corev1.NodeCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message &&
		a.LastTransitionTime.Equal(&b.LastTransitionTime)
}

// defaultMessage is the wording of machine-controller-manager v0.60.0 (pkg/util/provider/machinecontroller).
func defaultMessage(node *corev1.Node, reason Reason) string {
	switch reason {
	case ReasonCandidate:
		return "Node is a candidate for in-place update"
	case ReasonSelected:
		return "Node is selected for in-place update"
	case ReasonDrainSuccessful:
		return "Node draining successful"
	case ReasonReady:
		return "Node is ready for in-place update"
	case ReasonUpdateSuccessful:
		return "Node in-place update successful"
	case ReasonUpdateFailed:
		return "Node in-place update failed: " + Read(node).Failure
	default:
		return ""
	}
}

// Cordon cordons the node for the attempt and notes, in the same patch, that it was us. A node that someone else has
// cordoned is left alone. It is safe to call again, and when a person has uncordoned the node meanwhile it cordons it
// again.
func Cordon(node *corev1.Node, attempt string) *Patch {
	view := Read(node)
	if view.Cordoned && view.CordonedBy == "" {
		return nil
	}

	next := newChange(node)
	next.setAnnotation(AnnotationCordonedBy, attempt)
	next.setUnschedulable(true)

	return next.patch()
}

// DisableScaleDown keeps cluster-autoscaler from removing the node during the attempt. An annotation that someone else
// has set, with any value, is left alone.
func DisableScaleDown(node *corev1.Node, attempt string) *Patch {
	_, disabled := node.Annotations[AnnotationScaleDownDisabled]
	_, ours := node.Annotations[AnnotationScaleDownDisabledByUs]

	if disabled && !ours {
		return nil
	}

	next := newChange(node)
	next.setAnnotation(AnnotationScaleDownDisabled, valueTrue)
	next.setAnnotation(AnnotationScaleDownDisabledByUs, attempt)

	return next.patch()
}

// Release takes everything off the node that the attempt has put there, in both dialects: labels, annotations, its own
// cordon, its own scale-down annotation. When the node is not about this attempt, only what bears the attempt's ID
// goes, so that it is safe to call again later. The condition stays at its last reason, as with
// machine-controller-manager; move it off ReadyForUpdate before.
func Release(node *corev1.Node, attempt string) *Patch {
	if attempt == "" {
		return nil
	}

	view := Read(node)
	next := newChange(node)

	if view.Attempt == attempt {
		next.dropLabels(LabelCandidate, LabelSelected, LabelReadyGEP)
		next.dropAnnotations(AnnotationAttempt)
	}

	if view.Attempt == attempt || view.ResultAttempt == attempt {
		next.dropLabels(resultLabels()...)
		next.dropAnnotations(resultAnnotations()...)
	}

	if view.CordonedBy == attempt {
		next.dropAnnotations(AnnotationCordonedBy)
		next.setUnschedulable(false)
	}

	if node.Annotations[AnnotationScaleDownDisabledByUs] == attempt {
		next.dropAnnotations(AnnotationScaleDownDisabled, AnnotationScaleDownDisabledByUs)
	}

	return next.patch()
}
