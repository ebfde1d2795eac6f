package health

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/slots"
)

const (
	pollInterval = 2 * time.Second
	// checkTimeout bounds one look, so that a peer that never answers does not hide what the next look would find.
	checkTimeout = 10 * time.Second
	// settleTimeout bounds marking the slot bad. It must not keep a sick machine from rebooting.
	settleTimeout = time.Minute
)

// ErrUnhealthy is returned by RunGate when a gate passed its deadline.
var ErrUnhealthy = errors.New("the trial boot is not healthy")

// Deps is what the boot gate works with.
type Deps struct {
	// StateDir holds trial.json and gate.json.
	StateDir string
	// System gives the boot ID and the running command line.
	System boot.System
	// Variables tell whether this boot is counted.
	Variables boot.Variables
	// Scheme refines that and marks the slot bad. Nil when none was found: then the boot's own counter has to run out.
	Scheme slots.Scheme
	// Rebooter restarts the machine.
	Rebooter boot.Rebooter
	// Gates are looked at side by side.
	Gates []Gate
	// Clock is the real one when nil.
	Clock clock.WithTicker
	// Log is for the journal; it gets no secrets.
	Log logr.Logger
}

// RunGate decides about this boot. It returns nil when the boot may be committed, or when it is no trial boot and there
// is nothing to decide (the record is then empty). It returns ErrUnhealthy after it stored the failure, marked the slot
// bad, and asked for the reboot, each of which it goes on from when the one before did not work. When the context ends
// first, as it does when the machine is shut down, the record stays at "running".
//
// Running it again in the same boot repeats what the first run decided.
func RunGate(ctx context.Context, deps Deps) (Record, error) {
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}

	trialBoot, err := deps.trialBoot(ctx)
	if err != nil {
		return Record{}, err
	}

	if !trialBoot {
		deps.Log.Info("not a trial boot, nothing to decide")

		return Record{}, nil
	}

	bootID, err := deps.System.BootID()
	if err != nil {
		return Record{}, fmt.Errorf("starting the boot gate: %w", err)
	}

	if before, err := ReadRecord(deps.StateDir); err == nil && before.BootID == bootID {
		switch before.Verdict {
		case VerdictPassed:
			return before, nil
		case VerdictFailed:
			return before, deps.fallBack(ctx, before)
		case VerdictRunning: // the process died; look again, from the start
		}
	}

	return deps.decide(ctx, bootID)
}

func (d Deps) decide(ctx context.Context, bootID string) (Record, error) {
	trial := d.trial()
	record := Record{
		BootID: bootID, Attempt: trial.Attempt, Version: trial.Version,
		Verdict: VerdictRunning, StartedAt: d.Clock.Now(),
	}

	for _, gate := range d.Gates {
		record.Gates = append(record.Gates, GateRecord{Name: gate.Name(), Verdict: VerdictRunning})
	}

	d.store(record)

	record.Gates = d.poll(ctx, trial, Boot{ID: bootID, Version: trial.Version})
	record.EndedAt = d.Clock.Now()
	record.Verdict, record.Message = judge(record.Gates)

	switch record.Verdict {
	case VerdictPassed:
		d.store(record)
		d.Log.Info("the trial boot is healthy", "attempt", record.Attempt, "version", record.Version)

		return record, nil
	case VerdictFailed:
		d.store(record)

		return record, d.fallBack(ctx, record)
	default: // the record on disk says so already
		return record, fmt.Errorf("running the boot gate: %w", context.Cause(ctx))
	}
}

// trial reads what the agent left. When it is lost, or is about another image than the one that runs, the gates run
// with the default deadlines and without an expected version.
func (d Deps) trial() Trial {
	trial, err := ReadTrial(d.StateDir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.Log.Error(err, "the trial is lost, going on with defaults")
		}

		return Trial{}
	}

	line, err := d.System.CommandLine()
	if err == nil && trial.RootHash != "" && line.RootHash() != "" && line.RootHash() != trial.RootHash {
		d.Log.Info("the trial is about another image, going on with defaults", "trial", trial.RootHash,
			"running", line.RootHash())

		return Trial{}
	}

	return trial
}

