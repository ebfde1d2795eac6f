package e2e

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/lab/osbuild"
)

// Scenarios are played side by side, and the end of each looks at what was fetched of its image.
func TestNoTwoScenariosShareAnImage(t *testing.T) {
	t.Parallel()

	asked := map[osbuild.Variant]string{}

	for _, scenario := range Scenarios() {
		if other, found := asked[scenario.To]; found {
			t.Errorf("%s and %s are both of OS %s", scenario.Name, other, scenario.To)
		}

		asked[scenario.To] = scenario.Name
	}
}

// A machine refuses what is not newer than what it runs, and a version that it has tried in vain is in its spare slot
// still: so the versions of each machine rise from scenario to scenario.
func TestEachMachineIsToldNewerVersionsOnly(t *testing.T) {
	t.Parallel()

	told := map[string]string{}

	for _, scenario := range Scenarios() {
		for _, machine := range scenario.Machines {
			if !slices.Contains(Machines(), machine) {
				t.Errorf("%s: the lab has no machine %s", scenario.Name, machine)
			}

			before := told[machine]
			if before == "" {
				before = FirstVersion
			}

			if !version.MustParseGeneric(before).LessThan(version.MustParseGeneric(scenario.To.Version)) {
				t.Errorf("%s: %s is told %s after %s", scenario.Name, machine, scenario.To.Version, before)
			}

			told[machine] = scenario.To.Version
		}
	}
}

func TestEveryFaultIsTriedAndHaltsItsRollout(t *testing.T) {
	t.Parallel()

	tried := map[osbuild.Fault]int{}

	for _, scenario := range Scenarios() {
		tried[scenario.To.Fault]++

		if bad := scenario.To.Fault != osbuild.None; scenario.Want.Halted != bad || (scenario.Want.Phase == v1alpha1.PhaseRolledBack) != bad {
			t.Errorf("%s: fault %q, but it wants %+v", scenario.Name, scenario.To.Fault, scenario.Want)
		}

		if err := scenario.To.Validate(); err != nil {
			t.Errorf("%s: %v", scenario.Name, err)
		}
	}

	for _, fault := range osbuild.Faults() {
		if tried[fault] != 1 {
			t.Errorf("fault %q is tried %d times", fault, tried[fault])
		}
	}
}

func TestEachScenarioHasAPoolOfItsOwn(t *testing.T) {
	t.Parallel()

	names := map[string]bool{}

	for _, scenario := range Scenarios() {
		name := scenario.poolName()
		if problems := validation.IsDNS1123Label(name); names[name] || len(problems) > 0 {
			t.Errorf("%s: pool name %q is taken or wrong: %v", scenario.Name, name, problems)
		}

		names[name] = true

		for _, incident := range scenario.Incidents {
			for index, step := range incident.Steps {
				if incident.Name == "" || step.Name == "" || step.When == nil {
					t.Errorf("%s: step %d of %q has no name or no time", scenario.Name, index, incident.Name)
				}
			}
		}

		if scenario.Limit == 0 {
			t.Errorf("%s has no limit", scenario.Name)
		}
	}
}

