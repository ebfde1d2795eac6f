package simulator_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

const (
	system   = "/redfish/v1/Systems/1"
	settings = system + "/Settings"
	resetURI = system + "/Actions/ComputerSystem.Reset"
	cd       = "/redfish/v1/Managers/1/VirtualMedia/CD1"
	insert   = cd + "/Actions/VirtualMedia.InsertMedia"
	eject    = cd + "/Actions/VirtualMedia.EjectMedia"
	sessions = "/redfish/v1/SessionService/Sessions"
)

// plain is a profile without quirks.
func plain() simulator.Profile {
	p := simulator.LenovoXCC()
	p.SystemID, p.ManagerID = "1", "1"
	p.ETag = simulator.ETagNone
	p.Media.Slots = []simulator.Slot{{ID: "CD1", Types: []string{"CD"}}}
	p.Log.Under, p.Log.Service = simulator.AtManager, "SEL"

	return p
}

type bench struct {
	*simulator.BMC

	t     *testing.T
	clock *clocktesting.FakeClock
}

func newBench(t *testing.T, change func(*simulator.Profile)) *bench {
	t.Helper()
	profile := plain()
	if change != nil {
		change(&profile)
	}
	clock := clocktesting.NewFakeClock(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC))

	return &bench{t: t, clock: clock, BMC: simulator.New(simulator.Options{
		Profile: profile, Username: "admin", Password: "secret", Clock: clock,
	})}
}

// ask sends a request with Basic authentication and gives status, header and body; headers are pairs.
func (b *bench) ask(method, path, body string, headers ...string) (int, http.Header, map[string]any) {
	b.t.Helper()
	request := httptest.NewRequest(method, path, strings.NewReader(body))
	request.SetBasicAuth("admin", "secret")
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
		if headers[i] == "X-Auth-Token" {
			request.Header.Del("Authorization")
		}
	}
	recorder := httptest.NewRecorder()
	b.ServeHTTP(recorder, request)
	var object map[string]any
	if recorder.Body.Len() > 0 {
		if err := json.Unmarshal(recorder.Body.Bytes(), &object); err != nil {
			b.t.Fatalf("%s %s: %v in %s", method, path, err, recorder.Body)
		}
	}

	return recorder.Code, recorder.Header(), object
}

// want checks a status.
func (b *bench) want(status int, method, path, body string, headers ...string) map[string]any {
	b.t.Helper()
	got, _, object := b.ask(method, path, body, headers...)
	if got != status {
		b.t.Errorf("%s %s %s: got %d %v, want %d", method, path, body, got, object, status)
	}

	return object
}

func (b *bench) power() any {
	b.t.Helper()

	return b.want(200, "GET", system, "")["PowerState"]
}

func (b *bench) reset(status int, kind string) {
	b.t.Helper()
	b.want(status, "POST", resetURI, `{"ResetType":"`+kind+`"}`)
}

func (b *bench) wantPower(want any) {
	b.t.Helper()
	if got := b.power(); got != want {
		b.t.Errorf("the power is %v, want %v", got, want)
	}
}
