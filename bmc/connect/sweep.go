package connect

import (
	"context"
	"time"

	"k8s.io/utils/clock"

	"github.com/stayput-dev/stayput/bmc"
)

// sweep closes machines that nobody used for a while, until the pool closes.
func (p *Pool) sweep(ticker clock.Ticker) {
	defer ticker.Stop()
	for {
		select {
		case <-p.closing.Done():
			return
		case <-ticker.C():
			p.sweepOnce()
		}
	}
}

// sweepOnce starts the closing of each idle machine: one BMC that hangs must not hold up the others.
func (p *Pool) sweepOnce() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.options.Clock.Now()
	for hostPort, e := range p.entries {
		switch {
		case e.users > 0 || e.sweeping:
		case e.machine != nil && p.idle(e, now):
			e.sweeping = true
			p.running.Go(func() { p.closeOne(hostPort, e) })
		case e.machine == nil && e.forget(now):
			delete(p.entries, hostPort)
		}
	}
}

func (p *Pool) idle(e *entry, now time.Time) bool {
	return !now.Before(e.lastUsed.Add(p.options.IdleAfter))
}

// closeOne closes a machine unless somebody used it meanwhile.
func (p *Pool) closeOne(hostPort string, e *entry) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		e.sweeping = false
	}()
	release, err := p.locks.Acquire(p.closing, hostPort)
	if err != nil {
		return
	}
	defer release()
	p.mu.Lock()
	idle := p.idle(e, p.options.Clock.Now())
	p.mu.Unlock()
	if idle {
		// Nobody waits for this error; a session that stays is ended by the BMC's own timeout.
		_ = p.drop(context.Background(), e)
	}
}

// forget drops old penalties, and tells whether nothing is left to remember. The caller holds the pool's mutex.
func (e *entry) forget(now time.Time) bool {
	for credentials, refused := range e.refused {
		if refused.forgotten(now, lastAuthPause) {
			delete(e.refused, credentials)
		}
	}

	return len(e.refused) == 0 && e.accepted == (bmc.Credentials{}) && e.pause.forgotten(now, lastPause)
}
