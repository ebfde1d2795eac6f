package osimage

import (
	"context"
	"net"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func TestPausesGrowAndAreBounded(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		retry := Retry{
			First: time.Duration(rapid.Int64Range(1, int64(time.Minute)).Draw(t, "first")),
			Max:   time.Duration(rapid.Int64Range(int64(time.Minute), int64(time.Hour)).Draw(t, "max")),
		}
		failures := rapid.IntRange(1, 100).Draw(t, "failures")

		whole := retry.First
		for range failures - 1 {
			whole = min(whole*2, retry.Max)
		}

		got := retry.length(failures)
		if got > whole || got < whole*7/10 {
			t.Fatalf("the pause after %d failures is %s, want between 80 %% and all of %s", failures, got, whole)
		}
	})
}

// A name that the DNS does not know is rather misspelt than not there yet; a host that does not answer may be restarting.
func TestHostsThatCannotBeReached(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		cause       error
		tries       int
		least, most time.Duration
		says        string
	}{
		"no such host": {&net.DNSError{IsNotFound: true}, 4, 5 * time.Second, 7 * time.Second, "how the host is written"},
		"no answer":    {&net.DNSError{IsTimeout: true}, 8, time.Minute, 2 * time.Minute, "try again"},
		"refused":      {syscall.ECONNREFUSED, 8, time.Minute, 2 * time.Minute, "try again"},
	} {
		synctest.Test(t, func(t *testing.T) {
			start, tries := time.Now(), 0

			err := defaultRetry().do(t.Context(), "registry.example/os:1", func(context.Context) error {
				tries++

				return &url.Error{Op: "Get", URL: "https://registry.example/v2/", Err: &net.OpError{Op: "dial", Net: "tcp", Err: test.cause}}
			})

			took := time.Since(start)
			if !IsTransient(err) || !strings.Contains(err.Error(), test.says) || tries != test.tries || took < test.least || took > test.most {
				t.Errorf("%s: %d tries in %s: %v", name, tries, took, err)
			}
		})
	}
}
