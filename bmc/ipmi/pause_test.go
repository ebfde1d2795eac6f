package ipmi_test

import (
	"context"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/ipmi"
	lab "github.com/stayput-dev/stayput/test/lab/ipmi"
)

func TestPause(t *testing.T) {
	t.Parallel()
	emulator := start(t, lab.StartPyghmi, lab.Options{})
	o := options(t, emulator.Address())
	o.Pause = 5 * time.Second
	now := clocktesting.NewFakeClock(time.Now())
	machine, err := ipmi.OpenAt(t.Context(), o, now)
	if err != nil {
		t.Fatal(err)
	}
	const power = "0001 "
	read := func(ctx context.Context) chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := machine.Power(ctx)
			ended <- err
		}()
		poll(now.HasWaiters)

		return ended
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := read(ctx)
	cancel()
	wantKind(t, <-ended, bmc.Transient, "nothing was sent")
	ended = read(t.Context())
	now.Step(o.Pause - time.Millisecond)
	if n := times(t, emulator, power); n != 0 || !now.HasWaiters() {
		t.Errorf("it was asked %d times within the pause", n)
	}
	now.Step(time.Millisecond)
	if err := <-ended; err != nil || times(t, emulator, power) != 1 {
		t.Errorf("got %v, asked %d times", err, times(t, emulator, power))
	}
	now.Step(o.Pause)
	if _, err := machine.Power(t.Context()); err != nil {
		t.Error(err)
	}
}
