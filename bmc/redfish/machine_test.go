package redfish_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/fault"
	"github.com/stayput-dev/stayput/bmc/fault/proxy"
	"github.com/stayput-dev/stayput/bmc/fault/simulator"
	"github.com/stayput-dev/stayput/bmc/redfish"
)

const (
	user     = "admin"
	password = "correct-horse-battery"
	uuidOne  = "11111111-1111-4111-8111-111111111111"
	uuidTwo  = "22222222-2222-4222-8222-222222222222"
)

func allActions() []bmc.Action { return append(noCycle(), bmc.ActionPowerCycle) }

func noCycle() []bmc.Action {
	return []bmc.Action{
		bmc.ActionOn, bmc.ActionForceOff, bmc.ActionForceRestart, bmc.ActionShutdown, bmc.ActionSoftRestart,
	}
}

func noRestart() []bmc.Action { return []bmc.Action{bmc.ActionOn, bmc.ActionForceOff} }

func everyType() []string {
	return []string{"On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart"}
}

// simulated describes a BMC of one machine whose power follows at once. Sessions it has none, and an If-Match with an
// action it refuses.
func simulated() simulator.Options {
	p := simulator.LenovoXCC()
	p.Manufacturer, p.Model, p.Firmware = "stayput", "fault", "1.2.3"
	p.SystemID, p.ManagerID = "1", "1"
	p.Session.Offered = false
	p.Reset.Types, p.Reset.Latency, p.Reset.NoIfMatch = everyType(), 0, true
	p.ETag = simulator.ETagChecked

	return simulator.Options{
		Profile: p, Username: user, Password: password,
		Systems: []simulator.System{{ID: "1", Name: "node", UUID: uuidOne, Serial: "serial-1"}},
	}
}

func startBMC(t *testing.T, change func(*simulator.Options)) *fault.BMC {
	t.Helper()
	options := simulated()
	if change != nil {
		change(&options)
	}
	b, err := fault.Start(fault.Options{BMC: options, TLS: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)

	return b
}

func sessionsOffered(offered bool) func(*simulator.Options) {
	return func(o *simulator.Options) { o.Profile.Session.Offered = offered }
}

// acted are the actions that the BMC accepted.
func acted(b *fault.BMC) []simulator.Act {
	return slices.DeleteFunc(b.Simulator.Acts(), func(act simulator.Act) bool { return !act.Accepted() })
}

func openSessions(b *fault.BMC) int { return b.Simulator.Counts().Sessions }

func optionsFor(t *testing.T, b *fault.BMC, address string) bmc.Options {
	t.Helper()
	parsed, err := bmc.ParseAddress(address)
	if err != nil {
		t.Fatal(err)
	}

	return bmc.Options{
		Address: parsed, CA: b.Endpoint.CA(), Credentials: bmc.Credentials{Username: user, Password: password},
		ConnectTimeout: 5 * time.Second, RequestTimeout: 5 * time.Second,
	}
}

func openMachine(t *testing.T, b *fault.BMC) bmc.Machine {
	t.Helper()
	m, err := redfish.Open(t.Context(), optionsFor(t, b, b.Address("1")))
	if err != nil {
		t.Fatal(err)
	}

	return m
}

func wantKind(t *testing.T, err error, want bmc.Kind, texts ...string) {
	t.Helper()
	if bmc.KindOf(err) != want {
		t.Fatalf("got %v (kind %q), want kind %s", err, bmc.KindOf(err), want)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
	noSecrets(t, err)
}

// noSecrets looks through the whole chain.
func noSecrets(t *testing.T, err error) {
	t.Helper()
	for ; err != nil; err = errors.Unwrap(err) {
		for _, secret := range []string{password, "YWRtaW46Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5", "token-1", "simulated-token-"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error holds a secret: %v", err)
			}
		}
	}
}

func TestMachine(t *testing.T) {
	t.Parallel()
	for name, sessions := range map[string]bool{"sessions": true, "basic": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBMC(t, sessionsOffered(sessions))
			m := openMachine(t, b)
			identity, err := m.Identity(t.Context())
			if want := (bmc.Identity{
				UUID: uuidOne, Serial: "serial-1", Model: "fault", Manufacturer: "stayput", BMCFirmware: "1.2.3",
			}); err != nil || identity != want {
				t.Errorf("identity: got %+v, %v, want %+v", identity, err, want)
			}
			offered, err := m.Actions(t.Context())
			if err != nil || !slices.Equal(offered, noCycle()) {
				t.Errorf("actions: got %v, %v", offered, err)
			}
			for _, action := range []bmc.Action{bmc.ActionForceRestart, bmc.ActionForceOff} {
				if err := m.Do(t.Context(), action); err != nil {
					t.Error(err)
				}
			}
			if power, err := m.Power(t.Context()); err != nil || power != bmc.PowerOff {
				t.Errorf("power: got %s, %v, want Off", power, err)
			}
			if got := acted(b); len(got) != 2 {
				t.Errorf("the BMC acted %d times, want 2: %v", len(got), got)
			}
			for range 2 {
				if err := m.Close(t.Context()); err != nil || openSessions(b) != 0 {
					t.Errorf("closing: %v; %d sessions left", err, openSessions(b))
				}
			}
		})
	}
}

