package simulator_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
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

func TestPowerTakesItsTime(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(p *simulator.Profile) { p.Reset.Transitions = true })
	b.reset(204, "ForceOff")
	b.wantPower("PoweringOff")
	b.clock.Step(1999 * time.Millisecond)
	b.wantPower("PoweringOff")
	b.clock.Step(time.Millisecond)
	b.wantPower("Off")
	b.reset(204, "On")
	b.wantPower("PoweringOn")
	b.clock.Step(2 * time.Second)
	b.wantPower("On")
	b.reset(204, "GracefulShutdown")
	b.clock.Step(3 * time.Second)
	b.wantPower("PoweringOff")
	b.clock.Step(time.Second)
	b.wantPower("Off")
	b.reset(204, "On")
	b.clock.Step(2 * time.Second)
	b.Configure(func(p *simulator.Profile) { p.Reset.Types = append(p.Reset.Types, "PowerCycle") })
	b.reset(204, "PowerCycle")
	b.clock.Step(2 * time.Second)
	if got := b.State("1").Power; got != "Off" {
		t.Errorf("in the middle of a power cycle: %s", got)
	}
	b.clock.Step(2 * time.Second)
	b.wantPower("On")
	if booted := b.State("1").Booted; len(booted) != 3 {
		t.Errorf("it was started %d times, want 3", len(booted))
	}
}

func TestPowerQuirks(t *testing.T) {
	t.Parallel()
	type rules = simulator.ResetRules
	later := func(d time.Duration, power any) func(*bench) {
		return func(b *bench) {
			b.clock.Step(d)
			b.wantPower(power)
		}
	}
	send := func(status int, kind string) func(*bench) { return func(b *bench) { b.reset(status, kind) } }
	cases := map[string]struct {
		change func(*rules)
		steps  []func(*bench)
	}{
		"an On before it is off is lost": {nil, []func(*bench){send(204, "ForceOff"), send(204, "On"), later(time.Hour, "Off")}},
		"stale": {func(r *rules) { r.Stale = 20 * time.Second }, []func(*bench){
			send(204, "ForceOff"), later(21*time.Second, "On"), later(time.Second, "Off"),
		}},
		"stuck": {func(r *rules) { r.Stuck, r.Transitions = true, true }, []func(*bench){
			send(204, "ForceOff"), later(24*time.Hour, "PoweringOff"),
		}},
		"ignored": {func(r *rules) { r.Ignore = true }, []func(*bench){send(204, "ForceOff"), later(time.Hour, "On")}},
		"conflict": {func(r *rules) { r.OnConflict = time.Minute }, []func(*bench){
			send(204, "ForceOff"), later(2*time.Second, "Off"), send(409, "On"), later(59*time.Second, "Off"), send(409, "On"),
			later(time.Second, "Off"), send(204, "On"), later(2*time.Second, "On"),
		}},
		"POST": {func(r *rules) { r.PostBusy = 30 * time.Second }, []func(*bench){
			send(204, "ForceRestart"), later(2*time.Second, "On"), send(400, "ForceOff"), later(30*time.Second, "On"), send(204, "ForceOff"),
		}},
		"already": {func(r *rules) { r.Already = 409 }, []func(*bench){
			send(409, "On"), send(204, "ForceOff"), later(2*time.Second, "Off"), send(409, "ForceOff"), send(409, "ForceRestart"),
		}},
		"restart while off is like On": {nil, []func(*bench){
			send(204, "ForceOff"), later(2*time.Second, "Off"), send(204, "ForceRestart"), later(2*time.Second, "On"),
		}},
		"deaf": {func(r *rules) { r.DeafOS = true }, []func(*bench){
			send(204, "GracefulShutdown"), later(time.Hour, "On"), send(204, "ForceOff"), later(2*time.Second, "Off"),
		}},
		"restart stays off": {func(r *rules) { r.RestartStaysOff = true }, []func(*bench){
			send(204, "ForceRestart"), later(time.Hour, "Off"), send(204, "On"), later(2*time.Second, "On"),
		}},
		"ignored in transition": {func(r *rules) { r.IgnoreInTransition = true }, []func(*bench){
			send(204, "ForceOff"), send(204, "ForceRestart"), later(time.Hour, "Off"),
		}},
		"unwired": {func(r *rules) { r.Unwired = []string{"ForceOff"} }, []func(*bench){send(500, "ForceOff"), later(time.Hour, "On")}},
		"unknown": {nil, []func(*bench){send(400, "Explode"), send(400, "")}},
		"absent":  {func(r *rules) { r.Absent = true }, []func(*bench){send(404, "ForceOff")}},
		"200":     {func(r *rules) { r.Status = 200 }, []func(*bench){send(200, "ForceOff"), later(2*time.Second, "Off")}},
		"If-Match": {func(r *rules) { r.NoIfMatch = true }, []func(*bench){func(b *bench) {
			b.want(412, "POST", resetURI, `{"ResetType":"ForceOff"}`, "If-Match", `"x"`)
			b.want(204, "POST", resetURI, `{"ResetType":"ForceOff"}`)
		}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(p *simulator.Profile) {
				if c.change != nil {
					c.change(&p.Reset)
				}
			})
			for _, step := range c.steps {
				step(b)
			}
		})
	}
}

