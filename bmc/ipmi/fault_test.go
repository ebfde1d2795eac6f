package ipmi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/ipmi"
	lab "github.com/stayput-dev/stayput/test/lab/ipmi"
)

const reset = "0002 03"

// raw sends bytes as the account, beside the driver.
func raw(t *testing.T, emulator *lab.BMC, request []byte) {
	t.Helper()
	words := strings.Fields(fmt.Sprintf("-I lanplus -H 127.0.0.1 -p %d -U %s -E -C 3 raw % #x", emulator.Port(), user, request))
	cmd := exec.CommandContext(t.Context(), "ipmitool", words...)
	cmd.Env = []string{"IPMITOOL_PASSWORD=" + password}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// poll looks until it is so; the test's own time limit ends it.
func poll(so func() bool) {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for !so() {
		<-again.C
	}
}

func times(t *testing.T, emulator *lab.BMC, request string) int {
	t.Helper()
	requests, err := emulator.Requests()
	if err != nil {
		t.Fatal(err)
	}

	return len(slices.DeleteFunc(slices.Clone(requests), func(each string) bool { return each != request }))
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	emulator := start(t, lab.StartPyghmi, lab.Options{})
	machine := open(t, options(t, emulator.Address()))
	for code, want := range map[string]bmc.Kind{
		"c0": bmc.Busy, "c4": bmc.Busy, "d1": bmc.Busy, "d2": bmc.Busy, "d3": bmc.Busy,
		"d5": bmc.Conflict, "d4": bmc.Auth,
		"c3": bmc.Unknown, "ce": bmc.Unknown, "ff": bmc.Unknown,
		"c5": bmc.Transient, "91": bmc.Conflict,
	} {
		if err := emulator.SetFaults(map[string]string{"0002": code, "0001": code}); err != nil {
			t.Fatal(err)
		}
		before := times(t, emulator, reset)
		wantKind(t, machine.Do(t.Context(), bmc.ActionForceRestart), want, "rsp=0x"+code)
		if n := times(t, emulator, reset); n != before+1 {
			t.Errorf("%s: it was sent %d times", code, n-before)
		}
		if want == bmc.Unknown {
			want = bmc.Transient
		}
		_, err := machine.Power(t.Context())
		wantKind(t, err, want, "rsp=0x"+code)
	}
	actions, err := machine.Actions(t.Context())
	if err != nil || len(actions) != 5 {
		t.Errorf("got %v, %v, want all that IPMI has", actions, err)
	}
}

// Not by a fault: pyghmi's BMC knows no cycle, and no reset of a machine that is off.
func TestActionsThatTheBMCLacks(t *testing.T) {
	t.Parallel()
	machine := open(t, options(t, start(t, lab.StartPyghmi, lab.Options{}).Address()))
	wantKind(t, machine.Do(t.Context(), bmc.ActionForceRestart), bmc.Conflict, "present state")
	wantKind(t, machine.Do(t.Context(), bmc.ActionPowerCycle), bmc.Unsupported, "rsp=0xcc")
	actions, err := machine.Actions(t.Context())
	want := []bmc.Action{bmc.ActionOn, bmc.ActionForceOff, bmc.ActionShutdown, bmc.ActionForceRestart}
	if err != nil || !slices.Equal(actions, want) {
		t.Errorf("got %v, %v, want %v", actions, err, want)
	}
}

func TestSessionRefusals(t *testing.T) {
	t.Parallel()
	emulator := start(t, lab.StartPyghmi, lab.Options{})
	o := options(t, emulator.Address())
	machine := open(t, o)
	// IPMI 2.0, table 13-15.
	for status, want := range map[string]bmc.Kind{"01": bmc.Busy, "04": bmc.Unsupported, "11": bmc.Unsupported, "0a": bmc.Auth} {
		if err := emulator.SetFaults(map[string]string{"session": status}); err != nil {
			t.Fatal(err)
		}
		_, err := ipmi.Open(t.Context(), o)
		wantKind(t, err, want, "open session")
		wantKind(t, machine.Do(t.Context(), bmc.ActionOn), want, "open session")
		// "sel list" itself does not say why.
		_, err = machine.Log(t.Context(), 1)
		wantKind(t, err, want, "open session")
	}
	if n := times(t, emulator, "0002 01"); n != 0 {
		t.Errorf("it was sent %d times", n)
	}
}

// The password may change while the Machine is open.
func TestPasswordThatIsRefusedLater(t *testing.T) {
	t.Parallel()
	emulator := start(t, lab.StartSimulator, lab.Options{})
	machine := open(t, options(t, emulator.Address()))
	// Set User Password (IPMI 2.0, 22.30): user 2, set, 16 bytes.
	raw(t, emulator, append([]byte{0x06, 0x47, 0x02, 0x02}, append([]byte("another"), make([]byte, 9)...)...))
	_, err := machine.Power(t.Context())
	wantKind(t, err, bmc.Auth, "refuses the password")
	wantKind(t, machine.Do(t.Context(), bmc.ActionOn), bmc.Auth, "refuses the password")
	_, err = machine.Log(t.Context(), 1)
	wantKind(t, err, bmc.Auth, "refuses the password")
}

func TestPrivilege(t *testing.T) {
	t.Parallel()
	emulator := start(t, lab.StartSimulator, lab.Options{})
	for _, tt := range []struct {
		privilege string
		want      bmc.Kind
	}{{"OPERATOR", ""}, {"USER", bmc.Auth}} {
		o := options(t, emulator.Address()+"?privilegelevel="+tt.privilege)
		o.Credentials.Username = "operator"
		machine := open(t, o)
		wantPower(t, machine, bmc.PowerOff)
		if err := machine.Do(t.Context(), bmc.ActionForceOff); bmc.KindOf(err) != tt.want {
			t.Errorf("%s: got %v, want kind %q", tt.privilege, err, tt.want)
		}
	}
}

// While an act hangs, its password is in no argument and its end is the context's.
func TestCancel(t *testing.T) {
	t.Parallel()
	emulator := start(t, lab.StartPyghmi, lab.Options{})
	machine := open(t, options(t, emulator.Address()))
	do(t, machine, bmc.ActionOn)
	if err := emulator.SetFaults(map[string]string{"0002": "lost"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- machine.Do(ctx, bmc.ActionForceRestart) }()
	poll(func() bool { return times(t, emulator, reset) > 0 || len(ended) > 0 })
	if len(ended) > 0 {
		t.Fatalf("it ended before the BMC got it: %v", <-ended)
	}
	checkCommandLines(t, emulator.Port())
	began := time.Now()
	cancel()
	err := <-ended
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it ended %s after the cancel", took)
	}
	wantKind(t, err, bmc.Unknown, "canceled")
	if !errors.Is(err, context.Canceled) || times(t, emulator, reset) != 1 {
		t.Errorf("got %v, %d times", err, times(t, emulator, reset))
	}
	wantKind(t, machine.Do(ctx, bmc.ActionForceRestart), bmc.Transient, "nothing was sent")
	if n := times(t, emulator, reset); n != 1 {
		t.Errorf("it was sent %d times", n)
	}
}

func checkCommandLines(t *testing.T, port int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil { // it has ended
			continue
		}
		arguments := strings.Split(string(content), "\x00")
		if strings.Contains(string(content), password) {
			t.Errorf("the password is in %q", arguments)
		}
		if strings.HasSuffix(arguments[0], "ipmitool") && slices.Contains(arguments, strconv.Itoa(port)) {
			found = true
		}
	}
	if !found {
		t.Error("ipmitool is not among the processes")
	}
}
