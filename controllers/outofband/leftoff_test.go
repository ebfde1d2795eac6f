package outofband

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

// offSenders are simulations whose first reset takes the power away.
func offSenders() map[string]func(*simulation) {
	return map[string]func(*simulation){
		"a shutdown": func(s *simulation) {
			s.offered = []bmc.Action{bmc.ActionOn, bmc.ActionForceOff, bmc.ActionShutdown, bmc.ActionForceRestart}
			s.osAnswers, s.settles = true, 90*time.Second
		},
		"a slow shutdown": func(s *simulation) {
			s.offered = []bmc.Action{bmc.ActionOn, bmc.ActionForceOff, bmc.ActionShutdown, bmc.ActionForceRestart}
			s.osAnswers, s.settles = true, 5*time.Minute
		},
		"off": func(s *simulation) { s.offered = []bmc.Action{bmc.ActionOn, bmc.ActionForceOff} },
		"off, and On is not heard once": func(s *simulation) {
			s.offered, s.ignores = []bmc.Action{bmc.ActionOn, bmc.ActionForceOff}, 1
		},
		"off, and the BMC is away then": func(s *simulation) {
			s.offered = []bmc.Action{bmc.ActionOn, bmc.ActionForceOff}
			s.observeErr = &bmc.Error{Kind: bmc.Transient, Op: "testing", Detail: "it is away"}
		},
	}
}

// until makes passes until something was sent.
func (s *simulation) until(t *testing.T, sent int) {
	t.Helper()
	for range 10000 {
		if len(s.sent) >= sent {
			return
		}
		after, _, err := s.run()
		if err != nil {
			t.Fatal(err)
		}
		s.advance(max(after, time.Second))
	}
	t.Fatalf("sent %q", s.actions())
}

// The agent writes just after the machine was told to go off, and before it does: whatever it says, we switch on what we
// have switched off, at once, and without a further reset.
func TestWhatWeSwitchOffWeSwitchOnWhateverTheAgentSays(t *testing.T) {
	t.Parallel()
	for name, begin := range offSenders() {
		for what, says := range map[string]func(*simulation){
			"done":           func(s *simulation) { s.world.Phase = v1alpha1.PhaseSucceeded },
			"rolled back":    func(s *simulation) { s.world.Phase = v1alpha1.PhaseRolledBack },
			"one more write": func(*simulation) {},
			"a new attempt":  func(s *simulation) { s.world.Attempt, s.world.Phase = "a2", v1alpha1.PhaseStaging },
			"a new attempt that arms": func(s *simulation) {
				s.world.Attempt, s.world.Phase = "a2", v1alpha1.PhaseArming
			},
			"done, and a new process": func(s *simulation) { s.world.Phase = v1alpha1.PhaseSucceeded; s.stored++ },
		} {
			s := newSimulation()
			s.says(v1alpha1.PhaseReporting, life{agent: true})
			s.lives(life{})
			begin(s)
			failure := s.observeErr
			s.observeErr = nil
			s.until(t, 1)
			if boots(s.sent[0].action) {
				t.Fatalf("%s: sent %q", name, s.actions())
			}
			goes := s.pendAt
			s.settles = 3 * time.Second
			s.advance(time.Second)
			s.observeErr = failure
			s.agentWrote = s.clock.Now()
			says(s)
			s.until(t, 2)
			if on := s.sent[1]; on.action != bmc.ActionOn || on.reset != 1 || on.at.Sub(goes) > pollHost+pollPower {
				t.Errorf("%s, %s: %s %s after it went off, as reset %d", name, what, on.action, on.at.Sub(goes), on.reset)
			}
			for end := s.clock.Now().Add(testSilentAfterReset + time.Minute); s.power != bmc.PowerOn && s.clock.Now().Before(end); s.settle() {
				s.runFor(t, 5*time.Second)
			}
			if s.power != bmc.PowerOn {
				t.Errorf("%s, %s: the power is %s; sent %q; status %+v", name, what, s.power, s.actions(), s.status)

				continue
			}
			sent := len(s.sent)
			s.lives(life{agent: true, kubelet: true})
			s.runFor(t, 24*time.Hour)
			if len(s.sent) != sent || s.status.Phase == v1alpha1.OutOfBandNeedsHuman {
				t.Errorf("%s, %s: in the end sent %q; status %+v", name, what, s.actions(), s.status)
			}
			if s.status.Attempt != s.world.Attempt && watched(s.world.Phase) {
				t.Errorf("%s, %s: the earlier attempt's status stays: %+v", name, what, s.status)
			}
		}
	}
}