func TestTasks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules       simulator.TaskRules
		first, last int
		state       any
		power       string
	}{
		"runs":     {simulator.TaskRules{Runs: 5 * time.Second}, 202, 200, "Completed", "Off"},
		"stuck":    {simulator.TaskRules{Stuck: true}, 202, 202, "Running", "Off"},
		"fails":    {simulator.TaskRules{Runs: time.Second, Fails: true}, 202, 200, "Exception", "On"},
		"vanishes": {simulator.TaskRules{Vanishes: true}, 404, 404, nil, "Off"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(p *simulator.Profile) { p.Reset.Status, p.Reset.Task = 202, c.rules })
			status, header, _ := b.ask("POST", resetURI, `{"ResetType":"ForceOff"}`)
			if status != 202 {
				t.Fatalf("got %d", status)
			}
			monitor := header.Get("Location")
			b.want(c.first, "GET", monitor, "")
			b.clock.Step(10 * time.Second)
			if got := b.want(c.last, "GET", monitor, "")["TaskState"]; got != c.state {
				t.Errorf("the task is %v, want %v", got, c.state)
			}
			b.wantPower(c.power)
		})
	}
}

func TestBootRules(t *testing.T) {
	t.Parallel()
	type rules = simulator.BootRules
	const (
		minimal = `{"Boot":{"BootSourceOverrideTarget":"Cd","BootSourceOverrideEnabled":"Once"}}`
		full    = `{"Boot":{"BootSourceOverrideTarget":"Cd","BootSourceOverrideEnabled":"Once","BootSourceOverrideMode":"UEFI"}}`
		target  = `{"Boot":{"BootSourceOverrideTarget":"Cd"}}`
		disable = `{"Boot":{"BootSourceOverrideEnabled":"Disabled"}}`
		always  = `{"Boot":{"BootSourceOverrideTarget":"Cd","BootSourceOverrideEnabled":"Continuous"}}`
	)
	kept := simulator.Boot{Target: "Cd", Enabled: "Once", Mode: "UEFI"}
	as := func(change func(*simulator.Boot)) simulator.Boot {
		boot := kept
		change(&boot)

		return boot
	}
	unchanged := simulator.Boot{Target: "None", Enabled: "Disabled", Mode: "UEFI"}
	cases := map[string]struct {
		change func(*rules)
		path   string
		body   string
		status int
		boot   simulator.Boot
	}{
		"minimal":           {nil, system, minimal, 204, kept},
		"full":              {nil, system, full, 204, kept},
		"always":            {nil, system, always, 204, as(func(b *simulator.Boot) { b.Enabled = "Continuous" })},
		"nothing":           {nil, system, `{"Boot":{}}`, 400, unchanged},
		"no such target":    {nil, system, `{"Boot":{"BootSourceOverrideTarget":"Tape"}}`, 400, unchanged},
		"no settings":       {nil, settings, minimal, 404, unchanged},
		"settings only":     {func(r *rules) { r.At, r.Settings = simulator.AtSettings, true }, settings, minimal, 204, kept},
		"not at the system": {func(r *rules) { r.At, r.Settings = simulator.AtSettings, true }, system, minimal, 400, unchanged},
		"settings without":  {func(r *rules) { r.Settings = true }, settings, minimal, 400, unchanged},
		"full needed":       {func(r *rules) { r.Full = true }, system, minimal, 400, unchanged},
		"full given":        {func(r *rules) { r.Full = true }, system, full, 204, kept},
		"minimal needed":    {func(r *rules) { r.Minimal = true }, system, full, 400, unchanged},
		"mode read-only":    {func(r *rules) { r.Mode = simulator.ModeReadOnly }, system, full, 400, unchanged},
		"mode absent":       {func(r *rules) { r.Mode = simulator.ModeAbsent }, system, full, 400, unchanged},
		"once only":         {func(r *rules) { r.Continuous = false }, system, always, 400, unchanged},
		"equal refused":     {func(r *rules) { r.EqualRefused = true }, system, disable, 400, unchanged},
		"reverts to once":   {func(r *rules) { r.RevertsToOnce = true }, system, target, 204, kept},
		"mode flips":        {func(r *rules) { r.ModeFlips = true }, system, minimal, 204, as(func(b *simulator.Boot) { b.Mode = "Legacy" })},
		"mode sent is kept": {func(r *rules) { r.ModeFlips = true }, system, full, 204, kept},
		"ignored":           {func(r *rules) { r.Ignore = true }, system, minimal, 204, unchanged},
		"kept though 400":   {func(r *rules) { r.LyingStatus = 400 }, system, minimal, 400, kept},
		"used up":           {func(r *rules) { r.UsedUp = true }, system, minimal, 204, unchanged},
		"pending is not yet": {
			func(r *rules) { r.At, r.Settings, r.Pending = simulator.AtSettings, true, true }, settings, minimal, 204, unchanged,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(p *simulator.Profile) {
				if c.change != nil {
					c.change(&p.Boot)
				}
			})
			b.want(c.status, "PATCH", c.path, c.body)
			if got := b.State("1").Boot; got != c.boot {
				t.Errorf("the override is %+v, want %+v", got, c.boot)
			}
		})
	}
}

