package bmc_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stayput-dev/stayput/bmc"
)

func TestLocks(t *testing.T) {
	t.Parallel()
	var (
		locks  bmc.Locks
		inside atomic.Int32
		wait   sync.WaitGroup
	)
	for range 50 {
		wait.Go(func() {
			release, err := locks.Acquire(t.Context(), "bmc:443")
			if err != nil {
				t.Error(err)

				return
			}
			if inside.Add(1) != 1 {
				t.Error("two callers hold one BMC")
			}
			inside.Add(-1)
			release()
			release()
		})
	}
	wait.Wait()
	release, err := locks.Acquire(t.Context(), "bmc:443")
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := locks.Acquire(gone, "bmc:443"); bmc.KindOf(err) != bmc.Transient {
		t.Errorf("got %v, want a transient error", err)
	}
	other, err := locks.Acquire(t.Context(), "other:443")
	if err != nil {
		t.Fatalf("another BMC is held up: %v", err)
	}
	other()
	release()
	if again, err := locks.Acquire(t.Context(), "bmc:443"); err != nil {
		t.Error(err)
	} else {
		again()
	}
}
