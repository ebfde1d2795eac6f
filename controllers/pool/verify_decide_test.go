package pool

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// What signatures have to do with what is begun, goes on, and is taken back.
func TestDecideOnSignatures(t *testing.T) {
	t.Parallel()
	type change = func(*World, *v1alpha1.NodeUpdate, *corev1.Node)
	refused := func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) {
		w.Pool.Status.Release.Signature = &v1alpha1.ReleaseSignature{Policy: v1alpha1.VerificationRequire}
	}
	warned := func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) {
		w.Pool.Status.Release.Signature = &v1alpha1.ReleaseSignature{Policy: v1alpha1.VerificationWarn}
	}
	held := func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) { w.Held = true }
	otherKeys := func(w *World, _ *v1alpha1.NodeUpdate, _ *corev1.Node) {
		w.Verification = &v1alpha1.NodeVerification{Policy: v1alpha1.VerificationRequire, PublicKeys: []string{"new"}}
	}
	noAttempt := func(w *World, _ *v1alpha1.NodeUpdate, n *corev1.Node) {
		delete(w.Updates, "n0")
		n.Labels, n.Annotations = nil, nil
	}
	staging := agentSays(v1alpha1.PhaseStaging, v1alpha1.ReasonDownloading)
	for name, tt := range map[string]struct {
		changes []change
		want    string
	}{
		"nothing is offered of a refused release": {[]change{noAttempt, refused}, ""},
		"nothing is offered while it is held":     {[]change{noAttempt, held}, ""},
		"a warning offers":                        {[]change{noAttempt, warned}, "Offer"},
		"staged, warned of":                       {[]change{warned}, "Begin"},
		"staged, held":                            {[]change{held}, ""},
		"staged, refused":                         {[]change{refused}, "Close/Withdrawn"},
		"staging, refused":                        {[]change{staging, refused}, "Close/Withdrawn"},
		"draining, held":                          {[]change{begunSince(time.Minute), held}, "Drain"},
		"draining, refused":                       {[]change{begunSince(time.Minute), refused}, "Close/Withdrawn"},
		"told, refused":                           {[]change{begunSince(time.Minute), told, refused}, ""},
		"staging, other keys":                     {[]change{staging, otherKeys}, "Close/Withdrawn"},
		"staging, other keys, held":               {[]change{staging, otherKeys, held}, ""},
		"staged, other keys":                      {[]change{otherKeys}, "Begin"},
		"draining, other keys":                    {[]change{begunSince(time.Minute), otherKeys}, "Drain"},
		"refused by a node": {
			[]change{agentSays(v1alpha1.PhaseRefused, v1alpha1.ReasonImageUntrusted)}, "Close/Refused poison",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			decision := Decide(oneNode(tt.changes...))
			var got []string
			for _, action := range decision.Actions {
				text := string(action.Kind)
				if action.Outcome != "" {
					text += "/" + string(action.Outcome)
				}
				got = append(got, text)
			}
			if len(decision.Poison) > 0 {
				got = append(got, "poison")
			}
			if text := strings.Join(got, " "); text != tt.want {
				t.Errorf("got %q, want %q", text, tt.want)
			}
		})
	}
}