func TestOnceIsUsedUpByAStart(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(p *simulator.Profile) {
		p.Boot.At, p.Boot.Settings, p.Boot.Pending = simulator.AtSettings, true, true
	})
	b.want(204, "PATCH", settings, `{"Boot":{"BootSourceOverrideTarget":"Pxe","BootSourceOverrideEnabled":"Once"}}`)
	boot := func(path string) any {
		object, _ := b.want(200, "GET", path, "")["Boot"].(map[string]any)

		return object["BootSourceOverrideTarget"]
	}
	if boot(settings) != "Pxe" || boot(system) != "None" {
		t.Errorf("pending: settings %v, system %v", boot(settings), boot(system))
	}
	for range 2 {
		b.reset(204, "ForceRestart")
		b.clock.Step(2 * time.Second)
	}
	if booted := b.State("1").Booted; !slices.Equal(booted, []string{"Pxe", "None"}) {
		t.Errorf("it was started from %v", booted)
	}
	if boot(settings) != "None" {
		t.Errorf("after the start Settings has %v", boot(settings))
	}
}

func TestETags(t *testing.T) {
	t.Parallel()
	const body = `{"Boot":{"BootSourceOverrideTarget":"Cd"}}`
	for rule, c := range map[simulator.ETagRule]struct {
		told                       string
		none, strong, weak, absurd int
	}{
		simulator.ETagNone:     {"", 204, 204, 204, 204},
		simulator.ETagChecked:  {`"1-1"`, 204, 204, 412, 412},
		simulator.ETagRequired: {`"1-1"`, 428, 204, 412, 412},
		simulator.ETagWeak:     {`W/"1-1"`, 204, 204, 412, 412},
		simulator.ETagRefused:  {`"1-1"`, 204, 412, 412, 412},
		simulator.ETagEmpty:    {"", 204, 412, 412, 412},
	} {
		t.Run(string(rule), func(t *testing.T) {
			t.Parallel()
			for tag, want := range map[string]int{"": c.none, `"1-1"`: c.strong, `W/"1-1"`: c.weak, `"other"`: c.absurd} {
				b := newBench(t, func(p *simulator.Profile) { p.ETag = rule })
				if _, header, _ := b.ask("GET", system, ""); header.Get("ETag") != c.told {
					t.Errorf("it tells %q, want %q", header.Get("ETag"), c.told)
				}
				if tag == "" {
					b.want(want, "PATCH", system, body)
				} else {
					b.want(want, "PATCH", system, body, "If-Match", tag)
				}
			}
		})
	}
	b := newBench(t, func(p *simulator.Profile) { p.ETag = simulator.ETagChecked })
	b.want(204, "PATCH", system, body, "If-Match", `"1-1"`)
	b.want(412, "PATCH", system, body, "If-Match", `"1-1"`)
}

