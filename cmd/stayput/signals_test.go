package main

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// The first signal ends the command's context; what comes within a second is the same one; a second one ends the program,
// unless that is held; a third one does in any case. The loss of a terminal tells nothing twice.
func TestInterrupts(t *testing.T) {
	t.Parallel()
	type press struct {
		by    os.Signal
		after time.Duration
	}
	first, later := press{syscall.SIGTERM, 0}, press{syscall.SIGINT, 2 * time.Second}
	for name, tt := range map[string]struct {
		presses     []press
		held        bool
		again, dies bool
	}{
		"once":                    {presses: []press{first}},
		"sent to a group, too":    {presses: []press{first, {syscall.SIGTERM, time.Millisecond}}},
		"a terminal that is gone": {presses: []press{first, {syscall.SIGHUP, time.Hour}}},
		"twice":                   {presses: []press{first, later}, dies: true},
		"twice, held":             {presses: []press{first, later}, held: true, again: true},
		"three times, held":       {presses: []press{first, later, later}, held: true, again: true, dies: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := &interrupts{again: make(chan struct{})}
			release := all.hold()
			if !tt.held {
				release()
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			now := clocktesting.NewFakeClock(time.Unix(1e9, 0))
			signals := make(chan os.Signal)
			died, listened := false, make(chan struct{})
			go func() {
				defer close(listened)
				all.listen(signals, cancel, func(os.Signal) { died = true }, now)
			}()
			for _, each := range tt.presses {
				now.Step(each.after)
				signals <- each.by
			}
			close(signals)
			<-listened
			again := false
			select {
			case <-all.again:
				again = true
			default:
			}
			if ctx.Err() == nil || again != tt.again || died != tt.dies {
				t.Errorf("ended %v, told again %v, died %v", ctx.Err(), again, died)
			}
		})
	}
}
