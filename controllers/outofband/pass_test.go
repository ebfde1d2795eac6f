package outofband

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

// runFor makes passes as a controller would, until the machine has been watched for so long.
func (s *simulation) runFor(t *testing.T, d time.Duration) {
	t.Helper()
	for end := s.clock.Now().Add(d); s.clock.Now().Before(end); {
		after, _, err := s.run()
		if err != nil {
			t.Fatal(err)
		}
		if after == 0 {
			after = time.Minute
		}
		if s.key {
			s.sweep()
			after = min(after, pollPower)
		}
		s.advance(min(after, end.Sub(s.clock.Now())))
	}
	if wrong := s.check(); wrong != "" {
		t.Fatal(wrong)
	}
}

func (s *simulation) actions() string {
	all := make([]string, 0, len(s.sent))
	for _, each := range s.sent {
		all = append(all, string(each.action))
	}

	return strings.Join(all, " ")
}

// twoResets are sent to a machine that stays silent after one: the second one takes the power away.
const twoResets = "ForceRestart ForceOff On"

func TestSilentMachine(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*simulation)
		d      time.Duration
		want   string
		phase  v1alpha1.OutOfBandPhase
		reason v1alpha1.OutOfBandReason
	}{
		"not yet silent": {
			func(*simulation) {},
			14 * time.Minute, "", v1alpha1.OutOfBandWatching, v1alpha1.OutOfBandWaitingForMachine,
		},
		"one reset": {
			func(*simulation) {},
			20 * time.Minute, "ForceRestart", v1alpha1.OutOfBandResetting, v1alpha1.OutOfBandWaitingAfterReset,
		},
		"resets used up": {
			func(*simulation) {},
			3 * time.Hour, "ForceRestart ForceOff On ForceOff On", v1alpha1.OutOfBandNeedsHuman, v1alpha1.OutOfBandResetsUsedUp,
		},
		"it is off": {
			func(s *simulation) { s.power = bmc.PowerOff },
			20 * time.Minute, "On", v1alpha1.OutOfBandResetting, v1alpha1.OutOfBandWaitingAfterReset,
		},
		"no ForceRestart": {
			func(s *simulation) { s.offered = s.offered[:2] },
			20 * time.Minute, "ForceOff On", v1alpha1.OutOfBandResetting, v1alpha1.OutOfBandWaitingAfterReset,
		},
		"no ForceRestart, used up": {
			func(s *simulation) { s.offered, s.world.Settings.MaxResets = s.offered[:2], 1 },
			time.Hour, "ForceOff On", v1alpha1.OutOfBandNeedsHuman, v1alpha1.OutOfBandResetsUsedUp,
		},
		"keep powered, no ForceRestart": {
			func(s *simulation) { s.offered, s.world.Host.KeepPowered = s.offered[:2], true },
			time.Hour, "", v1alpha1.OutOfBandNeedsHuman, v1alpha1.OutOfBandDeadlinePassed,
		},
		"no resets allowed": {
			func(s *simulation) { s.world.Settings.MaxResets = 0 },
			time.Hour, "", v1alpha1.OutOfBandNeedsHuman, v1alpha1.OutOfBandResetsUsedUp,
		},
		"disabled": {
			func(s *simulation) { s.world.Settings.Disabled = true },
			time.Hour, "", v1alpha1.OutOfBandNeedsHuman, v1alpha1.OutOfBandDisabled,
		},
		"busy": {
			func(s *simulation) { s.world.Host.Busy = "it is being serviced" },
			time.Hour, "", v1alpha1.OutOfBandSilent, v1alpha1.OutOfBandHostBusy,
		},
		"no host": {
			func(s *simulation) { s.world.Host.NotFound = "there is no host" },
			time.Hour, "", v1alpha1.OutOfBandSilent, v1alpha1.OutOfBandHostNotFound,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSimulation()
			c.change(s)
			s.runFor(t, c.d)
			if s.actions() != c.want {
				t.Errorf("sent %q, want %q", s.actions(), c.want)
			}
			if s.status.Phase != c.phase || s.status.Reason != c.reason || s.status.Message == "" {
				t.Errorf("got %s %s %q, want %s %s", s.status.Phase, s.status.Reason, s.status.Message, c.phase, c.reason)
			}
		})
	}
}

