package connect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stayput-dev/stayput/bmc"
)

// Pauses after errors. They double from first to last with each further error.
const (
	firstPause     = 5 * time.Second
	lastPause      = 5 * time.Minute
	firstAuthPause = 10 * time.Minute
	lastAuthPause  = time.Hour
	// maxRetryAfter bounds what a BMC may ask for.
	maxRetryAfter = 10 * time.Minute
)

// penalty is why and until when something is not tried again.
type penalty struct {
	failures int
	until    time.Time
	err      *bmc.Error
}

// doubled is first, doubled with each failure after the first one, at most last.
func doubled(first, last time.Duration, failures int) time.Duration {
	for range failures - 1 {
		if first >= last {
			break
		}
		first *= 2
	}

	return min(first, last)
}

// failed notes one more Transient or Busy error. random in [0,1) makes the pause half to all of its length, so that
// BMCs that failed together are not asked together.
func (p *penalty) failed(err *bmc.Error, now time.Time, random float64) {
	p.failures++
	p.err = err
	whole := doubled(firstPause, lastPause, p.failures)
	pause := whole/2 + time.Duration(random*float64(whole/2))
	p.until = now.Add(max(pause, min(err.RetryAfter, maxRetryAfter)))
}

// refused notes once more that credentials were refused.
func (p *penalty) refused(err *bmc.Error, now time.Time) {
	p.failures++
	p.err = err
	p.until = now.Add(max(doubled(firstAuthPause, lastAuthPause, p.failures), min(err.RetryAfter, maxRetryAfter)))
}

// active is the error of a Do before the time, nil when it may be tried.
func (p *penalty) active(hostPort string, now time.Time) error {
	left := p.until.Sub(now)
	if p.err == nil || left <= 0 {
		return nil
	}

	return &bmc.Error{
		Kind: p.err.Kind, Op: opPaused, BMC: hostPort, RetryAfter: left, Err: p.err,
		Detail: fmt.Sprintf("nothing was sent, it is left alone for %s more after %d errors; the last: %v",
			left.Round(time.Second), p.failures, p.err),
	}
}

// Paused gives the error for which a BMC is left alone, when err is a Pool's refusal to ask it. Nothing was sent then. Its
// text stays the same for as long as the pause lasts.
func Paused(err error) (cause *bmc.Error, paused bool) {
	refusal, ok := errors.AsType[*bmc.Error](err)
	if !ok || refusal.Op != opPaused {
		return nil, false
	}

	return errors.AsType[*bmc.Error](refusal.Err)
}

const opPaused = "waiting after an error"

// forgotten tells whether so long has passed that the count begins anew.
func (p *penalty) forgotten(now time.Time, after time.Duration) bool {
	return !now.Before(p.until.Add(after))
}

// note draws the consequences of an operation's error for later ones. opened tells that the BMC had accepted the
// credentials. The caller holds the pool's mutex.
func (e *entry) note(ctx context.Context, o bmc.Options, opened bool, err error, now time.Time, random func() float64) {
	if opened {
		delete(e.refused, o.Credentials)
		e.accepted = o.Credentials
	}
	ours := of(err, o.Address.HostPort())
	switch {
	case err == nil:
		e.pause = penalty{}
	case ours == nil, errors.Is(ctx.Err(), context.Canceled):
		// The caller's own error, another BMC's, or a change of mind, says nothing about this one.
	case ours.Kind == bmc.Auth && opened:
		// It may be the account's rights, for this one thing. The next Do logs in anew, which shows whether it was more.
	case ours.Kind == bmc.Auth:
		e.accepted = bmc.Credentials{}
		refused := e.refused[o.Credentials]
		refused.refused(ours, now)
		e.refused[o.Credentials] = refused
	case ours.Kind == bmc.Transient, ours.Kind == bmc.Busy:
		e.pause.failed(ours, now, random())
	case ours.Kind == bmc.Unknown:
		// The caller must read the power state now; a pause would keep it from that.
	default:
		e.pause = penalty{}
	}
}

// ruins tells whether a machine is not to be used again after err.
func ruins(err error, hostPort string) bool {
	ours := of(err, hostPort)
	if ours == nil {
		return false
	}
	switch ours.Kind {
	case bmc.Auth, bmc.Transient, bmc.Unknown:
		return true
	default:
		return false
	}
}

// of finds the error of a BMC in what a use returned, which may hold others' errors, too: a use may have been about
// several BMCs. An error that names no BMC is of the one that was asked.
func of(err error, hostPort string) *bmc.Error {
	//nolint:errorlint // the tree is walked here, and not below an error that names another BMC
	switch e := err.(type) {
	case *bmc.Error:
		if e.BMC == "" || e.BMC == hostPort {
			return e
		}
	case interface{ Unwrap() error }:
		return of(e.Unwrap(), hostPort)
	case interface{ Unwrap() []error }:
		for _, each := range e.Unwrap() {
			if found := of(each, hostPort); found != nil {
				return found
			}
		}
	}

	return nil
}
