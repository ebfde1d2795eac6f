package protocol

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Labels and annotations that Gardener's components know
// (machine-controller-manager v0.60.0 pkg/apis/machine/v1alpha1/constants.go, and GEP-0031).
const (
	LabelCandidate = "node.machine.sapcloud.io/candidate-for-update"
	LabelSelected  = "node.machine.sapcloud.io/selected-for-update"

	// LabelResult is successful or failed; Shipped only.
	LabelResult             = "node.machine.sapcloud.io/update-result"
	AnnotationFailedReason  = "node.machine.sapcloud.io/update-failed-reason"
	ResultValueSuccessful   = "successful"
	ResultValueFailed       = "failed"
	LabelReadyGEP           = "node.machine.sapcloud.io/ready-for-update"
	LabelSuccessfulGEP      = "node.machine.sapcloud.io/update-successful"
	LabelFailedGEP          = "node.machine.sapcloud.io/update-failed"
	AnnotationFailureMsgGEP = "node.machine.sapcloud.io/update-failure-message"

	// ConditionInPlaceUpdate is the node condition of the Shipped dialect. Its status is always True.
	ConditionInPlaceUpdate corev1.NodeConditionType = "InPlaceUpdate"
)

// Annotations of our own.
const (
	// AnnotationAttempt is the ID of the attempt that the labels are about; written with the candidate label.
	AnnotationAttempt = "stayput.dev/attempt"
	// AnnotationResultAttempt is the ID of the attempt that the result belongs to; written with the result.
	AnnotationResultAttempt = "stayput.dev/result-attempt"
	// AnnotationCordonedBy is the ID of the attempt that cordoned the node; written in the same patch as the cordon,
	// absent when the node was already cordoned.
	AnnotationCordonedBy = "stayput.dev/cordoned-by"
)

// Annotations of cluster-autoscaler and of machine-controller-manager's mark that it has set the first.
const (
	AnnotationScaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	// AnnotationScaleDownDisabledByUs marks that we set AnnotationScaleDownDisabled.
	AnnotationScaleDownDisabledByUs = "stayput.dev/scale-down-disabled-by"
)

// Dialect is a wire form of the protocol.
type Dialect string

// The dialects.
const (
	Shipped Dialect = "Shipped"
	GEP0031 Dialect = "GEP0031"
)

// Reason is the reason of the condition InPlaceUpdate.
type Reason string

// The reasons, as shipped.
const (
	ReasonCandidate        Reason = "CandidateForUpdate"
	ReasonSelected         Reason = "SelectedForUpdate"
	ReasonDrainSuccessful  Reason = "DrainSuccessful"
	ReasonReady            Reason = "ReadyForUpdate"
	ReasonUpdateSuccessful Reason = "UpdateSuccessful"
	ReasonUpdateFailed     Reason = "UpdateFailed"
)

// Result is an agent's answer.
type Result string

// The results.
const (
	NoResult   Result = ""
	Successful Result = "successful"
	Failed     Result = "failed"
)

// View is what a Node says of its update.
type View struct {
	// Candidate and Selected tell whether the labels are there, with any value.
	Candidate, Selected bool
	// Ready tells whether the agent may go: it is asked to, in whichever dialect, it is selected, and the attempt has no
	// answer yet. Dialect says in which dialect the node is asked; it is empty while nothing asks, and it stays after
	// the answer.
	Ready   bool
	Dialect Dialect
	// Reason and ReasonSince are those of the condition InPlaceUpdate, and ReasonAttempt is the attempt that the reason
	// was set for, "" when another orchestrator set it.
	Reason        Reason
	ReasonSince   time.Time
	ReasonAttempt string
	// Attempt is the attempt that the labels are about, "" when another orchestrator set them.
	Attempt string
	// Result is the answer on the node, ResultAttempt the attempt it belongs to, and Failure its text.
	Result        Result
	ResultAttempt string
	Failure       string
	// CordonedBy is the attempt that cordoned the node, "" when it was not one of ours.
	CordonedBy string
	// Cordoned tells whether the node is unschedulable.
	Cordoned bool
	// Anomalies are the things on the node that the protocol does not foresee, in words: duplicate conditions, both
	// results at once, an unknown reason.
	Anomalies []string
}

// ResultFor is the result of the attempt: NoResult when the result on the node belongs to another one.
func (v View) ResultFor(attempt string) Result {
	if attempt == "" || v.ResultAttempt != attempt {
		return NoResult
	}

	return v.Result
}

// State is where a node is on its way through one attempt, seen from the orchestrator.
type State string

// The states, in their order.
const (
	// StateIdle: the node knows nothing of the attempt, or its candidate label has been taken off. MarkCandidate.
	StateIdle State = "Idle"
	// StateOther: the node is about another attempt, or another orchestrator's.
	StateOther State = "Other"
	// StateCandidate: Select, or wait until a person does.
	StateCandidate State = "Candidate"
	// StateSelected: SetReason(ReasonSelected), Cordon, DisableScaleDown, drain, SetReason(ReasonDrainSuccessful).
	StateSelected State = "Selected"
	// StateDrained: SetReason(ReasonReady). GEP0031 has no such state.
	StateDrained State = "Drained"
	// StateReady: the agent is at work.
	StateReady State = "Ready"
	// StateSucceeded and StateFailed: the agent has answered. SetReason, Release.
	StateSucceeded State = "Succeeded"
	StateFailed    State = "Failed"
)

// Patch changes a Node. A nil *Patch means that there is nothing to change.
//
// Every patch carries the resourceVersion of the node that it was made from. The API server answers 409 Conflict when
// the node has changed since: read it again and ask again. So no decision on an old reading takes off a fresh answer,
// claims a person's cordon, or answers a round that is over.
type Patch struct {
	// Subresource is "" or "status".
	Subresource string
	// Type is the patch type, Data its body.
	Type types.PatchType
	Data []byte
}
