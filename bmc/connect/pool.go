package connect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/stayput-dev/stayput/bmc"
)

// DefaultIdleAfter is how long an unused machine stays open.
const DefaultIdleAfter = 2 * time.Minute

// closeTime bounds closing a machine, and how long Close waits for a use whose context it has cancelled.
const closeTime = 15 * time.Second

var errLate = errors.New("closing BMC connections: an operation did not end when its context did; look for one that hangs")

// PoolOptions are what a Pool needs; the zero value is ready for use.
type PoolOptions struct {
	// Open connects to a machine. Default Open of this package.
	Open func(ctx context.Context, options bmc.Options) (bmc.Machine, error)
	// IdleAfter is how long an unused machine stays open, up to a quarter longer. Default DefaultIdleAfter.
	IdleAfter time.Duration
	// Clock is the time. Default the real one.
	Clock clock.WithTicker
	// Random gives numbers in [0,1) for the jitter. Default math/rand's. It is called by one goroutine at a time.
	Random func() float64
}

// Pool keeps open machines, see the package's documentation. All methods are safe for concurrent use.
type Pool struct {
	options PoolOptions
	locks   bmc.Locks
	// closing ends when Close begins, and stopping when Close does not wait any longer.
	closing, stopping context.Context //nolint:containedctx // they are the pool's life, not a call's
	close, stop       context.CancelFunc
	// running counts the Do's and the sweeper.
	running sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	entries map[string]*entry
}

// entry is what is known of one BMC. The machine and its options belong to the holder of the BMC's lock, who changes
// them under the pool's mutex; all else belongs to the mutex.
type entry struct {
	users    int
	machine  bmc.Machine
	options  bmc.Options
	lastUsed time.Time
	sweeping bool
	pause    penalty
	refused  map[bmc.Credentials]penalty
	// accepted are the credentials that the BMC accepted last.
	accepted bmc.Credentials
}

// NewPool starts a pool with one goroutine, which ends with Close.
func NewPool(options PoolOptions) *Pool {
	if options.Open == nil {
		options.Open = Open
	}
	if options.IdleAfter <= 0 {
		options.IdleAfter = DefaultIdleAfter
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Random == nil {
		options.Random = rand.Float64
	}
	p := &Pool{options: options, entries: map[string]*entry{}}
	p.closing, p.close = context.WithCancel(context.Background())
	p.stopping, p.stop = context.WithCancel(context.Background())
	ticker := options.Clock.NewTicker(max(options.IdleAfter/4, 1))
	p.running.Go(func() { p.sweep(ticker) })

	return p
}

// Do waits for the BMC, opens the machine unless it is open, and calls use once, or not at all. The machine is use's
// until it returns, and use must not close it, nor call Do for the same BMC, which would wait for itself. The error is
// use's, as it is, or a *bmc.Error: RetryAfter tells how long the BMC is left alone. It blocks until use returns; ctx
// ends waiting and opening at once.
func (p *Pool) Do(ctx context.Context, options bmc.Options, use func(ctx context.Context, m bmc.Machine) error) error {
	options = options.WithDefaults()
	if err := options.Check(); err != nil {
		return err
	}
	hostPort := options.Address.HostPort()
	e, err := p.enter(hostPort)
	if err != nil {
		return err
	}
	defer p.running.Done()
	defer p.leave(e)
	// Before the lock, so that nobody queues for a BMC that is left alone; and again once it is ours.
	if err := p.allowed(e, options); err != nil {
		return err
	}
	release, err := p.acquire(ctx, hostPort)
	if err != nil {
		return err
	}
	defer release()
	if err := p.allowed(e, options); err != nil {
		return err
	}

	return p.operate(ctx, e, options, use)
}

func closedError(hostPort string) error {
	return &bmc.Error{
		Kind: bmc.Transient, Op: "opening", BMC: hostPort, Detail: "the pool of connections is closed; the program is ending",
	}
}

func (p *Pool) enter(hostPort string) (*entry, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, closedError(hostPort)
	}
	p.running.Add(1)
	e, ok := p.entries[hostPort]
	if !ok {
		e = &entry{refused: map[bmc.Credentials]penalty{}}
		p.entries[hostPort] = e
	}
	e.users++

	return e, nil
}

func (p *Pool) leave(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.users--
}

