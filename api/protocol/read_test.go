package protocol

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var start = time.Date(2026, 11, 29, 19, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // a constant

type option func(*corev1.Node)

func testNode(options ...option) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "node-1", ResourceVersion: "7",
		Labels: map[string]string{"kubernetes.io/hostname": "node-1"}, Annotations: map[string]string{"team": "metal"},
	}}
	for _, with := range options {
		with(node)
	}

	return node
}

func label(key, value string) option {
	return func(node *corev1.Node) { node.Labels[key] = value }
}

func annotation(key, value string) option {
	return func(node *corev1.Node) { node.Annotations[key] = value }
}

func cordoned(node *corev1.Node) { node.Spec.Unschedulable = true }

func condition(reason Reason, since time.Time, message string) option {
	return func(node *corev1.Node) {
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: ConditionInPlaceUpdate, Status: corev1.ConditionTrue, Reason: string(reason), Message: message,
			LastTransitionTime: metav1.NewTime(since),
		})
	}
}

func ready(attempt string) option {
	return condition(ReasonReady, start, withAttempt("Node is ready for in-place update", attempt))
}

func checkAnomaly(t *testing.T, view View, want string) {
	t.Helper()

	told := slices.ContainsFunc(view.Anomalies, func(text string) bool { return strings.Contains(text, want) })
	if want == "" && len(view.Anomalies) > 0 || want != "" && (!told || len(view.Anomalies) != 1) {
		t.Errorf("Anomalies = %q, want one with %q", view.Anomalies, want)
	}
}

func TestReadReady(t *testing.T) {
	t.Parallel()

	selected := label(LabelSelected, "true")
	attemptA := annotation(AnnotationAttempt, "a")

	tests := map[string]struct {
		node    *corev1.Node
		ready   bool
		dialect Dialect
		anomaly string
	}{
		"nothing on the node":         {node: testNode()},
		"selected only":               {node: testNode(selected, attemptA)},
		"shipped":                     {node: testNode(selected, attemptA, ready("a")), ready: true, dialect: Shipped},
		"shipped, nobody named":       {node: testNode(selected, ready("")), ready: true, dialect: Shipped},
		"shipped, message names none": {node: testNode(selected, attemptA, ready("")), ready: true, dialect: Shipped},
		"selected label of any value": {node: testNode(label(LabelSelected, ""), ready("")), ready: true, dialect: Shipped},
		"selected label says false":   {node: testNode(label(LabelSelected, "false"), ready("")), ready: true, dialect: Shipped},
		"left over, labels gone":      {node: testNode(ready("")), dialect: Shipped},
		"GEP":                         {node: testNode(selected, attemptA, label(LabelReadyGEP, "yes")), ready: true, dialect: GEP0031},
		"GEP, not selected":           {node: testNode(attemptA, label(LabelReadyGEP, "true")), dialect: GEP0031},
		"other reason":                {node: testNode(selected, condition(ReasonDrainSuccessful, start, ""))},
		"said for an earlier attempt": {
			node: testNode(selected, attemptA, ready("old")), anomaly: `for attempt "old", the node's attempt is "a"`,
		},
		"said for one, node names no": {node: testNode(selected, ready("old")), anomaly: `the node's attempt is ""`},
		"answered": {
			node:    testNode(selected, attemptA, ready("a"), label(LabelResult, "successful"), annotation(AnnotationResultAttempt, "a")),
			dialect: Shipped,
		},
		"answered failed": {
			node:    testNode(selected, attemptA, ready("a"), label(LabelResult, "failed"), annotation(AnnotationResultAttempt, "a")),
			dialect: Shipped,
		},
		"an older answer is no answer": {
			node:  testNode(selected, attemptA, ready("a"), label(LabelResult, "successful"), annotation(AnnotationResultAttempt, "old")),
			ready: true, dialect: Shipped,
		},
		"nobody's answer is none": {
			node: testNode(selected, attemptA, ready("a"), label(LabelResult, "successful")), ready: true, dialect: Shipped,
		},
		"unnamed, answered":         {node: testNode(selected, ready(""), label(LabelResult, "successful")), dialect: Shipped},
		"unnamed, failed may retry": {node: testNode(selected, ready(""), label(LabelResult, "failed")), ready: true, dialect: Shipped},
		"duplicates agree": {
			node:  testNode(selected, ready(""), ready("")),
			ready: true, dialect: Shipped, anomaly: "2 conditions of type InPlaceUpdate",
		},
		"duplicates differ, ready first": {
			node:    testNode(selected, ready(""), condition(ReasonUpdateFailed, start, "")),
			anomaly: "2 conditions of type InPlaceUpdate",
		},
		"duplicates differ, ready newest": {
			node:    testNode(selected, condition(ReasonUpdateFailed, start.Add(-time.Hour), ""), ready("")),
			anomaly: "2 conditions of type InPlaceUpdate",
		},
		"unknown reason": {
			node:    testNode(selected, condition("Rebooting", start, "")),
			anomaly: `unknown reason "Rebooting"`,
		},
		"both dialects": {
			node:  testNode(selected, ready(""), label(LabelReadyGEP, "true")),
			ready: true, dialect: Shipped, anomaly: "both dialects",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			view := Read(tt.node)
			if view.Ready != tt.ready || view.Dialect != tt.dialect {
				t.Errorf("Ready %t, Dialect %q; want %t, %q", view.Ready, view.Dialect, tt.ready, tt.dialect)
			}

			checkAnomaly(t, view, tt.anomaly)
		})
	}
}

