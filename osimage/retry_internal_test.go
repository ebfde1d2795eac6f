package osimage

import (
	"testing"
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
