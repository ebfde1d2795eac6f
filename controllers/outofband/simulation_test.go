package outofband

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

const (
	testSilentAfter      = 15 * time.Minute
	testSilentAfterReset = 10 * time.Minute
)

func testStart() time.Time { return time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC) }

// crash is what a killed process leaves by.
type crash struct{}

var errConflict = errors.New("conflict")

// life is what shows life in a machine.
type life struct{ agent, kubelet bool }

func (l life) none() bool { return l == life{} }

const (
	// leaseGrace is how long a dead machine's Node stays Ready (kube-controller-manager's default).
	leaseGrace = 50 * time.Second
	// agentBeats and kubeletBeats are how often they write when nothing changes.
	agentBeats   = time.Minute
	kubeletBeats = 5 * time.Minute
)

// sent is an action that reached the BMC.
type sent struct {
	intent string
	reset  int32
	action bmc.Action
	at     time.Time
	power  bmc.Power
	stored bool
	// seenAfterIntent tells whether the newest observation was newer than the intent.
	seenAfterIntent bool
	forbidden       string
	// alone tells whether the process had the host's Lease.
	alone bool
	// fromDisk tells that the intent wanted the boot override, and bootSet that it was set for it.
	fromDisk, bootSet bool
}

// simulation is a machine, its BMC and the API server, with the controller running against them.
type simulation struct {
	clock *clocktesting.FakePassiveClock

	// The API server.
	status *v1alpha1.OutOfBandStatus
	stored int

	// world holds what tests set; the rest of it is read from a NodeUpdate and a Node, as the controller does.
	world  World
	health v1alpha1.HealthSettings
	// decides is how long after its start the boot gate decides at the latest.
	decides time.Duration
	// skew is how far the node's clock is ahead. The API server's is right.
	skew time.Duration
	// boot is the machine's boot, agentBoot and nodeBoot those of the newest writes of the agent and of the kubelet.
	boot, agentBoot, nodeBoot int
	// agentWrote and kubeletWrote are when those writes were, before the life that is now.
	agentWrote, kubeletWrote time.Time
	// life is what shows life in the machine since bornAt; diedAt is when the last life ended, and lost what it was.
	life           life
	bornAt, diedAt time.Time
	lost           life
	// knownAlive tells what the last look at the API server gave: what comes between it and the action cannot be known.
	knownAlive bool

	// key is our reboot annotation of the host, which baremetal-operator heeds after bmoDelay; keyWrites is how often it
	// was set or taken off by us. wishedAt is since when the power is to be another.
	key       bool
	keyWrites int
	bmoDelay  time.Duration
	wishedAt  time.Time

	offered []bmc.Action
	power   bmc.Power
	// tells is what the BMC tells of the power, whatever it is; empty: the truth.
	tells    bmc.Power
	pending  bmc.Power
	pendAt   time.Time
	lastRead time.Time
	firstSaw time.Time

	sent    []sent
	effects int
	// before and after are called around every effect, with its number in this pass and its name.
	before, after func(number int, name string)
	// leased tells that somebody has the host's Lease. A process that is killed leaves it for leaseLife.
	leased bool
	leftAt time.Time
	// stop forbids every new reset.
	stop Problem
	// osAnswers is what the machine's operating system does.
	osAnswers bool
	// bootSet tells that the boot override was set since the last action, and bootSets how often it was.
	bootSet  bool
	bootSets int
	// settles is how long the power takes to follow an action.
	settles time.Duration
	// ignores is how many times On is accepted and not carried out.
	ignores   int
	collected int
	// refuses is what the BMC says to these actions, always; applies tells that it carries them out all the same, and offers
	// counts them.
	refuses map[bmc.Action]error
	applies bool
	offers  int
	// observeErr and sendErr are given once.
	observeErr, sendErr error
}

func newSimulation() *simulation {
	return &simulation{
		clock: clocktesting.NewFakePassiveClock(testStart()),
		world: World{
			Attempt: "a1", Phase: v1alpha1.PhaseRebooting, SilentAfter: testSilentAfter,
			Settings: Settings{MaxResets: 3, SilentAfterReset: testSilentAfterReset},
		},
		offered: []bmc.Action{bmc.ActionOn, bmc.ActionForceOff, bmc.ActionForceRestart},
		power:   bmc.PowerOn,
		boot:    1,
		decides: 10 * time.Minute,
		settles: 3 * time.Second,
	}
}

// run makes one pass of a process. It gives what the pass gave, and whether the process was killed in it.
func (s *simulation) run() (after time.Duration, killed bool, err error) {
	s.effects = 0
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(crash); !ok {
				panic(r)
			}
			killed = true
		}
	}()
	after, err = pass(context.Background(), &process{simulation: s}, s.clock)

	return after, false, err
}

func (s *simulation) advance(d time.Duration) { s.clock.SetTime(s.clock.Now().Add(d)) }

