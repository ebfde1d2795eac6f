package agenttest

import (
	"context"
	"fmt"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/go-logr/logr"

	"github.com/stayput-dev/stayput/agent"
	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// Scenario is one update: from, to, faults, and what is expected in the end.
type Scenario struct {
	// From runs, To is asked for.
	From, To string
	// Behaviour is what the new image does.
	Behaviour Behaviour
	// Faults strike at steps, by number.
	Faults map[int]Fault
	// IgnoreArmed and StuckShutdowns are as in Machine.
	IgnoreArmed, StuckShutdowns int
	// AwayFrom and AwayFor are the round at which the API server goes away, and for how many rounds.
	AwayFrom, AwayFor int
	// UnknownAfterBoot makes the API server unknown for that many rounds after each start of the agent.
	UnknownAfterBoot int
	// RegistryErrors, StageErrors and ArmErrors are given out first.
	RegistryErrors, StageErrors, ArmErrors []error
	// Passes is how often the agent passes in each round; duplicate events. Default 1.
	Passes int
	// NoCordon makes the orchestrator forget to cordon until round CordonAt.
	CordonAt int
	// Dialect is the orchestrator's. Default Shipped.
	Dialect protocol.Dialect

	// Phase, Reason and Rung are how the attempt shall end; Result is what the Node shall be told.
	Phase  v1alpha1.Phase
	Reason v1alpha1.Reason
	Rung   v1alpha1.Rung
	Result protocol.Result
	// Running is the version that shall run in the end.
	Running string
}

// Outcome is what came of a scenario.
type Outcome struct {
	Machine  *Machine
	Cluster  *Cluster
	Registry *Registry
	// Record is the history's entry of the attempt; nil when it did not end.
	Record *v1alpha1.AttemptRecord
	// Rounds is how many were played; Outage how long the node was not available.
	Rounds int
	// Problems are all rules that were broken, and all expectations that were not met.
	Problems []string
}

const (
	attemptID  = "attempt-1"
	maxRounds  = 600
	roundTime  = 20 * time.Second
	silentFor  = 15 * time.Minute
	quietAfter = 10
)

// play is a scenario while it is played.
type play struct {
	Scenario

	machine  *Machine
	cluster  *Cluster
	registry *Registry
	engine   *agent.Engine
	started  int // the round in which the engine was started
	silent   time.Time
	answered bool
	drained  bool
}

// Run plays a scenario until the attempt has ended and the orchestrator has released the node, or for too long.
func Run(scenario Scenario) Outcome {
	clock := clocktesting.NewFakeClock(time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC))
	machine := NewMachine(clock, scenario.From)
	machine.Behaviours[scenario.To] = scenario.Behaviour
	machine.Faults = scenario.Faults
	machine.IgnoreArmed, machine.StuckShutdowns = scenario.IgnoreArmed, scenario.StuckShutdowns
	machine.StageErrors, machine.ArmErrors = scenario.StageErrors, scenario.ArmErrors

	cluster := NewCluster(machine)
	if scenario.Dialect != "" {
		cluster.Dialect = scenario.Dialect
	}

	now := &play{
		Scenario: scenario, machine: machine, cluster: cluster,
		registry: &Registry{Errors: scenario.RegistryErrors},
	}
	cluster.Ask(attemptID, scenario.To)

	quiet, round := 0, 0
	for ; round < maxRounds && quiet < quietAfter; round++ {
		now.round(round)

		if now.over() {
			quiet++
		}
	}

	return now.outcome(round)
}

// over tells whether the attempt has ended and the node was released.
func (p *play) over() bool {
	status := p.cluster.Status()

	return status.Attempt == attemptID && status.Phase.Ended() && !p.machine.RebootPending() && p.engine != nil &&
		(!p.drained || p.answered)
}

func (p *play) round(number int) {
	p.cluster.Away = number >= p.AwayFrom && number < p.AwayFrom+p.AwayFor

	switch {
	case p.machine.Down():
		p.resetWhenSilent()
	case p.machine.RebootPending():
		p.engine = nil
		p.machine.Boot()
	default:
		p.agent(number)
	}

	p.machine.Tick()
	p.orchestrator(number)
	p.machine.Clock.Step(roundTime)
}

// resetWhenSilent is the BMC rung.
func (p *play) resetWhenSilent() {
	p.engine = nil

	if p.silent.IsZero() {
		p.silent = p.machine.Clock.Now()
	}

	if p.machine.Clock.Since(p.silent) >= silentFor {
		p.silent = time.Time{}
		p.cluster.Reset()
		p.machine.Boot()
	}
}

// agent lets the agent pass, and starts it anew after a fault.
func (p *play) agent(number int) {
	defer func() {
		thrown := recover()
		if thrown == nil {
			return
		}

		struck, ours := thrown.(interrupt)
		if !ours {
			panic(thrown)
		}

		p.engine = nil
		p.machine.Strike(struck.fault)
	}()

	if p.engine == nil {
		p.engine = p.start()
		p.started = number
	}

	p.cluster.Unknown = number < p.started+p.UnknownAfterBoot

	for range max(p.Passes, 1) {
		if _, err := p.engine.Pass(context.Background()); err != nil {
			p.machine.brokef("pass: %v", err)
		}

		if p.machine.RebootPending() {
			return // systemd stops the agent
		}
	}
}

