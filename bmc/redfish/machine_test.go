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
	"github.com/stayput-dev/stayput/bmc/redfish"
	"github.com/stayput-dev/stayput/test/lab/redfish/faultybmc"
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

func oneSystem() []faultybmc.System {
	return []faultybmc.System{{ID: "1", Name: "node", UUID: uuidOne, Power: "On", ResetTypes: everyType()}}
}

func startBMC(t *testing.T, change func(*faultybmc.Options)) *faultybmc.BMC {
	t.Helper()
	options := faultybmc.Options{Username: user, Password: password, Systems: oneSystem()}
	if change != nil {
		change(&options)
	}
	b := faultybmc.Start(options)
	t.Cleanup(b.Close)

	return b
}

func optionsFor(t *testing.T, b *faultybmc.BMC, address string) bmc.Options {
	t.Helper()
	parsed, err := bmc.ParseAddress(address)
	if err != nil {
		t.Fatal(err)
	}

	return bmc.Options{
		Address: parsed, CA: b.CA(), Credentials: bmc.Credentials{Username: user, Password: password},
		ConnectTimeout: 5 * time.Second, RequestTimeout: 5 * time.Second,
	}
}

func openMachine(t *testing.T, b *faultybmc.BMC) bmc.Machine {
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
		for _, secret := range []string{password, "YWRtaW46Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5", "token-1"} {
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
			b := startBMC(t, func(o *faultybmc.Options) { o.Sessions = sessions })
			m := openMachine(t, b)
			identity, err := m.Identity(t.Context())
			if want := (bmc.Identity{UUID: uuidOne, Serial: "serial-1", Model: "fault", Manufacturer: "stayput"}); err != nil ||
				identity != want {
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
			if got := b.Actions(); len(got) != 2 {
				t.Errorf("the BMC acted %d times, want 2: %v", len(got), got)
			}
			for range 2 {
				if err := m.Close(t.Context()); err != nil || b.OpenSessions() != 0 {
					t.Errorf("closing: %v; %d sessions left", err, b.OpenSessions())
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
		b.Change("1", func(s *faultybmc.System) { s.Power = said })
		if got, err := m.Power(t.Context()); err != nil || got != want {
			t.Errorf("PowerState %q: got %s, %v, want %s", said, got, err, want)
		}
	}
}

func TestOffered(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*faultybmc.System)
		want   []bmc.Action
	}{
		"no ForceRestart": {func(s *faultybmc.System) { s.ResetTypes = []string{"On", "ForceOff"} }, noRestart()},
		"ForceOn only":    {func(s *faultybmc.System) { s.ResetTypes = []string{"ForceOn"} }, []bmc.Action{bmc.ActionOn}},
		"action info": {
			func(s *faultybmc.System) { s.ActionInfo, s.ResetTypes = true, []string{"ForceRestart"} },
			[]bmc.Action{bmc.ActionForceRestart},
		},
		"nothing said": {func(s *faultybmc.System) { s.ResetTypes = nil }, allActions()},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBMC(t, nil)
			b.Change("1", c.change)
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
	b := startBMC(t, nil)
	b.Change("1", func(s *faultybmc.System) { s.NoReset = true })
	wantKind(t, openMachine(t, b).Do(t.Context(), bmc.ActionForceRestart), bmc.Unsupported, "#ComputerSystem.Reset")
}

func TestWhichSystem(t *testing.T) {
	t.Parallel()
	twins := func(o *faultybmc.Options) {
		o.Systems = append(o.Systems, faultybmc.System{ID: "2", Name: "node", UUID: uuidTwo, Power: "Off", ResetTypes: everyType()})
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
		if got := b.Actions(); len(got) != 1 || got[0].System != "1" {
			t.Errorf("got %v, want one action on system 1", got)
		}
	})
	t.Run("ambiguous", func(t *testing.T) {
		t.Parallel()
		b := startBMC(t, twins)
		_, err := redfish.Open(t.Context(), optionsFor(t, b, "redfish://"+b.Host()))
		wantKind(t, err, bmc.Ambiguous, "/redfish/v1/Systems/1, /redfish/v1/Systems/2")
	})
	t.Run("the only one", func(t *testing.T) {
		t.Parallel()
		b := startBMC(t, nil)
		if _, err := redfish.Open(t.Context(), optionsFor(t, b, "redfish://"+b.Host())); err != nil {
			t.Error(err)
		}
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		b := startBMC(t, func(o *faultybmc.Options) { o.Systems = nil })
		_, err := redfish.Open(t.Context(), optionsFor(t, b, "redfish://"+b.Host()))
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
		b := startBMC(t, func(o *faultybmc.Options) { o.Sessions = true })
		options := optionsFor(t, b, b.Address("1"))
		options.UUID = uuidTwo
		_, err := redfish.Open(t.Context(), options)
		wantKind(t, err, bmc.Mismatch, uuidOne, uuidTwo)
		if b.OpenSessions() != 0 {
			t.Error("a failed Open leaves a session at the BMC")
		}
	})
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
			b := startBMC(t, func(o *faultybmc.Options) { o.Sessions, o.Password = sessions, "another" })
			_, err := redfish.Open(t.Context(), optionsFor(t, b, b.Address("1")))
			wantKind(t, err, bmc.Auth, "401", "credentialsName")
			tries := 0
			for _, request := range b.Requests() {
				if !strings.HasSuffix(request, "/redfish/v1/") {
					tries++
				}
			}
			if tries != 1 {
				t.Errorf("the wrong password was tried %d times, want once: %v", tries, b.Requests())
			}
		})
	}
	_, err := redfish.Open(t.Context(), bmc.Options{Address: bmc.Address{Scheme: "https", Host: "h"}})
	wantKind(t, err, bmc.Auth, "empty")
}

