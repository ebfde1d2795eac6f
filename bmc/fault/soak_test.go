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
	flag.String(flagFaults, "", "a regular expression of the faults that TestScenarios plays")
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

// operate switches the machine's power, one time in four with a fault, and checks that it was acted on once.
func (f *figures) operate(ctx context.Context, s *soaked) {
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
			f.actedTwice()
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

func (f *figures) actedTwice() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.twice++
}

// TestSoak is not parallel: it measures.
func TestSoak(t *testing.T) {
	count, operations := flagValue[int](t, flagBMCs), flagValue[int](t, flagOperations)
	duration := flagValue[time.Duration](t, flagSoak)
	all := startSoak(t, count)
	goroutines, heap := runtime.NumGoroutine(), inUse()
	openAll(t, all)
	f := &figures{limit: slack, goroutines: runtime.NumGoroutine() - goroutines, heap: inUse() - heap}
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	if duration < time.Minute {
		// A short run has few operations, and a busy machine spoils them.
		f.limit = 5 * slack
	}
	var running sync.WaitGroup
	running.Go(func() { pollAll(ctx, f, all) })
	free := make(chan *soaked, len(all))
	for _, i := range rand.Perm(len(all)) {
		free <- all[i]
	}
	for range operations {
		running.Go(func() {
			for ctx.Err() == nil {
				s := <-free
				f.operate(ctx, s)
				free <- s
			}
		})
	}
	f.load = watch(ctx)
	running.Wait()
	finish(t, all)
	f.report(t, all)
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

// finish closes all connections.
func finish(t *testing.T, all []*soaked) {
	t.Helper()
	for _, s := range all {
		if err := s.machine.Close(t.Context()); err != nil {
			t.Errorf("closing %s: %v", s.options.Address.Host, err)
		}
		if n := s.bmc.Simulator.Counts().Concurrent; n > 1 {
			t.Errorf("BMC %s had %d requests at once", s.options.Address.Host, n)
		}
	}
}
