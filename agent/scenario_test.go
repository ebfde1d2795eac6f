package agent_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stayput-dev/stayput/agent/agenttest"
	agentslots "github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/trust"
)

const (
	oldVersion = "1.0.0"
	newVersion = "1.1.0"
	// budget is how many writes one update may cost the API server, deleted pods aside.
	budget = 12
)

func good() agenttest.Scenario {
	return agenttest.Scenario{
		From: oldVersion, To: newVersion,
		Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonCommitted, Result: protocol.Successful, Running: newVersion,
	}
}

func falls(behaviour agenttest.Behaviour, reason v1alpha1.Reason, rung v1alpha1.Rung) agenttest.Scenario {
	return agenttest.Scenario{
		From: oldVersion, To: newVersion, Behaviour: behaviour,
		Phase: v1alpha1.PhaseRolledBack, Reason: reason, Rung: rung, Result: protocol.Failed, Running: oldVersion,
	}
}

func refused(reason v1alpha1.Reason, result protocol.Result) agenttest.Scenario {
	return agenttest.Scenario{
		From: oldVersion, To: newVersion, Phase: v1alpha1.PhaseRefused, Reason: reason, Result: result, Running: oldVersion,
	}
}

func with(scenario agenttest.Scenario, change func(*agenttest.Scenario)) agenttest.Scenario {
	change(&scenario)

	return scenario
}

// always is an error that comes again whenever the agent tries anew after a fault.
func always(err error) []error {
	const often = 5

	return slices.Repeat([]error{err}, often)
}

func scenarios() map[string]agenttest.Scenario {
	return map[string]agenttest.Scenario{
		"good":                 good(),
		"good in GEP dialect":  with(good(), func(s *agenttest.Scenario) { s.Dialect = protocol.GEP0031 }),
		"kernel panic":         falls(agenttest.Panics, v1alpha1.ReasonKernelOrInitrdFailed, v1alpha1.RungBootTries),
		"hang, reset by BMC":   falls(agenttest.Hangs, v1alpha1.ReasonKernelOrInitrdFailed, v1alpha1.RungBMC),
		"sick userspace":       falls(agenttest.Sick, v1alpha1.ReasonHealthGateFailed, v1alpha1.RungBootGate),
		"goes down in gate":    falls(agenttest.DiesInGate, v1alpha1.ReasonGateInterrupted, v1alpha1.RungBootTries),
		"gate stuck":           falls(agenttest.GateStuck, v1alpha1.ReasonGateInterrupted, v1alpha1.RungBootTries),
		"duplicate events":     with(good(), func(s *agenttest.Scenario) { s.Passes = 5 }),
		"API away for an hour": with(good(), func(s *agenttest.Scenario) { s.AwayFrom, s.AwayFor = 2, 180 }),
		"API unknown after the reboot": with(good(), func(s *agenttest.Scenario) {
			s.UnknownAfterBoot = 4
		}),
		"fallback while the API is unknown": with(falls(agenttest.Hangs, v1alpha1.ReasonKernelOrInitrdFailed, v1alpha1.RungBMC),
			func(s *agenttest.Scenario) { s.UnknownAfterBoot = 2 }),
		"never blessed": {
			From: oldVersion, To: newVersion, Behaviour: agenttest.NeverBlessed, Running: newVersion,
			Phase: v1alpha1.PhaseNeedsHuman, Reason: v1alpha1.ReasonCommitFailed, Result: protocol.Failed,
		},
		"boot loader passes by once": with(good(), func(s *agenttest.Scenario) { s.IgnoreArmed = 1 }),
		"boot loader passes by for ever": with(falls(agenttest.Healthy, v1alpha1.ReasonBootedUnexpectedSlot, v1alpha1.RungBootTries),
			func(s *agenttest.Scenario) { s.IgnoreArmed = 99 }),
		"shutdown stuck twice": with(good(), func(s *agenttest.Scenario) { s.StuckShutdowns = 2 }),
		"shutdown stuck for ever": with(refused(v1alpha1.ReasonRebootFailed, protocol.Failed), func(s *agenttest.Scenario) {
			s.StuckShutdowns = 99
		}),
		"uncordoned at first": with(good(), func(s *agenttest.Scenario) { s.CordonAt = 20 }),
		"registry down for a while": with(good(), func(s *agenttest.Scenario) {
			s.RegistryErrors = []error{agenttest.Transient(), agenttest.Transient(), agenttest.Transient()}
		}),
		"disk fails for a while": with(good(), func(s *agenttest.Scenario) { s.StageErrors = []error{agenttest.ErrAway, agenttest.ErrAway} }),
		"not an image": with(refused(v1alpha1.ReasonImageInvalid, protocol.NoResult), func(s *agenttest.Scenario) {
			s.RegistryErrors = always(&osimage.Error{Kind: osimage.ErrNotAnImage, Subject: "x"})
		}),
		"not signed by a trusted key": with(refused(v1alpha1.ReasonImageUntrusted, protocol.NoResult), func(s *agenttest.Scenario) {
			s.RegistryErrors = always(&osimage.Error{Kind: osimage.ErrUntrusted, Subject: "x", Err: trust.ErrWrongKey})
		}),
		"keys that cannot be read for a while": with(good(), func(s *agenttest.Scenario) {
			s.RegistryErrors = []error{&trust.Error{Kind: trust.ErrKey, Subject: "x"}, &trust.Error{Kind: trust.ErrPolicy, Subject: "x"}}
		}),
		"wrong digest while writing": with(refused(v1alpha1.ReasonImageInvalid, protocol.NoResult), func(s *agenttest.Scenario) {
			s.StageErrors = always(&osimage.Error{Kind: osimage.ErrWrongDigest, Subject: "x"})
		}),
		"older version": {
			From: oldVersion, To: "0.9.0", Running: oldVersion, Phase: v1alpha1.PhaseRefused, Reason: v1alpha1.ReasonVersionNotNewer,
		},
		"same version": {
			From: oldVersion, To: oldVersion, Running: oldVersion, Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonUpToDate,
		},
		"arming fails for a while": with(good(), func(s *agenttest.Scenario) { s.ArmErrors = []error{agenttest.ErrAway, agenttest.ErrAway} }),
		"arming is refused": with(refused(v1alpha1.ReasonArmFailed, protocol.Failed), func(s *agenttest.Scenario) {
			s.ArmErrors = always(agentslots.Refuse(v1alpha1.ReasonBootPartitionFull, "the boot partition is full"))
		}),
		"the slot was written by another": with(refused(v1alpha1.ReasonArmFailed, protocol.Failed), func(s *agenttest.Scenario) {
			s.ArmErrors = always(agentslots.ErrNotStaged)
		}),
	}
}