func (s *simulation) settle() {
	if s.pending != "" && !s.clock.Now().Before(s.pendAt) {
		s.power, s.pending = s.pending, ""
	}
	wish := bmc.PowerOn
	if s.key {
		wish = bmc.PowerOff
	}
	switch now := s.clock.Now(); {
	case !s.world.Host.ViaMetal3 || s.power == wish:
		s.wishedAt = time.Time{}
	case s.wishedAt.IsZero():
		s.wishedAt = now
	case now.Sub(s.wishedAt) >= s.bmoDelay:
		s.power, s.wishedAt = wish, time.Time{}
	}
}

// throughMetal3 lets Metal3 switch the power.
func (s *simulation) throughMetal3(delay time.Duration) {
	s.world.Host.ViaMetal3, s.bmoDelay = true, delay
	s.offered = []bmc.Action{bmc.ActionOn, bmc.ActionForceOff, bmc.ActionShutdown}
}

// setKey writes our key.
func (s *simulation) setKey(on bool) {
	if s.key != on {
		s.key, s.wishedAt = on, time.Time{}
		s.keyWrites++
	}
}

// sweep is one look of the releaser.
func (s *simulation) sweep() {
	update, node := s.objects()
	w := newWorld(update, node, s.clock.Now())
	w.Host = s.world.Host
	if s.key && !w.holds(s.clock.Now()) {
		s.setKey(false)
	}
	s.settle()
}

// seenPower is the power as the way to it shows it.
func (s *simulation) seenPower() bmc.Power {
	if s.tells != "" {
		return s.tells
	}
	if !s.world.Host.ViaMetal3 {
		return s.power
	}
	host := &metal3.BareMetalHost{Status: metal3.BareMetalHostStatus{PoweredOn: s.power == bmc.PowerOn}}
	if s.key {
		host.Annotations = map[string]string{ownRebootAnnotation: hardReboot}
	}

	return metal3Power(host)
}

// lives makes the machine show life from now on; none is death.
func (s *simulation) lives(now life) {
	if !now.none() {
		s.bootUp()
	}
	s.agentWrote, s.kubeletWrote = s.writes()
	if s.life == now {
		return
	}
	if !s.life.none() {
		s.diedAt, s.lost = s.clock.Now(), s.life
	}
	s.life, s.bornAt = now, s.clock.Now()
	if now.kubelet {
		s.nodeBoot = s.boot
	}
}

// bootUp lets the second of the last action end: no machine is back in it, and what came before tells nothing.
func (s *simulation) bootUp() {
	if len(s.sent) == 0 {
		return
	}
	if next := s.sent[len(s.sent)-1].at.Truncate(time.Second).Add(time.Second); s.clock.Now().Before(next) {
		s.clock.SetTime(next)
	}
}

// says makes the agent write a phase, which is a sign of life. A machine that is told to reboot shows none after it.
func (s *simulation) says(phase v1alpha1.Phase, alive life) {
	s.bootUp()
	s.lives(alive)
	s.world.Phase, s.agentWrote, s.agentBoot = phase, s.clock.Now(), s.boot
	if phase == v1alpha1.PhaseRebooting {
		s.lives(life{})
		s.boot++
	}
}

// writes are when the agent and the kubelet wrote last, by the API server's clock. The agent writes its heartbeat only
// after it has said that it is back.
func (s *simulation) writes() (agent, kubelet time.Time) {
	now := s.clock.Now()
	beat := func(newest time.Time, shows bool, every time.Duration) time.Time {
		if at := s.bornAt.Add(now.Sub(s.bornAt).Truncate(every)); shows && at.After(newest) {
			return at
		}

		return newest
	}
	every := agentBeats
	if !back(s.world.Phase) {
		every = 1e6 * time.Hour
	}

	agent, kubelet = beat(s.agentWrote, s.life.agent, every), beat(s.kubeletWrote, s.life.kubelet, kubeletBeats)

	// The API has whole seconds.
	return agent.Truncate(time.Second), kubelet.Truncate(time.Second)
}

// ready is the Node's condition, and when it became Unknown.
func (s *simulation) ready() (corev1.ConditionStatus, time.Time) {
	switch {
	case s.life.kubelet, s.lost.kubelet && s.clock.Now().Before(s.diedAt.Add(leaseGrace)):
		return corev1.ConditionTrue, time.Time{}
	case s.lost.kubelet:
		return corev1.ConditionUnknown, s.diedAt.Add(leaseGrace).Truncate(time.Second)
	default:
		return corev1.ConditionUnknown, time.Time{}
	}
}