func TestPower(t *testing.T) {
	t.Parallel()
	b := startBMC(t, nil)
	m := openMachine(t, b)
	for said, want := range map[string]bmc.Power{
		"On": bmc.PowerOn, "Off": bmc.PowerOff, "PoweringOn": bmc.PowerTransition, "PoweringOff": bmc.PowerTransition,
		"Paused": bmc.PowerUnknown, "": bmc.PowerUnknown, "weird": bmc.PowerUnknown,
	} {
		b.Simulator.Change("1", func(s *simulator.State) { s.Shown, s.NullPower = &said, said == "" })
		if got, err := m.Power(t.Context()); err != nil || got != want {
			t.Errorf("PowerState %q: got %s, %v, want %s", said, got, err, want)
		}
	}
}

func TestOffered(t *testing.T) {
	t.Parallel()
	type rules = simulator.ResetRules
	cases := map[string]struct {
		change func(*rules)
		want   []bmc.Action
	}{
		"no ForceRestart": {func(r *rules) { r.Types = []string{"On", "ForceOff"} }, noRestart()},
		"ForceOn only":    {func(r *rules) { r.Types = []string{"ForceOn"} }, []bmc.Action{bmc.ActionOn}},
		"action info": {
			func(r *rules) { r.TypesAt, r.Types = simulator.ActionInfo, []string{"ForceRestart"} },
			[]bmc.Action{bmc.ActionForceRestart},
		},
		"nothing said": {
			func(r *rules) { r.TypesAt, r.Types = simulator.Nowhere, append(everyType(), "PowerCycle") }, allActions(),
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBMC(t, func(o *simulator.Options) { c.change(&o.Profile.Reset) })
			m := openMachine(t, b)
			got, err := m.Actions(t.Context())
			if err != nil || !slices.Equal(got, c.want) {
				t.Fatalf("got %v, %v, want %v", got, err, c.want)
			}
			for _, action := range allActions() {
				err := m.Do(t.Context(), action)
				if slices.Contains(c.want, action) != (err == nil) {
					t.Errorf("%s: %v", action, err)
				}
				if err != nil {
					wantKind(t, err, bmc.Unsupported, "offers only")
				}
			}
		})
	}
}

func TestNoResetAction(t *testing.T) {
	t.Parallel()
	b := startBMC(t, func(o *simulator.Options) { o.Profile.Reset.Absent = true })
	wantKind(t, openMachine(t, b).Do(t.Context(), bmc.ActionForceRestart), bmc.Unsupported, "#ComputerSystem.Reset")
}