func TestMachineComesBack(t *testing.T) {
	t.Parallel()
	for name, alive := range map[string]life{
		"agent and kubelet": {agent: true, kubelet: true}, "a sick kubelet": {agent: true}, "a dead agent": {kubelet: true},
	} {
		for _, phase := range []v1alpha1.Phase{v1alpha1.PhaseProving, v1alpha1.PhaseReporting} {
			s := newSimulation()
			s.runFor(t, 20*time.Minute)
			s.says(phase, alive)
			s.runFor(t, 3*time.Hour)
			if s.actions() != "ForceRestart" || s.status.Phase != v1alpha1.OutOfBandRecovered ||
				!strings.Contains(s.status.Message, "; resets through its BMC: 1") {
				t.Errorf("%s: sent %q, status %+v", name, s.actions(), s.status)
			}
			// The same attempt reboots again: the whole wait starts anew.
			s.says(v1alpha1.PhaseRebooting, alive)
			s.runFor(t, 14*time.Minute)
			if s.actions() != "ForceRestart" {
				t.Errorf("%s: sent %q before the machine was silent for long", name, s.actions())
			}
			s.runFor(t, 2*time.Minute)
			if s.actions() != twoResets {
				t.Errorf("%s: sent %q, want a second reset", name, s.actions())
			}
			// It ends by itself.
			s.says(v1alpha1.PhaseRolledBack, alive)
			s.runFor(t, time.Minute)
			if !s.status.Deadline.IsZero() || s.status.Reason != v1alpha1.OutOfBandMachineBack {
				t.Errorf("%s: in the end %+v", name, s.status)
			}
		}
	}
}

// The agent has said that it is back, and then the machine hangs or loses its power.
func TestMachineFallsSilentAfterItWasBack(t *testing.T) {
	t.Parallel()
	for name, alive := range map[string]life{
		"agent and kubelet": {agent: true, kubelet: true}, "a sick kubelet": {agent: true}, "a dead agent": {kubelet: true},
	} {
		for _, phase := range []v1alpha1.Phase{v1alpha1.PhaseProving, v1alpha1.PhaseReporting} {
			for _, lived := range []time.Duration{0, 7 * time.Minute, 15*time.Minute - time.Second, 100 * time.Minute} {
				s := newSimulation()
				s.says(v1alpha1.PhaseRebooting, alive)
				s.runFor(t, 3*time.Minute)
				s.says(phase, alive)
				s.runFor(t, lived)
				s.lives(life{})
				s.runFor(t, s.patience()-agentBeats)
				if s.actions() != "" {
					t.Errorf("%s, %s, lived %s: sent %q before the machine was silent for long", name, phase, lived, s.actions())
				}
				s.runFor(t, agentBeats+leaseGrace+time.Minute)
				if s.actions() != "ForceRestart" || s.status.Reason != v1alpha1.OutOfBandWaitingAfterReset {
					t.Errorf("%s, %s, lived %s: sent %q, status %+v", name, phase, lived, s.actions(), s.status)
				}
				// The old OS comes up.
				s.says(v1alpha1.PhaseRolledBack, alive)
				s.runFor(t, time.Minute)
				if s.status.Phase != v1alpha1.OutOfBandRecovered || s.actions() != "ForceRestart" {
					t.Errorf("%s, %s, lived %s: in the end sent %q, status %+v", name, phase, lived, s.actions(), s.status)
				}
			}
		}
	}
}