func TestMedia(t *testing.T) {
	t.Parallel()
	const plainBody = `{"Image":"http://192.0.2.1/a.iso"}`
	type rules = simulator.MediaRules
	post := func(status int, path, body string) func(*bench) {
		return func(b *bench) { b.want(status, "POST", path, body) }
	}
	shows := func(inserted bool, image any) func(*bench) {
		return func(b *bench) {
			if got := b.want(200, "GET", cd, ""); got["Inserted"] != inserted || got["Image"] != image {
				b.t.Errorf("the slot shows %v %v, want %v %v", got["Inserted"], got["Image"], inserted, image)
			}
		}
	}
	step := func(d time.Duration) func(*bench) { return func(b *bench) { b.clock.Step(d) } }
	const url = "http://192.0.2.1/a.iso"
	cases := map[string]struct {
		change func(*rules)
		steps  []func(*bench)
	}{
		"in and out": {nil, []func(*bench){post(204, insert, plainBody), shows(true, url), post(204, eject, "{}"), shows(false, nil)}},
		"no image":   {nil, []func(*bench){post(400, insert, "{}")}},
		"replaced":   {nil, []func(*bench){post(204, insert, `{"Image":"http://x/b"}`), post(204, insert, plainBody), shows(true, url)}},
		"occupied":   {func(m *rules) { m.Occupied = 500 }, []func(*bench){post(204, insert, plainBody), post(500, insert, plainBody)}},
		"ejecting": {func(m *rules) { m.Ejecting = 3 * time.Second }, []func(*bench){
			post(204, insert, plainBody), post(204, eject, ""), post(500, insert, plainBody), step(3 * time.Second), post(204, insert, plainBody),
		}},
		"stale inserted": {func(m *rules) { m.StaleInserted = 3 * time.Second }, []func(*bench){
			post(204, insert, plainBody), post(204, eject, ""), shows(true, url), step(3 * time.Second), shows(false, nil),
		}},
		"stale image": {func(m *rules) { m.StaleImage = true }, []func(*bench){
			post(204, insert, plainBody), post(204, eject, ""), shows(false, url),
		}},
		"protocol": {func(m *rules) { m.TransferProtocol = true }, []func(*bench){
			post(400, insert, plainBody), post(204, insert, `{"Image":"`+url+`","TransferProtocolType":"HTTP"}`),
		}},
		"credentials": {func(m *rules) { m.Credentials = true }, []func(*bench){
			post(400, insert, plainBody), post(204, insert, `{"Image":"`+url+`","UserName":"","Password":""}`),
		}},
		"flags": {func(m *rules) { m.ReadOnlyFlags = true }, []func(*bench){
			post(400, insert, `{"Image":"`+url+`","Inserted":true}`), post(204, insert, plainBody),
		}},
		"eject body": {func(m *rules) { m.EjectBody = true }, []func(*bench){
			post(204, insert, plainBody), post(400, eject, ""), post(400, eject, `{"a":1}`), post(204, eject, "{}"),
		}},
		"405":    {func(m *rules) { m.Slots[0].Insert = simulator.Refused405 }, []func(*bench){post(405, insert, plainBody)}},
		"400":    {func(m *rules) { m.Slots[0].Insert = simulator.Refused400 }, []func(*bench){post(400, insert, plainBody)}},
		"absent": {func(m *rules) { m.Slots[0].Insert = simulator.NoInsert }, []func(*bench){post(405, insert, plainBody)}},
		"patch": {func(m *rules) { m.Slots[0].Insert = simulator.ByPatch }, []func(*bench){
			func(b *bench) {
				b.want(400, "PATCH", cd, plainBody)
				b.want(204, "PATCH", cd, `{"Image":"`+url+`","Inserted":true}`)
				shows(true, url)(b)
				b.want(204, "PATCH", cd, `{"Image":null,"Inserted":false}`)
				shows(false, nil)(b)
			},
		}},
		"elsewhere": {func(m *rules) { m.Under = simulator.AtSystem }, []func(*bench){post(404, insert, plainBody)}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(p *simulator.Profile) {
				if c.change != nil {
					c.change(&p.Media)
				}
			})
			for _, step := range c.steps {
				step(b)
			}
		})
	}
}