func TestReadReasonOfDuplicatesIsTheNewest(t *testing.T) {
	t.Parallel()

	view := Read(testNode(
		condition(ReasonSelected, start, ""),
		condition(ReasonReady, start.Add(time.Minute), ""),
		condition(ReasonCandidate, start.Add(-time.Minute), ""),
	))
	if view.Reason != ReasonReady || !view.ReasonSince.Equal(start.Add(time.Minute)) {
		t.Errorf("%s since %s, want the newest", view.Reason, view.ReasonSince)
	}
}

func TestReadResult(t *testing.T) {
	t.Parallel()

	tests := map[string]struct {
		node    *corev1.Node
		result  Result
		failure string
		anomaly string
	}{
		"none":       {node: testNode()},
		"successful": {node: testNode(label(LabelResult, "successful")), result: Successful},
		"failed": {
			node: testNode(label(LabelResult, "failed"), annotation(AnnotationFailedReason, "x")), result: Failed, failure: "x",
		},
		"failed, no text": {node: testNode(label(LabelResult, "failed")), result: Failed},
		"unknown value":   {node: testNode(label(LabelResult, "Successful")), anomaly: `unknown value "Successful"`},
		"empty value":     {node: testNode(label(LabelResult, "")), anomaly: `unknown value ""`},
		"GEP successful":  {node: testNode(label(LabelSuccessfulGEP, "")), result: Successful},
		"GEP failed": {
			node: testNode(label(LabelFailedGEP, "1"), annotation(AnnotationFailureMsgGEP, "y")), result: Failed, failure: "y",
		},
		"text but no result": {node: testNode(annotation(AnnotationFailedReason, "x"))},
		"both in GEP": {
			node: testNode(label(LabelSuccessfulGEP, "true"), label(LabelFailedGEP, "true")), result: Failed, anomaly: "both results",
		},
		"one in each dialect": {
			node:   testNode(label(LabelResult, "successful"), label(LabelFailedGEP, "true"), annotation(AnnotationFailureMsgGEP, "y")),
			result: Failed, failure: "y", anomaly: "both results",
		},
		"failed in Shipped, the other text is not its": {
			node: testNode(label(LabelResult, "failed"), annotation(AnnotationFailedReason, "x"),
				annotation(AnnotationFailureMsgGEP, "y")),
			result: Failed, failure: "x",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			view := Read(tt.node)
			if view.Result != tt.result || view.Failure != tt.failure {
				t.Errorf("Result %q, Failure %q; want %q, %q", view.Result, view.Failure, tt.result, tt.failure)
			}

			if view.ResultFor("a") != NoResult || view.ResultFor("") != NoResult {
				t.Error("a result without the attempt's ID completed an attempt")
			}

			checkAnomaly(t, view, tt.anomaly)
		})
	}
}

func TestStateFor(t *testing.T) {
	t.Parallel()

	candidate := label(LabelCandidate, "true")
	selected := label(LabelSelected, "true")
	attemptA := annotation(AnnotationAttempt, "a")
	resultA := annotation(AnnotationResultAttempt, "a")

	tests := map[string]struct {
		node *corev1.Node
		want State
	}{
		"nothing":                   {testNode(), StateIdle},
		"another attempt":           {testNode(candidate, annotation(AnnotationAttempt, "b")), StateOther},
		"another orchestrator":      {testNode(candidate), StateOther},
		"candidate label taken off": {testNode(attemptA), StateIdle},
		"candidate":                 {testNode(candidate, attemptA), StateCandidate},
		"selected":                  {testNode(candidate, selected, attemptA), StateSelected},
		"condition lags behind": {
			testNode(candidate, selected, attemptA, condition(ReasonUpdateSuccessful, start, "")), StateSelected,
		},
		"drained": {
			testNode(candidate, selected, attemptA, condition(ReasonDrainSuccessful, start, "x (stayput.dev/attempt: a)")), StateDrained,
		},
		"drained by an earlier one": {
			testNode(candidate, selected, attemptA, condition(ReasonDrainSuccessful, start, "x (stayput.dev/attempt: old)")), StateSelected,
		},
		"drained by somebody else": {testNode(candidate, selected, attemptA, condition(ReasonDrainSuccessful, start, "")), StateSelected},
		"ready":                    {testNode(candidate, selected, attemptA, ready("a")), StateReady},
		"ready for an earlier one": {testNode(candidate, selected, attemptA, ready("old")), StateSelected},
		"ready, GEP":               {testNode(candidate, selected, attemptA, label(LabelReadyGEP, "")), StateReady},
		"succeeded": {
			testNode(candidate, selected, attemptA, ready("a"), label(LabelResult, "successful"), resultA), StateSucceeded,
		},
		"failed, GEP":                   {testNode(candidate, selected, attemptA, label(LabelFailedGEP, ""), resultA), StateFailed},
		"stale result before selection": {testNode(candidate, attemptA, label(LabelResult, "successful")), StateCandidate},
		"stale result of an earlier one": {
			testNode(candidate, selected, attemptA, label(LabelResult, "successful"), annotation(AnnotationResultAttempt, "old")), StateSelected,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if got := Read(tt.node).StateFor("a"); got != tt.want {
				t.Errorf("StateFor = %s, want %s", got, tt.want)
			}
		})
	}
}
