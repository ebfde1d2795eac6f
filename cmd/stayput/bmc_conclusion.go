package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/controllers/powerlease"
)

// finishTime is how long an interrupted command goes on to switch a machine on again that it has switched off.
const finishTime = time.Minute

var (
	errStopped      = errors.New("interrupted")
	errStoppedTwice = errors.New("interrupted again, before the machine was switched on again")
	errUnfinished   = fmt.Errorf("interrupted, and the machine could not be switched on again within %s", finishTime)
	errFinished     = errors.New("interrupted; the machine had been switched off, and was switched on again and seen on")
)

// conclusion decides when a command that acts on a machine ends. An interrupt ends it at once, unless it has switched off
// a machine that it is to switch on again: it does that first, for finishTime at most, unless it is interrupted again.
type conclusion struct {
	interrupts *interrupts
	say        func(text string)
	clock      clock.Clock
	cancel     context.CancelCauseFunc

	mu sync.Mutex
	// owes: the power was taken away, or may have been, and the BMC has not accepted On since.
	owes bool
	// interrupted: it shall end; finishing: it switches the machine on before.
	interrupted, finishing bool
	// release lets a second interrupt end the program again.
	release func()
}

// conclude makes a context that does not end with the command's own, but as the conclusion decides. Call stop in the end.
func (f *bmcFlags) conclude(cmd *cobra.Command) (ctx context.Context, end *conclusion, stop func()) {
	parent := cmd.Context()
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	end = &conclusion{
		interrupts: interruptsOf(parent), clock: f.outside.clock, cancel: cancel, release: func() {},
		say: func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), text) },
	}
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { end.watch(parent.Done(), over) })
	pipes := keepPipes()

	return ctx, end, func() {
		close(over)
		watching.Wait()
		end.release()
		cancel(nil)
		pipes()
	}
}

// watch waits for interrupts until over is closed.
func (c *conclusion) watch(interrupted, over <-chan struct{}) {
	select {
	case <-interrupted:
	case <-over:
		return
	}
	if !c.interrupt() {
		return
	}
	c.say("Interrupted while the machine is switched off: switching it on again; press again to stop")
	limit := c.clock.NewTimer(finishTime)
	defer limit.Stop()
	select {
	case <-c.interrupts.again:
		c.cancel(errStoppedTwice)
	case <-limit.C():
		c.cancel(errUnfinished)
	case <-over:
	}
}

// interrupt ends the command, or tells that there is something to finish.
func (c *conclusion) interrupt() (finishing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.interrupted, c.finishing = true, c.owes
	if !c.owes {
		c.cancel(errStopped)
	}

	return c.owes
}

// owe is called before the power is taken away from a machine that shall be on in the end.
func (c *conclusion) owe() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.interrupted {
		return errStopped
	}
	if !c.owes {
		c.release = c.interrupts.hold()
	}
	c.owes = true

	return nil
}

// forgive: the BMC has not taken the power away.
func (c *conclusion) forgive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owes, c.finishing = false, false
	c.release()
	if c.interrupted {
		c.cancel(errStopped)
	}
}

// settle: the BMC has accepted On.
func (c *conclusion) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owes = false
}

// explain adds to a command's error that leaves a machine off what a person has to do then. on gives the command that
// switches it on, by the name of the target and by the BMC's address.
func (c *conclusion) explain(err error, on func() (byName, byAddress string)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && c.finishing {
		return errFinished
	}
	if failed, ok := errors.AsType[*bmc.Error](err); !ok || !failed.LeftOff {
		return err
	}
	byName, byAddress := on()
	fix := "`" + byName + "`"
	// Whoever cannot reach the API server cannot go by the host's name.
	if _, lost := errors.AsType[*powerlease.LostError](err); lost && byAddress != byName {
		fix += ", or, while the API server does not answer, `" + byAddress + "`"
	}

	return fmt.Errorf("%w: %s", err, fix)
}

// owingMachine tells the conclusion what becomes of the power of a machine that shall be on in the end.
type owingMachine struct {
	bmc.Machine

	end *conclusion
}

func (m owingMachine) Do(ctx context.Context, action bmc.Action) error {
	takes := action == bmc.ActionForceOff || action == bmc.ActionShutdown
	if takes {
		if err := m.end.owe(); err != nil {
			return err
		}
	}
	err := m.Machine.Do(ctx, action)
	switch {
	case takes && err != nil && bmc.KindOf(err) != bmc.Unknown:
		m.end.forgive()
	case action == bmc.ActionOn && err == nil:
		m.end.settle()
	}

	return err
}
