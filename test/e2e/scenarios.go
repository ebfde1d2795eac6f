package e2e

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
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
	sickAfter = 45 * time.Second
	// silentAfter is how long a machine that hangs is waited for: time enough to shut down, and to begin to boot.
	silentAfter = 2 * time.Minute
)

// Machines are the nodes that the scenarios need.
func Machines() []string { return []string{nodeOne, nodeTwo} }

// Scenarios are played in this order: those that share no machine side by side. The failing versions leave their
// machine where it was, so that the next one is newer in any case.
//
// All of them have two API servers: hosts and pools live in one cluster, Nodes in the other.
func Scenarios() []Scenario {
	return []Scenario{
		goodUpdate(),
		kernelPanic(),
		noNetwork(),
		sickKubelet(),
		hang(),
		powerCut(),
		agentKilled(),
	}
}

// goodUpdate is the main job, with the two things that may happen while a node is drained.
func goodUpdate() Scenario {
	return Scenario{
		Name:     "good update of two machines one at a time, held up by a budget, the controller killed mid-drain",
		Machines: []string{nodeOne, nodeTwo},
		To:       osbuild.Variant{Version: "1.1.0"},
		Pool:     patientPool,
		Before:   forbidEvictions,
		Steps: []Step{
			{
				Name: "kill the controller mid-drain and start it again",
				When: blockedByBudget(workloadNamespace + "/" + serviceName),
				Do: func(ctx context.Context, run *Run) error {
					if pods, err := run.cordonedPods(ctx); err != nil || pods == 0 {
						return errors.Join(fmt.Errorf("%w: the pod that the budget protects is gone", ErrOutcome), err)
					}

					return run.restartController(ctx)
				},
			},
			{
				Name: "release the budget",
				When: blockedByBudget(workloadNamespace + "/" + serviceName),
				Do:   allowEvictions,
			},
		},
		After: allowEvictions,
		Want:  Want{Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonCommitted},
		Limit: 2 * limit,
	}
}

func kernelPanic() Scenario {
	return Scenario{
		Name:     "kernel panic",
		Machines: []string{nodeOne},
		To:       osbuild.Variant{Version: "1.2.0", Fault: osbuild.Panic},
		Pool: func(spec *v1alpha1.HostPoolSpec) {
			patientPool(spec)
			spec.Reboot.Tries = 2
		},
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
		Name:     "userspace sick, reverted by the boot gate",
		Machines: []string{nodeOne},
		To:       osbuild.Variant{Version: "1.3.0", Fault: osbuild.SickKubelet},
		Pool: func(spec *v1alpha1.HostPoolSpec) {
			patientPool(spec)
			spec.Health.Kubelet.Duration = sickAfter
		},
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

// powerCut goes in the other dialect, which has nothing to do with power: each reboot is used for two things.
func powerCut() Scenario {
	const (
		// cutFrom is past the first sync of the slot, 64 MiB, and cutTo well before the end.
		cutFrom, cutTo = 40, 80
		// most is how much of the largest content may be fetched again, when all but the last 64 MiB was kept.
		most = 0.9
	)

	var cutAt time.Time

	return Scenario{
		Name:     "power cut in the middle of staging, asked in the dialect of GEP-0031",
		Machines: []string{nodeOne},
		To:       osbuild.Variant{Version: "1.4.0"},
		Pool: func(spec *v1alpha1.HostPoolSpec) {
			patientPool(spec)
			spec.Strategy.Dialect = v1alpha1.DialectGEP0031
		},
		Before: slowAgent(nodeOne),
		Steps: []Step{
			{
				Name: "cut the power and give it back",
				When: staging(nodeOne, cutFrom, cutTo),
				Do: func(ctx context.Context, run *Run) error {
					cutAt = time.Now()

					return run.cutPower(ctx, nodeOne)
				},
			},
			{Name: "the node is asked to go by a label", When: askedIn(nodeOne, protocol.GEP0031)},
		},
		Check: func(run *Run, _ *World) error {
			part, err := run.fetchedAgain(osimage.RoleUSR, cutAt)
			if err == nil && part > most {
				err = fmt.Errorf("%w: %.0f %% of the image was fetched after the power cut, so staging began anew", ErrOutcome, part*100)
			}

			return err
		},
		Want:  Want{Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonCommitted},
		Limit: limit,
	}
}

// agentKilled goes with the manual strategy, which has nothing to do with crashes: each reboot is used for two things.
func agentKilled() Scenario {
	const killFrom, killTo = 1, 90

	return Scenario{
		Name:     "agent killed while staging and between arm and reboot, the node selected by hand",
		Machines: []string{nodeTwo},
		// Not the version of powerCut, which is played beside it and counts what is fetched of its image.
		To: osbuild.Variant{Version: "1.5.0"},
		Pool: func(spec *v1alpha1.HostPoolSpec) {
			patientPool(spec)
			spec.Strategy.Type = v1alpha1.ManualInPlaceUpdate
		},
		Before: slowAgent(nodeTwo),
		Steps: []Step{
			{
				Name: "kill the agent while it is staging",
				When: staging(nodeTwo, killFrom, killTo),
				Do: func(ctx context.Context, run *Run) error {
					return errors.Join(run.killAgent(ctx, nodeTwo), hurryAgent(ctx, run, nodeTwo))
				},
			},
			{
				Name: "select the node by hand, with reboots held up",
				When: waitsForSelection(nodeTwo),
				Do: func(ctx context.Context, run *Run) error {
					if err := run.holdReboots(ctx, nodeTwo); err != nil {
						return err
					}

					return run.selectByHand(ctx, nodeTwo)
				},
			},
			{
				Name: "kill the agent between arm and reboot, then let the machine reboot",
				When: rebooting(nodeTwo),
				Do:   func(ctx context.Context, run *Run) error { return run.killAgentBeforeReboot(ctx, nodeTwo) },
			},
		},
		Want:  Want{Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonCommitted},
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
