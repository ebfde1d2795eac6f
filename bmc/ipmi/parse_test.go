package ipmi

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc"
)

func TestReadGUID(t *testing.T) {
	t.Parallel()
	const uuid = "4c4c4544-0041-4002-9033-b6c04f4c3831"
	for name, wire := range map[string]string{
		"IPMI":     "31384c4fc0b633900240410044454c4c",
		"SMBIOS":   "44454c4c410002409033b6c04f4c3831",
		"RFC 4122": "4c4c4544004140029033b6c04f4c3831",
	} {
		raw, err := hex.DecodeString(wire)
		if err != nil {
			t.Fatal(err)
		}
		if got := readGUID([guidLength]byte(raw)); got[0] != uuid || len(got) != 3 {
			t.Errorf("%s: got %v, want %s first", name, got, uuid)
		}
	}
}

func TestLogEntry(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 9, 4, 23, 59, 38, 0, time.UTC)
	for line, want := range map[string]bmc.LogEntry{
		"   8 | 09/04/26 | 23:59:38 UTC | Power Supply #0x30 | Presence detected | Asserted": {
			At: at, Message: "Power Supply #0x30, Presence detected, Asserted",
		},
		"  1a | 09/04/2026 | 23:59:38 | Temperature #0x30 | Upper Non-recoverable going high | Asserted": {
			At: at, Severity: "Critical", Message: "Temperature #0x30, Upper Non-recoverable going high, Asserted",
		},
		"   1 |  Pre-Init  |0000042891| System Event #0x30 |  | Asserted": {Message: "System Event #0x30, Asserted"},
		"   3 | OEM record e0 | 1120305020000405316f00ffff":               {Message: "OEM record e0, 1120305020000405316f00ffff"},
	} {
		if got, ok := logEntry(line); !ok || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", line, got, ok, want)
		}
	}
	for _, line := range []string{
		"", "SEL has no entries", "ID | x | y", "zz | 09/04/26 | 23:59:38 | x | y", "1 | Pre-Init", "1 | 09/04/26 | 23:59:38",
		"1 | Pre-Init | 5",
	} {
		if got, ok := logEntry(line); ok {
			t.Errorf("%q is %+v, want none", line, got)
		}
	}
}

// What a BMC that knows no extensions makes ipmitool -v say is no reason.
func TestNoiseIsNoReason(t *testing.T) {
	t.Parallel()
	const noise = "Loading IANA PEN Registry...\nGet HPM.x Capabilities request failed, compcode = d4\n" +
		"Running Get VSO Capabilities my_addr 0x20, transit 0, target 0x20\n" +
		"Invalid completion code received: Insufficient privilege level\nDiscovered IPMB address 0x0\n" +
		"RAW REQ (channel=0x0 netfn=0x0 lun=0x0 cmd=0x2 data_len=1)\nRAW REQUEST (1 bytes)\n 01 \n"
	const lost = "Unable to send RAW command (channel=0x0 netfn=0x0 lun=0x0 cmd=0x2)\n"
	kind, detail := classify(noise+lost, true)
	if want := "it was sent, and no answer came (ipmitool: " + lost[:len(lost)-1] + ")"; kind != bmc.Unknown || detail != want {
		t.Errorf("got %s, %q, want %q", kind, detail, want)
	}
	if kind, detail = classify("", false); kind != bmc.Transient || detail == "" {
		t.Errorf("got %s, %q", kind, detail)
	}
}

// A silence before the password was shown is ambiguous; one after it is none of the password.
func TestASilenceInTheMiddleOfTheLogin(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bmc.Kind{
		"> RAKP 3 MESSAGE\n> Error: no response from RAKP 3 message\nError: Unable to establish IPMI v2 / RMCP+ session\n": bmc.Transient,
		"> Error: no response from RAKP 1 message\nError: Unable to establish IPMI v2 / RMCP+ session\n":                   bmc.Auth,
		"RAKP 2 HMAC is invalid\nError: Unable to establish IPMI v2 / RMCP+ session\n":                                     bmc.Auth,
	} {
		if kind, detail := classify(text, false); kind != want || want == bmc.Auth && strings.Contains(text, "RAKP 1") &&
			!strings.Contains(detail, "no such user") {
			t.Errorf("%q: %s, %s", text, kind, detail)
		}
	}
	if !strings.Contains(silentLogin, "no such user") || !strings.Contains(silentLogin, "lost the message") {
		t.Error(silentLogin)
	}
}

// IPMI 2.0, table 28-14: every value has a name.
func TestEveryBootDeviceHasAName(t *testing.T) {
	t.Parallel()
	m := &machine{}
	for code, want := range map[byte]bmc.BootTarget{
		0x00: bmc.BootNone, 0x04: bmc.BootPXE, 0x08: bmc.BootDisk, 0x0c: bmc.BootDisk, 0x10: "Diagnostics", 0x14: bmc.BootCD,
		0x18: bmc.BootBIOS, 0x1c: bmc.BootUSB, 0x20: bmc.BootCD, 0x24: "RemoteMedia", 0x28: "unknown (0x28)", 0x2c: bmc.BootDisk,
		0x30: "unknown (0x30)", 0x34: "unknown (0x34)", 0x38: "unknown (0x38)", 0x3c: bmc.BootUSB,
	} {
		if got := m.targetOf(code | 0x81); got != want {
			t.Errorf("%#02x: %s, want %s", code, got, want)
		}
	}
	m.device.manufacturer = supermicro
	if got := m.targetOf(supermicroDisk); got != bmc.BootDisk {
		t.Errorf("Supermicro's: %s", got)
	}
}
