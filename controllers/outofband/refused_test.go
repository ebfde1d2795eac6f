package outofband

import (
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

func refusalOf(kind bmc.Kind) error {
	return &bmc.Error{Kind: kind, Op: "sending", Detail: "it does not want to", Refused: true}
}

func refusingAll(kind bmc.Kind) map[bmc.Action]error {
	all := map[bmc.Action]error{}
	for _, action := range []bmc.Action{
		bmc.ActionOn, bmc.ActionForceOff, bmc.ActionForceRestart, bmc.ActionShutdown, bmc.ActionSoftRestart, bmc.ActionPowerCycle,
	} {
		all[action] = refusalOf(kind)
	}

	return all
}

func refusalKinds() []bmc.Kind {
	return []bmc.Kind{bmc.Conflict, bmc.Busy, bmc.Unsupported, bmc.Auth, bmc.NotFound, bmc.Transient}
}

// A BMC that refuses every action for ever: a person is asked, with what it said, and it is not asked thousands of times.
func TestABMCThatRefusesForEver(t *testing.T) {
	t.Parallel()
	for _, kind := range refusalKinds() {
		s := newSimulation()
		s.refuses = refusingAll(kind)
		s.runFor(t, 48*time.Hour)
		if s.status.Phase != v1alpha1.OutOfBandNeedsHuman || !strings.Contains(s.status.Message, "the BMC refused 3 times, last: ") ||
			!strings.Contains(s.status.Message, "it does not want to") {
			t.Errorf("%s: %+v", kind, s.status)
		}
		if s.offers != 3 || s.status.Resets != 3 {
			t.Errorf("%s: it was asked %d times, %d resets", kind, s.offers, s.status.Resets)
		}
	}
}

// The catalogue's RefusedThoughApplied: the machine has its time to boot after each of them, and no more resets than may
// be; the checker of the simulation looks at their distance.
func TestABMCThatRefusesWhatItDoes(t *testing.T) {
	t.Parallel()
	for _, kind := range refusalKinds() {
		for _, power := range []bmc.Power{bmc.PowerOn, bmc.PowerOff} {
			for _, offered := range [][]bmc.Action{
				{bmc.ActionOn, bmc.ActionForceOff, bmc.ActionForceRestart},
				{bmc.ActionOn, bmc.ActionForceOff},
			} {
				s := newSimulation()
				s.power, s.offered = power, offered
				s.refuses, s.applies = refusingAll(kind), true
				s.until(t, 1)
				first := s.clock.Now()
				s.runFor(t, 9*time.Minute)
				if s.settle(); s.power != bmc.PowerOn {
					t.Errorf("%s, %s, %v: the power is %s; sent %q; %+v", kind, power, offered, s.power, s.actions(), s.status)
				}
				for _, each := range s.sent {
					if each.action != bmc.ActionOn && each.at.After(first) {
						t.Errorf("%s, %s, %v: %s in the time to boot; sent %q", kind, power, offered, each.action, s.actions())
					}
				}
				s.lives(life{agent: true, kubelet: true})
				s.runFor(t, 24*time.Hour)
				if s.status.Phase != v1alpha1.OutOfBandRecovered {
					t.Errorf("%s, %s, %v: in the end %+v", kind, power, offered, s.status)
				}
			}
		}
	}
}

// A machine that we have switched off, and whose BMC refuses On: it is tried on, and a person is asked.
func TestABMCThatRefusesOnAfterOff(t *testing.T) {
	t.Parallel()
	for _, done := range []bool{false, true} {
		s := newSimulation()
		s.offered = []bmc.Action{bmc.ActionOn, bmc.ActionForceOff}
		s.refuses = map[bmc.Action]error{bmc.ActionOn: refusalOf(bmc.Conflict)}
		s.says(v1alpha1.PhaseReporting, life{agent: true})
		s.lives(life{})
		s.until(t, 1)
		if done {
			s.advance(time.Second)
			s.agentWrote, s.world.Phase = s.clock.Now(), v1alpha1.PhaseSucceeded
		}
		s.runFor(t, 48*time.Hour)
		if s.status.Phase != v1alpha1.OutOfBandNeedsHuman || s.actions() != "ForceOff" ||
			!strings.Contains(s.status.Message, "it does not want to") || !strings.Contains(s.status.Message, "switch") {
			t.Errorf("done %t: sent %q; %+v", done, s.actions(), s.status)
		}
		if s.offers > 800 {
			t.Errorf("done %t: it was asked %d times", done, s.offers)
		}
		s.refuses = nil
		s.runFor(t, 6*time.Minute)
		if s.settle(); s.power != bmc.PowerOn {
			t.Errorf("done %t: the power is %s; %+v", done, s.power, s.status)
		}
	}
}
