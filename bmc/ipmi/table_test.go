package ipmi_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/ipmi"
	lab "github.com/stayput-dev/stayput/test/lab/ipmi"
)

// fault is one way in which a BMC fails, and what a caller sees of it.
type fault struct {
	// name is what is wrong, as an operator would say it.
	name string
	at   starter
	// options change those that the caller gives.
	options func(o *bmc.Options)
	// faults of the lab's BMC begin when the Machine is open and switched on.
	faults map[string]string
	// gone is what becomes of the BMC then.
	gone string
	// does is what the caller does then. Its text is what was seen.
	does func(ctx context.Context, m bmc.Machine) (string, error)
	// seen, kind and says are the outcome: what was seen, or the error's kind and a part of its text.
	seen string
	kind bmc.Kind
	says string
	// request is counted at pyghmi's BMC, which got it sent times.
	request string
	sent    int
}

const (
	// dead: nobody listens at its port, which the kernel tells. silent: it gets everything and answers nothing.
	dead, silent = "dead", "silent"

	powerRequest = "0001 "
	pxeRequest   = "0008 05a004000000"
)

// login does no more than open the Machine.
func login(context.Context, bmc.Machine) (string, error) { return "", nil }

func readPower(ctx context.Context, m bmc.Machine) (string, error) {
	power, err := m.Power(ctx)
	if err != nil {
		return "", err
	}

	return string(power), nil
}

func restart(ctx context.Context, m bmc.Machine) (string, error) {
	return "", m.Do(ctx, bmc.ActionForceRestart)
}

// bootPXE sets a boot override and reads it back.
func bootPXE(ctx context.Context, m bmc.Machine) (string, error) {
	if err := m.SetBoot(ctx, bmc.Boot{Target: bmc.BootPXE, Mode: bmc.ModeUEFI}); err != nil {
		return "", err
	}
	state, err := m.Boot(ctx)

	return string(state.Target), err
}

