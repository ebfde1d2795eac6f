package osimage

import (
	"context"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// maxAskedPause bounds what a registry can make a client wait: it may know its own load, but not our deadline.
const maxAskedPause = 5 * time.Minute

// askedPause is the last pause that a registry asked for while something was tried.
type askedPause struct {
	length atomic.Int64
}

type askedPauseKey struct{}

// withAskedPause makes a context in which the answers leave the pauses that they ask for.
func withAskedPause(ctx context.Context) context.Context {
	return context.WithValue(ctx, askedPauseKey{}, &askedPause{})
}

// notePause reads Retry-After (RFC 9110, section 10.2.3) of the answers that have a use for it.
func notePause(ctx context.Context, response *http.Response) {
	asked, ok := ctx.Value(askedPauseKey{}).(*askedPause)
	if !ok {
		return
	}

	switch response.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		asked.length.Store(int64(retryAfter(response.Header, time.Now())))
	default:
	}
}

// takeAskedPause returns the pause that was asked for since it was called before, 0 when there was none.
func takeAskedPause(ctx context.Context) time.Duration {
	asked, ok := ctx.Value(askedPauseKey{}).(*askedPause)
	if !ok {
		return 0
	}

	return time.Duration(asked.length.Swap(0))
}

// retryAfter reads the header, in seconds or as a date. A date is compared with the answer's own, when it has one, since
// the clock of a machine that has just started can be wrong by years.
func retryAfter(header http.Header, now time.Time) time.Duration {
	value := header.Get("Retry-After")

	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil {
		// Bounded before it is multiplied: the product could overflow.
		return time.Duration(min(max(seconds, 0), int64(maxAskedPause/time.Second))) * time.Second
	}

	date, err := http.ParseTime(value)
	if err != nil {
		return 0
	}

	if sent, err := http.ParseTime(header.Get("Date")); err == nil {
		now = sent
	}

	return min(max(date.Sub(now), 0), maxAskedPause)
}
