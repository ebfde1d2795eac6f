package redfish_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/redfish"
)

// A manager that cannot be read does not hide which machine it is.
func TestIdentityWithoutItsManager(t *testing.T) {
	t.Parallel()
	for _, answer := range []reply{{status: 500}, {status: 503}, {status: 200, body: "<html>"}} {
		s := script(t)
		s.on("GET "+managerPath, answer)
		identity, err := s.open().Identity(t.Context())
		if err != nil || identity.UUID != uuidOne || identity.Serial != "S1" || identity.BMCFirmware != "" {
			t.Errorf("%d: %+v, %v", answer.status, identity, err)
		}
	}
}

// Whatever a BMC tells, nothing of it does something to a terminal, and nothing of it holds the password.
func TestTextsOfABMCAreFitToBeShown(t *testing.T) {
	t.Parallel()
	const bad = "a\x1b[2Jb\x07\u009b31mc\u202e"
	s := script(t)
	s.withDrives(systemPath, map[string]object{"Cd": drive(drives+"/Cd", object{"Id": bad, "MediaTypes": []string{bad}})})
	s.change(managerPath, object{"FirmwareVersion": bad})
	s.change("/redfish/v1", object{"Vendor": bad, "Product": bad})
	s.change(systemPath, object{
		"SerialNumber": bad, "Model": bad, "Manufacturer": bad,
		"Boot":        object{"BootSourceOverrideTarget": bad, "BootSourceOverrideEnabled": "Once"},
		"LogServices": link(systemPath + "/LogServices"),
	})
	s.change(systemPath+"/LogServices", object{"Members": links(systemPath + "/LogServices/1")})
	s.change(systemPath+"/LogServices/1", object{"Entries": link(systemPath + "/LogServices/1/Entries")})
	long := strings.Repeat("x", 290) + " " + password
	s.change(systemPath+"/LogServices/1/Entries", object{"Members": []object{
		{"Message": bad, "Severity": bad}, {"Message": long, "Severity": "OK"}, {"Message": fmt.Sprintf("%q", password)},
	}})
	s.on("POST "+resetPath, reply{status: 409, body: complaint("x", bad+long)})
	m := s.open()
	ctx := t.Context()
	identity, err := m.Identity(ctx)
	boot, bootErr := m.Boot(ctx)
	slots, slotsErr := m.Media(ctx)
	entries, logErr := m.Log(ctx, 10)
	diagnosis, diagnosisErr := m.(redfish.Diagnoser).Diagnose(ctx) //nolint:forcetypeassert // Open gives nothing else
	for _, err := range []error{err, bootErr, slotsErr, logErr, diagnosisErr} {
		if err != nil {
			t.Error(err)
		}
	}
	refusal := m.Do(ctx, bmc.ActionForceOff)
	all := fmt.Sprintf("%s %s %s %s %s %v", fmt.Sprintln(identity), fmt.Sprintln(boot), fmt.Sprintln(slots), fmt.Sprintln(entries),
		fmt.Sprintln(diagnosis), refusal)
	if strings.ContainsAny(all, "\x1b\x07\u009b\u202e") {
		t.Errorf("%q", all)
	}
	// The texts are cut within the password: no part of it may stay.
	if strings.Contains(all, password[:4]) {
		t.Errorf("the password is in %q", all)
	}
	if identity.Serial != "abc" || len(entries) != 3 {
		t.Errorf("%+v, %+v", identity, entries)
	}
}

// A refusal by the BMC is told from what was not sent.
func TestWhatTheBMCRefusedIsMarked(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]bool{409: true, 400: true, 403: true, 404: true, 405: true, 503: true, 500: false} {
		s := script(t)
		s.on("POST "+resetPath, reply{status: status, body: complaint("x", "no")})
		err, _ := s.open().Do(t.Context(), bmc.ActionForceRestart).(*bmc.Error) //nolint:errorlint // as the driver gives it
		if err == nil || err.Refused != want {
			t.Errorf("%d: %+v", status, err)
		}
	}
	s := script(t)
	m := s.open()
	s.on("GET "+systemPath, reply{status: 503})
	if err, _ := m.Do(t.Context(), bmc.ActionForceRestart).(*bmc.Error); err == nil || err.Refused { //nolint:errorlint // as above
		t.Errorf("%+v", err)
	}
	s.server.Close()
	if err, _ := m.Do(t.Context(), bmc.ActionForceRestart).(*bmc.Error); err == nil || err.Refused { //nolint:errorlint // as above
		t.Errorf("%+v", err)
	}
}

func TestTheWrongScheme(t *testing.T) {
	t.Parallel()
	plain := script(t).options()
	plain.Address.Scheme = "https"
	_, err := redfish.Open(t.Context(), plain)
	wantKind(t, err, bmc.Unsupported, "use redfish+http://")
	secure := scriptTLS(t, nil).options()
	secure.Address.Scheme = "http"
	_, err = redfish.Open(t.Context(), secure)
	wantKind(t, err, bmc.Unsupported, "use redfish:// in the address")
	s := script(t)
	s.on("GET /redfish/v1", reply{status: http.StatusMovedPermanently, header: map[string]string{
		"Location": "https://" + s.server.Listener.Addr().String() + "/redfish/v1/",
	}})
	_, err = redfish.Open(t.Context(), s.options())
	wantKind(t, err, bmc.Unsupported, "use redfish:// in the address")
}
