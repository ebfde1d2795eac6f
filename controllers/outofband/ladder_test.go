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
		s.says(v1alpha1.PhaseRebooting, life{agent: true})
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
	s.runFor(t, testSilentAfter+time.Minute)
	writes := s.stored
	for end := s.clock.Now().Add(2 * time.Hour); s.clock.Now().Before(end); {
		s.runFor(t, 20*time.Second)
		if s.status.Reason != v1alpha1.OutOfBandPowerInUse || s.status.Phase != v1alpha1.OutOfBandSilent || s.status.Intent != nil {
			t.Fatalf("a machine that is silent, and whose power another has: %+v", s.status)
		}
	}
	if s.actions() != "" || s.stored-writes > 30 {
		t.Errorf("sent %q, %d writes in two hours", s.actions(), s.stored-writes)
	}
	// The other may have rebooted it at the last moment: it has the time of a reset.
	s.leased = false
	s.runFor(t, testSilentAfterReset+time.Minute)
	if s.actions() != "ForceRestart" {
		t.Errorf("sent %q, %+v", s.actions(), s.status)
	}
}

// Whoever was busy with the host may have rebooted the machine at the last moment: it has the time of a reset, before the
// first one and between two.
func TestAHostThatIsFreeAgainIsWaitedFor(t *testing.T) {
	t.Parallel()
	for before, after := range map[string]string{"": "ForceRestart", "ForceRestart": twoResets} {
		s := newSimulation()
		if before != "" {
			s.runFor(t, testSilentAfter+time.Minute)
		}
		s.world.Host.Busy = "it is rebooted by another"
		s.runFor(t, time.Hour)
		s.world.Host.Busy = ""
		s.runFor(t, testSilentAfterReset)
		if s.actions() != before || s.status.Phase != v1alpha1.OutOfBandSilent {
			t.Errorf("sent %q, %+v", s.actions(), s.status)
		}
		s.runFor(t, 2*time.Minute)
		if s.actions() != after {
			t.Errorf("sent %q, want %q; %+v", s.actions(), after, s.status)
		}
	}
}

// pausesAfterSend lets a person pause the host as soon as something was sent.
func (s *simulation) pausesAfterSend() {
	s.after = func(_ int, name string) {
		if name == "send" {
			s.world.Host.Busy = "it is paused"
		}
	}
}

// A host becomes busy in the middle of a reset: what is said is that the machine is off by us, and it is switched on when
// the host is free.
func TestAHostThatIsBusyInTheMiddleOfAReset(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.offered = s.offered[:2]
	s.pausesAfterSend()
	s.runFor(t, time.Hour)
	if s.actions() != "ForceOff" || !strings.Contains(s.status.Message, "switched off by a reset") {
		t.Fatalf("sent %q, %+v", s.actions(), s.status)
	}
	s.after, s.world.Host.Busy = nil, ""
	s.runFor(t, time.Minute)
	if s.actions() != "ForceOff On" {
		t.Errorf("sent %q, %+v", s.actions(), s.status)
	}
}

// The BMC accepts On, and nothing happens; and a machine that was asked to shut down says something on its way. Neither
// may stay off for the lack of resets; but not for ever is On sent.
func TestAMachineThatStaysOffAfterOurReset(t *testing.T) {
	t.Parallel()
	for ignores, ons := range map[int]int{1: 2, 2: 3, 9: maxOns} {
		want := "ForceOff" + strings.Repeat(" On", ons)
		s := newSimulation()
		s.world.Settings.MaxResets = 1
		s.offered, s.ignores = s.offered[:2], ignores
		s.runFor(t, 4*time.Hour)
		if s.actions() != want || s.status.Resets != 1 || s.status.Phase != v1alpha1.OutOfBandNeedsHuman {
			t.Errorf("On is ignored %d times: sent %q, want %q; %+v", ignores, s.actions(), want, s.status)
		}
		if off := strings.Contains(s.status.Message, "switched off by a reset"); off != (s.power == bmc.PowerOff) {
			t.Errorf("On is ignored %d times: its power is %s, and it says %q", ignores, s.power, s.status.Message)
		}
	}
	// A BMC that tells On for a while after ForceOff.
	slow := newSimulation()
	slow.world.Settings.MaxResets = 1
	slow.offered, slow.ignores, slow.settles = slow.offered[:2], 1, 12*time.Second
	slow.runFor(t, 4*time.Hour)
	if slow.actions() != "ForceOff"+strings.Repeat(" On", 2) || slow.power != bmc.PowerOn {
		t.Errorf("a slow BMC: sent %q, its power is %s, %+v", slow.actions(), slow.power, slow.status)
	}
	// The brake does not keep it off, either.
	braked := newSimulation()
	braked.offered, braked.ignores = braked.offered[:2], 1
	braked.after = func(_ int, name string) {
		if name == "send" {
			braked.stop = Problem{Reason: v1alpha1.OutOfBandPoolSilent, Text: "others are silent"}
		}
	}
	braked.runFor(t, time.Hour)
	if braked.actions() != "ForceOff"+strings.Repeat(" On", 2) || braked.power != bmc.PowerOn {
		t.Errorf("a pool that is silent: sent %q, its power is %s, %+v", braked.actions(), braked.power, braked.status)
	}
	s := newSimulation()
	s.world.Settings.MaxResets = 1
	s.softly(bmc.ActionShutdown)
	s.runFor(t, testSilentAfter+2*time.Second)
	s.pendAt = s.clock.Now().Add(2 * time.Minute)
	s.lives(life{kubelet: true})
	s.runFor(t, time.Minute)
	s.lives(life{})
	s.runFor(t, 3*time.Hour)
	if s.actions() != "GracefulShutdown On" || s.power != bmc.PowerOn {
		t.Errorf("sent %q, its power is %s, %+v", s.actions(), s.power, s.status)
	}
}

