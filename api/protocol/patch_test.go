package protocol

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestPatches(t *testing.T) {
	t.Parallel()

	candidate := label(LabelCandidate, "true")
	selected := label(LabelSelected, "true")
	attemptA := annotation(AnnotationAttempt, "a")
	stale := []option{label(LabelResult, "failed"), annotation(AnnotationFailedReason, "old"), annotation(AnnotationResultAttempt, "old")}
	with := func(some []option, more ...option) *corev1.Node { return testNode(append(more, some...)...) }

	tests := map[string]struct {
		got *Patch
		// want is the body without the resourceVersion; "" means no patch.
		want string
	}{
		"mark": {
			MarkCandidate(testNode(), "a"),
			`{"metadata":{"labels":{"node.machine.sapcloud.io/candidate-for-update":"true"},"annotations":{"stayput.dev/attempt":"a"}}}`,
		},
		"mark again": {MarkCandidate(testNode(candidate, attemptA), "a"), ""},
		"mark takes stale results off": {
			MarkCandidate(with(stale, candidate, attemptA), "a"),
			`{"metadata":{"labels":{"node.machine.sapcloud.io/update-result":null},
			  "annotations":{"node.machine.sapcloud.io/update-failed-reason":null,"stayput.dev/result-attempt":null}}}`,
		},
		"mark keeps the attempt's own answer": {
			MarkCandidate(testNode(candidate, attemptA, label(LabelResult, "failed"), annotation(AnnotationResultAttempt, "a")), "a"), "",
		},
		"mark for a newer attempt takes over and unselects": {
			MarkCandidate(testNode(candidate, selected, attemptA, label(LabelReadyGEP, "true"), cordoned,
				annotation(AnnotationCordonedBy, "a"), annotation(AnnotationScaleDownDisabled, "true"),
				annotation(AnnotationScaleDownDisabledByUs, "a")), "b"),
			`{"metadata":{
			  "labels":{"node.machine.sapcloud.io/selected-for-update":null,"node.machine.sapcloud.io/ready-for-update":null},
			  "annotations":{"stayput.dev/attempt":"b","stayput.dev/cordoned-by":"b","stayput.dev/scale-down-disabled-by":"b"}}}`,
		},
		"mark repairs a missing label and keeps the selection": {
			MarkCandidate(testNode(selected, attemptA), "a"),
			`{"metadata":{"labels":{"node.machine.sapcloud.io/candidate-for-update":"true"}}}`,
		},
		"select": {
			Select(testNode(candidate, attemptA)),
			`{"metadata":{"labels":{"node.machine.sapcloud.io/selected-for-update":"true"}}}`,
		},
		"select again": {Select(testNode(candidate, attemptA, label(LabelSelected, "by-hand"))), ""},
		"select takes stale off": {
			Select(testNode(attemptA, selected, label(LabelSuccessfulGEP, "true"))),
			`{"metadata":{"labels":{"node.machine.sapcloud.io/update-successful":null}}}`,
		},
		"cordon": {
			Cordon(testNode(), "a"),
			`{"metadata":{"annotations":{"stayput.dev/cordoned-by":"a"}},"spec":{"unschedulable":true}}`,
		},
		"cordon again":         {Cordon(testNode(cordoned, annotation(AnnotationCordonedBy, "a")), "a"), ""},
		"cordoned by a person": {Cordon(testNode(cordoned), "a"), ""},
		"uncordoned by a person": {
			Cordon(testNode(annotation(AnnotationCordonedBy, "a")), "a"), `{"metadata":{},"spec":{"unschedulable":true}}`,
		},
		"cordoned by our earlier one": {
			Cordon(testNode(cordoned, annotation(AnnotationCordonedBy, "old")), "a"),
			`{"metadata":{"annotations":{"stayput.dev/cordoned-by":"a"}}}`,
		},
		"scale down": {
			DisableScaleDown(testNode(), "a"),
			`{"metadata":{"annotations":{"cluster-autoscaler.kubernetes.io/scale-down-disabled":"true",
			  "stayput.dev/scale-down-disabled-by":"a"}}}`,
		},
		"scale down again": {
			DisableScaleDown(testNode(annotation(AnnotationScaleDownDisabled, "true"), annotation(AnnotationScaleDownDisabledByUs, "a")), "a"), "",
		},
		"scale down, somebody else's":    {DisableScaleDown(testNode(annotation(AnnotationScaleDownDisabled, "false")), "a"), ""},
		"release nothing":                {Release(testNode(cordoned, annotation(AnnotationScaleDownDisabled, "true")), "a"), ""},
		"release without an attempt":     {Release(testNode(candidate, cordoned, annotation(AnnotationCordonedBy, "")), ""), ""},
		"release another orchestrator's": {Release(testNode(candidate, selected, label(LabelResult, "successful")), "a"), ""},
		"release all": {
			Release(testNode(candidate, selected, attemptA, cordoned, annotation(AnnotationCordonedBy, "a"), label(LabelReadyGEP, "true"),
				label(LabelResult, "failed"), annotation(AnnotationFailedReason, "x"), annotation(AnnotationResultAttempt, "a"),
				annotation(AnnotationScaleDownDisabled, "true"), annotation(AnnotationScaleDownDisabledByUs, "a")), "a"),
			`{"metadata":{"labels":{"node.machine.sapcloud.io/candidate-for-update":null,"node.machine.sapcloud.io/selected-for-update":null,
			  "node.machine.sapcloud.io/ready-for-update":null,"node.machine.sapcloud.io/update-result":null},
			  "annotations":{"stayput.dev/attempt":null,"stayput.dev/cordoned-by":null,"stayput.dev/result-attempt":null,
			  "node.machine.sapcloud.io/update-failed-reason":null,"cluster-autoscaler.kubernetes.io/scale-down-disabled":null,
			  "stayput.dev/scale-down-disabled-by":null}},"spec":{"unschedulable":null}}`,
		},
		"release keeps a person's cordon": {
			Release(testNode(attemptA, cordoned), "a"),
			`{"metadata":{"annotations":{"stayput.dev/attempt":null}}}`,
		},
		"release of an earlier attempt leaves the newer one alone": {
			Release(testNode(candidate, selected, annotation(AnnotationAttempt, "b"), cordoned, annotation(AnnotationCordonedBy, "b"),
				label(LabelResult, "failed"), annotation(AnnotationResultAttempt, "a")), "a"),
			`{"metadata":{"labels":{"node.machine.sapcloud.io/update-result":null},"annotations":{"stayput.dev/result-attempt":null}}}`,
		},
		"ready, GEP": {
			SetReason(testNode(attemptA), GEP0031, ReasonReady, "", start),
			`{"metadata":{"labels":{"node.machine.sapcloud.io/ready-for-update":"true"}}}`,
		},
		"ready again, GEP": {SetReason(testNode(label(LabelReadyGEP, "")), GEP0031, ReasonReady, "", start), ""},
		"drained, GEP":     {SetReason(testNode(), GEP0031, ReasonDrainSuccessful, "", start), ""},
		"succeed": {
			Succeed(testNode(selected, attemptA), Shipped, "a"),
			`{"metadata":{"labels":{"node.machine.sapcloud.io/update-result":"successful"},"annotations":{"stayput.dev/result-attempt":"a"}}}`,
		},
		"succeed after a failure": {
			Succeed(testNode(candidate, label(LabelResult, "failed"), label(LabelFailedGEP, ""), annotation(AnnotationFailedReason, "x"),
				annotation(AnnotationFailureMsgGEP, "y")), "", "a"),
			`{"metadata":{"labels":{"node.machine.sapcloud.io/update-result":"successful","node.machine.sapcloud.io/update-failed":null},
			  "annotations":{"stayput.dev/result-attempt":"a","node.machine.sapcloud.io/update-failed-reason":null,
			  "node.machine.sapcloud.io/update-failure-message":null}}}`,
		},
		"succeed again": {
			Succeed(testNode(attemptA, label(LabelResult, "successful"), annotation(AnnotationResultAttempt, "a")), Shipped, "a"), "",
		},
		"succeed, GEP": {
			Succeed(testNode(attemptA, label(LabelResult, "failed")), GEP0031, "a"),
			`{"metadata":{"labels":{"node.machine.sapcloud.io/update-successful":"true","node.machine.sapcloud.io/update-result":null},
			  "annotations":{"stayput.dev/result-attempt":"a"}}}`,
		},
		"succeed when nobody asks":    {Succeed(testNode(), Shipped, "a"), ""},
		"succeed when another's turn": {Succeed(testNode(candidate, selected, annotation(AnnotationAttempt, "b")), Shipped, "a"), ""},
		"fail": {
			Fail(testNode(attemptA), Shipped, "a", "gate kubelet:\n\tconnection \x1b[31mrefused"),
			`{"metadata":{"labels":{"node.machine.sapcloud.io/update-result":"failed"},"annotations":{"stayput.dev/result-attempt":"a",
			  "node.machine.sapcloud.io/update-failed-reason":"gate kubelet: connection [31mrefused"}}}`,
		},
		"fail, GEP": {
			Fail(testNode(attemptA, label(LabelSuccessfulGEP, "")), GEP0031, "a", "x"),
			`{"metadata":{"labels":{"node.machine.sapcloud.io/update-failed":"true","node.machine.sapcloud.io/update-successful":null},
			  "annotations":{"stayput.dev/result-attempt":"a","node.machine.sapcloud.io/update-failure-message":"x"}}}`,
		},
		"fail when nobody asks": {Fail(testNode(), GEP0031, "a", "x"), ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if tt.got == nil || tt.want == "" {
				if tt.got != nil || tt.want != "" {
					t.Fatalf("got %v, want %s", tt.got, tt.want)
				}

				return
			}

			if tt.got.Subresource != "" || tt.got.Type != types.MergePatchType {
				t.Errorf("got a %s of %q, want a merge patch of the node", tt.got.Type, tt.got.Subresource)
			}

			got, want := decode(t, string(tt.got.Data)), decode(t, tt.want)
			want["metadata"].(map[string]any)["resourceVersion"] = "7" //nolint:forcetypeassert // every case has metadata

			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %s\nwant %s", tt.got.Data, tt.want)
			}
		})
	}
}

