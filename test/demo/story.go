package demo

import (
	"time"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/e2e"
	"github.com/stayput-dev/stayput/test/lab/osbuild"
)

// The versions of the story.
const (
	First = "1.0.0"
	good  = "1.1.0"
	bad   = "1.2.0"
	hangs = "1.3.0"
)

// Pace is how long things take on the machines of a lab.
type Pace struct {
	// Boot bounds a boot until the Node is Ready, with another machine beside it.
	Boot time.Duration
	// Silent is how long the machine that hangs is left alone.
	Silent time.Duration
	// Limit bounds a chapter.
	Limit time.Duration
}

// PaceOf is that of machines under KVM, or of emulated ones, which take two to five minutes for a boot on two cores.
func PaceOf(accelerated bool) Pace {
	if accelerated {
		return Pace{Boot: 4 * time.Minute, Silent: 90 * time.Second, Limit: 20 * time.Minute}
	}

	return Pace{Boot: 15 * time.Minute, Silent: 5 * time.Minute, Limit: 45 * time.Minute}
}

// Chapter is one part of the story, with what its end must be.
type Chapter struct {
	Part

	// Scenario is what is played.
	Scenario e2e.Scenario
	// From is the version that each of its nodes runs at the beginning, and Runs the one that it runs, committed, at
	// the end.
	From, Runs string
	// MaxResets is how often the BMCs may have acted at most, in all; the scenario has the least.
	MaxResets int32
	// Lesson says in a line what was seen, once it was seen.
	Lesson string
}

// Halts tells whether the rollout stops at the first node.
func (c *Chapter) Halts() bool { return c.Scenario.Want.Halted }

// Story is the chapters in order. Each begins with what the one before has left.
func Story(pace Pace) []Chapter {
	return []Chapter{goodUpdate(pace), panics(pace), silent(pace)}
}

// Machines are the nodes of the story.
func Machines() []string { return []string{"node-1", "node-2"} }

// Variants are the versions of the OS that the story needs.
func Variants(story []Chapter) []osbuild.Variant {
	variants := make([]osbuild.Variant, 0, len(story)+1)
	variants = append(variants, osbuild.Variant{Version: First})

	for index := range story {
		variants = append(variants, story[index].Scenario.To)
	}

	return variants
}

func goodUpdate(pace Pace) Chapter {
	return Chapter{
		Part: Part{
			Name: "Chapter 1: OS " + good + " for both machines",
			Telling: "A HostPool asks for OS " + good + ". Both agents write it into the spare slot while their nodes serve. Then one\n" +
				"node after the other is cordoned, drained and rebooted; its boot gate proves the new system before it counts as good.",
		},
		Scenario: e2e.Scenario{
			Name: "demo: good update", Machines: Machines(), To: osbuild.Variant{Version: good},
			Pool:  func(spec *v1alpha1.HostPoolSpec) { settle(spec, pace) },
			Want:  e2e.Want{Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonCommitted},
			Limit: pace.Limit,
		},
		From:   First,
		Runs:   good,
		Lesson: "both machines were updated in place, one after the other",
	}
}

func panics(pace Pace) Chapter {
	return Chapter{
		Part: Part{
			Name: "Chapter 2: OS " + bad + " is broken",
			Telling: "The kernel of OS " + bad + " panics. The first machine to try it uses up its two tries, and its boot loader returns\n" +
				"to OS " + good + ", with nobody's help. The release is poisoned for the pool and the rollout halts; the other\n" +
				"machine never leaves OS " + good + ".",
		},
		Scenario: e2e.Scenario{
			Name: "demo: kernel panic", Machines: Machines(), To: osbuild.Variant{Version: bad, Fault: osbuild.Panic},
			Pool: func(spec *v1alpha1.HostPoolSpec) {
				settle(spec, pace)
				spec.Reboot.Tries = 2
			},
			Want: e2e.Want{
				Phase: v1alpha1.PhaseRolledBack, Reason: v1alpha1.ReasonKernelOrInitrdFailed, Rung: v1alpha1.RungBootTries,
				Halted: true,
			},
			Limit: pace.Limit,
		},
		From:   good,
		Runs:   good,
		Lesson: "the machine fell back by itself and the rollout halted",
	}
}

func silent(pace Pace) Chapter {
	return Chapter{
		Part: Part{
			Name: "Chapter 3: OS " + hangs + " hangs",
			Telling: "OS " + hangs + ", offered to one machine, starts its kernel and then does nothing: no panic, no network. After\n" +
				pace.Silent.String() + " of silence the controller reads the machine's power from its BMC, stores what it will do, and\n" +
				"resets the machine. That uses up its only try, so OS " + good + " boots.",
		},
		Scenario: e2e.Scenario{
			Name: "demo: hang", Machines: Machines()[:1], To: osbuild.Variant{Version: hangs, Fault: osbuild.Hang},
			Pool: func(spec *v1alpha1.HostPoolSpec) {
				settle(spec, pace)
				spec.Reboot.Tries = 1
				spec.Reboot.SilentAfter.Duration = pace.Silent
			},
			Want: e2e.Want{
				Phase: v1alpha1.PhaseRolledBack, Reason: v1alpha1.ReasonKernelOrInitrdFailed, Rung: v1alpha1.RungBMC,
				Halted: true, MinResets: 1,
			},
			Limit: pace.Limit,
		},
		From: good,
		Runs: good,
		// A reset that comes while the old system still shuts down costs no try, so a second one may be needed.
		MaxResets: 2,
		Lesson:    "the silent machine was reset through its BMC, fell back, and the rollout halted",
	}
}

// settle gives machines the time that they need.
func settle(spec *v1alpha1.HostPoolSpec, pace Pace) {
	spec.Reboot.SilentAfter.Duration = pace.Boot
	spec.OutOfBand.SilentAfterReset.Duration = pace.Boot
	spec.Health.APIServer.Duration = pace.Boot
	spec.Health.ContainerRuntime.Duration = pace.Boot
	spec.Health.Kubelet.Duration = pace.Boot
	spec.Health.NodeReady.Duration = pace.Boot
}