// Answers to On are lost again and again, and nothing happens: a person is asked in the end.
func TestOnIsNotSentForEver(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.world.Settings.MaxResets = 1
	s.offered, s.ignores = s.offered[:2], 1000
	s.before = func(_ int, name string) {
		if name == "send" && s.status.Intent.Action == string(bmc.ActionOn) {
			s.sendErr = &bmc.Error{Kind: bmc.Unknown, Op: "testing", Detail: "the answer was lost"}
		}
	}
	s.runFor(t, 12*time.Hour)
	if len(s.sent) > 1+maxUnknownOns+1 || s.status.Phase != v1alpha1.OutOfBandNeedsHuman {
		t.Errorf("sent %q, %+v", s.actions(), s.status)
	}
}

// Our ForceOff was long ago, and the machine is on: another has switched it on, and it is not reset while it boots.
func TestAMachineThatAnotherSwitchedOnIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.offered = s.offered[:2]
	s.pausesAfterSend()
	s.runFor(t, time.Hour)
	s.power, s.pending = bmc.PowerOn, ""
	s.after, s.world.Host.Busy = nil, ""
	s.runFor(t, testSilentAfterReset-time.Minute)
	if s.actions() != "ForceOff" {
		t.Errorf("sent %q to a machine that boots, %+v", s.actions(), s.status)
	}
	s.runFor(t, 5*time.Minute)
	if s.actions() != "ForceOff ForceOff On" { //nolint:dupword // two resets
		t.Errorf("sent %q, %+v", s.actions(), s.status)
	}
}

// The override is tried once, whatever comes of it and of the look after it.
func TestTheBootOverrideIsTriedOnce(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.world.Settings.MaxResets = 2
	s.before = func(_ int, name string) {
		// The BMC is busy whenever an intent is to be confirmed, but not for ever.
		confirms := s.status != nil && s.status.Intent != nil && s.status.Intent.SentAt == nil
		if name == "observe" && confirms && s.clock.Now().Before(testStart().Add(time.Hour)) {
			s.observeErr = &bmc.Error{Kind: bmc.Busy, Op: "testing", Detail: "it is busy"}
		}
	}
	s.runFor(t, 3*time.Hour)
	if s.actions() != twoResets || s.bootSets != 1 || s.status.BootOverride == "" {
		t.Errorf("sent %q, the override was tried %d times, %+v", s.actions(), s.bootSets, s.status)
	}
}

// A pool that is silent for long asks a person, who finds the evidence; and resets go on when it is back.
func TestABrakeAsksAPersonInTheEnd(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.says(v1alpha1.PhaseRebooting, life{agent: true})
	s.stop = Problem{Reason: v1alpha1.OutOfBandPoolSilent, Text: "others are silent"}
	s.runFor(t, testSilentAfter+brakeLimit-time.Minute)
	if s.status.Phase != v1alpha1.OutOfBandSilent || s.collected != 0 {
		t.Errorf("%+v", s.status)
	}
	writes := s.stored
	s.runFor(t, 10*time.Minute)
	if s.status.Phase != v1alpha1.OutOfBandNeedsHuman || s.status.Reason != v1alpha1.OutOfBandPoolSilent || s.collected != 1 {
		t.Errorf("collected %d times, %+v", s.collected, s.status)
	}
	if s.stored-writes > 21 {
		t.Errorf("%d writes in ten minutes", s.stored-writes)
	}
	s.stop = Problem{}
	s.runFor(t, pollIdle+time.Minute)
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
	if got := story(s.status); got != "=On ForceRestart =On"+strings.Repeat(cycle, 2) {
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
