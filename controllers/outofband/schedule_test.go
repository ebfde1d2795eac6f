package outofband

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

// TestMain makes more schedules than rapid's hundred, if the command line does not say otherwise: a fault that was seen
// in one of a thousand must not wait for luck. They take a second.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "4000"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// A process is killed before and after each of its effects, in every pass of a whole rescue.
func TestKilledAtEachStep(t *testing.T) {
	t.Parallel()
	for _, begin := range []func(*simulation){
		func(*simulation) {},
		func(s *simulation) { s.offered = []bmc.Action{bmc.ActionOn, bmc.ActionForceOff} },
		func(s *simulation) { s.softly(bmc.ActionSoftRestart) },
		func(s *simulation) { s.softly(bmc.ActionShutdown) },
		func(s *simulation) { s.throughMetal3(3 * time.Second) },
		func(s *simulation) { s.throughMetal3(3 * time.Minute) },
		func(s *simulation) { s.throughMetal3(7 * time.Minute); s.osAnswers = true },
	} {
		for kill := 1; ; kill++ {
			s := newSimulation()
			begin(s)
			step := 0
			strike := func(int, string) {
				if step++; step == kill {
					panic(crash{})
				}
			}
			s.before, s.after = strike, strike
			killed := false
			for end := s.clock.Now().Add(3 * time.Hour); s.clock.Now().Before(end); {
				after, now, err := s.run()
				if err != nil {
					t.Fatal(err)
				}
				if killed = killed || now; now || after == 0 {
					// The next process starts at once.
					after = time.Second
				}
				s.advance(after)
				s.sweep()
			}
			if wrong := s.check(); wrong != "" {
				t.Fatalf("killed at step %d: %s; sent %+v", kill, wrong, s.sent)
			}
			if s.status.Reason != v1alpha1.OutOfBandResetsUsedUp || len(s.sent) == 0 {
				t.Fatalf("killed at step %d: the rescue did not end: %+v", kill, s.status)
			}
			if s.settle(); s.key || s.power != bmc.PowerOn {
				t.Fatalf("killed at step %d: in the end the key is there: %t, and the power is %s", kill, s.key, s.power)
			}
			if !killed {
				break
			}
		}
	}
}

// Whatever happens in whatever order: kills, errors, lost answers, other writers, a second controller in the middle
// of the first, hosts that become busy, machines that come back.
func TestAnySchedule(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newSimulation()
		if rapid.Bool().Draw(t, "no restart") {
			s.offered = s.offered[:2]
		}
		if rapid.Bool().Draw(t, "softly") {
			s.softly(rapid.SampledFrom([]bmc.Action{bmc.ActionSoftRestart, bmc.ActionShutdown}).Draw(t, "how"))
		}
		if rapid.Bool().Draw(t, "through Metal3") {
			s.throughMetal3(time.Duration(rapid.IntRange(0, 600).Draw(t, "delay")) * time.Second)
		}
		if rapid.Bool().Draw(t, "off") {
			s.power = bmc.PowerOff
		}
		s.skew = rapid.SampledFrom([]time.Duration{-2 * time.Hour, 0, 2 * time.Hour}).Draw(t, "skew")
		s.world.SilentAfter = rapid.SampledFrom([]time.Duration{time.Minute, testSilentAfter}).Draw(t, "silent after")
		if rapid.Bool().Draw(t, "back") {
			s.says(v1alpha1.PhaseProving, life{agent: true, kubelet: true})
			s.lives(life{})
		}
		steps := rapid.IntRange(1, 60).Draw(t, "steps")
		for range steps {
			perturb(t, s)
			strikeAt := rapid.IntRange(0, 12).Draw(t, "at")
			strike := strikeOf(t, s, strikeAt)
			if rapid.Bool().Draw(t, "after the effect") {
				s.before, s.after = nil, strike
			} else {
				s.before, s.after = strike, nil
			}
			after, _, _ := s.run()
			s.before, s.after = nil, nil
			if rapid.Bool().Draw(t, "on time") {
				s.advance(after)
			} else {
				s.advance(time.Duration(rapid.IntRange(0, 1200).Draw(t, "seconds")) * time.Second)
			}
			if wrong := s.check(); wrong != "" {
				t.Fatalf("%s; sent %+v", wrong, s.sent)
			}
		}
		// Whatever has become of the controller: the key goes, and Metal3 switches the machine on.
		s.sweepFor(softHoldLimit)
		if s.key {
			t.Fatalf("the key is there %s after the last pass; status %+v", softHoldLimit, s.status)
		}
		if s.sweepFor(s.bmoDelay + 2*time.Minute); s.world.Host.ViaMetal3 && s.power != bmc.PowerOn {
			t.Fatalf("the machine is kept off; status %+v", s.status)
		}
		// And once nothing is in the way, what was switched off is switched on, if the machine shows no life.
		if s.leftOff() && s.noLifeSince(s.sent[len(s.sent)-1].at) {
			s.free()
			s.runLong(2 * time.Hour)
			if s.settle(); s.leftOff() {
				t.Fatalf("the machine is left off; status %+v; sent %+v", s.status, s.sent)
			}
		}
	})
}

