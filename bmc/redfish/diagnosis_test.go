package redfish_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/redfish"
)

func diagnose(t *testing.T, s *scripted) redfish.Diagnosis {
	t.Helper()
	m, ok := s.open().(redfish.Diagnoser)
	if !ok {
		t.Fatal("what Open gives cannot be diagnosed")
	}
	before := time.Now()
	got, err := m.Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got.Latency <= 0 || got.Latency > time.Since(before) || got.ReadAt.Before(before) || got.ReadAt.After(time.Now()) {
		t.Errorf("latency %s, read at %s", got.Latency, got.ReadAt)
	}
	if n := len(s.writes()); n != 0 {
		t.Errorf("a diagnosis wrote %d times", n)
	}

	return got
}

func TestDiagnose(t *testing.T) {
	t.Parallel()
	s := script(t).withSessions()
	s.change("/redfish/v1/SessionService/Sessions", object{"Members@odata.count": 3})
	s.change(systemPath, object{"Boot": with(object{}, "Pxe", "Hdd")})
	s.withDrives(systemPath, map[string]object{"Cd": drive(drives+"/Cd", nil)})
	got := diagnose(t, s)
	if got.RedfishVersion != "1.15.0" || got.Vendor != "Stayput" || got.Product != "scripted" || got.BMCFirmware != "7.10.30" {
		t.Errorf("got %+v", got)
	}
	if !got.Clock.Equal(time.Date(2026, 1, 2, 1, 4, 5, 0, time.UTC)) || got.Sessions != 3 || len(got.Failures) != 0 {
		t.Errorf("clock %s, %d sessions, failures %v", got.Clock, got.Sessions, got.Failures)
	}
	if !slices.Equal(got.Actions, allActions()) || !slices.Equal(got.BootTargets, []bmc.BootTarget{bmc.BootPXE, bmc.BootDisk}) ||
		len(got.MediaSlots) != 1 || got.MediaSlots[0].ID != "Cd" {
		t.Errorf("actions %v, targets %v, slots %v", got.Actions, got.BootTargets, got.MediaSlots)
	}
}

// What a BMC lacks is told as such, and what fails is told as a failure, without hiding the rest.
func TestDiagnoseAPoorBMC(t *testing.T) {
	t.Parallel()
	s := script(t)
	s.change(managerPath, object{"DateTime": "0000-00-00"})
	s.change(systemPath, object{"VirtualMedia": link(drives)})
	s.on("GET "+drives, reply{status: 500})
	got := diagnose(t, s)
	if !got.Clock.IsZero() || got.Sessions != -1 || len(got.Actions) != len(allActions()) {
		t.Errorf("got %+v", got)
	}
	if len(got.Failures) != 1 {
		t.Fatalf("failures %v, want one", got.Failures)
	}
	wantKind(t, got.Failures[0], bmc.Transient, "listing virtual media")
}
