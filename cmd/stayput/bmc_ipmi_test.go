package main

import (
	"context"
	"encoding/json"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/bmc"
	lab "github.com/stayput-dev/stayput/test/lab/ipmi"
)

const ipmiPassword = "hunter2hunter2"

// ipmiBench is one with an IPMI BMC.
func ipmiBench(t *testing.T, start func(context.Context, lab.Options) (*lab.BMC, error)) (*bmcBench, *lab.BMC) {
	t.Helper()
	emulator, err := start(t.Context(), lab.Options{StateDir: t.TempDir(), Username: bmcUser, Password: ipmiPassword})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(emulator.Stop)

	return newBMCBench(t, emulator.Address(), ipmiPassword), emulator
}

func TestBMCPowerOnIPMI(t *testing.T) {
	t.Parallel()
	b, emulator := ipmiBench(t, lab.StartSimulator)
	out, said, err := b.run("status", "host-1", "-o", "json")
	var status statusAnswer
	if err != nil || json.Unmarshal([]byte(out), &status) != nil || status.Power != bmc.PowerOff ||
		status.Serial != lab.ProductSerial || status.Boot.Target != bmc.BootNone || slices.Contains(status.Actions, bmc.ActionSoftRestart) {
		t.Errorf("status: %s%s%v", out, said, err)
	}
	for _, step := range []struct {
		args     []string
		observed bmc.Power
		sent     []bmc.Action
	}{
		{[]string{"power", "host-1", "on", "--wait", "2m"}, bmc.PowerOn, []bmc.Action{bmc.ActionOn}},
		{[]string{"reset", "host-1"}, bmc.PowerOn, []bmc.Action{bmc.ActionForceRestart}},
		// IPMI cannot ask an operating system to restart, but to shut down.
		{[]string{"reset", "host-1", "--soft"}, bmc.PowerOn, []bmc.Action{bmc.ActionShutdown, bmc.ActionOn}},
		{[]string{"power", "host-1", "off"}, bmc.PowerOff, []bmc.Action{bmc.ActionForceOff}},
		{[]string{"power", "host-1", "off"}, bmc.PowerOff, []bmc.Action{}},
	} {
		out, said, err := b.run(append(step.args, "-o", "json")...)
		var report reportAnswer
		if err != nil || json.Unmarshal([]byte(out), &report) != nil || report.Observed != step.observed ||
			!slices.Equal(report.Sent, step.sent) {
			t.Errorf("%v: %s%s%v", step.args, out, said, err)
		}
	}
	want := []string{"power 1", "reset", "soft", "power 1", "power 0"}
	if told, err := emulator.Told(); err != nil || !slices.Equal(told, want) {
		t.Errorf("the machine was told %q, %v, want %q", told, err, want)
	}
}

func TestBMCBootAndLogOnIPMI(t *testing.T) {
	t.Parallel()
	b, emulator := ipmiBench(t, lab.StartSimulator)
	// ipmi_sim takes a boot override and does not say that it is valid; so does a BMC that has forgotten one.
	_, _, err := b.run("boot", "host-1", "pxe")
	if bmc.KindOf(err) != bmc.NotFollowed || !strings.Contains(err.Error(), "keeps no override") {
		t.Errorf("boot: %v", err)
	}
	if told, err := emulator.Told(); err != nil || !slices.Equal(told, []string{"boot pxe"}) {
		t.Errorf("the machine was told %q, %v", told, err)
	}

	// Add SEL Entry (IPMI 2.0, 31.6): a temperature over a threshold.
	words := "-I lanplus -H 127.0.0.1 -p " + strconv.Itoa(emulator.Port()) + " -U " + bmcUser + " -E -C 3" +
		" raw 0x0a 0x44 0 0 2 0 0 0 0 0x20 0 4 0x01 0x30 0x01 0x57 0x5a 0x61"
	command := exec.CommandContext(t.Context(), "ipmitool", strings.Fields(words)...)
	command.Env = []string{"IPMITOOL_PASSWORD=" + ipmiPassword}
	if text, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	out, _, err := b.run("log", "host-1", "--lines", "1")
	if err != nil || !strings.Contains(out, "Temperature #0x30, Upper Non-critical going high, Asserted") {
		t.Errorf("log: %s%v", out, err)
	}
}

func TestBMCDoctorOnIPMI(t *testing.T) {
	t.Parallel()
	b, emulator := ipmiBench(t, lab.StartSimulator)
	out, _, err := b.run("doctor", "host-1", "--expect-serial", lab.ProductSerial)
	if err != nil {
		t.Errorf("doctor: %v", err)
	}
	for _, line := range []string{
		"reachable ok 127.0.0.1", "certificate warning none: an IPMI BMC gives a hash", "login ok as admin", "identity ok",
		"power ok Off", "boot override ok no override", "latency ok", "service unknown this protocol tells no more",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), " "+line) {
			t.Errorf("doctor does not say %q:\n%s", line, out)
		}
	}
	out, _, err = b.run("doctor", "host-1", "--expect-serial", "SN-9999")
	if err == nil || !strings.Contains(strings.Join(strings.Fields(out), " "), " identity failed ") {
		t.Errorf("doctor of another machine: %s%v", out, err)
	}
	for _, refused := range []struct {
		args []string
		says string
	}{
		{[]string{"media", "host-1"}, "Unsupported: use another way"},
		{[]string{"media", "host-1", "insert", "http://h/i.iso"}, "IPMI has no virtual media; use the BMC's redfish:// address"},
		{[]string{"boot", "host-1", "http"}, "IPMI cannot boot from"},
		{[]string{"status", "host-1", "--ipmi-cipher-suite", "17"}, "the BMC refuses the cipher suite; set another one for it, 3 or 17"},
		{[]string{"status", emulator.Address(), "--credentials-file", b.path("wrong.yaml")}, "Auth: correct the credentials"},
		{[]string{"power", "host-1", "on", "--expect-serial", "SN-9999"}, "Mismatch"},
	} {
		if _, _, err := b.run(refused.args...); err == nil || !strings.Contains(err.Error(), refused.says) {
			t.Errorf("%v: got %v, want %q", refused.args, err, refused.says)
		}
	}
	if told, err := emulator.Told(); err != nil || len(told) != 0 {
		t.Errorf("the machine was told %q, %v", told, err)
	}
}

// pyghmi's BMC keeps a boot override, and gives 3 for every cipher suite.
func TestBMCBootIsReadBackOnIPMI(t *testing.T) {
	t.Parallel()
	b, emulator := ipmiBench(t, lab.StartPyghmi)
	address := []string{emulator.Address(), "--credentials-file", b.path("credentials.yaml")}
	out, _, err := b.run(append([]string{"boot"}, append(address, "pxe", "--mode", "uefi")...)...)
	if err != nil || !strings.Contains(out, "PXE UEFI, for one boot") {
		t.Errorf("boot: %s%v", out, err)
	}
	if out, _, err = b.run("boot", "host-1", "none"); err != nil || !strings.Contains(out, "no override") {
		t.Errorf("boot none: %s%v", out, err)
	}
}