// free takes out of the way what can be.
func (s *simulation) free() {
	s.world.Host.Busy, s.world.Settings.Disabled, s.stop, s.leased = "", false, Problem{}, false
	s.observeErr, s.sendErr, s.before, s.after = nil, nil, nil, nil
}

// noLifeSince tells that no sign of life came since a time.
func (s *simulation) noLifeSince(at time.Time) bool {
	agent, kubelet := s.writes()

	return s.life.none() && agent.Before(at) && kubelet.Before(at)
}

// runLong makes passes as a controller would, whatever they give.
func (s *simulation) runLong(d time.Duration) {
	for end := s.clock.Now().Add(d); s.clock.Now().Before(end); {
		after, _, _ := s.run()
		if after == 0 {
			after = time.Minute
		}
		s.advance(after)
	}
}

// perturb changes the world between two passes.
func perturb(t *rapid.T, s *simulation) {
	s.world.Host.Busy = rapid.SampledFrom([]string{"", "", "", "busy"}).Draw(t, "busy")
	s.world.Settings.Disabled = rapid.IntRange(0, 9).Draw(t, "disabled") == 0
	s.stop = Problem{}
	if rapid.IntRange(0, 9).Draw(t, "stop") == 0 {
		s.stop = Problem{Reason: v1alpha1.OutOfBandPoolSilent, Text: "others are silent"}
	}
	if rapid.IntRange(0, 9).Draw(t, "leased") == 0 {
		s.leased, s.leftAt = true, s.clock.Now()
	}
	kinds := []bmc.Kind{"", "", bmc.Transient, bmc.Auth, bmc.Conflict, bmc.Unknown}
	if kind := rapid.SampledFrom(kinds).Draw(t, "observe error"); kind != "" && kind != bmc.Unknown {
		s.observeErr = &bmc.Error{Kind: kind, Op: "testing", Detail: "it fails"}
	}
	if kind := rapid.SampledFrom(kinds).Draw(t, "send error"); kind != "" {
		s.sendErr = &bmc.Error{Kind: kind, Op: "testing", Detail: "it fails"}
	}
	if rapid.IntRange(0, 9).Draw(t, "writer") == 0 {
		s.stored++
	}
	switch rapid.IntRange(0, 19).Draw(t, "metal3") {
	case 0, 1, 2, 3, 4:
		s.sweep()
	case 5:
		s.key = false // baremetal-operator 0.13 deletes everybody's keys now and then
	}
	alive := life{agent: rapid.Bool().Draw(t, "agent"), kubelet: rapid.Bool().Draw(t, "kubelet")}
	switch rapid.IntRange(0, 29).Draw(t, "machine") {
	case 0, 1:
		s.lives(alive)
	case 2:
		s.says(rapid.SampledFrom([]v1alpha1.Phase{
			v1alpha1.PhaseArming, v1alpha1.PhaseRebooting, v1alpha1.PhaseProving, v1alpha1.PhaseReporting, v1alpha1.PhaseRolledBack,
		}).Draw(t, "phase"), alive)
	default:
		if rapid.IntRange(0, 2).Draw(t, "dies") == 0 {
			s.lives(life{})
		}
	}
}

// strikeOf is what happens at one effect of a pass.
func strikeOf(t *rapid.T, s *simulation, at int) func(int, string) {
	what := rapid.SampledFrom([]string{"nothing", "kill", "write", "second", "back", "dies", "moves on"}).Draw(t, "what")

	return func(number int, _ string) {
		if number != at {
			return
		}
		before, after, effects := s.before, s.after, s.effects
		s.before, s.after = nil, nil
		switch what {
		case "kill":
			panic(crash{})
		case "write":
			s.stored++
		case "second":
			_, _, _ = s.run()
		case "back":
			s.lives(life{agent: true, kubelet: true})
		case "moves on":
			s.says(v1alpha1.PhaseProving, life{agent: true})
		case "dies":
			s.lives(life{})
		}
		s.before, s.after, s.effects = before, after, effects
	}
}