// trialBoot tells whether there is something to decide. LoaderBootCountPath is what systemd-bless-boot goes by; it is
// left over after the boot was committed, so the scheme, when it can look, has the last word.
func (d Deps) trialBoot(ctx context.Context) (bool, error) {
	_, err := d.Variables.Text(boot.LoaderBootCountPath)
	if errors.Is(err, boot.ErrNoVariable) {
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("starting the boot gate: %w", err)
	}

	if d.Scheme == nil {
		return true, nil
	}

	state, err := d.Scheme.Observe(ctx)
	if err != nil {
		d.Log.Error(err, "the slots cannot be observed, taking this boot for a trial because it is counted")

		return true, nil
	}

	return state.TrialBoot, nil
}

func (d Deps) store(record Record) {
	if err := SaveRecord(d.StateDir, record); err != nil {
		d.Log.Error(err, "the record cannot be stored, going on without it", "verdict", record.Verdict)
	}
}

// fallBack takes the machine down. The failure was stored before.
func (d Deps) fallBack(ctx context.Context, record Record) error {
	d.Log.Info("the trial boot is not healthy, falling back", "attempt", record.Attempt, "why", record.Message)

	var problems error

	if d.Scheme != nil {
		markCtx, cancel := context.WithTimeout(ctx, settleTimeout)
		if err := d.Scheme.MarkBad(markCtx); err != nil {
			problems = fmt.Errorf("marking the slot bad (its tries have to run out instead): %w", err)
		}

		cancel()
	}

	if err := d.Rebooter.Reboot(ctx); err != nil {
		problems = errors.Join(problems, err)
	}

	if problems != nil {
		return fmt.Errorf("%w: %s; %w", ErrUnhealthy, record.Message, problems)
	}

	return fmt.Errorf("%w: %s", ErrUnhealthy, record.Message)
}

// judge sums the gates up: failed as soon as one failed, passed when all passed.
func judge(gates []GateRecord) (Verdict, string) {
	verdict := VerdictPassed

	for _, gate := range gates {
		switch gate.Verdict {
		case VerdictFailed:
			return VerdictFailed, fmt.Sprintf("gate %s did not pass within %s: %s", gate.Name, gate.Took.Duration, gate.LastError)
		case VerdictRunning:
			verdict = VerdictRunning
		case VerdictPassed:
		}
	}

	return verdict, ""
}

// poll looks at every gate until all have passed, one has passed its deadline, or the context ends.
func (d Deps) poll(ctx context.Context, trial Trial, boot Boot) []GateRecord {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	records := make([]GateRecord, len(d.Gates))
	done := make(chan struct{})
	start := d.Clock.Now()

	for i, gate := range d.Gates {
		go func() {
			defer func() { done <- struct{}{} }()

			records[i] = d.watch(ctx, gate, start, Deadline(trial.Health, gate.Name()), boot)
			if records[i].Verdict == VerdictFailed {
				cancel()
			}
		}()
	}

	for range d.Gates {
		<-done
	}

	return records
}

func (d Deps) watch(ctx context.Context, gate Gate, start time.Time, limit time.Duration, boot Boot) GateRecord {
	ticker := d.Clock.NewTicker(pollInterval)
	defer ticker.Stop()

	deadline := d.Clock.NewTimer(limit)
	defer deadline.Stop()

	record := GateRecord{Name: gate.Name(), Verdict: VerdictRunning}

	for {
		checkCtx, cancel := context.WithTimeout(ctx, checkTimeout)
		err := gate.Check(checkCtx, boot)

		cancel()

		if err == nil {
			record.Verdict, record.LastError = VerdictPassed, ""
			record.Took = metav1.Duration{Duration: d.Clock.Since(start)}

			return record
		}

		if ctx.Err() != nil {
			return record
		}

		record.LastError = err.Error()

		select {
		case <-ctx.Done():
			return record
		case <-deadline.C():
			record.Verdict, record.Took = VerdictFailed, metav1.Duration{Duration: limit}

			return record
		case <-ticker.C():
		}
	}
}
