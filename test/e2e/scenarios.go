package e2e

import (
	"time"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/lab/osbuild"
)

const (
	// emulatedBoot is how long an emulated machine may take from power-on to a Ready node when another one runs beside
	// it on two cores.
	emulatedBoot = 12 * time.Minute
	// perNode is how long one node's whole update may take there: staging, shutdown, boot, gate.
	perNode = emulatedBoot + 8*time.Minute
)

// Scenarios are played in this order; each begins with the version that the one before has left.
func Scenarios() []Scenario {
	return []Scenario{
		{
			Name:  "good update of two machines one at a time",
			From:  "1.0.0",
			To:    osbuild.Variant{Version: "1.1.0"},
			Pool:  patientPool,
			Want:  Want{Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonCommitted},
			Limit: 2 * perNode,
		},
	}
}

// patientPool gives emulated machines the time that they need.
func patientPool(spec *v1alpha1.HostPoolSpec) {
	spec.Reboot.SilentAfter.Duration = emulatedBoot
	spec.Health.APIServer.Duration = emulatedBoot
	spec.Health.ContainerRuntime.Duration = emulatedBoot
	spec.Health.Kubelet.Duration = emulatedBoot
	spec.Health.NodeReady.Duration = emulatedBoot
}