func TestSessions(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(p *simulator.Profile) { p.Session.Limit, p.Session.Life = 2, time.Minute })
	const login = `{"UserName":"admin","Password":"secret"}`
	_, header, _ := b.ask("POST", sessions, login)
	token, mine := header.Get("X-Auth-Token"), header.Get("Location")
	b.want(200, "GET", system, "", "X-Auth-Token", token)
	b.want(401, "GET", system, "", "X-Auth-Token", "another")
	b.want(401, "POST", sessions, `{"UserName":"admin","Password":"wrong"}`)
	b.want(201, "POST", sessions, login)
	b.want(503, "POST", sessions, login)
	if got := b.Counts(); got.Sessions != 2 || got.SessionsPeak != 2 || got.Logins != 2 || got.Refused != 1 {
		t.Errorf("counts: %+v", got)
	}
	b.want(204, "DELETE", mine, "")
	b.want(401, "GET", system, "", "X-Auth-Token", token)
	b.clock.Step(time.Minute)
	if got := b.Counts().Sessions; got != 0 {
		t.Errorf("%d sessions after their life", got)
	}
	b.Occupy(2)
	b.want(503, "POST", sessions, login)
	b.EndSessions()
	b.want(201, "POST", sessions, login)
	b.Configure(func(p *simulator.Profile) { p.Session.Basic = false })
	b.want(401, "GET", system, "")
	b.Heal()
	b.want(200, "GET", system, "")
	b.SetPassword("changed")
	b.want(401, "GET", system, "")
	b.want(200, "GET", "/redfish/v1/", "")
}

func TestManySystems(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	second := b.Add(simulator.System{Power: "Off"})
	b.Add(simulator.System{ID: "HGX_Baseboard_0", Board: true})
	b.Add(simulator.System{ID: "sick", Status: 500})
	if got := b.IDs(); !slices.Equal(got, []string{"1", "1-2", "HGX_Baseboard_0", "sick"}) {
		t.Errorf("systems: %v", got)
	}
	b.want(500, "GET", "/redfish/v1/Systems/sick", "")
	board := b.want(200, "GET", "/redfish/v1/Systems/HGX_Baseboard_0", "")
	if _, told := board["PowerState"]; told || board["Actions"] != nil {
		t.Errorf("a board has power: %v", board)
	}
	b.want(204, "POST", simulator.Path(second)+"/Actions/ComputerSystem.Reset", `{"ResetType":"On"}`)
	b.clock.Step(2 * time.Second)
	if b.State(second).Power != "On" || b.Accepted(second)["On"] != 1 || len(b.Accepted("1")) != 0 {
		t.Errorf("acts: %+v", b.Acts())
	}
	b.want(200, "GET", "/redfish/v1/Managers/1-2/VirtualMedia", "")
	b.want(404, "GET", "/redfish/v1/Managers/1-3/VirtualMedia", "")
	b.want(404, "GET", "/redfish/v1/Systems/none", "")
	b.want(405, "DELETE", "/redfish/v1/Systems", "")
}