// objects are what the API server holds.
func (s *simulation) objects() (*v1alpha1.NodeUpdate, *corev1.Node) {
	agent, kubelet := s.writes()
	status, lostAt := s.ready()
	bootID := func(boot int) string { return fmt.Sprintf("boot-%d", boot) }
	written := func(manager string, at time.Time) []metav1.ManagedFieldsEntry {
		if at.IsZero() {
			return nil
		}

		return []metav1.ManagedFieldsEntry{{Manager: manager, Subresource: "status", Time: new(metav1.NewTime(at))}}
	}
	settings := s.world.Settings
	update := &v1alpha1.NodeUpdate{
		ObjectMeta: metav1.ObjectMeta{ManagedFields: written(v1alpha1.FieldManagerAgent, agent)},
		Spec: v1alpha1.NodeUpdateSpec{
			Reboot: v1alpha1.RebootSettings{SilentAfter: metav1.Duration{Duration: s.world.SilentAfter}},
			Health: s.health,
			OutOfBand: v1alpha1.OutOfBandSettings{
				Disabled: settings.Disabled, MaxResets: new(settings.MaxResets),
				SilentAfterReset: metav1.Duration{Duration: settings.SilentAfterReset},
			},
		},
		Status: v1alpha1.NodeUpdateStatus{
			Attempt: s.world.Attempt, Phase: s.world.Phase, BootID: bootID(s.agentBoot), OutOfBand: s.status.DeepCopy(),
		},
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{ManagedFields: written(managerKubelet, kubelet)},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{BootID: bootID(s.nodeBoot)},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: status,
				LastTransitionTime: metav1.NewTime(lostAt), LastHeartbeatTime: metav1.NewTime(kubelet.Add(s.skew)),
			}},
		},
	}

	return update, node
}

// patience is how long the machine may be silent.
func (s *simulation) patience() time.Duration {
	switch after := s.world.SilentAfter; s.world.Phase {
	case v1alpha1.PhaseArming:
		return after + v1alpha1.ArmDeadline
	case v1alpha1.PhaseProving:
		return max(after, 3*agentBeats) + s.decides
	case v1alpha1.PhaseReporting:
		return max(after, 3*agentBeats)
	default:
		return after
	}
}

// showsLife tells whether the machine is known to be alive now, or was a moment ago.
func (s *simulation) showsLife() bool {
	if s.life.kubelet || (s.life.agent && back(s.world.Phase)) {
		return true
	}
	sign, kubelet := s.writes()
	status, lostAt := s.ready()
	if s.world.Phase != v1alpha1.PhaseRebooting || s.nodeBoot != s.agentBoot {
		if kubelet.After(sign) {
			sign = kubelet
		}
	} else {
		status, lostAt = corev1.ConditionUnknown, time.Time{}
	}
	if len(s.sent) > 0 && !sign.After(s.sent[len(s.sent)-1].at) {
		return false // it was reset since, and after that the resets have their own pauses
	}
	if lostAt.After(sign) {
		sign = lostAt
	}

	return status == corev1.ConditionTrue || (!sign.IsZero() && s.clock.Now().Before(sign.Add(s.patience())))
}

// leftOff tells whether the machine is off since we have switched it off: nothing but a person, the host or the settings
// may keep us from switching it on.
func (s *simulation) leftOff() bool {
	if s.seenPower() != bmc.PowerOff || s.world.Host.ViaMetal3 {
		return false
	}
	for _, each := range slices.Backward(s.sent) {
		if each.action != bmc.ActionOn {
			return !boots(each.action)
		}
	}

	return false
}

// forbidden says why nothing may be sent now.
func (s *simulation) forbidden(action bmc.Action) string {
	switch {
	case action == bmc.ActionOn && s.leftOff() && s.world.Host.Busy == "" && !s.world.Settings.Disabled:
		return ""
	case !watched(s.world.Phase):
		return "the agent has moved on"
	case s.knownAlive:
		return "the machine is alive, or not silent long enough"
	case s.world.Host.Busy != "":
		return "the host is busy"
	case s.world.Settings.Disabled:
		return "power actions are disabled"
	case s.clock.Now().Before(s.firstSaw.Add(s.world.SilentAfter)):
		return "the machine is not silent long enough"
	default:
		return ""
	}
}

// check gives what is wrong with what was sent.
func (s *simulation) check() string {
	intents := map[string]int{}
	resets := map[int32]time.Time{}
	var lastReset time.Time
	for _, each := range s.sent {
		intents[each.intent]++
		switch {
		case intents[each.intent] > 1:
			return fmt.Sprintf("intent %s was acted on twice", each.intent)
		case !each.stored:
			return fmt.Sprintf("%s was sent without a stored intent", each.action)
		case !each.seenAfterIntent:
			return fmt.Sprintf("intent %s was acted on without a newer observation", each.intent)
		case each.forbidden != "":
			return fmt.Sprintf("%s was sent although %s", each.action, each.forbidden)
		case !each.alone:
			return fmt.Sprintf("%s was sent without the host's Lease", each.action)
		case each.fromDisk && !each.bootSet:
			return fmt.Sprintf("%s was sent without the boot override that its intent wants", each.action)
		case (each.action == bmc.ActionOn) != (each.power == bmc.PowerOff):
			return fmt.Sprintf("%s was sent to a machine whose power was %s", each.action, each.power)
		}
		if _, ok := resets[each.reset]; !ok {
			if gap := each.at.Sub(lastReset); !lastReset.IsZero() && gap < testSilentAfterReset-intentLife {
				return fmt.Sprintf("reset %d began %s after the one before", each.reset, gap)
			}
			resets[each.reset], lastReset = each.at, each.at
		}
	}
	if len(resets) > int(s.world.Settings.MaxResets) {
		return fmt.Sprintf("%d resets, of %d that are allowed", len(resets), s.world.Settings.MaxResets)
	}

	return ""
}
