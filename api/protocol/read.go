package protocol

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Read says what the Node says of its update. It accepts everything that others may have written:
//
//   - A label counts when it is there, whatever its value, as in machine-controller-manager. Only update-result is read
//     by value; another value than successful or failed is no result.
//   - Ready needs the selected label as well: a ReadyForUpdate that an earlier round left behind lets nobody go.
//   - A ReadyForUpdate that names another attempt than the node's annotation is not Ready.
//   - Of several InPlaceUpdate conditions the one that changed last gives the reason, but the node is Ready only when
//     all of them say so.
//   - Once the attempt is answered the node is not Ready any more. Where another orchestrator asks, without naming an
//     attempt, only a successful answer ends it: there, failed is a licence to try again.
//   - When both results are there, failed counts.
func Read(node *corev1.Node) View {
	view := View{
		Candidate:     hasLabel(node, LabelCandidate),
		Selected:      hasLabel(node, LabelSelected),
		Attempt:       node.Annotations[AnnotationAttempt],
		ResultAttempt: node.Annotations[AnnotationResultAttempt],
		CordonedBy:    node.Annotations[AnnotationCordonedBy],
		Cordoned:      node.Spec.Unschedulable,
	}
	readResult(node, &view)

	conditionReady := readCondition(node, &view)
	labelReady := hasLabel(node, LabelReadyGEP)

	switch {
	case conditionReady:
		view.Dialect = Shipped
	case labelReady:
		view.Dialect = GEP0031
	}

	if conditionReady && labelReady {
		anomalyf(&view, "asked to go in both dialects: condition %s and label %s", ConditionInPlaceUpdate, LabelReadyGEP)
	}

	view.Ready = view.Dialect != "" && view.Selected && !view.answered()

	return view
}

// answered tells whether the result on the node ends what the node is asked for now.
func (v View) answered() bool {
	if v.Attempt == "" {
		return v.Result == Successful
	}

	return v.ResultFor(v.Attempt) != NoResult
}

func anomalyf(view *View, format string, args ...any) {
	view.Anomalies = append(view.Anomalies, fmt.Sprintf(format, args...))
}

// readCondition fills in the reason and tells whether the condition lets the agent go.
func readCondition(node *corev1.Node, view *View) bool {
	found := inPlaceConditions(node)
	if len(found) == 0 {
		return false
	}

	newest := found[0]
	for _, condition := range found[1:] {
		if condition.LastTransitionTime.After(newest.LastTransitionTime.Time) {
			newest = condition
		}
	}

	view.Reason = Reason(newest.Reason)
	view.ReasonSince = newest.LastTransitionTime.Time
	view.ReasonAttempt = attemptInMessage(newest.Message)

	if len(found) > 1 {
		anomalyf(view, "%d conditions of type %s, expected one", len(found), ConditionInPlaceUpdate)
	}

	ready := true

	for _, condition := range found {
		if !slices.Contains(reasons(), Reason(condition.Reason)) {
			anomalyf(view, "condition %s has the unknown reason %q", ConditionInPlaceUpdate, condition.Reason)
		}

		ready = ready && Reason(condition.Reason) == ReasonReady && readyIsForAttempt(condition, view)
	}

	return ready
}

// readyIsForAttempt compares the attempt in the condition's message, which only our orchestrator puts there, with the
// node's.
func readyIsForAttempt(condition corev1.NodeCondition, view *View) bool {
	attempt := attemptInMessage(condition.Message)
	if attempt == "" || attempt == view.Attempt {
		return true
	}

	anomalyf(view, "condition %s is ReadyForUpdate for attempt %q, the node's attempt is %q",
		ConditionInPlaceUpdate, attempt, view.Attempt)

	return false
}

// readResult fills in the result and its text.
func readResult(node *corev1.Node, view *View) {
	value, found := node.Labels[LabelResult]
	if found && value != ResultValueSuccessful && value != ResultValueFailed {
		anomalyf(view, "label %s has the unknown value %q", LabelResult, value)
	}

	successful := value == ResultValueSuccessful || hasLabel(node, LabelSuccessfulGEP)
	failed := value == ResultValueFailed || hasLabel(node, LabelFailedGEP)

	if successful && failed {
		anomalyf(view, "both results at once; failed counts")
	}

	switch {
	case failed:
		view.Result = Failed
		view.Failure = node.Annotations[AnnotationFailedReason]

		if value != ResultValueFailed || view.Failure == "" {
			if text := node.Annotations[AnnotationFailureMsgGEP]; text != "" {
				view.Failure = text
			}
		}
	case successful:
		view.Result = Successful
	}
}

// StateFor says where the node is on its way through the attempt.
func (v View) StateFor(attempt string) State {
	switch v.ResultFor(attempt) {
	case Successful:
		return StateSucceeded
	case Failed:
		return StateFailed
	case NoResult:
	}

	switch {
	case v.Attempt != attempt && (v.Attempt != "" || v.Candidate || v.Selected):
		return StateOther
	case v.Attempt != attempt || !v.Candidate:
		return StateIdle
	case !v.Selected:
		return StateCandidate
	case v.Ready:
		return StateReady
	case v.Reason == ReasonDrainSuccessful && v.ReasonAttempt == attempt:
		return StateDrained
	default:
		return StateSelected
	}
}

// ReadyCondition is the Node's condition Ready, nil before a kubelet has written one. The Node may be nil.
func ReadyCondition(node *corev1.Node) *corev1.NodeCondition {
	if node == nil {
		return nil
	}

	for index := range node.Status.Conditions {
		if node.Status.Conditions[index].Type == corev1.NodeReady {
			return &node.Status.Conditions[index]
		}
	}

	return nil
}

func reasons() []Reason {
	return []Reason{
		ReasonCandidate, ReasonSelected, ReasonDrainSuccessful, ReasonReady, ReasonUpdateSuccessful, ReasonUpdateFailed,
	}
}

func inPlaceConditions(node *corev1.Node) []corev1.NodeCondition {
	var found []corev1.NodeCondition

	for _, condition := range node.Status.Conditions {
		if condition.Type == ConditionInPlaceUpdate {
			found = append(found, condition)
		}
	}

	return found
}

// The attempt stands at the end of the condition's message, in these brackets. Others read neither message nor
// status of the condition (gardener v1.130.0 pkg/nodeagent/controller/operatingsystemconfig/add.go).
const (
	messageAttemptOpen  = " (" + AnnotationAttempt + ": "
	messageAttemptClose = ")"
)

func withAttempt(message, attempt string) string {
	if attempt == "" {
		return message
	}

	return message + messageAttemptOpen + attempt + messageAttemptClose
}

func attemptInMessage(message string) string {
	start := strings.LastIndex(message, messageAttemptOpen)
	if start < 0 || !strings.HasSuffix(message, messageAttemptClose) {
		return ""
	}

	return message[start+len(messageAttemptOpen) : len(message)-len(messageAttemptClose)]
}

func hasLabel(node *corev1.Node, key string) bool {
	_, found := node.Labels[key]

	return found
}
