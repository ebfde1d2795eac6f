package osimage

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Two transfers share the limit, and the time is that of a fake clock.
func TestLimitIsShared(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		const rate, size = 1 << 20, 5 << 20

		limit := newLimiter(rate)
		start := time.Now()

		var both sync.WaitGroup

		for range 2 {
			both.Go(func() {
				ctx, stop := context.WithCancelCause(t.Context())
				body := &receivedBody{
					ReadCloser: io.NopCloser(bytes.NewReader(make([]byte, size))), ctx: ctx, stop: stop,
					stall: newStall(time.Second, stop), count: func(int64) {}, limit: limit,
				}

				if n, err := io.Copy(io.Discard, body); n != size || err != nil {
					t.Errorf("read %d bytes, %v", n, err)
				}

				if err := body.Close(); err != nil {
					t.Error(err)
				}
			})
		}

		both.Wait()

		if took := time.Since(start); took < 9900*time.Millisecond || took > 10*time.Second {
			t.Errorf("10 MiB at 1 MiB/s took %s", took)
		}
	})
}

// A wait for the limit ends with the request.
func TestLimitEndsWithTheRequest(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		limit := newLimiter(1)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errStalled)
		defer cancel()

		if err := limit.wait(ctx, minBurst); err != nil {
			t.Error(err)
		}

		start := time.Now()

		for {
			if err := limit.wait(ctx, 7); err != nil {
				if !errors.Is(err, errStalled) {
					t.Error(err)
				}

				break
			}
		}

		if took := time.Since(start); took != time.Minute {
			t.Errorf("ended after %s", took)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()

	const soon, earlier, then = "Mon, 30 Nov 2026 12:00:09 GMT", "Mon, 30 Nov 2026 11:00:09 GMT", "Mon, 30 Nov 2026 11:00:00 GMT"

	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

	for name, test := range map[string]struct {
		header http.Header
		want   time.Duration
	}{
		"none":                    {http.Header{}, 0},
		"seconds":                 {http.Header{"Retry-After": {"7"}}, 7 * time.Second},
		"more than is waited":     {http.Header{"Retry-After": {"301"}}, 5 * time.Minute},
		"more than fits":          {http.Header{"Retry-After": {"9223372036854775807"}}, 5 * time.Minute},
		"more than can be read":   {http.Header{"Retry-After": {"9223372036854775808"}}, 0},
		"negative":                {http.Header{"Retry-After": {"-7"}}, 0},
		"a date":                  {http.Header{"Retry-After": {soon}}, 9 * time.Second},
		"a date in the past":      {http.Header{"Retry-After": {earlier}}, 0},
		"a date, by their clock":  {http.Header{"Retry-After": {earlier}, "Date": {then}}, 9 * time.Second},
		"a date, and no sense":    {http.Header{"Retry-After": {soon}, "Date": {"noon"}}, 9 * time.Second},
		"neither number nor date": {http.Header{"Retry-After": {"soon"}}, 0},
	} {
		if got := retryAfter(test.header, now); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

// The pause that a registry asked for is waited once.
func TestAskedPauses(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		ctx := withAskedPause(t.Context())
		retry := Retry{Tries: 3, First: time.Millisecond, Max: time.Millisecond}

		notePause(ctx, &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"100"}}})
		notePause(ctx, &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{"Retry-After": {"200"}}})

		for _, want := range []time.Duration{100 * time.Second, 0} {
			start := time.Now()

			if err := retry.pause(ctx, 1, errStalled); err != nil {
				t.Error(err)
			}

			if took := time.Since(start); took < want || took > want*6/5+time.Millisecond {
				t.Errorf("paused for %s, want %s", took, want)
			}
		}
	})
}

func FuzzRetryAfter(f *testing.F) {
	f.Add("7", "")
	f.Add("Mon, 30 Nov 2026 12:00:09 GMT", "Mon, 30 Nov 2026 12:00:00 GMT")

	f.Fuzz(func(t *testing.T, after, date string) {
		if got := retryAfter(http.Header{"Retry-After": {after}, "Date": {date}}, time.Now()); got < 0 || got > maxAskedPause {
			t.Errorf("%q, %q: %s", after, date, got)
		}
	})
}