func check(t interface {
	Helper()
	Errorf(format string, args ...any)
}, outcome agenttest.Outcome,
) {
	t.Helper()

	for _, problem := range outcome.Problems {
		t.Errorf("%s", problem)
	}
}

func TestScenarios(t *testing.T) {
	t.Parallel()

	for name, scenario := range scenarios() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, agenttest.Run(scenario))
		})
	}
}

func TestAnUpdateCostsFewWrites(t *testing.T) {
	t.Parallel()

	for name, scenario := range scenarios() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			outcome := agenttest.Run(scenario)
			if outcome.Cluster.Writes-heartbeats(outcome.Cluster.Statuses) > budget {
				for _, status := range outcome.Cluster.Statuses {
					t.Logf("%s/%s %+v %s", status.Phase, status.Reason, status.Progress, status.Message)
				}

				t.Errorf("%d writes, at most %d beside heartbeats", outcome.Cluster.Writes, budget)
			}
		})
	}
}

// heartbeats counts the writes that say nothing new, as there may be one a minute while a trial boot is proved.
func heartbeats(statuses []v1alpha1.NodeUpdateStatus) int {
	count := 0

	for i := 1; i < len(statuses); i++ {
		before, now := statuses[i-1], statuses[i]
		if now.Phase != v1alpha1.PhaseProving && now.Phase != v1alpha1.PhaseReporting {
			continue
		}

		if before.Phase == now.Phase && before.Reason == now.Reason && before.BootID == now.BootID &&
			now.Heartbeat.Sub(before.Heartbeat.Time) >= time.Minute {
			count++
		}
	}

	return count
}

func TestAGoodUpdateInDetail(t *testing.T) {
	t.Parallel()

	outcome := agenttest.Run(good())
	check(t, outcome)

	if outcome.Machine.Asks != 1 || outcome.Machine.BootsOf[newVersion] != 1 || outcome.Cluster.PodDeletions != 1 ||
		outcome.Registry.Asked != 1 {
		t.Errorf("%d reboots, %v boots, %d pod deletions, %d looks at the registry; expected one each",
			outcome.Machine.Asks, outcome.Machine.BootsOf, outcome.Cluster.PodDeletions, outcome.Registry.Asked)
	}

	phases := make([]v1alpha1.Phase, 0, len(outcome.Cluster.Statuses))
	for _, status := range outcome.Cluster.Statuses {
		phases = append(phases, status.Phase)
	}

	if want := []v1alpha1.Phase{
		v1alpha1.PhaseStaged, v1alpha1.PhaseRebooting, v1alpha1.PhaseProving, v1alpha1.PhaseProving, v1alpha1.PhaseSucceeded,
	}; !slices.Equal(phases, want) {
		t.Errorf("the cluster saw %v, expected %v", phases, want)
	}

	status := outcome.Cluster.Status()
	if status.Running.Digest == "" || status.Running != status.KnownGood || status.Running.Version != newVersion {
		t.Errorf("running %+v, known good %+v", status.Running, status.KnownGood)
	}

	record := outcome.Record
	if record.ReadyAt == nil || record.RebootedAt == nil || record.BackAt == nil || record.EndedAt == nil ||
		record.BackAt.Before(record.RebootedAt) {
		t.Errorf("times are missing: %+v", record)
	}
}

