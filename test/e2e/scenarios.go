package e2e

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/lab/osbuild"
)

const (
	// FirstVersion is what the machines are provisioned with.
	FirstVersion = "1.0.0"

	nodeOne = "node-1"
	nodeTwo = "node-2"

	// emulatedBoot is how long an emulated machine may take from power-on to a Ready node when another one runs beside
	// it on two cores; it takes one to three minutes.
	emulatedBoot = 10 * time.Minute
	// limit bounds a scenario of one machine. A good one takes three to five minutes, a fallback four to seven.
	limit = 18 * time.Minute

	// sickAfter is the deadline of the gate that is meant to fail: nothing is waited for that could still come.
	sickAfter = 20 * time.Second
	// silentAfter is how long a machine that hangs is waited for: time enough to shut down, and to begin to boot.
	silentAfter = 2 * time.Minute
)

// Machines are the nodes that the scenarios need.
func Machines() []string { return []string{nodeOne, nodeTwo} }

// Scenarios are played in this order: those that share no machine side by side. The failing versions leave their
// machine where it was, so that the next one is newer in any case. A reboot takes minutes, so each is used for what has
// nothing to do with how it ends, too: who selects the node, and in which dialect it is asked.
//
// All of them have two API servers: hosts and pools live in one cluster, Nodes in the other.
func Scenarios() []Scenario {
	return []Scenario{
		goodUpdate(),
		kernelPanic(),
		noNetwork(),
		sickKubelet(),
		hang(),
	}
}

// goodUpdate is the main job, with what may go wrong on the way and must change nothing.
func goodUpdate() Scenario {
	return Scenario{
		Name:      "good update of two machines one at a time",
		Machines:  []string{nodeOne, nodeTwo},
		To:        osbuild.Variant{Version: "1.1.0"},
		Pool:      patientPool,
		Incidents: []Incident{powerCut(nodeOne), agentKilled(nodeTwo), heldUpDrain()},
		Want:      Want{Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonCommitted},
		Limit:     2 * limit,
	}
}

func kernelPanic() Scenario {
	return Scenario{
		Name:     "kernel panic, the node selected by hand",
		Machines: []string{nodeOne},
		To:       osbuild.Variant{Version: "1.2.0", Fault: osbuild.Panic},
		Pool: func(spec *v1alpha1.HostPoolSpec) {
			patientPool(spec)
			spec.Reboot.Tries = 2
			spec.Strategy.Type = v1alpha1.ManualInPlaceUpdate
		},
		Incidents: []Incident{selectedByHand(nodeOne)},
		Want: Want{
			Phase: v1alpha1.PhaseRolledBack, Reason: v1alpha1.ReasonKernelOrInitrdFailed, Rung: v1alpha1.RungBootTries, Halted: true,
		},
		Limit: limit,
	}
}

func hang() Scenario {
	return Scenario{
		Name:     "hang, rescued by the BMC",
		Machines: []string{nodeTwo},
		To:       osbuild.Variant{Version: "1.3.0", Fault: osbuild.Hang},
		Pool: func(spec *v1alpha1.HostPoolSpec) {
			patientPool(spec)
			spec.Reboot.Tries = 1
			spec.Reboot.SilentAfter.Duration = silentAfter
			spec.OutOfBand.SilentAfterReset.Duration = emulatedBoot // the old OS has to boot within it
		},
		Want: Want{
			Phase: v1alpha1.PhaseRolledBack, Reason: v1alpha1.ReasonKernelOrInitrdFailed, Rung: v1alpha1.RungBMC,
			Says: "through its BMC", Halted: true, MinResets: 1,
		},
		Limit: limit,
	}
}

func sickKubelet() Scenario {
	return Scenario{
		Name:     "userspace sick, reverted by the boot gate, in the dialect of GEP-0031",
		Machines: []string{nodeOne},
		To:       osbuild.Variant{Version: "1.3.0", Fault: osbuild.SickKubelet},
		Pool: func(spec *v1alpha1.HostPoolSpec) {
			patientPool(spec)
			spec.Health.Kubelet.Duration = sickAfter
			spec.Strategy.Dialect = v1alpha1.DialectGEP0031
		},
		Incidents: []Incident{asked(nodeOne, protocol.GEP0031)},
		Want: Want{
			Phase: v1alpha1.PhaseRolledBack, Reason: v1alpha1.ReasonHealthGateFailed, Rung: v1alpha1.RungBootGate,
			Says: "gate kubelet did not pass", Halted: true,
		},
		Limit: limit,
	}
}

func noNetwork() Scenario {
	return Scenario{
		Name:     "no network after boot, reverted by the boot gate",
		Machines: []string{nodeTwo},
		To:       osbuild.Variant{Version: "1.2.0", Fault: osbuild.NoNetwork},
		Pool: func(spec *v1alpha1.HostPoolSpec) {
			patientPool(spec)
			spec.Health.APIServer.Duration = sickAfter
		},
		Want: Want{
			Phase: v1alpha1.PhaseRolledBack, Reason: v1alpha1.ReasonHealthGateFailed, Rung: v1alpha1.RungBootGate,
			Says: "gate apiServer did not pass", Halted: true,
		},
		Limit: limit,
	}
}

// patientPool gives emulated machines the time that they need.
func patientPool(spec *v1alpha1.HostPoolSpec) {
	patience := metav1.Duration{Duration: emulatedBoot}

	spec.Reboot.SilentAfter = patience
	spec.Health.APIServer, spec.Health.ContainerRuntime = patience, patience
	spec.Health.Kubelet, spec.Health.NodeReady = patience, patience
}