// A machine that did not go off, or that a person has switched off after its reset has ended, is left alone.
func TestNothingIsSwitchedOnThatWeHaveNotSwitchedOff(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.offered = []bmc.Action{bmc.ActionOn, bmc.ActionForceOff}
	s.settles = 1000 * time.Hour
	s.says(v1alpha1.PhaseReporting, life{agent: true})
	s.lives(life{})
	s.until(t, 1)
	s.advance(time.Second)
	s.agentWrote, s.world.Phase = s.clock.Now(), v1alpha1.PhaseSucceeded
	s.runFor(t, testSilentAfterReset+time.Minute)
	s.power = bmc.PowerOff
	s.runFor(t, 24*time.Hour)
	if s.actions() != "ForceOff" || s.status.Phase != v1alpha1.OutOfBandRecovered {
		t.Errorf("sent %q; status %+v", s.actions(), s.status)
	}
}

// A person is asked when the machine cannot be switched on, and it is tried on.
func TestAMachineThatCannotBeSwitchedOnIsAPersons(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*simulation){
		"disabled":     func(s *simulation) { s.world.Settings.Disabled = true },
		"busy":         func(s *simulation) { s.world.Host.Busy = "it is paused" },
		"gone":         func(s *simulation) { s.world.Host.NotFound = "there is no host" },
		"does nothing": func(s *simulation) { s.ignores = 1000 },
	} {
		s := newSimulation()
		s.offered = []bmc.Action{bmc.ActionOn, bmc.ActionForceOff}
		s.says(v1alpha1.PhaseReporting, life{agent: true})
		s.lives(life{})
		s.until(t, 1)
		s.advance(time.Second)
		s.agentWrote, s.world.Phase = s.clock.Now(), v1alpha1.PhaseSucceeded
		change(s)
		s.runFor(t, time.Hour)
		if s.status.Phase != v1alpha1.OutOfBandNeedsHuman || !strings.Contains(s.status.Message, "switch it on") {
			t.Errorf("%s: %+v", name, s.status)
		}
		s.free()
		s.world.Host.NotFound, s.ignores = "", 0
		if name == "does nothing" {
			s.power = bmc.PowerOn // a person did
		}
		s.runFor(t, 10*time.Minute)
		if s.settle(); s.power != bmc.PowerOn || s.status.Phase != v1alpha1.OutOfBandRecovered {
			t.Errorf("%s: in the end %s, %+v", name, s.power, s.status)
		}
	}
}

