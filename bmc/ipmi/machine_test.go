package ipmi_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/ipmi"
	lab "github.com/stayput-dev/stayput/test/lab/ipmi"
)

const user, password = "admin", "hunter2hunter2"

type starter func(ctx context.Context, o lab.Options) (string, func(), error)

func options(t *testing.T, address, secret string) bmc.Options {
	t.Helper()
	parsed, err := bmc.ParseAnyAddress(address)
	if err != nil {
		t.Fatal(err)
	}

	return bmc.Options{
		Address: parsed, Credentials: bmc.Credentials{Username: user, Password: secret}, RequestTimeout: 20 * time.Second,
	}
}

// open starts a BMC and opens it as soon as it answers.
func open(t *testing.T, start starter) (machine bmc.Machine, address, dir string) {
	t.Helper()
	dir = t.TempDir()
	address, stop, err := start(context.Background(), lab.Options{StateDir: dir, Username: user, Password: password})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	for range 10 {
		if machine, err = ipmi.Open(t.Context(), options(t, address, password)); err == nil {
			return machine, address, dir
		}
	}
	t.Fatal(err)

	return nil, "", ""
}

func wantKind(t *testing.T, err error, kind bmc.Kind, text string) {
	t.Helper()
	if bmc.KindOf(err) != kind || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), password) {
		t.Errorf("got %v (%s), want kind %s with %q", err, bmc.KindOf(err), kind, text)
	}
}

func intent(t *testing.T, machine bmc.Machine, intent bmc.Intent, want bmc.Power) {
	t.Helper()
	report, err := bmc.Run(t.Context(), machine, intent, bmc.RunOptions{Poll: 100 * time.Millisecond})
	if err != nil || report.Observed != want || !report.Accepted {
		t.Errorf("%s: %+v, %v, want %s", intent, report, err, want)
	}
}

func do(t *testing.T, machine bmc.Machine, action bmc.Action) {
	t.Helper()
	if err := machine.Do(t.Context(), action); err != nil {
		t.Error(err)
	}
}

func TestSimulator(t *testing.T) {
	t.Parallel()
	machine, address, dir := open(t, lab.StartSimulator)
	intent(t, machine, bmc.IntentOn, bmc.PowerOn)
	do(t, machine, bmc.ActionForceRestart)
	intent(t, machine, bmc.IntentShutdown, bmc.PowerOff)
	intent(t, machine, bmc.IntentOn, bmc.PowerOn)
	intent(t, machine, bmc.IntentOff, bmc.PowerOff)
	intent(t, machine, bmc.IntentOn, bmc.PowerOn)
	do(t, machine, bmc.ActionPowerCycle)
	intent(t, machine, bmc.IntentOn, bmc.PowerOn)
	sent, err := os.ReadFile(filepath.Join(dir, "power.log"))
	if err != nil || strings.Count(string(sent), "reset") != 1 || strings.Count(string(sent), "soft") != 1 {
		t.Errorf("the machine was told %q, %v, want one reset and one soft", sent, err)
	}
	identity, err := machine.Identity(t.Context())
	if err != nil || identity.BMCFirmware == "" || identity.UUID == "" {
		t.Errorf("identity: got %+v, %v", identity, err)
	}
	if _, err := machine.Log(t.Context(), 5); err != nil {
		t.Error(err)
	}
	_, err = ipmi.Open(t.Context(), options(t, address, "wrong"))
	wantKind(t, err, bmc.Auth, "")
}

func TestPyghmi(t *testing.T) {
	t.Parallel()
	machine, _, _ := open(t, lab.StartPyghmi)
	wantKind(t, machine.Do(t.Context(), bmc.ActionForceRestart), bmc.Conflict, "present state")
	intent(t, machine, bmc.IntentOn, bmc.PowerOn)
	intent(t, machine, bmc.IntentShutdown, bmc.PowerOff)
	wantKind(t, machine.Do(t.Context(), bmc.ActionPowerCycle), bmc.Unsupported, "")
	wantKind(t, machine.Do(t.Context(), bmc.ActionSoftRestart), bmc.Unsupported, "ForceRestart")
	for _, boot := range []bmc.Boot{
		{Target: bmc.BootPXE, Mode: bmc.ModeUEFI},
		{Target: bmc.BootDisk, Mode: bmc.ModeUEFI, Continuous: true},
		{Target: bmc.BootCD, Mode: bmc.ModeLegacy},
		{Target: bmc.BootNone},
	} {
		if err := machine.SetBoot(t.Context(), boot); err != nil {
			t.Error(err)
		}
		if got, err := machine.Boot(t.Context()); err != nil || got.Boot != boot {
			t.Errorf("got %+v, %v, want %+v", got, err, boot)
		}
	}
	wantKind(t, machine.SetBoot(t.Context(), bmc.Boot{Target: bmc.BootHTTP}), bmc.Unsupported, "use PXE")
	wantKind(t, machine.Insert(t.Context(), "CD", "http://h/i"), bmc.Unsupported, "Redfish")
}

// A port that swallows everything: bounded, nothing sent, the password in no argument, and a cancel ends it at once.
func TestSilentBMC(t *testing.T) {
	t.Parallel()
	silent, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := ipmi.Open(ctx, options(t, "ipmi://"+silent.LocalAddr().String(), password))
		ended <- err
	}()
	if _, _, err := silent.ReadFrom(make([]byte, 512)); err != nil {
		t.Fatal(err)
	}
	commands := commandLines(t)
	if !slices.ContainsFunc(commands, func(c string) bool { return strings.Contains(c, silent.LocalAddr().String()[10:]) }) {
		t.Error("ipmitool is not among the processes")
	}
	for _, command := range commands {
		if strings.Contains(command, "ipmitool") && strings.Contains(command, password) {
			t.Errorf("the password is in %q", command)
		}
	}
	began := time.Now()
	cancel()
	err = <-ended
	wantKind(t, err, bmc.Transient, "canceled")
	if !errors.Is(err, context.Canceled) || time.Since(began) > 5*time.Second {
		t.Errorf("got %v after %s", err, time.Since(began))
	}

	short := options(t, "ipmi://"+silent.LocalAddr().String(), password)
	short.RequestTimeout = time.Second
	began = time.Now()
	_, err = ipmi.Open(t.Context(), short)
	wantKind(t, err, bmc.Transient, "")
	if time.Since(began) > 10*time.Second {
		t.Errorf("it took %s", time.Since(began))
	}
}

func commandLines(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, file := range files {
		if content, err := os.ReadFile(file); err == nil { // it may have ended
			lines = append(lines, strings.ReplaceAll(string(content), "\x00", " "))
		}
	}

	return lines
}
