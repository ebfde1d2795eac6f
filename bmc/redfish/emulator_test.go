package redfish_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/redfish"
	lab "github.com/stayput-dev/stayput/test/lab/redfish"
)

// serveImages serves any image but missing.iso.
func serveImages(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/missing.iso" {
			http.NotFound(w, r)

			return
		}
		_, _ = io.WriteString(w, "an image")
	}))
	t.Cleanup(server.Close)

	return server
}

// The driver against real sushy-tools: boot override, virtual media that it fetches, identity, diagnosis. Its log is
// missing, as it has none.
func TestSushyTools(t *testing.T) {
	t.Parallel()
	const uuid = "4d9f2a0e-6d55-4a7e-9c6f-0f3f5f3f2b11"
	emulator := lab.StartFake(t, user, password, lab.FakeSystem{UUID: uuid, Name: "one", PoweredOn: true})
	address, err := bmc.ParseAddress(emulator.Address(uuid))
	if err != nil {
		t.Fatal(err)
	}
	opened, err := redfish.Open(t.Context(), bmc.Options{
		Address: address, CA: emulator.CA(), UUID: uuid, Credentials: bmc.Credentials{Username: user, Password: password},
		RequestTimeout: 60 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	m, ok := opened.(redfish.Diagnoser)
	if !ok {
		t.Fatal("it cannot be diagnosed")
	}
	checkBoot(t, m)
	checkMedia(t, m, serveImages(t).URL)
	checkRest(t, m, uuid)
	if n, err := emulator.Resets(uuid); err != nil || n != 0 {
		t.Errorf("%d resets, %v, want none", n, err)
	}
}

func checkBoot(t *testing.T, m redfish.Diagnoser) {
	t.Helper()
	// This emulator keeps targets for ever, and knows no end of an override.
	for _, boot := range []bmc.Boot{
		{Target: bmc.BootPXE, Continuous: true, Mode: bmc.ModeLegacy},
		{Target: bmc.BootCD, Continuous: true, Mode: bmc.ModeUEFI},
		{Target: bmc.BootDisk, Continuous: true, Mode: bmc.ModeUEFI},
	} {
		if err := m.SetBoot(t.Context(), boot); err != nil {
			t.Fatal(err)
		}
		state, err := m.Boot(t.Context())
		if err != nil || state.Boot != boot || !slices.Contains(state.Offered, boot.Target) {
			t.Errorf("got %+v, %v, want %+v", state, err, boot)
		}
	}
}

func checkMedia(t *testing.T, m redfish.Diagnoser, images string) {
	t.Helper()
	slot := func(want bmc.MediaSlot) {
		t.Helper()
		slots, err := m.Media(t.Context())
		i := slices.IndexFunc(slots, func(each bmc.MediaSlot) bool { return each.ID == want.ID })
		if err != nil || i < 0 || slots[i].Image != want.Image || slots[i].Inserted != want.Inserted || !slots[i].Insertable {
			t.Errorf("got %+v, %v, want %+v", slots, err, want)
		}
	}
	slot(bmc.MediaSlot{ID: "Cd"})
	for _, name := range []string{"/one.iso", "/two.iso"} {
		if err := m.Insert(t.Context(), "Cd", images+name); err != nil {
			t.Fatal(err)
		}
		slot(bmc.MediaSlot{ID: "Cd", Image: images + name, Inserted: true})
	}
	for range 2 {
		if err := m.Eject(t.Context(), "Cd"); err != nil {
			t.Fatal(err)
		}
		slot(bmc.MediaSlot{ID: "Cd"})
	}
	wantKind(t, m.Insert(t.Context(), "Cd", images+"/missing.iso"), bmc.Conflict, "400")
	slot(bmc.MediaSlot{ID: "Cd"})
}

func checkRest(t *testing.T, m redfish.Diagnoser, uuid string) {
	t.Helper()
	identity, err := m.Identity(t.Context())
	if err != nil || identity.UUID != uuid || identity.BMCFirmware == "" {
		t.Errorf("identity: got %+v, %v", identity, err)
	}
	_, err = m.Log(t.Context(), 5)
	wantKind(t, err, bmc.Unsupported, "no log")
	wantKind(t, m.Do(t.Context(), bmc.ActionPowerCycle), bmc.Unsupported, "offers only")
	got, err := m.Diagnose(t.Context())
	skew := got.Clock.Sub(got.ReadAt).Abs()
	if err != nil || skew > time.Minute || got.Sessions != -1 || len(got.MediaSlots) == 0 || len(got.Failures) != 0 {
		t.Errorf("diagnosis: got %+v, %v", got, err)
	}
}