// acquire waits for the BMC until ctx ends or the pool closes.
func (p *Pool) acquire(ctx context.Context, hostPort string) (release func(), err error) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.closing, cancel)() //nolint:contextcheck // the pool's end ends it, besides ctx
	release, err = p.locks.Acquire(waiting, hostPort)
	switch {
	case err == nil && ctx.Err() == nil && p.closing.Err() == nil:
		return release, nil
	case err == nil:
		release()
	}
	if p.closing.Err() != nil {
		return nil, closedError(hostPort)
	}

	return nil, &bmc.Error{
		Kind: bmc.Transient, Op: "waiting for another caller", BMC: hostPort, Err: ctx.Err(),
		Detail: fmt.Sprintf("nothing was sent: %v", ctx.Err()),
	}
}

// allowed is nil when the BMC may be asked with these credentials now.
func (p *Pool) allowed(e *entry, options bmc.Options) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, hostPort := p.options.Clock.Now(), options.Address.HostPort()
	refused := e.refused[options.Credentials]
	if err := refused.active(hostPort, now); err != nil {
		return err
	}

	return e.pause.active(hostPort, now)
}

// operate does one operation. The caller holds the BMC's lock.
func (p *Pool) operate(
	ctx context.Context, e *entry, options bmc.Options, use func(ctx context.Context, m bmc.Machine) error,
) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.stopping, cancel)() //nolint:contextcheck // the pool's end ends it, besides ctx
	// A panic of use leaves the machine in an unknown state.
	opened, finished := false, false
	defer func() {
		p.mu.Lock()
		e.lastUsed = p.options.Clock.Now()
		if finished {
			e.note(ctx, options, opened, err, e.lastUsed, p.options.Random)
		}
		drop := !finished || p.closed || ruins(err, options.Address.HostPort())
		p.mu.Unlock()
		if drop {
			// What use found matters more than a session that could not be closed: it may be what ruined the machine.
			_ = p.drop(ctx, e)
		}
	}()
	err = p.ready(ctx, e, options)
	if err == nil {
		opened = true
		err = use(ctx, e.machine)
	}
	finished = true

	return err
}

// ready opens the machine unless it is open with the same options.
func (p *Pool) ready(ctx context.Context, e *entry, options bmc.Options) error {
	if e.machine != nil && same(e.options, options) {
		return nil
	}
	// A session that cannot be closed is left to the BMC's idle timeout: the new options must not wait for that.
	_ = p.drop(ctx, e)
	p.mu.Lock()
	asked := options
	asked.Accepted = options.Accepted || e.accepted == options.Credentials
	p.mu.Unlock()
	opened, err := p.options.Open(ctx, asked)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e.machine, e.options = opened, options
	e.options.CA = bytes.Clone(options.CA)

	return nil
}

// same compares all that a machine was opened with.
func same(a, b bmc.Options) bool {
	if !bytes.Equal(a.CA, b.CA) {
		return false
	}
	a.CA, b.CA = nil, nil

	return reflect.DeepEqual(a, b)
}

// drop closes the machine, if there is one, even when ctx has ended. The caller holds the BMC's lock.
func (p *Pool) drop(ctx context.Context, e *entry) error {
	p.mu.Lock()
	machine := e.machine
	e.machine, e.options = nil, bmc.Options{}
	p.mu.Unlock()
	if machine == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()

	return machine.Close(ctx)
}

// Close refuses further and waiting Do's, waits for the running ones, and closes all machines. When ctx ends, it cancels
// the contexts of the running ones, and waits 15 s more; what is still running then closes its machine when it returns,
// and is an error. Machines are closed even when ctx has ended. It is safe to call twice.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.close()
	defer p.stop()
	done := make(chan struct{})
	go func() {
		p.running.Wait()
		close(done)
	}()
	var late error
	select {
	case <-done:
	case <-ctx.Done():
		p.stop()
		select {
		case <-done:
		case <-p.options.Clock.After(closeTime):
			late = errLate
		}
	}

	return errors.Join(late, p.closeIdle(ctx))
}

// closeIdle closes all machines that no Do uses. The pool is closed.
func (p *Pool) closeIdle(ctx context.Context) error {
	var (
		wait   sync.WaitGroup
		mu     sync.Mutex
		failed []error
	)
	p.mu.Lock()
	for _, e := range p.entries {
		if e.users > 0 {
			continue
		}
		wait.Go(func() {
			err := p.drop(ctx, e)
			mu.Lock()
			defer mu.Unlock()
			failed = append(failed, err)
		})
	}
	p.mu.Unlock()
	wait.Wait()

	return errors.Join(failed...)
}
