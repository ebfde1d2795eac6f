package ipmi_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/ipmi"
	lab "github.com/stayput-dev/stayput/test/lab/ipmi"
)

const user, password = "admin", "hunter2hunter2"

type starter func(ctx context.Context, o lab.Options) (*lab.BMC, error)

func start(t *testing.T, start starter, o lab.Options) *lab.BMC {
	t.Helper()
	o.StateDir, o.Username, o.Password = t.TempDir(), user, password
	emulator, err := start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(emulator.Stop)

	return emulator
}

func options(t *testing.T, address string) bmc.Options {
	t.Helper()
	parsed, err := bmc.ParseAddress(address)
	if err != nil {
		t.Fatal(err)
	}

	return bmc.Options{
		Address: parsed, Credentials: bmc.Credentials{Username: user, Password: password}, RequestTimeout: 40 * time.Second,
	}
}

func open(t *testing.T, o bmc.Options) bmc.Machine {
	t.Helper()
	machine, err := ipmi.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}

	return machine
}

func wantKind(t *testing.T, err error, kind bmc.Kind, text string) {
	t.Helper()
	if bmc.KindOf(err) != kind || !strings.Contains(fmt.Sprint(err), text) || strings.Contains(fmt.Sprint(err), password) {
		t.Errorf("got %v (%s), want kind %s with %q", err, bmc.KindOf(err), kind, text)
	}
}

