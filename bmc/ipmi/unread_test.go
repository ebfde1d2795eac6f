package ipmi

import (
	"strings"
	"testing"

	"k8s.io/utils/clock"

	"github.com/stayput-dev/stayput/bmc"
)

// standIn gives a Machine whose ipmitool leaves a part unread.
func standIn(t *testing.T, part string) *machine {
	t.Helper()
	address, err := bmc.ParseAddress("ipmi://192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	options := bmc.Options{Address: address, Credentials: bmc.Credentials{Username: part, Password: "hunter2hunter2"}}

	return &machine{options: options.WithDefaults(), tool: "testdata/ipmitool", clock: clock.RealClock{}}
}

// A log that could not be read is not one without entries.
func TestLogThatIsNotAllRead(t *testing.T) {
	t.Parallel()
	for part, want := range map[string]bmc.Kind{"first": bmc.Transient, "second": bmc.Transient, "busy": bmc.Busy} {
		entries, err := standIn(t, part).Log(t.Context(), 5)
		if bmc.KindOf(err) != want || !strings.Contains(err.Error(), "Get SEL Entry") || entries != nil {
			t.Errorf("%s: got %+v, %v, want kind %s", part, entries, err, want)
		}
	}
}

// A machine whose serial number could not be read is not one that has none.
func TestIdentityThatIsNotAllRead(t *testing.T) {
	t.Parallel()
	for part, want := range map[string]bmc.Kind{"first": bmc.Transient, "second": bmc.Transient, "busy": bmc.Busy} {
		if identity, err := standIn(t, part).Identity(t.Context()); bmc.KindOf(err) != want || identity != (bmc.Identity{}) {
			t.Errorf("%s: got %+v, %v, want kind %s", part, identity, err, want)
		}
	}
	for part, want := range map[string]string{"last": "SN-0042", "lacks": ""} {
		if identity, err := standIn(t, part).Identity(t.Context()); err != nil || identity.Serial != want || identity.UUID == "" {
			t.Errorf("%s: got %+v, %v, want serial %q", part, identity, err, want)
		}
	}
}

// Another machine took the place of the expected one after the BMC was opened: nothing is done to it.
func TestNoActOnAnotherMachine(t *testing.T) {
	t.Parallel()
	m := standIn(t, "last")
	m.options.UUID = "11111111-2222-4333-8444-555555555555"
	for name, act := range map[string]func() error{
		"power": func() error { return m.Do(t.Context(), bmc.ActionForceRestart) },
		"boot":  func() error { return m.SetBoot(t.Context(), bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeUEFI}) },
	} {
		if err := act(); bmc.KindOf(err) != bmc.Mismatch {
			t.Errorf("%s: %v", name, err)
		}
	}
}
