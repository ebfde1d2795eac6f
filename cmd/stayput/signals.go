package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"k8s.io/utils/clock"
)

// sameInterrupt is how long after the first signal another one is taken for the same: timeout(1) sends its signal to the
// process and to the process's group, and a shell whose terminal is gone passes on what the kernel has sent already.
const sameInterrupt = time.Second

// interrupts are the signals that end the program. The first one lets the command end well. A second one ends the program
// at once, unless the command has something to finish: then it is told (again), and a third one ends the program.
type interrupts struct {
	again chan struct{}

	mu   sync.Mutex
	held int
	told bool
}

type interruptsKey struct{}

// withInterrupts makes a context that the first signal ends. Signals that are ignored, as SIGHUP is under nohup, stay so.
func withInterrupts(parent context.Context) context.Context {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 4)
	for _, each := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(each) {
			signal.Notify(signals, each)
		}
	}
	all := &interrupts{again: make(chan struct{})}
	go all.listen(signals, cancel, die, clock.RealClock{})

	return context.WithValue(ctx, interruptsKey{}, all)
}

// interruptsOf gives those of a command's context; those of one that has none never come.
func interruptsOf(ctx context.Context) *interrupts {
	if all, ok := ctx.Value(interruptsKey{}).(*interrupts); ok {
		return all
	}

	return &interrupts{again: make(chan struct{})}
}

func (i *interrupts) listen(signals <-chan os.Signal, cancel func(), die func(os.Signal), now clock.PassiveClock) {
	var first time.Time
	for each := range signals {
		switch {
		case first.IsZero():
			first = now.Now()
			cancel()
		case each == syscall.SIGHUP, now.Since(first) < sameInterrupt:
		case i.tell():
		default:
			die(each)
		}
	}
}

// hold asks that a second signal does not end the program, until release is called.
func (i *interrupts) hold() (release func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.held++

	return sync.OnceFunc(func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.held--
	})
}

// tell tells of a second signal, if somebody has asked for it.
func (i *interrupts) tell() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.held == 0 || i.told {
		return false
	}
	i.told = true
	close(i.again)

	return true
}

// die ends the program as the signal would have, so that a shell sees by which.
func die(by os.Signal) {
	signal.Reset(by)
	number, ok := by.(syscall.Signal)
	if !ok || syscall.Kill(os.Getpid(), number) != nil {
		os.Exit(exitInterrupted)
	}
}

// keepPipes makes a write to a pipe that nobody reads any more an error, until stop is called: by itself it would end the
// program (SIGPIPE), with a machine switched off, a lease held, or a session open.
func keepPipes() (stop func()) {
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)

	return func() { signal.Stop(broken) }
}