// The agent is killed, or the power fails, at each step of each scenario in turn. The end is the same as without.
func TestAFaultAtEveryStep(t *testing.T) {
	t.Parallel()

	for name, scenario := range scenarios() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			steps := len(agenttest.Run(scenario).Machine.Points)

			for number := range steps {
				scenario.Faults = map[int]agenttest.Fault{number: agenttest.Kill}

				outcome := agenttest.Run(scenario)
				for _, problem := range outcome.Problems {
					t.Errorf("killed at step %d, %s: %s", number, outcome.Machine.Points[number], problem)
				}
			}
		})
	}
}

// rough are the scenarios that are played with the faults that cost most.
func rough() map[string]agenttest.Scenario {
	chosen := map[string]agenttest.Scenario{}

	for _, name := range []string{
		"good", "kernel panic", "hang, reset by BMC", "sick userspace", "goes down in gate", "boot loader passes by once",
		"API away for an hour", "shutdown stuck for ever", "older version", "same version", "arming is refused",
	} {
		chosen[name] = scenarios()[name]
	}

	return chosen
}

// A power cut may use up a try, so the reason may be another one; the rules hold all the same.
func TestAPowerCutAtEveryStep(t *testing.T) {
	t.Parallel()

	for name, scenario := range rough() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			everyStep(t, scenario, agenttest.PowerCut)
		})
	}
}

func everyStep(t *testing.T, scenario agenttest.Scenario, fault agenttest.Fault) {
	t.Helper()

	steps := len(agenttest.Run(scenario).Machine.Points)
	scenario.Phase, scenario.Running = "", ""

	for number := range steps {
		scenario.Faults = map[int]agenttest.Fault{number: fault}

		outcome := agenttest.Run(scenario)
		for _, problem := range outcome.Problems {
			t.Errorf("%s at step %d, %s: %s", fault, number, outcome.Machine.Points[number], problem)
		}
	}
}

func TestTheJournalIsLostAtEveryStep(t *testing.T) {
	t.Parallel()

	for name, scenario := range rough() {
		for _, fault := range []agenttest.Fault{agenttest.KillAndLose, agenttest.PowerCutAndLose} {
			t.Run(fmt.Sprintf("%s, %s", name, fault), func(t *testing.T) {
				t.Parallel()
				everyStep(t, scenario, fault)
			})
		}
	}
}

// The memory that was made anew from the NodeUpdate must do when the next boot cannot see the NodeUpdate.
func TestTheMachineStopsAgainAfterTheJournalIsLost(t *testing.T) {
	t.Parallel()

	for name, scenario := range rough() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			steps := len(agenttest.Run(scenario).Machine.Points)
			scenario.Phase, scenario.Running = "", ""
			scenario.UnknownAfterBoot = 1

			for lost := range steps {
				for apart := 1; apart <= 4; apart++ {
					scenario.Faults = map[int]agenttest.Fault{lost: agenttest.PowerCutAndLose, lost + apart: agenttest.PowerCut}

					for _, problem := range agenttest.Run(scenario).Problems {
						t.Errorf("%s at step %d, %s %d steps later: %s", agenttest.PowerCutAndLose, lost, agenttest.PowerCut, apart, problem)
					}
				}
			}
		})
	}
}

// Whatever is thrown at the agent, in whatever order, the invariants of agenttest hold.
func TestRandomSchedules(t *testing.T) {
	t.Parallel()

	behaviours := []agenttest.Behaviour{
		agenttest.Healthy, agenttest.Healthy, agenttest.Panics, agenttest.Hangs, agenttest.Sick, agenttest.DiesInGate, agenttest.GateStuck,
	}
	faults := []agenttest.Fault{agenttest.Kill, agenttest.Kill, agenttest.PowerCut, agenttest.KillAndLose, agenttest.PowerCutAndLose}

	rapid.Check(t, func(t *rapid.T) {
		scenario := agenttest.Scenario{
			From: oldVersion, To: newVersion,
			Behaviour:        rapid.SampledFrom(behaviours).Draw(t, "behaviour"),
			Passes:           rapid.IntRange(1, 3).Draw(t, "passes"),
			AwayFrom:         rapid.IntRange(0, 20).Draw(t, "away from"),
			AwayFor:          rapid.IntRange(0, 60).Draw(t, "away for"),
			UnknownAfterBoot: rapid.IntRange(0, 5).Draw(t, "unknown after boot"),
			IgnoreArmed:      rapid.IntRange(0, 1).Draw(t, "boot loader passes by"),
			StuckShutdowns:   rapid.IntRange(0, 2).Draw(t, "stuck shutdowns"),
			Dialect:          rapid.SampledFrom([]protocol.Dialect{protocol.Shipped, protocol.GEP0031}).Draw(t, "dialect"),
			Faults:           map[int]agenttest.Fault{},
		}
		for range rapid.IntRange(0, 2).Draw(t, "registry errors") {
			scenario.RegistryErrors = append(scenario.RegistryErrors, agenttest.Transient())
		}

		maps.Copy(scenario.Faults, rapid.MapOfN(rapid.IntRange(0, 70), rapid.SampledFrom(faults), 0, 4).Draw(t, "faults"))

		check(t, agenttest.Run(scenario))
	})
}