func TestWhichSystem(t *testing.T) {
	t.Parallel()
	twins := func(o *simulator.Options) {
		o.Systems = append(o.Systems, simulator.System{ID: "2", Name: "node", UUID: uuidTwo, Power: "Off"})
	}
	t.Run("by path", func(t *testing.T) {
		t.Parallel()
		b := startBMC(t, twins)
		for range 20 {
			m := openMachine(t, b)
			if power, err := m.Power(t.Context()); err != nil || power != bmc.PowerOn {
				t.Fatalf("got %s, %v, want On of system 1", power, err)
			}
		}
		if err := openMachine(t, b).Do(t.Context(), bmc.ActionForceRestart); err != nil {
			t.Fatal(err)
		}
		if got := acted(b); len(got) != 1 || got[0].System != "1" {
			t.Errorf("got %v, want one action on system 1", got)
		}
	})
	t.Run("ambiguous", func(t *testing.T) {
		t.Parallel()
		b := startBMC(t, twins)
		_, err := redfish.Open(t.Context(), optionsFor(t, b, b.Address("")))
		wantKind(t, err, bmc.Ambiguous, "/redfish/v1/Systems/1, /redfish/v1/Systems/2")
	})
	t.Run("the only one", func(t *testing.T) {
		t.Parallel()
		b := startBMC(t, nil)
		if _, err := redfish.Open(t.Context(), optionsFor(t, b, b.Address(""))); err != nil {
			t.Error(err)
		}
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		b := startBMC(t, nil)
		b.Proxy.Inject(proxy.Rule{Path: "/redfish/v1/Systems", Exact: true, Apply: true, Effect: proxy.Edit(
			func(collection map[string]any) { collection["Members"] = []any{} })})
		_, err := redfish.Open(t.Context(), optionsFor(t, b, b.Address("")))
		wantKind(t, err, bmc.NotFound)
	})
	t.Run("wrong path", func(t *testing.T) {
		t.Parallel()
		b := startBMC(t, nil)
		_, err := redfish.Open(t.Context(), optionsFor(t, b, b.Address("9")))
		wantKind(t, err, bmc.NotFound, "404")
	})
	t.Run("another machine", func(t *testing.T) {
		t.Parallel()
		b := startBMC(t, sessionsOffered(true))
		options := optionsFor(t, b, b.Address("1"))
		options.UUID = uuidTwo
		_, err := redfish.Open(t.Context(), options)
		wantKind(t, err, bmc.Mismatch, uuidOne, uuidTwo)
		if openSessions(b) != 0 {
			t.Error("a failed Open leaves a session at the BMC")
		}
	})
}

// A board was swapped while the session lived.
func TestNoActOnAnotherMachine(t *testing.T) {
	t.Parallel()
	b := startBMC(t, nil)
	options := optionsFor(t, b, b.Address("1"))
	options.UUID = uuidOne
	m, err := redfish.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	b.Simulator.Change("1", func(s *simulator.State) { s.UUID = uuidTwo })
	wantKind(t, m.Do(t.Context(), bmc.ActionForceRestart), bmc.Mismatch, uuidTwo)
	wantKind(t, m.SetBoot(t.Context(), bmc.Boot{Target: bmc.BootDisk}), bmc.Mismatch, uuidTwo)
	if acts := b.Simulator.Acts(); len(acts) > 0 {
		t.Errorf("acted: %+v", acts)
	}
}

func TestTrust(t *testing.T) {
	t.Parallel()
	b := startBMC(t, nil)
	options := optionsFor(t, b, b.Address("1"))
	options.CA = nil
	_, err := redfish.Open(t.Context(), options)
	wantKind(t, err, bmc.Untrusted, "disableCertificateVerification")
	options.SkipVerify = true
	if _, err := redfish.Open(t.Context(), options); err != nil {
		t.Error(err)
	}
	options.CA = []byte("nonsense")
	_, err = redfish.Open(t.Context(), options)
	wantKind(t, err, bmc.Untrusted, "PEM")
}