func decode(t *testing.T, text string) map[string]any {
	t.Helper()

	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		t.Fatalf("decoding %s: %v", text, err)
	}

	return object
}

func mustApply(t *testing.T, node *corev1.Node, patch *Patch) *corev1.Node {
	t.Helper()

	next, err := apply(node, patch)
	if err != nil {
		t.Fatal(err)
	}

	return next
}

func TestSetReasonReplacesDuplicatesAndLeavesOthersAlone(t *testing.T) {
	t.Parallel()

	node := testNode(
		annotation(AnnotationAttempt, "a"),
		condition(ReasonSelected, start, "one"),
		func(node *corev1.Node) {
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady",
			})
		},
		condition(ReasonReady, start.Add(-time.Hour), "two"),
	)
	kubelet := node.Status.Conditions[1]

	now := start.Add(time.Minute)
	patch := SetReason(node, Shipped, ReasonReady, "", now)
	if patch.Subresource != "status" {
		t.Errorf("Subresource = %q, want status", patch.Subresource)
	}

	node = mustApply(t, node, patch)
	slices.SortFunc(node.Status.Conditions, func(a, b corev1.NodeCondition) int {
		return -strings.Compare(string(a.Type), string(b.Type))
	})

	want := []corev1.NodeCondition{kubelet, {
		Type: ConditionInPlaceUpdate, Status: corev1.ConditionTrue, Reason: "ReadyForUpdate",
		Message:           "Node is ready for in-place update (stayput.dev/attempt: a)",
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}}

	if !equality.Semantic.DeepEqual(node.Status.Conditions, want) {
		t.Errorf("got  %+v\nwant %+v", node.Status.Conditions, want)
	}

	if again := SetReason(node, Shipped, ReasonReady, "", now.Add(time.Hour)); again != nil {
		t.Errorf("asked again it gives %s", again.Data)
	}
}

