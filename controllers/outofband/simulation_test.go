package outofband

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
	action bmc.Action
	at     time.Time
	power  bmc.Power
	stored bool
	// seenAfterIntent tells whether the newest observation was newer than the intent.
	seenAfterIntent bool
	forbidden       string
}

// simulation is a machine, its BMC and the API server, with the controller running against them.
type simulation struct {
	clock *clocktesting.FakePassiveClock

	// The API server.
	status *v1alpha1.OutOfBandStatus
	stored int

	world World
	// life is what shows life in the machine since bornAt; diedAt is when the last life ended, and lost what it was.
	life           life
	bornAt, diedAt time.Time
	lost           life
	// knownAlive tells what the last look at the API server gave: what comes between it and the action cannot be known.
	knownAlive bool

	offered  []bmc.Action
	power    bmc.Power
	pending  bmc.Power
	pendAt   time.Time
	lastRead time.Time
	firstSaw time.Time

	sent    []sent
	effects int
	// before and after are called around every effect, with its number in this pass and its name.
	before, after func(number int, name string)
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
}

// lives makes the machine show life from now on; none is death.
func (s *simulation) lives(now life) {
	s.world.LastSign, s.world.Lease = s.signs()
	if s.life == now {
		return
	}
	if !s.life.none() {
		s.diedAt, s.lost = s.clock.Now(), s.life
	}
	s.life, s.bornAt = now, s.clock.Now()
}

// says makes the agent write a phase, which is a sign of life. A machine that is told to reboot shows none after it.
func (s *simulation) says(phase v1alpha1.Phase, alive life) {
	s.lives(alive)
	s.world.Phase, s.world.LastSign = phase, s.clock.Now()
	if phase == v1alpha1.PhaseRebooting {
		s.lives(life{})
		s.lost = life{}
	}
}

// signs are what the API server knows now.
func (s *simulation) signs() (time.Time, Lease) {
	now, newest, lease := s.clock.Now(), s.world.LastSign, Lease{}
	beat := func(shows bool, every time.Duration) {
		if at := s.bornAt.Add(now.Sub(s.bornAt).Truncate(every)); shows && at.After(newest) {
			newest = at
		}
	}
	switch {
	case back(s.world.Phase):
		beat(s.life.agent, agentBeats)
	case s.life.agent && s.bornAt.After(newest):
		newest = s.bornAt
	}
	beat(s.life.kubelet, kubeletBeats)
	switch {
	case !back(s.world.Phase):
	case s.life.kubelet, s.lost.kubelet && now.Before(s.diedAt.Add(leaseGrace)):
		lease.Live = true
	case s.lost.kubelet:
		lease.LostAt = s.diedAt.Add(leaseGrace)
	}

	return newest, lease
}

// showsLife tells whether the machine is known to be alive now, or was a moment ago.
func (s *simulation) showsLife() bool {
	sign, lease := s.signs()
	if s.life.kubelet || (s.life.agent && back(s.world.Phase)) {
		return true
	}
	if len(s.sent) > 0 && !sign.After(s.sent[len(s.sent)-1].at) {
		return false // it was reset since, and after that the resets have their own pauses
	}
	if lease.LostAt.After(sign) {
		sign = lease.LostAt
	}

	return lease.Live || (!sign.IsZero() && s.clock.Now().Before(sign.Add(s.world.SilentAfter)))
}