func TestWrongPassword(t *testing.T) {
	t.Parallel()
	for name, sessions := range map[string]bool{"sessions": true, "basic": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBMC(t, func(o *simulator.Options) {
				o.Profile.Session.Offered, o.Password = sessions, "another"
			})
			_, err := redfish.Open(t.Context(), optionsFor(t, b, b.Address("1")))
			wantKind(t, err, bmc.Auth, "401", "credentialsName")
			tries := 0
			for _, request := range b.Proxy.Requests() {
				if !strings.HasSuffix(request, "/redfish/v1/") {
					tries++
				}
			}
			if tries != 1 {
				t.Errorf("the wrong password was tried %d times, want once: %v", tries, b.Proxy.Requests())
			}
		})
	}
	_, err := redfish.Open(t.Context(), bmc.Options{Address: bmc.Address{Scheme: "https", Host: "h"}})
	wantKind(t, err, bmc.Auth, "empty")
}

func TestFaultsOfReads(t *testing.T) {
	t.Parallel()
	answer := func(status int, body string) proxy.Rule { return proxy.Rule{Effect: proxy.Answer(status, nil, body)} }
	cases := map[string]struct {
		fault proxy.Rule
		want  bmc.Kind
	}{
		"401":       {answer(401, "no "+password), bmc.Auth},
		"403":       {answer(403, ""), bmc.Auth},
		"404":       {answer(404, ""), bmc.NotFound},
		"500":       {answer(500, strings.Repeat(password, 100)), bmc.Transient},
		"503":       {answer(503, ""), bmc.Busy},
		"truncated": {proxy.Rule{Apply: true, Effect: proxy.Truncate()}, bmc.Transient},
		"drop":      {proxy.Rule{Effect: proxy.Drop()}, bmc.Transient},
		"redirect":  {proxy.Rule{Effect: proxy.Redirect(307, "https://192.0.2.1")}, bmc.Transient},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBMC(t, nil)
			m := openMachine(t, b)
			b.Proxy.Inject(c.fault)
			power, err := m.Power(t.Context())
			wantKind(t, err, c.want, "reading system /redfish/v1/Systems/1", b.Endpoint.Host())
			if power != bmc.PowerUnknown {
				t.Errorf("got power %s with an error", power)
			}
		})
	}
}

func TestFaultsOfActions(t *testing.T) {
	t.Parallel()
	header := func(name, value string) http.Header { return http.Header{name: {value}} }
	// says answers with a message, and does not act.
	says := func(status int, id string) proxy.Rule {
		return proxy.Rule{Effect: proxy.Answer(status, nil, `{"error":{"code":"`+id+`","message":"said `+password+`"}}`)}
	}
	cases := map[string]struct {
		fault proxy.Rule
		want  bmc.Kind
		acted int
	}{
		"401":                {says(401, "x"), bmc.Auth, 0},
		"400":                {says(400, "Base.1.8.GeneralError"), bmc.Conflict, 0},
		"400 not supported":  {says(400, "Base.1.8.ActionNotSupported"), bmc.Unsupported, 0},
		"400 in POST":        {says(400, "iLO.2.14.InvalidOperationForSystemState"), bmc.Busy, 0},
		"409":                {says(409, "ActionParameterValueConflict"), bmc.Conflict, 0},
		"412":                {proxy.Rule{Effect: proxy.Answer(412, nil, "")}, bmc.Conflict, 0},
		"500":                {proxy.Rule{Apply: true, Effect: proxy.Answer(500, nil, password)}, bmc.Unknown, 1},
		"500 not ready":      {says(500, "IDRAC.2.8.SYS518"), bmc.Busy, 0},
		"501":                {proxy.Rule{Effect: proxy.Answer(501, nil, "")}, bmc.Unsupported, 0},
		"503":                {proxy.Rule{Effect: proxy.Answer(503, header("Retry-After", "7"), "")}, bmc.Busy, 0},
		"lost after acting":  {proxy.Rule{Apply: true, Effect: proxy.Drop()}, bmc.Unknown, 1},
		"lost before acting": {proxy.Rule{Effect: proxy.Drop()}, bmc.Unknown, 0},
		"moved":              {proxy.Rule{Effect: proxy.Answer(307, header("Location", "/redfish/v1/"), "")}, bmc.Transient, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBMC(t, nil)
			m := openMachine(t, b)
			c.fault.Method = http.MethodPost
			b.Proxy.Inject(c.fault)
			err := m.Do(t.Context(), bmc.ActionForceRestart)
			wantKind(t, err, c.want, "sending ForceRestart")
			if name == "503" && bmc.RetryAfter(err) != 7*time.Second {
				t.Errorf("Retry-After: got %s, want 7s", bmc.RetryAfter(err))
			}
			if got := len(acted(b)); got != c.acted {
				t.Errorf("the BMC acted %d times, want %d", got, c.acted)
			}
		})
	}
}

