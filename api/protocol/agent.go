package protocol

import (
	"strings"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
)

// MaxFailureBytes bounds the text of a failure on the Node; orchestrators copy it into conditions and events.
const MaxFailureBytes = 1024

const ellipsis = "…"

// Succeed answers that the attempt succeeded, in the dialect that asked; an empty dialect stands for Shipped. An
// earlier answer, of whatever dialect, is taken off in the same patch. There is nothing to answer when nobody asks for
// the attempt any more: an answer that came after Release would lie on the node until the next round.
func Succeed(node *corev1.Node, dialect Dialect, attempt string) *Patch {
	if !asked(node, attempt) {
		return nil
	}

	next := newChange(node)

	if dialect == GEP0031 {
		next.setLabel(LabelSuccessfulGEP, valueTrue)
		next.dropLabels(LabelResult, LabelFailedGEP)
	} else {
		next.setLabel(LabelResult, ResultValueSuccessful)
		next.dropLabels(LabelSuccessfulGEP, LabelFailedGEP)
	}

	next.setAnnotation(AnnotationResultAttempt, attempt)
	next.dropAnnotations(AnnotationFailedReason, AnnotationFailureMsgGEP)

	return next.patch()
}

// Fail answers that the attempt failed, and why, as Succeed does. The text is put on one line and cut to
// MaxFailureBytes.
func Fail(node *corev1.Node, dialect Dialect, attempt, reason string) *Patch {
	if !asked(node, attempt) {
		return nil
	}

	next := newChange(node)
	text := singleLine(reason)

	if dialect == GEP0031 {
		next.setLabel(LabelFailedGEP, valueTrue)
		next.dropLabels(LabelResult, LabelSuccessfulGEP)
		next.setAnnotation(AnnotationFailureMsgGEP, text)
		next.dropAnnotations(AnnotationFailedReason)
	} else {
		next.setLabel(LabelResult, ResultValueFailed)
		next.dropLabels(LabelSuccessfulGEP, LabelFailedGEP)
		next.setAnnotation(AnnotationFailedReason, text)
		next.dropAnnotations(AnnotationFailureMsgGEP)
	}

	next.setAnnotation(AnnotationResultAttempt, attempt)

	return next.patch()
}

// asked tells whether the node is about this attempt, or about one that another orchestrator did not name.
func asked(node *corev1.Node, attempt string) bool {
	if named := node.Annotations[AnnotationAttempt]; named != "" {
		return named == attempt
	}

	return hasLabel(node, LabelCandidate) || hasLabel(node, LabelSelected)
}

// singleLine is the text in valid UTF-8, without control characters, runs of space as one, at most MaxFailureBytes.
func singleLine(text string) string {
	printable := strings.Map(func(char rune) rune {
		if unicode.IsControl(char) {
			return ' '
		}

		return char
	}, strings.ToValidUTF8(text, string(utf8.RuneError)))

	line := strings.Join(strings.Fields(printable), " ")
	if len(line) <= MaxFailureBytes {
		return line
	}

	end := MaxFailureBytes - len(ellipsis)
	for !utf8.RuneStart(line[end]) {
		end--
	}

	return line[:end] + ellipsis
}

func resultLabels() []string {
	return []string{LabelResult, LabelSuccessfulGEP, LabelFailedGEP}
}

func resultAnnotations() []string {
	return []string{AnnotationFailedReason, AnnotationFailureMsgGEP, AnnotationResultAttempt}
}
