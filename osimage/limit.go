package osimage

import (
	"context"

	"golang.org/x/time/rate"
)

const (
	// burstsPerSecond makes a limited transfer flow instead of coming in gusts.
	burstsPerSecond = 20
	minBurst        = 4 << 10
	maxBurst        = 256 << 10
)

// limiter bounds the bytes a second of everything that shares it. A nil limiter does not.
type limiter struct {
	rate *rate.Limiter
}

func newLimiter(bytesPerSecond int64) *limiter {
	burst := min(max(bytesPerSecond/burstsPerSecond, minBurst), maxBurst)

	return &limiter{rate: rate.NewLimiter(rate.Limit(bytesPerSecond), int(burst))}
}

// fit shortens a buffer to what may come at once.
func (l *limiter) fit(buffer []byte) []byte {
	if l == nil {
		return buffer
	}

	return buffer[:min(len(buffer), l.rate.Burst())]
}

// wait blocks until n bytes that came or are to go are within the limit.
func (l *limiter) wait(ctx context.Context, n int) error {
	if l == nil || n == 0 {
		return nil
	}

	// It fails at once when the deadline would come first. What is within the limit then is nothing.
	if err := l.rate.WaitN(ctx, n); err != nil {
		<-ctx.Done()

		return context.Cause(ctx)
	}

	return nil
}
