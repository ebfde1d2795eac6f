package outofband

import (
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

// softly makes a machine whose operating system answers, behind a BMC that offers one way to ask it.
func (s *simulation) softly(way bmc.Action) {
	s.osAnswers, s.offered = true, append(s.offered, way)
}

func TestLadder(t *testing.T) {
	t.Parallel()
	onlyRestarts := strings.Repeat("ForceRestart ", 2) + "ForceRestart*"
	for name, c := range map[string]struct {
		change func(*simulation)
		want   string
	}{
		"dead":                      {func(*simulation) {}, "ForceRestart ForceOff On ForceOff On*"},
		"alive":                     {func(s *simulation) { s.softly(bmc.ActionSoftRestart) }, "GracefulRestart ForceOff On ForceOff On*"},
		"alive, no restart offered": {func(s *simulation) { s.softly(bmc.ActionShutdown) }, "GracefulShutdown On ForceOff On ForceOff On*"},
		"alive, nothing soft":       {func(s *simulation) { s.osAnswers = true }, "ForceRestart ForceOff On ForceOff On*"},
		"alive, but off": {
			func(s *simulation) { s.softly(bmc.ActionSoftRestart); s.power = bmc.PowerOff }, "On ForceOff On ForceOff On*",
		},
		"never off": {func(s *simulation) { s.world.Host.KeepPowered = true }, onlyRestarts},
		"alive, never off, asked by a shutdown": {
			func(s *simulation) { s.softly(bmc.ActionShutdown); s.world.Host.KeepPowered = true }, onlyRestarts,
		},
		"only a power cycle": {
			func(s *simulation) {
				s.offered = []bmc.Action{bmc.ActionOn, bmc.ActionForceRestart, bmc.ActionPowerCycle}
			},
			"ForceRestart PowerCycle PowerCycle*",
		},
		"one reset":  {func(s *simulation) { s.world.Settings.MaxResets = 1 }, "ForceRestart"},
		"two resets": {func(s *simulation) { s.world.Settings.MaxResets = 2 }, "ForceRestart ForceOff On*"},
	} {
		s := newSimulation()
		c.change(s)
		s.runFor(t, 3*time.Hour)
		got := make([]string, 0, len(s.sent))
		for _, each := range s.sent {
			action := string(each.action)
			if each.fromDisk {
				action += "*"
			}
			got = append(got, action)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: sent %q, want %q (*: from disk)", name, got, c.want)
		}
		if s.status.Reason != v1alpha1.OutOfBandResetsUsedUp || s.power != bmc.PowerOn {
			t.Errorf("%s: in the end its power is %s, %+v", name, s.power, s.status)
		}
	}
}

// A process dies between storing the last On and sending it: the machine must not stay off, whatever number of resets is
// left.
func TestAMachineThatWeSwitchedOffIsSwitchedOn(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.world.Settings.MaxResets = 1
	s.offered = s.offered[:2]
	kills := 0
	for end := s.clock.Now().Add(24 * time.Hour); kills < 3 && s.clock.Now().Before(end); {
		s.before = func(_ int, name string) {
			if name == "send" && s.status.Intent.Action == string(bmc.ActionOn) {
				panic(crash{})
			}
		}
		after, killed, err := s.run()
		if err != nil {
			t.Fatal(err)
		}
		if killed {
			kills++
		}
		s.advance(max(after, time.Second))
	}
	s.before = nil
	if s.power != bmc.PowerOff || kills < 3 {
		t.Fatalf("its power is %s after %d kills", s.power, kills)
	}
	s.runFor(t, 10*time.Minute)
	if s.actions() != "ForceOff On" || s.power != bmc.PowerOn || s.status.Resets != 1 {
		t.Errorf("sent %q, its power is %s, %+v", s.actions(), s.power, s.status)
	}
	// A person switches it off: that is theirs.
	s.power, s.pending = bmc.PowerOff, ""
	s.runFor(t, time.Hour)
	if s.actions() != "ForceOff On" || s.status.Phase != v1alpha1.OutOfBandNeedsHuman {
		t.Errorf("sent %q, %+v", s.actions(), s.status)
	}
}

// What forbids new resets forbids no On after an Off, counts no reset, and ends by itself.
func TestTheFleetIsSilent(t *testing.T) {
	t.Parallel()
	for _, reason := range []v1alpha1.OutOfBandReason{v1alpha1.OutOfBandPoolSilent, v1alpha1.OutOfBandPowerLimited} {
		stop := Problem{Reason: reason, Text: "wait"}
		s := newSimulation()
		s.offered = s.offered[:2]
		s.stop = stop
		s.runFor(t, time.Hour)
		if s.actions() != "" || s.status.Phase != v1alpha1.OutOfBandSilent || s.status.Reason != reason || s.status.Resets != 0 {
			t.Errorf("sent %q, %+v", s.actions(), s.status)
		}
		s.stop = Problem{}
		s.after = func(_ int, name string) {
			if name == "send" {
				s.stop = stop
			}
		}
		s.runFor(t, time.Hour)
		if s.actions() != "ForceOff On" || s.status.Reason != reason || s.status.Resets != 1 {
			t.Errorf("sent %q, %+v", s.actions(), s.status)
		}
	}
}

func TestAnotherHasThePower(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.leased = true
	busy := false
	for end := s.clock.Now().Add(2 * time.Hour); s.clock.Now().Before(end); {
		s.runFor(t, 20*time.Second)
		busy = busy || s.status.Reason == v1alpha1.OutOfBandHostBusy
	}
	if s.actions() != "" || !busy || s.status.Intent != nil {
		t.Errorf("sent %q, said that it is busy: %t, %+v", s.actions(), busy, s.status)
	}
	s.leased = false
	s.runFor(t, testSilentAfterReset+time.Minute)
	if s.actions() != "ForceRestart" {
		t.Errorf("sent %q, %+v", s.actions(), s.status)
	}
}

// Whoever was busy with the host may have rebooted the machine at the last moment: it has the time of a reset.
func TestAHostThatIsFreeAgainIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.world.Host.Busy = "it is rebooted by another"
	s.runFor(t, time.Hour)
	s.world.Host.Busy = ""
	s.runFor(t, testSilentAfterReset)
	if s.actions() != "" || s.status.Phase != v1alpha1.OutOfBandWatching {
		t.Errorf("sent %q, %+v", s.actions(), s.status)
	}
	s.runFor(t, 2*time.Minute)
	if s.actions() != "ForceRestart" {
		t.Errorf("sent %q, %+v", s.actions(), s.status)
	}
}