// The clock is stepped back between an intent and the process that goes on with it.
func TestAStoredTimeThatIsStillToCome(t *testing.T) {
	t.Parallel()
	for _, back := range []time.Duration{5 * time.Minute, time.Hour, 24 * time.Hour} {
		for name, at := range map[string]string{"before it was sent": "send", "after it was sent": "restore", "at the end": ""} {
			s := newSimulation()
			s.offered = []bmc.Action{bmc.ActionOn, bmc.ActionForceOff}
			killed := false
			s.before = func(_ int, effect string) {
				if effect == at && len(s.sent) == map[string]int{"send": 0, "restore": 1}[at] {
					killed = true
					panic(crash{})
				}
			}
			for range 1000 {
				after, dead, err := s.run()
				if err != nil {
					t.Fatal(err)
				}
				if dead || at == "" && len(s.sent) > 0 {
					break
				}
				s.advance(max(after, time.Second))
			}
			s.before, s.leased = nil, false
			if at == "send" {
				// Of one that may have been sent, the machine may be off.
				s.power = bmc.PowerOff
			}
			s.firstSaw = s.firstSaw.Add(-back)
			for i := range s.sent {
				s.sent[i].at = s.sent[i].at.Add(-back)
			}
			s.pendAt, s.lastRead = s.pendAt.Add(-back), s.lastRead.Add(-back)
			s.clock.SetTime(s.clock.Now().Add(-back))
			before := s.clock.Now()
			s.until(t, len(s.sent)+1)
			last := s.sent[len(s.sent)-1]
			if late := last.at.Sub(before); last.action != bmc.ActionOn || late > 5*time.Minute {
				t.Errorf("%s ahead, %s (killed: %t): %s after %s; status %+v", back, name, killed, last.action, late, s.status)
			}
			// And no later reset waits for the old clock either.
			sent := len(s.sent)
			s.runLong(3 * testSilentAfterReset)
			if len(s.sent) == sent {
				t.Errorf("%s ahead, %s: no further reset; status %+v", back, name, s.status)
			}
		}
	}
}

// A power that flaps does not make us forget what was sent.
func TestTheHistoryKeepsWhatWasSent(t *testing.T) {
	t.Parallel()
	status := &v1alpha1.OutOfBandStatus{Intent: &v1alpha1.PowerIntent{
		Action: string(bmc.ActionForceOff), DecidedAt: metav1.NewMicroTime(testStart()), SentAt: new(metav1.NewMicroTime(testStart())),
	}}
	addAction(status)
	powers := []v1alpha1.PowerState{v1alpha1.PowerOff, v1alpha1.PowerState(bmc.PowerTransition)}
	for i := range 10 * maxHistory {
		addToHistory(status, v1alpha1.PowerEvent{Power: powers[i%len(powers)], At: metav1.NewTime(testStart())})
	}
	if len(status.History) != maxHistory || status.History[0].Action != string(bmc.ActionForceOff) {
		t.Errorf("%d entries: %+v", len(status.History), status.History)
	}
	if ours, _ := offByUs(status); !ours {
		t.Error("it is forgotten that we have switched the machine off")
	}
	for i := range 2 * maxHistory {
		addToHistory(status, v1alpha1.PowerEvent{Action: strconv.Itoa(i), At: metav1.NewTime(testStart())})
	}
	first := func(each v1alpha1.PowerEvent) bool { return each.Action == strconv.Itoa(maxHistory) }
	if len(status.History) != maxHistory || slices.IndexFunc(status.History, first) != 0 {
		t.Errorf("%d entries: %+v", len(status.History), status.History)
	}
}

// A BMC that never says whether the machine is on: it is not switched off, since nobody could see it off.
func TestAPowerThatIsNeverKnown(t *testing.T) {
	t.Parallel()
	for _, told := range []bmc.Power{bmc.PowerUnknown, bmc.PowerTransition} {
		for _, offered := range [][]bmc.Action{
			{bmc.ActionOn, bmc.ActionForceOff},
			{bmc.ActionOn, bmc.ActionForceOff, bmc.ActionForceRestart},
			{bmc.ActionOn, bmc.ActionForceOff, bmc.ActionPowerCycle},
			{bmc.ActionOn, bmc.ActionForceOff, bmc.ActionShutdown},
		} {
			s := newSimulation()
			s.offered, s.tells, s.osAnswers = offered, told, true
			s.runFor(t, 24*time.Hour)
			if s.settle(); s.power != bmc.PowerOn || s.status.Phase != v1alpha1.OutOfBandNeedsHuman {
				t.Errorf("%s, offered %v: the power is %s; sent %q; status %+v", told, offered, s.power, s.actions(), s.status)
			}
		}
	}
}