func TestActsAndState(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	var hooked []simulator.Act
	b.OnAct(func(act simulator.Act) {
		hooked = append(hooked, act)
		// The hook may look at the BMC.
		_ = b.State("1")
	})
	b.reset(400, "Explode")
	b.reset(204, "ForceOff")
	b.reset(204, "On") // changes nothing: it is on still
	acts := b.Acts()
	if len(acts) != 3 || acts[0].Accepted() || !acts[1].Applied || acts[2].Applied || !acts[2].Accepted() || !slices.Equal(acts, hooked) {
		t.Errorf("acts: %+v, hooked %+v", acts, hooked)
	}
	b.Change("1", func(s *simulator.State) { s.Shown = new("On") })
	b.clock.Step(time.Minute)
	b.wantPower("On")
	if got := b.State("1").Power; got != "Off" {
		t.Errorf("in truth it is %s", got)
	}
	b.Change("1", func(s *simulator.State) { s.NullPower = true })
	b.wantPower(nil)
	b.Change("1", func(s *simulator.State) { s.NullPower, s.NoPower = false, true })
	if _, told := b.want(200, "GET", system, "")["PowerState"]; told {
		t.Error("PowerState is told")
	}
	b.reset(204, "On")
	b.Change("1", func(s *simulator.State) { s.NoPower, s.Shown, s.Power = false, nil, "On" })
	b.Change("1", func(s *simulator.State) { s.Power = "Off" })
	b.clock.Step(time.Minute)
	b.wantPower("Off")
	// What a test gets is its own.
	b.State("1").Images["CD1"] = "x"
	if len(b.State("1").Images) != 0 {
		t.Error("a copy of the state changes it")
	}
}

func TestLog(t *testing.T) {
	t.Parallel()
	const entries = "/redfish/v1/Managers/1/LogServices/SEL/Entries"
	b := newBench(t, func(p *simulator.Profile) { p.Log.Page, p.Log.OldestFirst = 2, true })
	b.SetSkew(24 * time.Hour)
	b.want(200, "GET", "/redfish/v1/Managers/1/LogServices", "")
	b.want(200, "GET", "/redfish/v1/Managers/1/LogServices/SEL", "")
	first := b.want(200, "GET", entries, "")
	next, _ := first["Members@odata.nextLink"].(string)
	if members, _ := first["Members"].([]any); len(members) != 2 || next != entries+"?$skip=2" {
		t.Fatalf("the first page: %v", first)
	}
	last := b.want(200, "GET", next, "")
	members, _ := last["Members"].([]any)
	entry, _ := members[0].(map[string]any)
	if len(members) != 1 || last["Members@odata.nextLink"] != nil || entry["Created"] != "2026-07-02T11:59:00Z" {
		t.Errorf("the last page: %v", last)
	}
	manager := b.want(200, "GET", "/redfish/v1/Managers/1", "")
	if manager["DateTime"] != "2026-07-02T12:00:00+00:00" {
		t.Errorf("the BMC's clock: %v", manager["DateTime"])
	}
	b.Configure(func(p *simulator.Profile) { p.Log.Page, p.Log.OldestFirst = 0, false })
	newest, _ := b.want(200, "GET", entries+"?$top=1", "")["Members"].([]any)
	entry, _ = newest[0].(map[string]any)
	if len(newest) != 1 || entry["Severity"] != "Critical" {
		t.Errorf("the newest: %v", newest)
	}
}

func TestProfilesAreWhole(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, p := range simulator.Profiles() {
		if names[p.Name] {
			t.Errorf("%s is there twice", p.Name)
		}
		names[p.Name] = true
		b := simulator.New(simulator.Options{Profile: p, Username: "admin", Password: "secret"})
		id := b.IDs()[0]
		if id != p.SystemID {
			t.Errorf("%s: system %s", p.Name, id)
		}
		bench := &bench{BMC: b, t: t}
		body := bench.want(200, "GET", simulator.Path(id), "")
		for _, property := range []string{"UUID", "SerialNumber", "Model", "Manufacturer", "PowerState", "Actions", "Boot"} {
			if body[property] == nil {
				t.Errorf("%s: %s is missing", p.Name, property)
			}
		}
		boot, _ := body["Boot"].(map[string]any)
		if _, told := boot["BootSourceOverrideTarget@Redfish.AllowableValues"]; told != (p.Boot.TargetsAt == simulator.AtSystem) {
			t.Errorf("%s: targets at the system: %t", p.Name, told)
		}
		if !slices.Contains(p.Reset.Types, "On") || !slices.Contains(p.Reset.Types, "ForceOff") {
			t.Errorf("%s offers %v", p.Name, p.Reset.Types)
		}
		// Configure leaves the profile of others alone.
		b.Configure(func(p *simulator.Profile) { p.Reset.Types[0] = "Changed" })
		b.Heal()
		if b.Profile().Reset.Types[0] == "Changed" {
			t.Errorf("%s: Heal does not give the types back", p.Name)
		}
	}
	if len(names) != 9 {
		t.Errorf("%d profiles, want 9", len(names))
	}
}