// A person finds the evidence of the moment when they were asked, and what came before. It is collected once.
func TestEvidence(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.runFor(t, 3*time.Hour)
	if s.collected != 1 || s.status.Evidence == nil {
		t.Errorf("collected %d times: %+v", s.collected, s.status.Evidence)
	}
	const cycle = " ForceOff =Off On =On"
	if got := story(s.status); got != "=On ForceRestart"+strings.Repeat(cycle, 2) {
		t.Errorf("the history is %q", got)
	}
	// Another reset is allowed: what was collected before it is old.
	s.world.Settings.MaxResets++
	s.runFor(t, 3*time.Hour)
	if s.collected != 2 || len(s.status.History) > maxHistory {
		t.Errorf("collected %d times, %d entries of history", s.collected, len(s.status.History))
	}
}

// story is a history in one line: actions, and the powers that were seen.
func story(status *v1alpha1.OutOfBandStatus) string {
	all := make([]string, 0, len(status.History))
	for _, event := range status.History {
		if event.Power != "" {
			all = append(all, "="+string(event.Power))
		} else {
			all = append(all, event.Action)
		}
	}

	return strings.Join(all, " ")
}

// A process that died is told from one that sent.
func TestHistoryOfAnIntentThatMayHaveBeenSent(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.before = func(_ int, name string) {
		if name == "send" {
			panic(crash{})
		}
	}
	for killed := false; !killed; {
		after, now, err := s.run()
		if err != nil {
			t.Fatal(err)
		}
		killed = now
		s.advance(max(after, time.Second))
	}
	s.before = nil
	s.runFor(t, 15*time.Minute)
	var unknown, known int
	for _, event := range s.status.History {
		switch {
		case event.Action == "":
		case event.Unknown:
			unknown++
		default:
			known++
		}
	}
	if unknown != 1 || known != 2 || s.actions() != "ForceOff On" {
		t.Errorf("%d unknown and %d known actions in %+v", unknown, known, s.status.History)
	}
}
