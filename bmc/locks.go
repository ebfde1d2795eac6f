package bmc

import (
	"context"
	"fmt"
	"sync"
)

// Locks lets one caller at a time talk to a BMC. Several hosts may sit behind one BMC, so the key is
// Address.HostPort. The zero value is ready for use.
type Locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	token   chan struct{}
	waiting int
}

// Acquire waits for the BMC until ctx ends. Call release once.
func (l *Locks) Acquire(ctx context.Context, hostPort string) (release func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*lock{}
	}
	entry, ok := l.held[hostPort]
	if !ok {
		entry = &lock{token: make(chan struct{}, 1)}
		l.held[hostPort] = entry
	}
	entry.waiting++
	l.mu.Unlock()

	select {
	case entry.token <- struct{}{}:
		return sync.OnceFunc(func() {
			<-entry.token
			l.leave(hostPort, entry)
		}), nil
	case <-ctx.Done():
		l.leave(hostPort, entry)

		return nil, &Error{
			Kind: Transient, Op: "waiting for another caller", BMC: hostPort, Err: ctx.Err(),
			Detail: fmt.Sprintf("it is in use by another caller: %v", ctx.Err()),
		}
	}
}

func (l *Locks) leave(hostPort string, entry *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entry.waiting--
	if entry.waiting == 0 {
		delete(l.held, hostPort)
	}
}
