package powerlease

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"pgregory.net/rapid"
)

// event is one thing that happens to one process.
type event struct {
	What    string
	Process int
	Seconds int
}

func (e event) String() string { return fmt.Sprintf("%s %d (%d s)", e.What, e.Process, e.Seconds) }

// process is an actor that may be stopped, and killed and started anew.
type process struct {
	*actor

	use     *held
	stopped bool
	missed  time.Duration // while it was stopped
}

// schedule is what happens to some processes that want one host.
type schedule struct {
	t         *testing.T
	store     *memory
	processes []*process
	// late are writes that are on their way: their senders think that they failed.
	late   []func()
	killed []*process
}

// Whatever happens, in whatever order, to three processes whose clocks are an hour apart: never two may act at once, and
// in the end the lease can be had.
func TestAnySchedule(t *testing.T) {
	t.Parallel()
	events := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) event {
		return event{
			What: rapid.SampledFrom([]string{
				"start", "start", "start", "end", "time", "time", "time", "stop", "resume", "kill",
				"refuse", "lose answers of", "delay writes of", "heal", "deliver",
			}).Draw(t, "what"),
			Process: rapid.IntRange(0, 2).Draw(t, "process"),
			Seconds: rapid.IntRange(1, 70).Draw(t, "seconds"),
		}
	}), 40, 80)
	rapid.Check(t, func(rt *rapid.T) {
		script := events.Draw(rt, "script")
		wrong := ""
		// The bubble has goroutines of its own, from which rapid cannot be called.
		synctest.Test(t, func(t *testing.T) { wrong = play(t, script) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

func play(t *testing.T, script []event) string {
	t.Helper()
	s := &schedule{t: t, store: newMemory()}
	for i := range 3 {
		s.processes = append(s.processes, s.process(i))
	}
	defer s.end()
	for _, e := range script {
		s.happen(e)
		if wrong := s.check(); wrong != "" {
			return fmt.Sprintf("after %s: %s", e, wrong)
		}
	}

	return s.getsFree()
}

func (s *schedule) process(number int) *process {
	return &process{actor: newActor(s.t, s.store, "stayput CLI of anna@desk", time.Duration(number-1)*time.Hour)}
}

func (s *schedule) happen(e event) {
	p := s.processes[e.Process]
	switch e.What {
	case "start":
		if p.use == nil && !p.stopped {
			p.use, _ = p.tryHold(s.t.Context(), testHost)
		}
	case "end":
		if p.use != nil && !p.stopped {
			p.use.end()
		}
	case "time":
		s.pass(e.Seconds)
	case "stop":
		p.stopped = true
	case "resume":
		s.resume(p)
	case "kill":
		// It is stopped for ever; another is started in its place, which remembers nothing.
		s.killed = append(s.killed, p)
		s.processes[e.Process] = s.process(e.Process)
	case "refuse":
		p.gate.set(refuse)
	case "lose answers of":
		p.gate.set(func(_ context.Context, _ string, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
			_, _ = do()

			return nil, errAPI
		})
	case "delay writes of":
		p.gate.set(func(_ context.Context, verb string, do func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
			if verb == "get" {
				return do()
			}
			s.late = append(s.late, func() { _, _ = do() })

			return nil, errAPI
		})
	case "heal":
		p.gate.set(nil)
	case "deliver":
		for _, write := range s.late {
			write()
		}
		s.late = nil
	}
	synctest.Wait()
	s.reap()
}

// reap takes note of uses that have ended.
func (s *schedule) reap() {
	for _, p := range s.processes {
		if p.use == nil || p.stopped {
			continue
		}
		select {
		case err := <-p.use.done:
			if _, lost := errors.AsType[*LostError](err); err != nil && !lost {
				s.t.Errorf("a use ended with %v", err)
			}
			p.use = nil
		default:
		}
	}
}

func (s *schedule) pass(seconds int) {
	for range seconds {
		for _, p := range s.processes {
			if p.stopped {
				p.missed += time.Second
			} else {
				p.clock.Step(time.Second)
			}
		}
		synctest.Wait()
	}
	s.reap()
}

// resume lets a process run again. Before anything else of it runs, Check knows whether it was followed.
func (s *schedule) resume(p *process) {
	if !p.stopped {
		return
	}
	p.stopped = false
	p.clock.Step(p.missed)
	p.missed = 0
	if p.use == nil {
		return
	}
	own, _ := p.use.ctx.Value(holdKey{}).(*hold)
	if lease := s.store.lease(leaseKey()); holderOf(lease) != own.identity && Check(p.use.ctx) == nil {
		s.t.Error("a process that was followed while it slept may act")
	}
}

// check counts who may act.
func (s *schedule) check() string {
	var acting []int
	for i, p := range s.processes {
		if p.use != nil && !p.stopped && p.use.ctx.Err() == nil {
			acting = append(acting, i)
		}
	}
	if len(acting) > 1 {
		return fmt.Sprintf("processes %v may act at once", acting)
	}

	return ""
}

// getsFree ends everything and has one process get the lease.
func (s *schedule) getsFree() string {
	for i := range s.processes {
		s.happen(event{What: "heal", Process: i})
		s.happen(event{What: "resume", Process: i})
		s.happen(event{What: "end", Process: i})
	}
	s.happen(event{What: "deliver"})
	for range 5 {
		if s.happen(event{What: "start"}); s.processes[0].use != nil {
			return ""
		}
		s.pass(30)
	}

	return fmt.Sprintf("nobody gets the lease: %+v", s.store.lease(leaseKey()))
}

// end lets every goroutine end, also those of the killed.
func (s *schedule) end() {
	for _, p := range append(s.killed, s.processes...) {
		p.gate.set(refuse)
		if p.use != nil {
			p.use.finish() //nolint:errcheck // it was killed
		}
	}
}