// A machine that was reset stays Ready for up to 50 s: that is no sign of life, and the next reset comes on time.
func TestReadyAfterAResetIsNoSignOfLife(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.says(v1alpha1.PhaseRebooting, life{agent: true, kubelet: true})
	s.says(v1alpha1.PhaseProving, life{agent: true, kubelet: true})
	s.runFor(t, 5*time.Minute)
	s.lives(life{})
	s.runFor(t, s.patience()+2*time.Minute)
	if s.actions() != "ForceRestart" {
		t.Fatalf("sent %q", s.actions())
	}
	// The node controller has taken a Lease that was renewed just before the reset for life, and sees its end only now.
	s.lost, s.diedAt = life{kubelet: true}, s.clock.Now()
	s.runFor(t, 10*time.Minute)
	if s.actions() != twoResets {
		t.Errorf("sent %q, want a second reset %s after the first; status %+v", s.actions(), testSilentAfterReset, s.status)
	}
}

// The kubelet renews its Lease every 10 s, but writes its Node's status every 5 minutes only: with a short silentAfter
// the Lease alone keeps a machine with a dead agent from being reset.
func TestALeaseIsASignOfLife(t *testing.T) {
	t.Parallel()
	for phase, begin := range map[v1alpha1.Phase]func(*simulation){
		v1alpha1.PhaseReporting: func(s *simulation) { s.says(v1alpha1.PhaseReporting, life{kubelet: true}) },
		// The agent of the new boot says nothing at all.
		v1alpha1.PhaseRebooting: func(s *simulation) {
			s.says(v1alpha1.PhaseRebooting, life{agent: true, kubelet: true})
			s.runFor(t, time.Minute)
			s.lives(life{kubelet: true})
		},
	} {
		s := newSimulation()
		s.world.SilentAfter = 2 * time.Minute
		begin(s)
		s.runFor(t, time.Hour)
		if s.actions() != "" {
			t.Errorf("%s: sent %q to a machine whose kubelet renews its Lease", phase, s.actions())
		}
		s.lives(life{})
		s.runFor(t, agentPause+leaseGrace+10*time.Second)
		if s.actions() != "ForceRestart" {
			t.Errorf("%s: sent %q to a machine that is dead", phase, s.actions())
		}
		// Its next boot is well but for its agent.
		s.lives(life{kubelet: true})
		s.runFor(t, time.Hour)
		if s.actions() != "ForceRestart" {
			t.Errorf("%s: sent %q to a machine that has come back", phase, s.actions())
		}
	}
}

// The old boot's kubelet goes on while the machine hangs on its way down.
func TestTheOldBootsKubeletIsNoSignOfLife(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.says(v1alpha1.PhaseRebooting, life{agent: true, kubelet: true})
	s.life, s.bornAt = life{kubelet: true}, s.clock.Now()
	for end := s.clock.Now().Add(testSilentAfter + time.Minute); s.clock.Now().Before(end); s.advance(10 * time.Second) {
		if _, _, err := s.run(); err != nil {
			t.Fatal(err)
		}
	}
	if s.actions() != "ForceRestart" {
		t.Errorf("sent %q to a machine that hangs on its way down", s.actions())
	}
}

