package outofband

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
)

// process is one controller process: it remembers the version that it read.
type process struct {
	*simulation

	version int
	// holds tells that it has the host's Lease.
	holds bool
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
		update, node := p.objects()
		w = newWorld(update, node, p.clock.Now())
		w.Host = p.world.Host
		p.knownAlive = p.showsLife()
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

func (p *process) observe(_ context.Context, fromDisk bool) (seen bmc.Observation, boot string, err error) {
	p.around("observe", func() {
		p.settle()
		if fromDisk {
			p.bootSets++
			p.bootSet, boot = true, "asked"
		}
		err, p.observeErr = p.observeErr, nil
		// A read takes time.
		p.advance(50 * time.Millisecond)
		p.lastRead = p.clock.Now()
		seen = bmc.Observation{Power: p.seenPower(), At: p.clock.Now(), Offered: slices.Clone(p.offered)}
	})
	if err != nil {
		return bmc.Observation{}, boot, err
	}

	return seen, boot, nil
}

func (p *process) answers(context.Context) bool {
	p.around("answers", func() {})

	return p.osAnswers
}

func (p *process) permit(context.Context, World) (Problem, error) {
	p.around("permit", func() {})

	return p.stop, nil
}

// leaseLife is how long the Lease of a process that was killed is respected.
const leaseLife = time.Minute

// alone takes the Lease as another process would see it: one that was left ends by itself.
func (p *process) alone(ctx context.Context, act func(ctx context.Context) error) (Problem, error) {
	p.around("alone", func() {})
	if p.leased && (p.leftAt.IsZero() || p.clock.Now().Before(p.leftAt.Add(leaseLife))) {
		return Problem{Reason: v1alpha1.OutOfBandPowerInUse, Text: "another has its power"}, nil
	}
	p.leased, p.leftAt, p.holds = true, time.Time{}, true
	finished := false
	defer func() {
		p.holds = false
		if p.leased = !finished; !finished {
			p.leftAt = p.clock.Now()
		}
	}()
	err := act(ctx)
	finished = true

	return Problem{}, err
}

func (p *process) evidence(context.Context) *v1alpha1.PowerEvidence {
	p.around("evidence", func() { p.collected++ })

	return &v1alpha1.PowerEvidence{CollectedAt: metav1.NewMicroTime(p.clock.Now())}
}

func (p *process) send(_ context.Context, action bmc.Action, _ bool) error {
	var err error
	p.around("send", func() {
		p.settle()
		err, p.sendErr = p.sendErr, nil
		if err != nil && bmc.KindOf(err) != bmc.Unknown {
			return
		}
		if refusal := p.refuses[action]; refusal != nil {
			p.offers++
			if err = refusal; !p.applies {
				return
			}
		}
		record := sent{action: action, at: p.clock.Now(), power: p.seenPower(), forbidden: p.forbidden(action), alone: p.holds}
		if stored := p.status; stored != nil && stored.Intent != nil {
			record.stored = stored.Intent.Action == string(action)
			record.intent, record.reset = stored.Intent.ID, stored.Resets
			record.fromDisk = stored.Intent.BootFrom != ""
			record.seenAfterIntent = p.lastRead.After(stored.Intent.DecidedAt.Time)
		}
		record.bootSet, p.bootSet = p.bootSet, false
		p.sent = append(p.sent, record)
		p.lives(life{})
		p.boot++
		if p.world.Host.ViaMetal3 {
			p.setKey(action != bmc.ActionOn)

			return
		}
		if p.ignores > 0 && action == bmc.ActionOn {
			p.ignores--

			return
		}
		p.pending, p.pendAt = bmc.PowerOn, p.clock.Now().Add(p.settles)
		if action == bmc.ActionForceOff || action == bmc.ActionShutdown {
			p.pending = bmc.PowerOff
		}
	})

	return err
}
