package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/controllers/powerlease"
)

// slowMachine goes off only when it is let.
type slowMachine struct {
	bmc.Machine

	mu    sync.Mutex
	power bmc.Power
	sent  []bmc.Action
	// sending is called before an action, reading before each reading of the power; they may be nil.
	sending func(action bmc.Action) error
	reading func(m *slowMachine)
	closing error
}

func (*slowMachine) Identity(context.Context) (bmc.Identity, error) {
	return bmc.Identity{Serial: "1"}, nil
}

func (*slowMachine) Actions(context.Context) ([]bmc.Action, error) {
	return []bmc.Action{bmc.ActionOn, bmc.ActionForceOff}, nil
}

func (m *slowMachine) Power(context.Context) (bmc.Power, error) {
	if m.reading != nil {
		m.reading(m)
	}
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.power, nil
}

func (m *slowMachine) Do(_ context.Context, action bmc.Action) error {
	if m.sending != nil {
		if err := m.sending(action); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent = append(m.sent, action)
	if action == bmc.ActionOn {
		m.power = bmc.PowerOn
	}

	return nil
}

func (m *slowMachine) Close(context.Context) error { return m.closing }

func (m *slowMachine) goOff() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.power = bmc.PowerOff
}

func (m *slowMachine) lastSent() bmc.Action {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.sent) == 0 {
		return ""
	}

	return m.sent[len(m.sent)-1]
}

// slowBench has such a machine, and interrupts.
type slowBench struct {
	*bmcBench

	machine   *slowMachine
	interrupt func()
	again     func()
	time      *clocktesting.FakeClock
}

func newSlowBench(t *testing.T) *slowBench {
	t.Helper()
	b := newBMCBench(t, obedientAddress, bmcPassword)
	machine := &slowMachine{power: bmc.PowerOn}
	b.open = func(context.Context, bmc.Options) (bmc.Machine, error) { return machine, nil }
	now := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	all := &interrupts{again: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), interruptsKey{}, all))
	t.Cleanup(cancel)
	b.context, b.clock, b.poll = ctx, now, time.Millisecond

	return &slowBench{bmcBench: b, machine: machine, interrupt: cancel, again: func() { all.tell() }, time: now}
}

const finishing = "switching it on again; press again to stop"

// A machine that was switched off is switched on again, although the command was interrupted.
func TestBMCAnInterruptedCycleIsFinished(t *testing.T) {
	t.Parallel()
	for name, target := range map[string]string{"host": "host-1", "address": obedientAddress} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newSlowBench(t)
			b.machine.reading = func(m *slowMachine) {
				if m.lastSent() == bmc.ActionForceOff {
					b.interrupt()
				}
			}
			b.hears = func(said string) {
				if strings.Contains(said, finishing) {
					b.machine.goOff()
				}
			}
			out, said, err := b.run("reset", target, "--cycle", "-o", "json", "--credentials-file", b.path("credentials.yaml"))
			if !errors.Is(err, errFinished) || !strings.Contains(said, finishing) {
				t.Errorf("%s%v", said, err)
			}
			var report reportAnswer
			if json.Unmarshal([]byte(out), &report) != nil || report.Result != "Done" || report.Observed != bmc.PowerOn {
				t.Errorf("report %s", out)
			}
			if !slices.Equal(b.machine.sent, []bmc.Action{bmc.ActionForceOff, bmc.ActionOn}) {
				t.Errorf("sent %v", b.machine.sent)
			}
			if holder := b.holder(); holder != "" {
				t.Errorf("the lease is kept by %q", holder)
			}
		})
	}
}

// An interrupt while the off is being sent is one after it: whether it arrives is not known any more.
func TestBMCInterruptedWhileOffIsSent(t *testing.T) {
	t.Parallel()
	b := newSlowBench(t)
	b.machine.sending = func(action bmc.Action) error {
		if action == bmc.ActionForceOff {
			b.interrupt()
			b.machine.goOff()
		}

		return nil
	}
	_, said, err := b.run("reset", "host-1", "--cycle")
	if !errors.Is(err, errFinished) || b.machine.lastSent() != bmc.ActionOn {
		t.Errorf("%s%v, sent %v", said, err, b.machine.sent)
	}
}