// The node's clock is hours off. The kubelet writes, and the machine hangs: it is reset on time, that is no sign of life
// after the reset, and the kubelet of the next boot is one.
func TestTheNodesClockDoesNotCount(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{-2 * time.Hour, 2 * time.Hour} {
		for _, phase := range []v1alpha1.Phase{v1alpha1.PhaseRebooting, v1alpha1.PhaseProving, v1alpha1.PhaseReporting} {
			for want, offered := range map[string][]bmc.Action{
				"ForceRestart": {bmc.ActionOn, bmc.ActionForceOff, bmc.ActionForceRestart},
				"ForceOff On":  {bmc.ActionOn, bmc.ActionForceOff},
			} {
				s := newSimulation()
				s.skew, s.offered = skew, offered
				s.says(v1alpha1.PhaseRebooting, life{agent: true, kubelet: true})
				s.runFor(t, time.Minute)
				if phase != v1alpha1.PhaseRebooting {
					s.says(phase, life{kubelet: true})
				}
				s.lives(life{kubelet: true})
				s.runFor(t, time.Minute)
				s.lives(life{})
				s.runFor(t, leaseGrace+s.patience()+time.Minute)
				if s.actions() != want || s.status.Phase != v1alpha1.OutOfBandResetting {
					t.Errorf("clock off by %s, %s: sent %q, want %q; status %+v", skew, phase, s.actions(), want, s.status)
				}
				s.lives(life{kubelet: true})
				s.runFor(t, time.Hour)
				if s.actions() != want || s.status.Phase != v1alpha1.OutOfBandRecovered {
					t.Errorf("clock off by %s, %s: in the end sent %q, want %q; status %+v", skew, phase, s.actions(), want, s.status)
				}
			}
		}
	}
}

// The network of a trial boot dies after its agent has said Proving: its own boot gate decides first, and the machine has
// the time of a reboot to fall back.
func TestABootGateDecidesBeforeTheBMC(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		health  v1alpha1.HealthSettings
		decides time.Duration
	}{
		{v1alpha1.HealthSettings{}, 10 * time.Minute}, // the API's default
		{v1alpha1.HealthSettings{NodeReady: metav1.Duration{Duration: 30 * time.Minute}}, 30 * time.Minute},
		{v1alpha1.HealthSettings{
			APIServer: metav1.Duration{Duration: time.Hour}, NodeReady: metav1.Duration{Duration: time.Second},
		}, time.Hour},
	} {
		s := newSimulation()
		s.health, s.decides = c.health, c.decides
		s.says(v1alpha1.PhaseRebooting, life{agent: true})
		s.runFor(t, 2*time.Minute)
		s.says(v1alpha1.PhaseProving, life{agent: true})
		s.lives(life{})
		s.runFor(t, c.decides+testSilentAfter-time.Second)
		if s.actions() != "" {
			t.Errorf("a gate of %s: sent %q before it has decided", c.decides, s.actions())
		}
		s.runFor(t, time.Minute)
		if s.actions() != "ForceRestart" {
			t.Errorf("a gate of %s: sent %q to a machine that is silent after it", c.decides, s.actions())
		}
	}
}

// The agent writes once a minute: however short silentAfter is, no machine is reset between two of its writes.
func TestAnAgentIsASignOfLife(t *testing.T) {
	t.Parallel()
	for _, phase := range []v1alpha1.Phase{v1alpha1.PhaseProving, v1alpha1.PhaseReporting} {
		for _, after := range []time.Duration{time.Second, 30 * time.Second, time.Minute} {
			s := newSimulation()
			s.world.SilentAfter = after
			s.says(phase, life{agent: true})
			s.runFor(t, time.Hour)
			if s.actions() != "" {
				t.Errorf("%s, silentAfter %s: sent %q to a machine whose agent writes", phase, after, s.actions())
			}
		}
	}
}

// An agent that has moved on is alive, whatever its node's clock says.
func TestAMoveOfTheAgentWithdrawsAnIntent(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.runFor(t, testSilentAfter)
	s.advance(time.Second)
	s.after = func(_ int, name string) {
		if name == "store" {
			s.world.Phase = v1alpha1.PhaseProving
		}
	}
	if _, _, err := s.run(); err != nil {
		t.Fatal(err)
	}
	if s.actions() != "" || s.status.Intent != nil || s.status.Resets != 0 {
		t.Errorf("sent %q, status %+v", s.actions(), s.status)
	}
}