func TestAccepted(t *testing.T) {
	t.Parallel()
	b := startBMC(t, nil)
	m := openMachine(t, b)
	b.Proxy.Inject(proxy.Rule{Method: http.MethodPost, Apply: true, Effect: proxy.Answer(202, nil, "")})
	if err := m.Do(t.Context(), bmc.ActionForceRestart); err != nil {
		t.Errorf("202 is not an error: %v", err)
	}
}

func TestContextBoundsCalls(t *testing.T) {
	t.Parallel()
	b := startBMC(t, nil)
	m := openMachine(t, b)
	b.Proxy.Inject(proxy.Rule{Method: http.MethodPost, Apply: true, Effect: proxy.Hang(), Times: 1})
	reached := make(chan struct{})
	b.Simulator.OnAct(func(simulator.Act) { close(reached) })
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-reached
		cancel()
	}()
	err := m.Do(ctx, bmc.ActionForceRestart)
	wantKind(t, err, bmc.Unknown, "may have acted")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want an error that is context.Canceled", err)
	}
	if power, err := m.Power(t.Context()); err != nil || power != bmc.PowerOn {
		t.Errorf("the machine is of no use after a cancelled call: %s, %v", power, err)
	}
	gone, cancelGone := context.WithCancel(t.Context())
	cancelGone()
	wantKind(t, m.Do(gone, bmc.ActionForceRestart), bmc.Transient)
	if got := len(acted(b)); got != 1 {
		t.Errorf("the BMC acted %d times, want once", got)
	}
}

func TestRequestTimeout(t *testing.T) {
	t.Parallel()
	b := startBMC(t, nil)
	options := optionsFor(t, b, b.Address("1"))
	options.RequestTimeout = 1500 * time.Millisecond
	m, err := redfish.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	b.Proxy.Inject(proxy.Rule{Effect: proxy.Hang()})
	_, err = m.Power(t.Context())
	wantKind(t, err, bmc.Transient)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want an error that is context.DeadlineExceeded", err)
	}
	b.Proxy.Heal()
	b.Proxy.Inject(proxy.Rule{Method: http.MethodPost, Effect: proxy.Hang()})
	wantKind(t, m.Do(t.Context(), bmc.ActionForceRestart), bmc.Unknown)
}

func TestNothingListens(t *testing.T) {
	t.Parallel()
	b := startBMC(t, nil)
	options := optionsFor(t, b, b.Address("1"))
	m := openMachine(t, b)
	b.Close()
	_, err := redfish.Open(t.Context(), options)
	wantKind(t, err, bmc.Transient, "refused")
	wantKind(t, m.Do(t.Context(), bmc.ActionForceRestart), bmc.Transient)
}

func TestCredentialsDoNotPrint(t *testing.T) {
	t.Parallel()
	credentials := bmc.Credentials{Username: user, Password: password}
	for _, text := range []string{fmt.Sprintf("%v", credentials), fmt.Sprintf("%+v", credentials), fmt.Sprintf("%#v", credentials)} {
		if strings.Contains(text, password) {
			t.Errorf("it prints as %s", text)
		}
	}
}
