package fault_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/fault"
	"github.com/stayput-dev/stayput/bmc/fault/simulator"
	"github.com/stayput-dev/stayput/bmc/redfish"
)

const (
	flagSoak       = "soak"
	flagBMCs       = "soak-bmcs"
	flagOperations = "soak-operations"
	flagFaults     = "faults"

	// soakPoll is the pause between observations of an operation, pollEvery that between two polls of a BMC at rest.
	soakPoll  = time.Second
	pollEvery = 10 * time.Second
	pollers   = 32
	// slack is how much of the goal "p95 <= latency + 3 s" is left for the operation.
	slack = 3 * time.Second
)

func TestMain(m *testing.M) {
	flag.Duration(flagSoak, 6*time.Second, "how long TestSoak runs")
	flag.Int(flagBMCs, 100, "how many simulated BMCs TestSoak polls")
	flag.Int(flagOperations, 20, "how many operations TestSoak runs at once")
	flag.String(flagFaults, "", "a regular expression of the faults that TestFaultsTimesProfiles plays")
	os.Exit(m.Run())
}

func flagValue[T any](t *testing.T, name string) T {
	t.Helper()
	getter, ok := flag.Lookup(name).Value.(flag.Getter)
	if !ok {
		t.Fatalf("flag %s cannot be read", name)
	}
	value, ok := getter.Get().(T)
	if !ok {
		t.Fatalf("flag %s is of another type", name)
	}

	return value
}

// soaked is one simulated BMC of the soak, with its cached connection.
type soaked struct {
	bmc     *fault.BMC
	options bmc.Options
	id      string
	latency time.Duration
	locks   *bmc.Locks
	machine bmc.Machine
	// busy is held by an operation.
	busy sync.Mutex
}

func (s *soaked) open(ctx context.Context) (bmc.Machine, error) { return redfish.Open(ctx, s.options) }
func (s *soaked) time() clock.Clock                             { return clock.RealClock{} }
func (s *soaked) uuid() string                                  { return s.options.UUID }

func (s *soaked) turn(ctx context.Context) (release func(), err error) {
	return s.locks.Acquire(ctx, s.options.Address.HostPort())
}

// poll reads the power of a BMC at rest.
func (s *soaked) poll(ctx context.Context) error {
	release, err := s.turn(ctx)
	if err != nil {
		return err
	}
	defer release()
	_, err = s.machine.Power(ctx)

	return err
}

// soakFaults are those that an operation must get through without a person.
func soakFaults() []fault.Kind {
	return []fault.Kind{
		fault.AnswerLost, fault.ActResetAfter, fault.ErrorThoughApplied, fault.RefusedThoughApplied, fault.ActConflictOnce,
		fault.ReadReset, fault.ReadFails, fault.TooMany, fault.DataSources, fault.SessionLost, fault.AnswerCut,
	}
}

// figures are what a soak measures.
type figures struct {
	mu            sync.Mutex
	clean, faulty []time.Duration // of an operation, less the BMC's latency
	polls, failed atomic.Int64
	// lost are operations whose action did not reach the BMC in time, as the driver said.
	lost int
	// limit is what the 95th percentile of clean may be.
	limit    time.Duration
	problems []string
}

func (f *figures) sayf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problems = append(f.problems, fmt.Sprintf(format, args...))
}