// forbidden says why nothing may be sent now.
func (s *simulation) forbidden() string {
	switch {
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

// process is one controller process: it remembers the version that it read.
type process struct {
	*simulation

	version int
}

func (p *process) around(name string, effect func()) {
	p.effects++
	number := p.effects
	if p.before != nil {
		p.before(number, name)
	}
	effect()
	if p.after != nil {
		p.after(number, name)
	}
}

func (p *process) load(context.Context) (World, error) {
	var w World
	p.around("load", func() {
		w = p.world
		w.LastSign, w.Lease = p.signs()
		p.knownAlive = p.showsLife()
		if p.status != nil && p.status.Attempt == w.Attempt {
			w.Status = p.status.DeepCopy()
		}
		p.version = p.stored
	})

	return w, nil
}

func (p *process) store(_ context.Context, status *v1alpha1.OutOfBandStatus) error {
	var err error
	p.around("store", func() {
		if p.version != p.stored {
			err = errConflict

			return
		}
		if p.status == nil {
			p.firstSaw = p.clock.Now()
		}
		p.status = status.DeepCopy()
		p.stored++
		p.version = p.stored
	})

	return err
}

func (p *process) restore(_ context.Context, intent string, status *v1alpha1.OutOfBandStatus) error {
	var err error
	p.around("restore", func() {
		if stored := p.status; stored == nil || stored.Intent == nil || stored.Intent.ID != intent {
			err = errOvertaken

			return
		}
		p.status = status.DeepCopy()
		p.stored++
		p.version = p.stored
	})

	return err
}

func (p *process) observe(context.Context) (bmc.Observation, error) {
	var (
		seen bmc.Observation
		err  error
	)
	p.around("observe", func() {
		p.settle()
		err, p.observeErr = p.observeErr, nil
		// A read takes time.
		p.advance(50 * time.Millisecond)
		p.lastRead = p.clock.Now()
		seen = bmc.Observation{Power: p.power, At: p.clock.Now(), Offered: slices.Clone(p.offered)}
	})
	if err != nil {
		return bmc.Observation{}, err
	}

	return seen, nil
}

func (p *process) send(_ context.Context, action bmc.Action) error {
	var err error
	p.around("send", func() {
		p.settle()
		err, p.sendErr = p.sendErr, nil
		if err != nil && bmc.KindOf(err) != bmc.Unknown {
			return
		}
		record := sent{action: action, at: p.clock.Now(), power: p.power, forbidden: p.forbidden()}
		if stored := p.status; stored != nil && stored.Intent != nil {
			record.stored = stored.Intent.Action == string(action)
			record.intent = stored.Intent.ID
			record.seenAfterIntent = p.lastRead.After(stored.Intent.DecidedAt.Time)
		}
		p.sent = append(p.sent, record)
		p.lives(life{})
		p.pending, p.pendAt = bmc.PowerOn, p.clock.Now().Add(3*time.Second)
		if action == bmc.ActionForceOff {
			p.pending = bmc.PowerOff
		}
	})

	return err
}

// check gives what is wrong with what was sent.
func (s *simulation) check() string {
	intents := map[string]int{}
	resets := map[string]time.Time{}
	var lastReset time.Time
	for _, each := range s.sent {
		intents[each.intent]++
		reset := each.intent[:len(each.intent)-len(each.action)-1]
		switch {
		case intents[each.intent] > 1:
			return fmt.Sprintf("intent %s was acted on twice", each.intent)
		case !each.stored:
			return fmt.Sprintf("%s was sent without a stored intent", each.action)
		case !each.seenAfterIntent:
			return fmt.Sprintf("intent %s was acted on without a newer observation", each.intent)
		case each.forbidden != "":
			return fmt.Sprintf("%s was sent although %s", each.action, each.forbidden)
		case (each.action == bmc.ActionOn) != (each.power == bmc.PowerOff):
			return fmt.Sprintf("%s was sent to a machine whose power was %s", each.action, each.power)
		}
		if _, ok := resets[reset]; !ok {
			if gap := each.at.Sub(lastReset); !lastReset.IsZero() && gap < testSilentAfterReset-intentLife {
				return fmt.Sprintf("reset %s began %s after the one before", reset, gap)
			}
			resets[reset], lastReset = each.at, each.at
		}
	}
	if len(resets) > int(s.world.Settings.MaxResets) {
		return fmt.Sprintf("%d resets, of %d that are allowed", len(resets), s.world.Settings.MaxResets)
	}

	return ""
}