// One that the BMC has refused, and one that was not sent yet, leave nothing to finish; nor do other intents.
func TestBMCAnInterruptEndsWhatOwesNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args []string
		sent []bmc.Action
	}{
		"refused": {args: []string{"reset", "host-1", "--cycle"}},
		"off":     {args: []string{"power", "host-1", "off"}, sent: []bmc.Action{bmc.ActionForceOff}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newSlowBench(t)
			b.machine.sending = func(bmc.Action) error {
				b.interrupt()
				if tt.sent == nil {
					return &bmc.Error{Kind: bmc.Busy, Op: "acting", Detail: "busy"}
				}

				return nil
			}
			_, said, err := b.run(tt.args...)
			if err == nil || strings.Contains(said, finishing) || !slices.Equal(b.machine.sent, tt.sent) || strings.Contains(err.Error(), "nobody") {
				t.Errorf("%s%v, sent %v", said, err, b.machine.sent)
			}
		})
	}
}

const onHost = "nobody switches it on now: switch it on: `stayput bmc power metal/host-1 on`"

// A second interrupt, and the end of a minute, end it with the machine as it is: the last words are the command to give.
func TestBMCAnInterruptedCycleEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *slowBench){
		"again":    func(b *slowBench) { b.again() },
		"too late": func(b *slowBench) { go b.waitAndStep() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newSlowBench(t)
			b.machine.reading = func(m *slowMachine) {
				if m.lastSent() == bmc.ActionForceOff {
					b.interrupt()
				}
			}
			b.hears = func(said string) {
				if strings.Contains(said, finishing) {
					end(b)
				}
			}
			_, said, err := b.run("reset", "host-1", "--cycle")
			if err == nil || !strings.HasSuffix(err.Error(), onHost) || strings.Count(err.Error(), "nobody") != 1 {
				t.Errorf("%s%v", said, err)
			}
			if !slices.Equal(b.machine.sent, []bmc.Action{bmc.ActionForceOff}) || b.holder() != "" {
				t.Errorf("sent %v, the lease is kept by %q", b.machine.sent, b.holder())
			}
		})
	}
}

// waitAndStep lets the minute pass once it is waited for.
func (b *slowBench) waitAndStep() {
	for !b.time.HasWaiters() {
		if b.Context().Err() != nil {
			return
		}
	}
	b.time.Step(finishTime)
}

// Whoever deletes the lease stops what is under way.
func TestBMCALostLeaseLeavesACommand(t *testing.T) {
	t.Parallel()
	b := newSlowBench(t)
	b.machine.reading = func(m *slowMachine) {
		if m.lastSent() == bmc.ActionForceOff {
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: powerlease.Name("host-1")}}
			if err := client.IgnoreNotFound(b.leaseStore.Delete(t.Context(), lease)); err != nil {
				t.Error(err)
			}
		}
	}
	_, said, err := b.run("reset", "host-1", "--cycle")
	want := "`stayput bmc power metal/host-1 on`, or, while the API server does not answer, `stayput bmc power " + obedientAddress +
		" on --credentials-file FILE`"
	if err == nil || !strings.HasSuffix(err.Error(), want) || !strings.Contains(err.Error(), "was deleted") {
		t.Errorf("%s%v", said, err)
	}
	if !slices.Equal(b.machine.sent, []bmc.Action{bmc.ActionForceOff}) {
		t.Errorf("sent %v", b.machine.sent)
	}
}

// What a person copies does the same to the same machine.
func TestBMCTheCommandIsExact(t *testing.T) {
	t.Parallel()
	b := newSlowBench(t)
	b.put("other file.yaml", "username: admin\npassword: "+bmcPassword+"\n")
	b.machine.reading = func(m *slowMachine) {
		if m.lastSent() == bmc.ActionForceOff {
			b.interrupt()
			b.again()
		}
	}
	args := []string{
		"reset", "redfish+http://[::1]:8000", "--cycle", "--credentials-file", b.path("other file.yaml"), "--bmc-skip-verify",
		"--expect-serial", "1", "--wait", "10m",
	}
	_, said, err := b.run(args...)
	want := "`stayput bmc power 'redfish+http://[::1]:8000' on --bmc-skip-verify=true --credentials-file='" + b.path("other file.yaml") +
		"' --expect-serial=1`"
	if err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%s%v", said, err)
	}
	for _, text := range []string{
		"redfish://10.0.0.1/redfish/v1/Systems/1", "redfish+http://10.0.0.1", "ipmi://10.0.0.1:6230", "ipmi://10.0.0.1?privilegelevel=OPERATOR",
	} {
		address, err := bmc.ParseAddress(text)
		if typed := addressOf(address); err != nil || typed != text {
			t.Errorf("%s: %s, %v", text, typed, err)
		}
	}
}