func faults() []fault {
	impatient := func(o *bmc.Options) { o.RequestTimeout = 4 * time.Second }

	return []fault{
		{
			name: "the BMC refuses the cipher suite, ipmi_sim", at: lab.StartSimulator, does: login,
			options: func(o *bmc.Options) { o.CipherSuite = 17 }, kind: bmc.Unsupported, says: "set another one for it, 3 or 17",
		},
		{
			name: "the BMC takes the cipher suite for another, pyghmi", at: lab.StartPyghmi, does: login,
			options: func(o *bmc.Options) { o.CipherSuite = 17 }, kind: bmc.Unsupported, says: "set another one for it, 3 or 17",
		},
		{
			name: "the password is wrong, ipmi_sim", at: lab.StartSimulator, does: login,
			options: func(o *bmc.Options) { o.Credentials.Password = "swordfish" }, kind: bmc.Auth, says: "refuses the password",
		},
		{
			name: "the password is wrong, pyghmi", at: lab.StartPyghmi, does: login,
			options: func(o *bmc.Options) { o.Credentials.Password = "swordfish" }, kind: bmc.Auth, says: "refuses the password",
		},
		{
			name: "the password is too long for IPMI", at: lab.StartSimulator, does: login,
			options: func(o *bmc.Options) { o.Credentials.Password = strings.Repeat("x", 21) }, kind: bmc.Auth, says: "passwords of up to 20",
		},
		{
			name: "there is no such user, and the BMC says so", at: lab.StartSimulator, does: login,
			options: func(o *bmc.Options) { o.Credentials.Username = "nobody" }, kind: bmc.Auth, says: "refuses the user name",
		},
		{
			name: "there is no such user, and the BMC is silent", at: lab.StartPyghmi, does: login,
			options: func(o *bmc.Options) { o.Credentials.Username = "nobody" }, kind: bmc.Auth, says: "there is no such user",
		},
		{
			name: "the BMC has no session to spare for a read", at: lab.StartPyghmi, faults: map[string]string{"session": "01"},
			does: readPower, kind: bmc.Busy, says: "no session to spare", request: powerRequest, sent: 0,
		},
		{
			name: "the BMC has no session to spare for an act", at: lab.StartPyghmi, faults: map[string]string{"session": "01"},
			does: restart, kind: bmc.Busy, says: "no session to spare", request: reset, sent: 0,
		},
		{
			name: "nobody listens, at a read", at: lab.StartSimulator, gone: dead,
			does: readPower, kind: bmc.Transient, says: "nothing was sent: no BMC answers",
		},
		{
			name: "nobody listens, at an act", at: lab.StartSimulator, gone: dead,
			does: restart, kind: bmc.Transient, says: "nothing was sent: no BMC answers",
		},
		{
			name: "the BMC is silent, at a read", at: lab.StartSimulator, gone: silent,
			does: readPower, kind: bmc.Transient, says: "nothing was sent: no BMC answers",
		},
		{
			name: "the BMC is silent, at an act", at: lab.StartSimulator, gone: silent,
			does: restart, kind: bmc.Transient, says: "nothing was sent: no BMC answers",
		},
		{
			// Cut off while it logs in, an act was not sent.
			name: "the BMC is silent for longer than the caller waits", at: lab.StartSimulator, gone: silent, options: impatient,
			does: restart, kind: bmc.Transient, says: "deadline",
		},
		{
			name: "the answer to a read is lost", at: lab.StartPyghmi, faults: map[string]string{"0001": "lost"},
			does: readPower, kind: bmc.Transient, says: "did not answer", request: powerRequest, sent: 3,
		},
		{
			name: "the answer to a chassis control is lost", at: lab.StartPyghmi, faults: map[string]string{"0002": "lost"},
			does: restart, kind: bmc.Unknown, says: "it was sent, and no answer came", request: reset, sent: 1,
		},
		{
			name: "the answer to a chassis control is late", at: lab.StartPyghmi, faults: map[string]string{"0002": "lost"},
			options: impatient, does: restart, kind: bmc.Unknown, says: "deadline", request: reset, sent: 1,
		},
		{
			name: "the answer to a boot override is lost", at: lab.StartPyghmi, faults: map[string]string{"000805": "lost"},
			does: bootPXE, kind: bmc.Unknown, says: "it was sent, and no answer came", request: pxeRequest, sent: 1,
		},
		{
			// IPMI 2.0, table 28-14: without option 3 the flags are forgotten after 60 s.
			name: "the boot flags expire after 60 s unless they are told not to", at: lab.StartPyghmi,
			faults: map[string]string{"seconds": "61"}, does: bootPXE, seen: "PXE", request: "0008 0308", sent: 1,
		},
		{
			// Then only reading it back shows it.
			name: "the boot flags expire, at a BMC without option 3 (OpenBMC)", at: lab.StartPyghmi,
			faults: map[string]string{"seconds": "61", "000803": "80"}, does: bootPXE, seen: "None", request: pxeRequest, sent: 1,
		},
		{
			name: "the boot flags are not kept at all", at: lab.StartSimulator, does: bootPXE, seen: "None",
		},
	}
}

// All at once: most of the time goes by with waiting for answers that never come, up to 18 s for one read.
func TestFaults(t *testing.T) {
	t.Parallel()
	var playing sync.WaitGroup
	for _, f := range faults() {
		// Not t.Parallel, which lets only as many run as there are processors.
		playing.Go(func() { t.Run(f.name, f.play) })
	}
	playing.Wait()
}

func (f fault) play(t *testing.T) {
	emulator := start(t, f.at, lab.Options{})
	o := options(t, emulator.Address())
	if f.options != nil {
		f.options(&o)
	}
	seen := ""
	machine, err := ipmi.Open(t.Context(), o)
	if err == nil {
		do(t, machine, bmc.ActionOn)
		f.begin(t, emulator)
		seen, err = f.does(t.Context(), machine)
	}
	wantKind(t, err, f.kind, f.says)
	if seen != f.seen {
		t.Errorf("seen: %q, want %q", seen, f.seen)
	}
	if err != nil && strings.Contains(err.Error(), o.Credentials.Password) {
		t.Errorf("the error tells the password: %v", err)
	}
	if f.request != "" && times(t, emulator, f.request) != f.sent {
		t.Errorf("%q was sent %d times, want %d", f.request, times(t, emulator, f.request), f.sent)
	}
}

// begin lets the fault begin.
func (f fault) begin(t *testing.T, emulator *lab.BMC) {
	t.Helper()
	if f.faults != nil {
		if err := emulator.SetFaults(f.faults); err != nil {
			t.Fatal(err)
		}
	}
	if f.gone == "" {
		return
	}
	emulator.Stop()
	if f.gone == silent {
		socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: emulator.Port()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = socket.Close() })
	}
}