// Each incident takes its own steps, in order, one at an observation; what is left at the end has failed.
func TestIncidentsGoOnSideBySide(t *testing.T) {
	t.Parallel()

	var taken []string

	step := func(name string, phase v1alpha1.Phase) Step {
		return Step{
			Name: name,
			When: func(world *World) bool { return len(world.InPhase(phase)) > 0 },
			Do: func(context.Context, *Run) error {
				taken = append(taken, name)

				return nil
			},
		}
	}
	run := &Run{Log: t.Logf}
	left := [][]Step{
		{step("a1", v1alpha1.PhaseStaging), step("a2", v1alpha1.PhaseRebooting)},
		{step("b1", v1alpha1.PhaseStaging), step("b2", v1alpha1.PhaseStaging), step("b3", v1alpha1.PhaseProving)},
	}

	for _, phase := range []v1alpha1.Phase{
		v1alpha1.PhaseStaging, v1alpha1.PhaseStaging, v1alpha1.PhaseStaging, v1alpha1.PhaseStaging, v1alpha1.PhaseRebooting,
	} {
		world := poolWorld(v1alpha1.ConditionReady, false, "", "").update(phase, 1)
		if _, err := run.takeSteps(t.Context(), left, world); err != nil {
			t.Fatal(err)
		}
	}

	if want := []string{"a1", "b1", "b2", "a2"}; !slices.Equal(taken, want) {
		t.Errorf("taken: %v, want %v", taken, want)
	}

	if err := run.missed(left); !errors.Is(err, ErrOutcome) || !strings.Contains(err.Error(), "b3") || strings.Contains(err.Error(), "a2") {
		t.Errorf("left at the end: %v", err)
	}
}

func TestScenariosOfDisjointMachinesDoNotWaitForOneAnother(t *testing.T) {
	t.Parallel()

	scenarios := []Scenario{
		{Machines: []string{"a", "b"}},
		{Machines: []string{"a"}},
		{Machines: []string{"b"}},
		{Machines: []string{"a"}},
		{Machines: []string{"c"}},
		{Machines: []string{"a", "b"}},
	}

	for index, want := range [][]int{nil, {0}, {0}, {1}, nil, {2, 3}} {
		if got := Predecessors(scenarios, index); !slices.Equal(got, want) {
			t.Errorf("before scenario %d come %v, want %v", index, got, want)
		}
	}
}

// The time of the whole is that of its longest track, so neither machine may get most of the work.
func TestTheMachinesShareTheWork(t *testing.T) {
	t.Parallel()

	count := map[string]int{}

	for _, scenario := range Scenarios() {
		for _, machine := range scenario.Machines {
			count[machine]++
		}
	}

	if count[nodeOne] != count[nodeTwo] {
		t.Errorf("scenarios of each machine: %v", count)
	}
}

func TestPatienceIsForAllGatesButTheOneThatIsMeantToFail(t *testing.T) {
	t.Parallel()

	for _, scenario := range Scenarios() {
		var spec v1alpha1.HostPoolSpec

		scenario.Pool(&spec)

		short := 0

		for _, deadline := range []metav1.Duration{
			spec.Health.APIServer, spec.Health.ContainerRuntime, spec.Health.Kubelet, spec.Health.NodeReady,
		} {
			if deadline.Duration < emulatedBoot {
				short++
			}
		}

		gated := scenario.Want.Rung == v1alpha1.RungBootGate
		if (short == 1) != gated || short > 1 {
			t.Errorf("%s: %d gates are impatient", scenario.Name, short)
		}

		if silent := spec.Reboot.SilentAfter.Duration < emulatedBoot; silent != (scenario.Want.MinResets > 0) {
			t.Errorf("%s: the BMC is reached for after %s, but %d resets are wanted",
				scenario.Name, spec.Reboot.SilentAfter.Duration, scenario.Want.MinResets)
		}
	}
}