// A time in which a machine cannot be switched off and on again is refused before anything is sent.
func TestBMCWaitHoldsACycle(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args   []string
		says   string
		opened int
	}{
		"cycle":         {[]string{"reset", "host-1", "--cycle", "--wait", "1m"}, "--wait 1m0s is too short", 0},
		"none":          {[]string{"power", "host-1", "off", "--wait", "0s"}, "use a time above 0", 0},
		"negative":      {[]string{"power", "host-1", "off", "--wait", "-5s"}, "use a time above 0", 0},
		"by off and on": {[]string{"reset", "host-1", "--wait", "1m"}, "nothing was sent", 1},
		"the same, dry": {[]string{"reset", "host-1", "--cycle", "--wait", "1m", "--dry-run"}, "--wait 1m0s is too short", 0},
	} {
		b := newSlowBench(t)
		_, _, err := b.run(tt.args...)
		if err == nil || !strings.Contains(err.Error(), tt.says) || len(b.machine.sent) != 0 || b.opened != tt.opened {
			t.Errorf("%s: %v, sent %v", name, err, b.machine.sent)
		}
	}
	for _, intent := range bmc.Intents() {
		for _, wait := range []time.Duration{defaultActWait, 10 * time.Minute} {
			limits := (&actFlags{wait: wait}).limits(intent)
			longest := max(limits.Needs(bmc.ActionForceOff), limits.On)
			if intent == bmc.IntentSoftRestart {
				longest = limits.Needs(bmc.ActionShutdown)
			}
			if intent == bmc.IntentOff || intent == bmc.IntentShutdown {
				longest = 0
			}
			if longest > wait {
				t.Errorf("%s in %s: %+v", intent, wait, limits)
			}
		}
	}
	limits := (&actFlags{wait: 10 * time.Minute}).limits(bmc.IntentSoftRestart)
	if limits.Shutdown != 8*time.Minute {
		t.Errorf("--soft --wait 10m lets the operating system have %s", limits.Shutdown)
	}
}

// A script would take the error of a logout for one of the act, and act again.
func TestBMCAFailedLogoutIsANote(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"power", "host-1", "on"}, {"identify", "host-1"}} {
		b := newSlowBench(t)
		b.machine.closing = &bmc.Error{Kind: bmc.Transient, Op: "logging out", Detail: "the BMC answers 500"}
		_, said, err := b.run(args...)
		if err != nil || !strings.Contains(said, "Note: the session at the BMC was not ended") || !strings.Contains(said, "500") {
			t.Errorf("%v: %s%v", args, said, err)
		}
	}
}

// Who waited for another one does not restart once more what that one has restarted.
func TestBMCOneRestartOfTwoAtOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args []string
		acts bool
	}{
		"cycle":   {args: []string{"reset", "host-1", "--cycle"}},
		"restart": {args: []string{"reset", "host-1"}},
		"soft":    {args: []string{"reset", "host-1", "--soft"}},
		"off":     {args: []string{"power", "host-1", "off"}, acts: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newSlowBench(t)
			b.machine.sending = func(bmc.Action) error {
				b.machine.goOff()

				return nil
			}
			held, give := make(chan struct{}), make(chan struct{})
			var other sync.WaitGroup
			other.Go(func() {
				key := types.NamespacedName{Namespace: "metal", Name: "host-1"}
				err := b.others().Do(t.Context(), key, "u-1", func(context.Context) error {
					close(held)
					<-give

					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
			<-held
			b.hears = func(said string) {
				if strings.Contains(said, "waiting for") {
					close(give)
				}
			}
			_, said, err := b.run(tt.args...)
			other.Wait()
			if acted := len(b.machine.sent) > 0; acted != tt.acts || (err == nil) != tt.acts {
				t.Errorf("%s%v, sent %v", said, err, b.machine.sent)
			}
			if err != nil && !strings.Contains(err.Error(), "another one (stayput-controller/one) acted on it while this one waited; look at "+
				"`stayput bmc status metal/host-1`") {
				t.Error(err)
			}
		})
	}
}