func TestFaultsOfReads(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		fault faultybmc.Fault
		want  bmc.Kind
	}{
		"401":       {faultybmc.Fault{Status: 401, Body: "no " + password}, bmc.Auth},
		"403":       {faultybmc.Fault{Status: 403}, bmc.Auth},
		"404":       {faultybmc.Fault{Status: 404}, bmc.NotFound},
		"500":       {faultybmc.Fault{Status: 500, Body: strings.Repeat(password, 100)}, bmc.Transient},
		"503":       {faultybmc.Fault{Status: 503}, bmc.Busy},
		"truncated": {faultybmc.Fault{Truncate: true}, bmc.Transient},
		"drop":      {faultybmc.Fault{Drop: true}, bmc.Transient},
		"redirect": {
			faultybmc.Fault{Status: 307, Header: http.Header{"Location": {"https://192.0.2.1/redfish/v1"}}}, bmc.Transient,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBMC(t, nil)
			m := openMachine(t, b)
			b.Inject(c.fault)
			power, err := m.Power(t.Context())
			wantKind(t, err, c.want, "reading system /redfish/v1/Systems/1", b.Host())
			if power != bmc.PowerUnknown {
				t.Errorf("got power %s with an error", power)
			}
		})
	}
}

func TestFaultsOfActions(t *testing.T) {
	t.Parallel()
	message := func(id string) string { return `{"error":{"code":"` + id + `","message":"said ` + password + `"}}` }
	cases := map[string]struct {
		fault faultybmc.Fault
		want  bmc.Kind
		acted int
	}{
		"401":                {faultybmc.Fault{Status: 401, Body: message("x")}, bmc.Auth, 0},
		"400":                {faultybmc.Fault{Status: 400, Body: message("Base.1.8.GeneralError")}, bmc.Conflict, 0},
		"400 not supported":  {faultybmc.Fault{Status: 400, Body: message("Base.1.8.ActionNotSupported")}, bmc.Unsupported, 0},
		"400 in POST":        {faultybmc.Fault{Status: 400, Body: message("iLO.2.14.InvalidOperationForSystemState")}, bmc.Busy, 0},
		"409":                {faultybmc.Fault{Status: 409, Body: message("ActionParameterValueConflict")}, bmc.Conflict, 0},
		"412":                {faultybmc.Fault{Status: 412}, bmc.Conflict, 0},
		"500":                {faultybmc.Fault{Status: 500, ActFirst: true, Body: password}, bmc.Unknown, 1},
		"500 not ready":      {faultybmc.Fault{Status: 500, Body: message("IDRAC.2.8.SYS518")}, bmc.Busy, 0},
		"501":                {faultybmc.Fault{Status: 501}, bmc.Unsupported, 0},
		"503":                {faultybmc.Fault{Status: 503, Header: http.Header{"Retry-After": {"7"}}}, bmc.Busy, 0},
		"lost after acting":  {faultybmc.Fault{ActFirst: true, Drop: true}, bmc.Unknown, 1},
		"lost before acting": {faultybmc.Fault{Drop: true}, bmc.Unknown, 0},
		"moved": {
			faultybmc.Fault{Status: 307, Header: http.Header{"Location": {"/redfish/v1/"}}}, bmc.Transient, 0,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBMC(t, nil)
			m := openMachine(t, b)
			c.fault.Method = http.MethodPost
			b.Inject(c.fault)
			err := m.Do(t.Context(), bmc.ActionForceRestart)
			wantKind(t, err, c.want, "sending ForceRestart")
			if name == "503" && bmc.RetryAfter(err) != 7*time.Second {
				t.Errorf("Retry-After: got %s, want 7s", bmc.RetryAfter(err))
			}
			if got := len(b.Actions()); got != c.acted {
				t.Errorf("the BMC acted %d times, want %d", got, c.acted)
			}
		})
	}
}

func TestAccepted(t *testing.T) {
	t.Parallel()
	b := startBMC(t, nil)
	m := openMachine(t, b)
	b.Inject(faultybmc.Fault{Method: http.MethodPost, ActFirst: true, Status: 202})
	if err := m.Do(t.Context(), bmc.ActionForceRestart); err != nil {
		t.Errorf("202 is not an error: %v", err)
	}
}

func TestContextBoundsCalls(t *testing.T) {
	t.Parallel()
	b := startBMC(t, nil)
	m := openMachine(t, b)
	b.Inject(faultybmc.Fault{Method: http.MethodPost, ActFirst: true, Hang: true, Times: 1})
	reached := make(chan struct{})
	b.OnAction(func(faultybmc.Action) { close(reached) })
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
	if got := len(b.Actions()); got != 1 {
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
	b.Inject(faultybmc.Fault{Hang: true})
	_, err = m.Power(t.Context())
	wantKind(t, err, bmc.Transient)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want an error that is context.DeadlineExceeded", err)
	}
	b.Heal()
	b.Inject(faultybmc.Fault{Method: http.MethodPost, Hang: true})
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
