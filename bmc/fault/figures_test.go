package fault_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	mebibyte = 1 << 20
	// tick is how often the load of the machine is looked at.
	tick = 100 * time.Millisecond
)

// figures are what a soak measures.
type figures struct {
	mu            sync.Mutex
	clean, faulty []time.Duration // of an operation, less the BMC's latency
	polls, failed atomic.Int64
	// lost are operations whose action did not reach the BMC in time, as the driver said; twice are BMCs that acted twice.
	lost, twice int
	// limit is what the 95th percentile of clean may be.
	limit    time.Duration
	problems []string
	// goroutines and heap are what the connections cost at rest.
	goroutines int
	heap       float64
	load       load
}

func (f *figures) sayf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problems = append(f.problems, fmt.Sprintf(format, args...))
}

// inUse is the memory of live objects and stacks, in MiB.
func inUse() float64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)

	return float64(stats.HeapAlloc+stats.StackInuse) / mebibyte
}

// processorTime is what this process has used, simulators included.
func processorTime() time.Duration {
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) != nil {
		return 0
	}

	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// load is what a soak cost, and how much of the machine it got.
type load struct {
	// took and processor are of the run.
	took, processor time.Duration
	// goroutines are the most that were seen beyond those at its start, and memory what was in use at each tenth, in MiB.
	goroutines int
	memory     []float64
	// late is how much too late timers fired: a machine that gives the processor to others makes it grow.
	late []time.Duration
}

// watch measures until ctx ends.
func watch(ctx context.Context) load {
	began, used, goroutines := time.Now(), processorTime(), runtime.NumGoroutine()
	deadline, _ := ctx.Deadline()
	tenth := max(time.Until(deadline)/10, time.Millisecond)
	var seen load
	for due := began.Add(tick); ; due = time.Now().Add(tick) {
		timer := time.NewTimer(time.Until(due))
		select {
		case <-ctx.Done():
			timer.Stop()
			seen.took, seen.processor = time.Since(began), processorTime()-used

			return seen
		case <-timer.C:
		}
		seen.late = append(seen.late, time.Since(due))
		seen.goroutines = max(seen.goroutines, runtime.NumGoroutine()-goroutines)
		if time.Since(began) > tenth*time.Duration(len(seen.memory)+1) {
			seen.memory = append(seen.memory, inUse())
		}
	}
}

func perThousand[T int | float64](value T, count int) float64 {
	return float64(value) * 1000 / float64(count)
}

// percentiles are p50, p95, p99 and the most of some times.
func percentiles(of []time.Duration) string {
	return fmt.Sprintf("p50 %s, p95 %s, p99 %s, most %s",
		percentile(of, 0.5), percentile(of, 0.95), percentile(of, 0.99), percentile(of, 1))
}

func percentile(of []time.Duration, p float64) time.Duration {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)

	return of[min(int(p*float64(len(of))), len(of)-1)].Round(time.Millisecond)
}

// report prints a line for each figure, and fails where a goal is not met.
func (f *figures) report(t *testing.T, all []*soaked) {
	t.Helper()
	for _, problem := range f.problems {
		t.Error(problem)
	}
	sessions, peak, requests := 0, 0, 0
	for _, s := range all {
		counts := s.bmc.Simulator.Counts()
		sessions, peak, requests = sessions+counts.Sessions, max(peak, counts.SessionsPeak), requests+counts.Requests
	}
	say := func(what, format string, args ...any) { t.Logf("figure: "+what+": "+format, args...) }
	say("power operation confirmed by observation, less the latency of 1 to 3 s",
		"%s (%d without a fault; goal p95 %s)", percentiles(f.clean), len(f.clean), slack)
	say("the same with a fault or a refusal", "%s (%d)", percentiles(f.faulty), len(f.faulty))
	say("operations", "%d in %s, %d failed, %d acted on twice, %d whose action got lost on a busy machine",
		len(f.clean)+len(f.faulty)+f.lost, f.load.took.Round(time.Second), len(f.problems), f.twice, f.lost)
	say("polls", "%d, of them %d met an operation's fault", f.polls.Load(), f.failed.Load())
	say("sessions per BMC", "%d at most, %d left in the end (goal 1, 0)", peak, sessions)
	say("goroutines per 1,000 BMCs", "%.0f connected, %.0f at most during the run, those of the simulators included",
		perThousand(f.goroutines, len(all)), perThousand(f.load.goroutines, len(all)))
	say("heap per 1,000 BMCs", "%.1f MiB connected; in use at each tenth of the run, simulators included: %.1f MiB",
		perThousand(f.heap, len(all)), f.load.memory)
	say("processor time per request", "%s of %d requests, the BMC's part included",
		(f.load.processor / time.Duration(max(requests, 1))).Round(time.Microsecond), requests)
	say("processor", "%.2f of one used; timers fired late by %s", f.load.processor.Seconds()/f.load.took.Seconds(), percentiles(f.load.late))
	f.judge(t, sessions, peak)
}

func (f *figures) judge(t *testing.T, sessions, peak int) {
	t.Helper()
	if len(f.clean) == 0 {
		t.Error("no operation ended; give -soak more time")
	}
	if p95 := percentile(f.clean, 0.95); p95 > f.limit {
		t.Errorf("p95 of operations less latency is %s, want at most %s; if timers fired as late, the machine is too busy", p95, f.limit)
	}
	// The simulators keep every act, so that a little is due.
	memory := f.load.memory
	if n := len(memory); n > 4 && memory[n-1] > memory[n/4]*1.5+16 {
		t.Errorf("the memory grows: %.1f MiB", memory)
	}
	if sessions > 0 || peak > 1 {
		t.Error("want no session left, and one at a BMC at most")
	}
}
