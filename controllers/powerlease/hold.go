package powerlease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

var errNoLease = errors.New("acting on a host's power: no power lease is held here")

// hold is a lease that is held for one use.
type hold struct {
	leases   *Leases
	host     types.NamespacedName
	identity string

	mu     sync.Mutex
	cancel context.CancelCauseFunc
	lost   *LostError // nil while it is held
	lease  *coordinationv1.Lease
	proven time.Time // when the last write was sent that the API server took
	tried  time.Time // when the last renewal was sent
	failed error     // why the last renewal failed, nil when it did not
}

type holdKey struct{}

func newHold(l *Leases, host types.NamespacedName, identity string, lease *coordinationv1.Lease, sent time.Time) *hold {
	return &hold{leases: l, host: host, identity: identity, lease: lease, proven: sent, tried: sent}
}

// Check tells whether a use may still act, by the clock of this moment: after a process or its machine slept, the use may
// run before its context has ended. ctx is the use's context, or one made of it. Call it right before each act.
func Check(ctx context.Context) error {
	h, ok := ctx.Value(holdKey{}).(*hold)
	if !ok {
		return errNoLease
	}
	if err := h.check(); err != nil {
		return err
	}

	return context.Cause(ctx)
}

// run runs use, keeps the lease meanwhile, and gives it back.
func (h *hold) run(parent context.Context, use func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	h.cancel = cancel
	stop := h.keep(parent)
	// Deferred, so that a use that panics leaves no lease either.
	defer func() {
		stop()
		h.leases.giveBack(parent, h.host, h.identity, h.lease)
	}()
	// The answer to taking it may have come late.
	if err := h.check(); err != nil {
		return err
	}
	err := use(context.WithValue(ctx, holdKey{}, h))
	if lost := h.isLost(); lost != nil && err != nil {
		return &LostError{Host: lost.Host, Why: lost.Why, Err: err}
	}

	return err
}

// keep renews the lease and watches the clock until stop is called, which waits for both. It does not end with the use's
// context: others stay out until the use has returned.
func (h *hold) keep(parent context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	var both sync.WaitGroup
	for _, tick := range []func(ctx context.Context) bool{
		func(context.Context) bool { return h.check() == nil },
		h.renewInTime,
	} {
		// Made here, so that no tick is missed once the use has begun.
		ticker := h.leases.options.Clock.NewTicker(h.leases.part(partTick))
		both.Go(func() {
			defer ticker.Stop()
			onEach(ctx, ticker, tick)
		})
	}

	return func() {
		cancel()
		both.Wait()
	}
}

// onEach does what is to be done on each tick until that says false.
func onEach(ctx context.Context, ticker clock.Ticker, do func(ctx context.Context) bool) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			if !do(ctx) {
				return
			}
		}
	}
}

// check ends the use when the lease cannot be proven held.
func (h *hold) check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost == nil && h.age() >= h.leases.options.Duration-h.leases.part(partMargin) {
		why := fmt.Sprintf("it was not renewed for %s, as if this process or its machine had slept", h.age().Round(time.Second))
		if h.failed != nil {
			why = fmt.Sprintf("it could not be renewed for %s: %v", h.age().Round(time.Second), h.failed)
		}
		h.lose(why)
	}
	if h.lost != nil {
		return h.lost
	}

	return nil
}

// age is how long ago the lease was proven held. The monotonic clock stands still while the machine sleeps, and the time of
// day may be set back: the longer of the two is taken.
func (h *hold) age() time.Duration {
	now := h.leases.options.Clock.Now()

	return max(now.Sub(h.proven), now.Round(0).Sub(h.proven.Round(0)))
}

// renewInTime renews the lease when it is time to; false: it is lost for good.
func (h *hold) renewInTime(ctx context.Context) bool {
	h.mu.Lock()
	now := h.leases.options.Clock.Now()
	due := h.age() >= h.leases.part(partRenew) && now.Sub(h.tried) >= h.leases.part(partRetry)
	renewed := h.lease.DeepCopy()
	if due {
		h.tried = now
	}
	h.mu.Unlock()
	if !due {
		return true
	}
	renewed.Spec.RenewTime = new(metav1.NewMicroTime(now))
	written, err := h.leases.write(ctx, renewed)
	// A Lease that was deleted gives a conflict, too: its UID is another.
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return h.lookAgain(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed = err
	if err == nil {
		h.lease, h.proven = written, now
	}

	return true
}

// lookAgain finds out who has written the lease.
func (h *hold) lookAgain(ctx context.Context) bool {
	lease, err := h.leases.read(ctx, h.host)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil:
		h.failed = err

		return true
	case holderOf(lease) == h.identity:
		// Somebody has changed something else of it, or the answer to a renewal was lost: renewed on the next tick.
		h.lease, h.tried = lease, time.Time{}

		return true
	case lease.ResourceVersion == "":
		h.lose("it was deleted")
	case holderOf(lease) == "":
		h.lose("its holder was cleared by hand")
	default:
		h.lose(person(holderOf(lease)) + " has taken it")
	}

	return false
}

// lose ends the use; mu is held.
func (h *hold) lose(why string) {
	if h.lost == nil {
		h.lost = &LostError{Host: h.host, Why: why}
		h.cancel(h.lost)
	}
}

func (h *hold) isLost() *LostError {
	h.mu.Lock()
	defer h.mu.Unlock()

	return h.lost
}