// operate switches the machine's power, one time in four with a fault, and checks that it was acted on once.
func (f *figures) operate(ctx context.Context, s *soaked) {
	if !s.busy.TryLock() {
		return
	}
	defer s.busy.Unlock()
	state := s.bmc.Simulator.State(s.id)
	intent, action := bmc.IntentOff, bmc.ActionForceOff
	if state.Power == "Off" {
		intent, action = bmc.IntentOn, bmc.ActionOn
	}
	clean := rand.IntN(4) > 0
	if !clean {
		kinds := soakFaults()
		if err := s.bmc.Inject(kinds[rand.IntN(len(kinds))]); err != nil {
			f.sayf("%v", err)
		}
	}
	before := s.bmc.Simulator.Accepted(s.id)
	began := time.Now()
	o := &operation{
		place: s, intent: intent, poll: soakPoll, turns: s.turn, machine: s.machine, patience: time.Minute,
		// On follows an Off that was seen, so that no reading of On can be an old one.
		limits: bmc.Limits{Settle: time.Nanosecond},
	}
	err := o.run(ctx)
	took := time.Since(began) - s.latency
	if ctx.Err() != nil {
		return
	}
	for kind, count := range s.bmc.Simulator.Accepted(s.id) {
		if count-before[kind] > 1 || count > before[kind] && kind != string(action) {
			f.sayf("BMC %s accepted %d x %s for one %s", s.options.Address.Host, count-before[kind], kind, action)
		}
	}
	s.bmc.Proxy.Heal()
	for _, each := range append(o.errors, err) {
		if found := secret(each); found != "" {
			f.sayf("an error holds a credential: %s", found)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	acted := s.bmc.Simulator.Accepted(s.id)[string(action)] > before[string(action)]
	unsure := slices.ContainsFunc(o.errors, func(err error) bool { return bmc.KindOf(err) == bmc.Unknown })
	switch {
	case bmc.KindOf(err) == bmc.NotFollowed && unsure && !acted:
		f.lost++
	case err != nil:
		f.problems = append(f.problems, fmt.Sprintf("BMC %s, %s: %v", s.options.Address.Host, action, err))
	case clean && len(o.errors) == 0:
		f.clean = append(f.clean, took)
	default:
		f.faulty = append(f.faulty, took)
	}
}

// TestSoak is not parallel: it measures.
func TestSoak(t *testing.T) {
	count, operations := flagValue[int](t, flagBMCs), flagValue[int](t, flagOperations)
	duration := flagValue[time.Duration](t, flagSoak)
	all := startSoak(t, count)
	goroutines, heap := resources()
	openAll(t, all)
	t.Logf("connected: %.0f goroutines and %.1f MiB of memory per 1,000 BMCs",
		perThousand(float64(runtime.NumGoroutine()-goroutines), count), perThousand(inUse()-heap, count))

	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	f := &figures{limit: slack}
	if duration < time.Minute {
		// A short run has few operations, and a busy machine spoils them.
		f.limit = 5 * slack
	}
	var running sync.WaitGroup
	running.Go(func() { pollAll(ctx, f, all) })
	for range operations {
		running.Go(func() {
			for ctx.Err() == nil {
				f.operate(ctx, all[rand.IntN(len(all))])
			}
		})
	}
	growth := watchMemory(ctx)
	running.Wait()
	report(t, f, growth)
	finish(t, all)
}

func startSoak(t *testing.T, count int) []*soaked {
	t.Helper()
	all := make([]*soaked, 0, count)
	locks := &bmc.Locks{}
	for i := range count {
		profile := simulator.Profiles()[i%len(simulator.Profiles())]
		profile.Reset.Latency = time.Duration(1+i%3) * time.Second
		// A minute of refusals would be most of a short run.
		profile.Reset.OnConflict = min(profile.Reset.OnConflict, 3*time.Second)
		b, err := fault.Start(fault.Options{
			BMC: simulator.Options{Profile: profile, Username: user, Password: password}, TLS: i%10 == 0,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		b.Proxy.KeepRequests(false)
		address, err := bmc.ParseAddress(b.Address(b.IDs()[0]))
		if err != nil {
			t.Fatal(err)
		}
		id := b.IDs()[0]
		all = append(all, &soaked{
			bmc: b, id: id, latency: profile.Reset.Latency, locks: locks, options: bmc.Options{
				Address: address, CA: b.Endpoint.CA(), UUID: b.Simulator.State(id).UUID,
				Credentials: bmc.Credentials{Username: user, Password: password},
			},
		})
	}

	return all
}

func openAll(t *testing.T, all []*soaked) {
	t.Helper()
	var opening sync.WaitGroup
	slots := make(chan struct{}, pollers)
	for _, s := range all {
		slots <- struct{}{}
		opening.Go(func() {
			defer func() { <-slots }()
			var err error
			if s.machine, err = s.open(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	opening.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// pollAll polls every BMC in turn, each once in pollEvery.
func pollAll(ctx context.Context, f *figures, all []*soaked) {
	next := make(chan *soaked)
	var workers sync.WaitGroup
	for range pollers {
		workers.Go(func() {
			for s := range next {
				err := s.poll(ctx)
				f.polls.Add(1)
				if err != nil && ctx.Err() == nil {
					// A fault that was meant for an operation met the poll.
					f.failed.Add(1)
				}
			}
		})
	}
	ticker := time.NewTicker(pollEvery / time.Duration(len(all)))
	defer ticker.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		select {
		case <-ticker.C:
			next <- all[i%len(all)]
		case <-ctx.Done():
		}
	}
	close(next)
	workers.Wait()
}

// watchMemory waits for the end of ctx, and gives the memory in use at each tenth of the run.
func watchMemory(ctx context.Context) []float64 {
	var seen []float64
	deadline, _ := ctx.Deadline()
	ticker := time.NewTicker(max(time.Until(deadline)/10, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return seen
		case <-ticker.C:
			seen = append(seen, inUse())
		}
	}
}

const mebibyte = 1 << 20

// inUse is the memory of live objects and stacks, in MiB.
func inUse() float64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)

	return float64(stats.HeapAlloc+stats.StackInuse) / mebibyte
}

func resources() (goroutines int, memory float64) { return runtime.NumGoroutine(), inUse() }

func perThousand(value float64, count int) float64 { return value * 1000 / float64(count) }

func percentile(of []time.Duration, p float64) time.Duration {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)

	return of[min(int(p*float64(len(of))), len(of)-1)].Round(time.Millisecond)
}

func report(t *testing.T, f *figures, memory []float64) {
	t.Helper()
	for _, problem := range f.problems {
		t.Error(problem)
	}
	p95 := percentile(f.clean, 0.95)
	t.Logf("%d polls, %d of them met a fault; %d operations without a fault, confirmed less latency: p50 %s, p95 %s, max %s",
		f.polls.Load(), f.failed.Load(), len(f.clean), percentile(f.clean, 0.5), p95, percentile(f.clean, 1))
	t.Logf("%d operations with a fault or a refusal: p50 %s, p95 %s, max %s",
		len(f.faulty), percentile(f.faulty, 0.5), percentile(f.faulty, 0.95), percentile(f.faulty, 1))
	t.Logf("%d operations whose action got lost on a busy machine, and ended so", f.lost)
	t.Logf("memory in use at each tenth of the run, MiB, simulators included: %.1f", memory)
	if len(f.clean) == 0 {
		t.Error("no operation ended; give -soak more time")
	}
	if p95 > f.limit {
		t.Errorf("p95 of operations less latency is %s, want at most %s", p95, f.limit)
	}
	// The simulators keep every act, so that a little is due.
	if n := len(memory); n > 4 && memory[n-1] > memory[n/4]*1.5+16 {
		t.Errorf("the memory grows: %.1f MiB", memory)
	}
}

// finish closes all connections and looks for what is left.
func finish(t *testing.T, all []*soaked) {
	t.Helper()
	peak, sessions := 0, 0
	for _, s := range all {
		if err := s.machine.Close(t.Context()); err != nil {
			t.Errorf("closing %s: %v", s.options.Address.Host, err)
		}
		counts := s.bmc.Simulator.Counts()
		sessions += counts.Sessions
		peak = max(peak, counts.SessionsPeak)
		if counts.Concurrent > 1 {
			t.Errorf("BMC %s had %d requests at once", s.options.Address.Host, counts.Concurrent)
		}
	}
	t.Logf("%d sessions are left; %d at one BMC at most", sessions, peak)
	if sessions > 0 || peak > 1 {
		t.Error("want no session left, and one at a BMC at most")
	}
}