func TestSetReasonKeepsTheTransitionTimeWhileTheReasonStays(t *testing.T) {
	t.Parallel()

	tests := map[string]struct {
		node *corev1.Node
		want bool
	}{
		"as it is":        {testNode(condition(ReasonSelected, start, "text")), false},
		"another message": {testNode(condition(ReasonSelected, start, "old text")), true},
		"a duplicate":     {testNode(condition(ReasonSelected, start, "text"), condition(ReasonReady, start.Add(-time.Hour), "")), true},
		"status not True": {
			testNode(condition(ReasonSelected, start, "text"),
				func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }), true,
		},
		"duplicate, and so": {testNode(condition(ReasonSelected, start, "text"), condition(ReasonSelected, start, "text")), true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			patch := SetReason(tt.node, Shipped, ReasonSelected, "text", start.Add(time.Hour))
			if (patch != nil) != tt.want {
				t.Fatalf("patch %v, want one: %t", patch, tt.want)
			}

			if patch == nil {
				return
			}

			node := mustApply(t, tt.node, patch)
			if len(node.Status.Conditions) != 1 {
				t.Fatalf("conditions: %+v", node.Status.Conditions)
			}

			got := node.Status.Conditions[0]
			if got.Status != corev1.ConditionTrue || got.Message != "text" || !got.LastTransitionTime.Time.Equal(start) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestSetReasonFailedCarriesTheText(t *testing.T) {
	t.Parallel()

	patch := SetReason(testNode(label(LabelResult, "failed"), annotation(AnnotationFailedReason, "gate kubelet")),
		Shipped, ReasonUpdateFailed, "", start)
	if !strings.Contains(string(patch.Data), "Node in-place update failed: gate kubelet") {
		t.Errorf("got %s", patch.Data)
	}
}

func TestFailureTextIsBounded(t *testing.T) {
	t.Parallel()

	exact := strings.Repeat("x", MaxFailureBytes)
	tests := map[string]struct{ text, want string }{
		"at the bound":   {exact, exact},
		"over it":        {exact + "y", strings.Repeat("x", MaxFailureBytes-len(ellipsis)) + ellipsis},
		"inside a rune":  {strings.Repeat("é", MaxFailureBytes), strings.Repeat("é", (MaxFailureBytes-len(ellipsis))/2) + ellipsis},
		"not UTF-8":      {"\xff bad", "\uFFFD bad"},
		"several lines":  {" a\r\n\tb\x00c ", "a b c"},
		"nothing to say": {"\n", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := singleLine(tt.text)
			if got != tt.want || len(got) > MaxFailureBytes || !utf8.ValidString(got) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