// Signs of life come every minute; a write of ours for each of them would wake the agent as often.
func TestSignsOfLifeCostFewWrites(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.says(v1alpha1.PhaseRebooting, life{agent: true, kubelet: true})
	s.runFor(t, 3*time.Minute)
	s.says(v1alpha1.PhaseProving, life{agent: true, kubelet: true})
	writes := s.stored
	for range 60 {
		if _, _, err := s.run(); err != nil {
			t.Fatal(err)
		}
		s.advance(time.Minute)
	}
	if more := s.stored - writes; more > 5 {
		t.Errorf("%d writes in an hour of a machine that is alive", more)
	}
}

func TestKubeletShowsLifeThenDies(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.runFor(t, 20*time.Minute)
	s.lives(life{kubelet: true})
	s.lives(life{})
	s.runFor(t, 14*time.Minute)
	if s.actions() != "ForceRestart" || s.status.Phase != v1alpha1.OutOfBandRecovered {
		t.Errorf("sent %q, status %+v", s.actions(), s.status)
	}
	s.runFor(t, 2*time.Minute)
	if s.actions() != twoResets {
		t.Errorf("sent %q, want a second reset", s.actions())
	}
}

// A machine that said something after its reset and went silent anew has the whole time of a reset, however short
// silentAfter is.
func TestResetsAreNeverCloserThanSilentAfterReset(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.world.SilentAfter = time.Minute
	s.runFor(t, 2*time.Minute)
	s.lives(life{agent: true})
	s.advance(time.Second)
	s.lives(life{})
	s.runFor(t, testSilentAfterReset-2*time.Minute)
	if s.actions() != "ForceRestart" {
		t.Errorf("sent %q", s.actions())
	}
	s.runFor(t, 5*time.Minute)
	if s.actions() != twoResets {
		t.Errorf("sent %q", s.actions())
	}
}

// A sign of the very moment at which an intent was decided is not of before it.
func TestASignAtTheDecisionIsOfAfterIt(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.says(v1alpha1.PhaseProving, life{agent: true})
	s.lives(life{})
	s.after = func(_ int, name string) {
		if name == "store" && s.status.Intent != nil {
			panic(crash{})
		}
	}
	for killed := false; !killed; {
		after, now, err := s.run()
		if err != nil {
			t.Fatal(err)
		}
		s.advance(after)
		killed = now
	}
	s.after = nil
	s.lives(life{kubelet: true})
	s.runFor(t, 15*time.Second)
	s.lives(life{})
	s.runFor(t, s.patience())
	if len(s.sent) > 0 {
		t.Errorf("sent %q although the machine showed life within %s", s.actions(), s.patience())
	}
	s.runFor(t, 2*time.Minute)
	if s.actions() != "ForceOff On" {
		t.Errorf("sent %q, want the second reset: the first may have been sent", s.actions())
	}
}

// The agent could not say that the machine reboots, since the API server was away; the trial boot hangs.
func TestAMachineThatFallsSilentWhileItIsArmedIsReset(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.lives(life{kubelet: true})
	s.says(v1alpha1.PhaseArming, life{agent: true, kubelet: true})
	s.runFor(t, time.Hour)
	if s.actions() != "" {
		t.Fatalf("sent %q to a machine that lives", s.actions())
	}
	s.lives(life{})
	s.runFor(t, v1alpha1.ArmDeadline+testSilentAfter)
	if s.actions() != "" {
		t.Fatalf("sent %q to a machine that may be booting", s.actions())
	}
	s.runFor(t, 2*time.Minute)
	if s.actions() != "ForceRestart" {
		t.Errorf("sent %q", s.actions())
	}
}

// Somebody had set a silentAfter of hours, and corrects it while a machine hangs; and a phase that is more patient ends.
func TestAShorterPatienceReachesAtOnce(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.world.SilentAfter = 6 * time.Hour
	s.runFor(t, 20*time.Minute)
	s.world.SilentAfter = testSilentAfter
	s.runFor(t, time.Second)
	if left := s.status.Deadline.Sub(s.clock.Now()); left > testSilentAfter+time.Second {
		t.Errorf("the deadline is %s off", left)
	}
	s.runFor(t, testSilentAfter+2*time.Second)
	if s.actions() != "ForceRestart" {
		t.Errorf("sent %q", s.actions())
	}
}

