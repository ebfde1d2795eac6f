package agent_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/trust"
)

// Whoever opens the image is told what the NodeUpdate wants, also by an agent that was started anew in the middle.
func TestTheSignaturesOfTheNodeUpdateAreAskedFor(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.registry.Errors = []error{&trust.Error{Kind: trust.ErrKey, Subject: "key folder x", Detail: "it has a private key"}}
	want := &v1alpha1.NodeVerification{Policy: v1alpha1.VerificationRequire, PublicKeys: []string{"key"}}

	b.cluster.Ask("a1", newVersion)
	b.cluster.Verify(want)
	b.pass()
	b.pass()
	b.wantPhase(v1alpha1.PhaseStaging, v1alpha1.ReasonKeysUnusable)

	b.restart()
	b.machine.Clock.Step(time.Minute)
	b.pass()
	b.pass()
	b.wantPhase(v1alpha1.PhaseStaged, v1alpha1.ReasonWaitingForReady)

	if len(b.registry.Wanted) != 2 || !reflect.DeepEqual(b.registry.Wanted[0], want) || !reflect.DeepEqual(b.registry.Wanted[1], want) {
		t.Errorf("asked for %v, want %v twice", b.registry.Wanted, want)
	}
}

// A refusal ends the attempt, and nothing was written into a slot.
func TestAnUntrustedImageIsNotWritten(t *testing.T) {
	t.Parallel()

	b := newBench(t)
	b.registry.Errors = []error{&osimage.Error{Kind: osimage.ErrUntrusted, Subject: "x", Err: trust.ErrUnsigned}}

	b.cluster.Ask("a1", newVersion)
	b.pass()
	b.pass()
	b.wantPhase(v1alpha1.PhaseRefused, v1alpha1.ReasonImageUntrusted)

	if _, written := b.machine.Moved(); written > 0 {
		t.Errorf("%d bytes were written", written)
	}
}
