package osimage

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Retry says how failures that may pass are tried again.
type Retry struct {
	// Tries is the number of tries without progress, the first one included.
	Tries int
	// First is the pause after the first failure; each next one is twice as long, up to Max. A fifth is random.
	First, Max time.Duration
	// notice, when set, is told before each pause.
	notice func(cause error, pause time.Duration)
}

const (
	defaultTries      = 8
	defaultFirstPause = time.Second
	defaultMaxPause   = 30 * time.Second
	defaultStallAfter = time.Minute
	// reachTries is how often a host is tried whose name nobody knows, which is rather misspelt than not there yet, and one
	// that cannot be reached when an answer without it will do.
	reachTries = 4
	// jitter is the share of a pause that is random, so that a fleet does not come back at the same moment.
	jitter = 0.2
)

func defaultRetry() Retry {
	return Retry{Tries: defaultTries, First: defaultFirstPause, Max: defaultMaxPause}
}

// do calls work until it succeeds, fails for good, or the tries are used up. Its errors are classified. The context that
// work gets is the one to make requests with: it notes the pauses that registries ask for.
func (r Retry) do(ctx context.Context, subject string, work func(ctx context.Context) error) error {
	ctx = withAskedPause(ctx)

	for failures := 1; ; failures++ {
		err := classify(ctx, subject, work(ctx))
		if err == nil || !IsTransient(err) {
			return err
		}

		if err := r.pause(ctx, failures, err); err != nil {
			return err
		}
	}
}

// pause waits after a number of failures in a row, or longer when a registry asked for that. It returns the error that
// ends it all when there is no try left.
func (r Retry) pause(ctx context.Context, failures int, cause error) error {
	tries := r.Tries
	if isNoSuchHost(cause) {
		tries = min(tries, reachTries)
	}

	if failures >= tries {
		return fmt.Errorf("giving up after %d tries: %w", failures, cause)
	}

	// Later than asked for by a random part: others were asked to come back then too.
	asked := takeAskedPause(ctx)
	asked += time.Duration(jitter * rand.Float64() * float64(asked)) //nolint:gosec // Not a secret.
	length := max(r.length(failures), asked)
	if r.notice != nil {
		r.notice(cause, length)
	}

	timer := time.NewTimer(length)
	defer timer.Stop()

	select {
	case <-ctx.Done():
		return fmt.Errorf("waiting to try again after %w: %w", cause, context.Cause(ctx))
	case <-timer.C:
		return nil
	}
}

func (r Retry) length(failures int) time.Duration {
	pause := r.First
	for range failures - 1 {
		pause = min(2*pause, r.Max)
	}

	return pause - time.Duration(jitter*rand.Float64()*float64(pause)) //nolint:gosec // Not a secret.
}