// A person who was asked, and pauses the host to repair the machine, is not told that it will be reset.
func TestWhatIsInTheWayOfNoResetPromisesNone(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*simulation){
		"busy":      func(s *simulation) { s.world.Host.Busy = "it is paused" },
		"not found": func(s *simulation) { s.world.Host.NotFound = "it is gone" },
		"unreachable": func(s *simulation) {
			s.observeErr = &bmc.Error{Kind: bmc.Transient, Op: "testing", Detail: "it is unplugged"}
		},
	} {
		s := newSimulation()
		s.runFor(t, 2*time.Hour)
		if s.status.Reason != v1alpha1.OutOfBandResetsUsedUp {
			t.Fatalf("not used up: %+v", s.status)
		}
		change(s)
		s.runFor(t, pollIdle+time.Second)
		if s.status.Phase != v1alpha1.OutOfBandNeedsHuman || s.status.Reason != v1alpha1.OutOfBandResetsUsedUp {
			t.Errorf("%s: %s (%s): %s", name, s.status.Phase, s.status.Reason, s.status.Message)
		}
	}
}

func TestBMCErrors(t *testing.T) {
	t.Parallel()
	cases := map[bmc.Kind]v1alpha1.OutOfBandReason{
		bmc.Auth: v1alpha1.OutOfBandBMCCredentials, bmc.Transient: v1alpha1.OutOfBandBMCUnreachable,
		bmc.Busy: v1alpha1.OutOfBandBMCUnreachable, bmc.Untrusted: v1alpha1.OutOfBandBMCUnreachable,
		bmc.Mismatch: v1alpha1.OutOfBandHostNotFound, bmc.Ambiguous: v1alpha1.OutOfBandHostNotFound,
	}
	for kind, reason := range cases {
		for _, where := range []string{"observe", "send"} {
			s := newSimulation()
			s.runFor(t, testSilentAfter)
			failure := &bmc.Error{Kind: kind, Op: "testing", Detail: "it fails"}
			if where == "send" {
				s.sendErr = failure
			} else {
				s.observeErr = failure
			}
			s.advance(2 * time.Second)
			if _, _, err := s.run(); err != nil {
				t.Fatal(err)
			}
			if s.status.Reason != reason || s.status.Resets != 0 || len(s.sent) != 0 || s.status.Intent != nil {
				t.Errorf("%s at %s: got %+v, want reason %s and no reset counted", kind, where, s.status, reason)
			}
			s.runFor(t, 5*time.Minute)
			if s.actions() != "ForceRestart" || s.status.Resets != 1 {
				t.Errorf("%s at %s: then sent %q, %d resets", kind, where, s.actions(), s.status.Resets)
			}
		}
	}
}

func TestAnswerLost(t *testing.T) {
	t.Parallel()
	s := newSimulation()
	s.sendErr = &bmc.Error{Kind: bmc.Unknown, Op: "testing", Detail: "the answer was lost"}
	s.runFor(t, 24*time.Minute)
	if s.actions() != "ForceRestart" || s.status.Resets != 1 || s.status.Intent.SentAt != nil {
		t.Errorf("sent %q, status %+v", s.actions(), s.status)
	}
	s.runFor(t, 5*time.Minute)
	if s.actions() != twoResets {
		t.Errorf("sent %q, want a second reset after the wait", s.actions())
	}
}

func TestMessagesFit(t *testing.T) {
	t.Parallel()
	w := newSimulation().world
	w.Status = &v1alpha1.OutOfBandStatus{}
	got := w.status(v1alpha1.OutOfBandSilent, v1alpha1.OutOfBandHostBusy, strings.Repeat("ü", 5000), time.Time{}).Message
	if len(got) > 2048 || strings.Contains(got, "\uFFFD") {
		t.Errorf("the message has %d bytes", len(got))
	}
}
