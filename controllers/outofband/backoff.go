package outofband

import (
	"sync"
	"time"

	"github.com/stayput-dev/stayput/bmc"
)

// Waits after errors on the way to a BMC. They double from first to last with every error of one machine. Refused
// credentials wait longest: BMCs lock accounts.
const (
	firstBackoff     = 15 * time.Second
	lastBackoff      = 5 * time.Minute
	firstAuthBackoff = 2 * time.Minute
	lastAuthBackoff  = 15 * time.Minute
	// maxRetryAfter bounds what a BMC may ask for.
	maxRetryAfter = 10 * time.Minute
)

// backoffs remembers the last error of each machine's BMC, and until when the BMC is left alone. It is not stored: a
// restart may ask once more.
type backoffs struct {
	mu  sync.Mutex
	all map[Request]backoff
}

type backoff struct {
	err      error
	failures int
	until    time.Time
}

// failed notes an error.
func (b *backoffs) failed(request Request, err error, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[Request]backoff{}
	}
	entry := b.all[request]
	entry.err = err
	entry.failures++
	wait, most := firstBackoff, lastBackoff
	if bmc.KindOf(err) == bmc.Auth {
		wait, most = firstAuthBackoff, lastAuthBackoff
	}
	for range entry.failures - 1 {
		wait = min(2*wait, most)
	}
	entry.until = now.Add(max(wait, min(bmc.RetryAfter(err), maxRetryAfter)))
	b.all[request] = entry
}

// clear forgets a machine.
func (b *backoffs) clear(request Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.all, request)
}

// active gives the last error and how long the BMC is still left alone; nil: it may be asked.
func (b *backoffs) active(request Request, now time.Time) (time.Duration, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if entry, ok := b.all[request]; ok && now.Before(entry.until) {
		return entry.until.Sub(now), entry.err
	}

	return 0, nil
}
