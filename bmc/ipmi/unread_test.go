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