func (p *play) start() *agent.Engine {
	return agent.New(agent.Options{
		Version: "test", Machine: p.machine, Scheme: p.machine, Images: p.registry, Cluster: p.cluster, Store: p.machine,
		Notifier: silent{}, Clock: p.machine.Clock, Log: logr.Discard(), Moved: p.machine.Moved,
		Spawn: func(work func()) { work() },
	})
}

// orchestrator drains the node when the image is staged, and releases it when the result is there.
func (p *play) orchestrator(number int) {
	if p.cluster.Away {
		return
	}

	status := p.cluster.Status()

	switch view := p.cluster.View(); {
	case view.ResultFor(attemptID) != protocol.NoResult:
		p.answered = true
		p.cluster.Release()
	case !p.drained && status.Attempt == attemptID && status.Phase == v1alpha1.PhaseStaged:
		p.drained = true
		p.cluster.Drain(p.CordonAt == 0)
	case p.drained && p.CordonAt > 0 && number == p.CordonAt:
		p.cluster.Drain(true)
	}
}

type silent struct{}

func (silent) Ready()       {}
func (silent) Alive(string) {}
func (silent) Stopping()    {}

func (p *play) outcome(rounds int) Outcome {
	outcome := Outcome{
		Machine: p.machine, Cluster: p.cluster, Registry: p.registry, Rounds: rounds, Problems: p.machine.Broken,
	}
	problem := func(format string, args ...any) {
		outcome.Problems = append(outcome.Problems, fmt.Sprintf(format, args...))
	}

	status := p.cluster.Status()
	for i, record := range status.History {
		if record.ID == attemptID {
			outcome.Record = &status.History[i]
		}
	}

	if outcome.Record == nil {
		problem("the attempt did not end in %d rounds: phase %s, reason %s, %s", rounds, status.Phase, status.Reason, status.Message)

		return outcome
	}

	p.expectations(outcome, problem)
	p.invariants(outcome, problem)

	return outcome
}

func (p *play) expectations(outcome Outcome, problem func(string, ...any)) {
	record := outcome.Record
	if p.Phase != "" && (record.Phase != p.Phase || record.Reason != p.Reason || record.Rung != p.Rung) {
		problem("ended in %s/%s/%s, expected %s/%s/%s: %s",
			record.Phase, record.Reason, record.Rung, p.Phase, p.Reason, p.Rung, record.Message)
	}

	if p.Phase != "" {
		result := protocol.NoResult
		if len(p.cluster.Results) > 0 {
			result = p.cluster.Results[0].Result
		}

		if result != p.Result {
			problem("the Node was told %q, expected %q", result, p.Result)
		}
	}

	if version, _ := p.machine.Running(); p.Running != "" && version != p.Running {
		problem("version %s runs in the end, expected %s", version, p.Running)
	}
}

// invariants hold for every scenario, whatever happens in it.
func (p *play) invariants(outcome Outcome, problem func(string, ...any)) {
	record := outcome.Record

	if len(p.cluster.Results) > 1 {
		problem("the result was reported %d times: %v", len(p.cluster.Results), p.cluster.Results)
	}

	for _, answer := range p.cluster.Results {
		if answer.Attempt != attemptID {
			problem("the result names attempt %q", answer.Attempt)
		}

		if (answer.Result == protocol.Successful) != (record.Phase == v1alpha1.PhaseSucceeded) {
			problem("the Node was told %q, the history says %s", answer.Result, record.Phase)
		}
	}

	if p.drained && len(p.cluster.Results) == 0 {
		problem("the node was drained and no result was reported")
	}

	p.endInvariants(record, problem)
}

func (p *play) endInvariants(record *v1alpha1.AttemptRecord, problem func(string, ...any)) {
	version, committed := p.machine.Running()
	runsNew := version == p.To && committed

	if (record.Phase == v1alpha1.PhaseSucceeded) != runsNew && record.Phase != v1alpha1.PhaseNeedsHuman {
		problem("ended in %s while version %s runs, committed: %v", record.Phase, version, committed)
	}

	if record.Phase == v1alpha1.PhaseRolledBack && p.machine.SpareBoots() {
		problem("rolled back, but the spare slot still boots")
	}

	if p.machine.Lost == 0 && p.cluster.Status().Counters.BytesSinceDrain != 0 {
		problem("%d bytes were moved after the drain", p.cluster.Status().Counters.BytesSinceDrain)
	}

	if p.machine.BootsOf[p.To] > 2*bootTries && record.Phase != v1alpha1.PhaseNeedsHuman {
		problem("the new version was booted %d times", p.machine.BootsOf[p.To])
	}

	if view := p.cluster.View(); p.drained && (view.Candidate || view.Result != protocol.NoResult) {
		problem("the node was not released: %+v", view)
	}
}

const bootTries = 3

// Transient is an error that a registry gives when it is down.
func Transient() error {
	return &osimage.Error{Kind: osimage.ErrTransient, Subject: "registry.example/os", Err: ErrAway}
}