func TestEveryOtherEndIsFound(t *testing.T) {
	t.Parallel()

	want := Want{
		Phase: v1alpha1.PhaseRolledBack, Reason: v1alpha1.ReasonHealthGateFailed, Rung: v1alpha1.RungBootGate, Says: "kubelet",
	}
	good := v1alpha1.AttemptRecord{Phase: want.Phase, Reason: want.Reason, Rung: want.Rung, Message: "gate kubelet failed"}

	if err := want.compare("n", &good); err != nil {
		t.Errorf("the end that is wanted: %v", err)
	}

	for name, change := range map[string]func(*v1alpha1.AttemptRecord){
		"phase":   func(r *v1alpha1.AttemptRecord) { r.Phase = v1alpha1.PhaseSucceeded },
		"reason":  func(r *v1alpha1.AttemptRecord) { r.Reason = v1alpha1.ReasonGateInterrupted },
		"rung":    func(r *v1alpha1.AttemptRecord) { r.Rung = v1alpha1.RungBMC },
		"message": func(r *v1alpha1.AttemptRecord) { r.Message = "gate apiServer failed" },
	} {
		record := good
		change(&record)

		if err := want.compare("n", &record); !errors.Is(err, ErrOutcome) {
			t.Errorf("another %s: %v", name, err)
		}
	}

	for _, test := range []struct {
		min, resets int
		good        bool
	}{{0, 0, true}, {0, 1, false}, {1, 0, false}, {1, 1, true}, {1, 2, true}} {
		if err := (Want{MinResets: test.min}).compareResets(test.resets); (err == nil) != test.good {
			t.Errorf("%d resets, wanted %d: %v", test.resets, test.min, err)
		}
	}
}

func TestAHaltedPoolHasPoisonedTheImageAndNoOtherHas(t *testing.T) {
	t.Parallel()

	for _, test := range []struct{ halted, poisoned, want, good bool }{
		{true, true, true, true},
		{false, false, false, true},
		{true, false, true, false},
		{false, true, false, false},
		{true, true, false, false},
		{false, false, true, false},
		{false, true, true, false},
	} {
		world := poolWorld(v1alpha1.ConditionHalted, test.halted, "", "")
		world.Pool.Status.Release = &v1alpha1.ResolvedRelease{Digest: "wanted"}
		world.Pool.Status.Poisoned = []v1alpha1.PoisonedRelease{{Digest: "an earlier one"}}

		if test.poisoned {
			world.Pool.Status.Poisoned = append(world.Pool.Status.Poisoned, v1alpha1.PoisonedRelease{Digest: "wanted"})
		}

		if err := (Want{Halted: test.want}).comparePool(world); (err == nil) != test.good {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

func TestWhichAttemptCounts(t *testing.T) {
	t.Parallel()

	began := time.Date(2026, 1, 1, 10, 0, 0, int(time.Millisecond), time.UTC)
	record := func(id, version string, reason v1alpha1.Reason, after time.Duration) v1alpha1.AttemptRecord {
		ended := metav1.NewTime(began.Add(after).Truncate(time.Second))

		return v1alpha1.AttemptRecord{ID: id, Version: version, Reason: reason, EndedAt: &ended}
	}

	for name, test := range map[string]struct {
		history []v1alpha1.AttemptRecord
		want    string
	}{
		"the newest": {[]v1alpha1.AttemptRecord{
			record("new", "2", v1alpha1.ReasonCommitted, time.Hour), record("old", "2", v1alpha1.ReasonCommitted, time.Minute),
		}, "new"},
		"ended in the same second": {[]v1alpha1.AttemptRecord{record("now", "2", v1alpha1.ReasonCommitted, 0)}, "now"},
		"before it began":          {[]v1alpha1.AttemptRecord{record("old", "2", v1alpha1.ReasonCommitted, -time.Minute)}, ""},
		"another version":          {[]v1alpha1.AttemptRecord{record("other", "1", v1alpha1.ReasonCommitted, time.Minute)}, ""},
		"taken back":               {[]v1alpha1.AttemptRecord{record("back", "2", v1alpha1.ReasonAttemptSuperseded, time.Minute)}, ""},
		"none":                     {nil, ""},
	} {
		update := &v1alpha1.NodeUpdate{Status: v1alpha1.NodeUpdateStatus{History: test.history}}
		got := ""

		if found := newestRecord(update, "2", began); found != nil {
			got = found.ID
		}

		if got != test.want {
			t.Errorf("%s: attempt %q, want %q", name, got, test.want)
		}
	}

	if newestRecord(nil, "2", began) != nil {
		t.Error("a node without a NodeUpdate has an attempt")
	}
}