// wantIntent carries out an intent, observes it, and tells how long it took.
func wantIntent(t *testing.T, machine bmc.Machine, intent bmc.Intent, want bmc.Power) {
	t.Helper()
	report, err := bmc.Run(t.Context(), machine, intent, bmc.RunOptions{
		Poll: 100 * time.Millisecond, Limits: bmc.Limits{Settle: time.Second},
	})
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

func wantPower(t *testing.T, machine bmc.Machine, want bmc.Power) {
	t.Helper()
	if power, err := machine.Power(t.Context()); err != nil || power != want {
		t.Errorf("the power is %s, %v, want %s", power, err, want)
	}
}

// waitPower reads until the power is as it shall be.
func waitPower(t *testing.T, machine bmc.Machine, want bmc.Power) {
	t.Helper()
	for range 100 {
		if power, err := machine.Power(t.Context()); err != nil || power == want {
			return
		}
	}
	t.Errorf("the power was never %s", want)
}

func TestEachActionIsSentOnceAndObserved(t *testing.T) {
	t.Parallel()
	emulator := start(t, lab.StartSimulator, lab.Options{})
	machine := open(t, options(t, emulator.Address()))
	wantPower(t, machine, bmc.PowerOff)
	do(t, machine, bmc.ActionOn)
	wantPower(t, machine, bmc.PowerOn)
	do(t, machine, bmc.ActionForceRestart)
	wantPower(t, machine, bmc.PowerOn)
	// This one is off at once, and on again a second later.
	do(t, machine, bmc.ActionPowerCycle)
	waitPower(t, machine, bmc.PowerOff)
	waitPower(t, machine, bmc.PowerOn)
	do(t, machine, bmc.ActionShutdown)
	wantPower(t, machine, bmc.PowerOff)
	do(t, machine, bmc.ActionOn)
	do(t, machine, bmc.ActionForceOff)
	wantPower(t, machine, bmc.PowerOff)
	want := []string{"power 1", "reset", "power 0", "power 1", "soft", "power 1", "power 0"}
	if told, err := emulator.Told(); err != nil || !slices.Equal(told, want) {
		t.Errorf("the machine was told %q, %v, want %q", told, err, want)
	}
	wantKind(t, machine.Do(t.Context(), bmc.ActionSoftRestart), bmc.Unsupported, "use ForceRestart")
}

func TestIntentsAreCarriedOut(t *testing.T) {
	t.Parallel()
	machine := open(t, options(t, start(t, lab.StartSimulator, lab.Options{}).Address()))
	wantIntent(t, machine, bmc.IntentOn, bmc.PowerOn)
	wantIntent(t, machine, bmc.IntentCycle, bmc.PowerOn)
	wantIntent(t, machine, bmc.IntentShutdown, bmc.PowerOff)
	wantIntent(t, machine, bmc.IntentOn, bmc.PowerOn)
	wantIntent(t, machine, bmc.IntentOff, bmc.PowerOff)
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	const uuid = "efcdab89-6745-43a1-8fcd-ab89674523a1"
	emulator := start(t, lab.StartSimulator, lab.Options{GUID: "a123456789abcd8fa143456789abcdef"})
	o := options(t, emulator.Address())
	want := bmc.Identity{
		UUID: uuid, BMCFirmware: "9.08",
		Serial: lab.ProductSerial, Model: lab.ProductName, Manufacturer: lab.ProductManufacturer,
	}
	if got, err := open(t, o).Identity(t.Context()); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	o.UUID = uuid
	machine := open(t, o)
	if got, err := machine.Identity(t.Context()); err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	o.UUID = "11111111-2222-4333-8444-555555555555"
	_, err := ipmi.Open(t.Context(), o)
	wantKind(t, err, bmc.Mismatch, uuid)
}

func TestIdentityOfLittle(t *testing.T) {
	t.Parallel()
	emulator := start(t, lab.StartPyghmi, lab.Options{})
	if err := emulator.SetFaults(map[string]string{"0637": "c1"}); err != nil {
		t.Fatal(err)
	}
	o := options(t, emulator.Address())
	o.UUID = "11111111-2222-4333-8444-555555555555"
	machine := open(t, o)
	if got, err := machine.Identity(t.Context()); err != nil || got != (bmc.Identity{BMCFirmware: "1.00"}) {
		t.Errorf("got %+v, %v, want the firmware only", got, err)
	}
	// "No GUID" is one thing, "not now" another.
	if err := emulator.SetFaults(map[string]string{"0637": "c0"}); err != nil {
		t.Fatal(err)
	}
	_, err := machine.Identity(t.Context())
	wantKind(t, err, bmc.Busy, "Node busy")
	if err := emulator.SetFaults(map[string]string{"0a10": "c0"}); err != nil {
		t.Fatal(err)
	}
	o.UUID = ""
	_, err = open(t, o).Identity(t.Context())
	wantKind(t, err, bmc.Busy, "Node busy")
	// Reading changes nothing: no record of the storage (network function 0Ah) is reserved, added or cleared.
	requests, err := emulator.Requests()
	for _, each := range requests {
		if strings.HasPrefix(each, "0a") && !strings.HasPrefix(each, "0a10") {
			t.Errorf("the BMC was sent %q, %v", each, err)
		}
	}
}

func TestLog(t *testing.T) {
	t.Parallel()
	emulator := start(t, lab.StartSimulator, lab.Options{})
	machine := open(t, options(t, emulator.Address()))
	if entries, err := machine.Log(t.Context(), 5); err != nil || len(entries) != 0 {
		t.Errorf("got %+v, %v, want no entry", entries, err)
	}
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	seconds := at.Unix()
	requests := [][]byte{
		// Add SEL Entry: a record of the BMC's start, before its clock was set.
		{0x0a, 0x44, 0, 0, 2, 0, 0, 0, 0, 0x20, 0, 4, 0x12, 0x83, 0x6f, 0x00, 0xff, 0xff},
		// Set SEL Time.
		{0x0a, 0x49, byte(seconds), byte(seconds >> 8), byte(seconds >> 16), byte(seconds >> 24)},
		{0x0a, 0x44, 0, 0, 2, 0, 0, 0, 0, 0x20, 0, 4, 0x01, 0x30, 0x01, 0x57, 0x5a, 0x61}, // over a threshold
		{0x0a, 0x44, 0, 0, 2, 0, 0, 0, 0, 0x20, 0, 4, 0x01, 0x30, 0x81, 0x57, 0x5a, 0x61}, // not any more
		{0x0a, 0x44, 0, 0, 2, 0, 0, 0, 0, 0x20, 0, 4, 0x01, 0x30, 0x01, 0x59, 0x5a, 0x61}, // over the next
		{0x0a, 0x44, 0, 0, 0xe0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13},               // of the maker's own kind
	}
	for _, each := range requests {
		raw(t, emulator, each)
	}
	entries, err := machine.Log(t.Context(), 100)
	if err != nil || len(entries) != 5 {
		t.Fatalf("got %+v, %v, want 5 entries", entries, err)
	}
	for i, want := range []bmc.LogEntry{
		{Message: "OEM record e0, 0102030405060708090a0b0c0d"},
		{At: at, Severity: "Critical", Message: "Temperature #0x30, Upper Critical going high, Asserted"},
		{At: at, Message: "Temperature #0x30, Upper Non-critical going high, Deasserted"},
		{At: at, Severity: "Warning", Message: "Temperature #0x30, Upper Non-critical going high, Asserted"},
		{Message: "System Event #0x83, System Reconfigured, Asserted"},
	} {
		got := entries[i]
		if late := got.At.Sub(want.At); late > 0 && late < time.Minute && !want.At.IsZero() {
			got.At = want.At
		}
		if got != want {
			t.Errorf("entry %d is %+v, want %+v", i, entries[i], want)
		}
	}
	if newest, err := machine.Log(t.Context(), 2); err != nil || !slices.Equal(newest, entries[:2]) {
		t.Errorf("got %+v, %v, want %+v", newest, err, entries[:2])
	}
	if none, err := machine.Log(t.Context(), 0); err != nil || none != nil {
		t.Errorf("got %+v, %v, want nothing", none, err)
	}
	pyghmi := open(t, options(t, start(t, lab.StartPyghmi, lab.Options{}).Address()))
	_, err = pyghmi.Log(t.Context(), 5)
	wantKind(t, err, bmc.Unsupported, "Get SEL Info")
}

func TestWhatIPMIHasNot(t *testing.T) {
	t.Parallel()
	machine := open(t, options(t, start(t, lab.StartPyghmi, lab.Options{}).Address()))
	_, err := machine.Media(t.Context())
	wantKind(t, err, bmc.Unsupported, "redfish://")
	wantKind(t, machine.Insert(t.Context(), "CD", "http://h/i"), bmc.Unsupported, "redfish://")
	wantKind(t, machine.Eject(t.Context(), "CD"), bmc.Unsupported, "redfish://")
	wantKind(t, machine.SetBoot(t.Context(), bmc.Boot{Target: bmc.BootHTTP}), bmc.Unsupported, "PXE")
	if err := machine.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
