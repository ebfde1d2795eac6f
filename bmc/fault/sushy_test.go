package fault_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/fault"
	"github.com/stayput-dev/stayput/bmc/fault/endpoint"
	"github.com/stayput-dev/stayput/bmc/fault/proxy"
	"github.com/stayput-dev/stayput/bmc/redfish"
	lab "github.com/stayput-dev/stayput/test/lab/redfish"
)

// TestInFrontOfSushyTools plays the faults of the wire in front of a real emulator, whose own log counts the actions.
func TestInFrontOfSushyTools(t *testing.T) {
	t.Parallel()
	const uuid = "5b0c6f52-0c8e-4e0b-9d6e-5d1d1a1f0a77"
	emulator := lab.StartFake(t, user, password, lab.FakeSystem{UUID: uuid, Name: "one", PoweredOn: true})
	target, m := openThrough(t, emulator, uuid)
	played := 0
	for _, p := range slices.Concat(wirePlays(), answerPlays()) {
		if p.does != "power" && p.does != "no power" {
			continue
		}
		played++
		if err := target.Inject(p.fault); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if p.hurried {
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		}
		_, err := m.Power(ctx)
		cancel()
		if want := p.outcomes(); !slices.Contains(want, bmc.KindOf(err)) {
			t.Errorf("%s: got %v (kind %q), want one of %q", p.fault, err, bmc.KindOf(err), want)
		}
		if found := secret(err); found != "" {
			t.Errorf("%s: %s", p.fault, found)
		}
		target.Proxy.Heal()
	}
	for i, kind := range []fault.Kind{fault.AnswerLost, fault.ErrorThoughApplied, fault.ActResetAfter} {
		if err := target.Inject(kind); err != nil {
			t.Fatal(err)
		}
		if err := m.Do(t.Context(), bmc.ActionForceRestart); bmc.KindOf(err) != bmc.Unknown {
			t.Errorf("%s: got %v, want kind Unknown", kind, err)
		}
		if resets, err := emulator.Resets(uuid); err != nil || resets != i+1 {
			t.Errorf("%s: the emulator accepted %d resets, %v, want %d", kind, resets, err, i+1)
		}
		target.Proxy.Heal()
	}
	if _, err := m.Power(t.Context()); err != nil {
		t.Errorf("healed: %v", err)
	}
	if err := target.Inject(fault.StaleOn); err == nil {
		t.Error("a fault of the simulator is injected where there is none")
	}
	t.Logf("%d faults of reads, 3 of actions", played)
}

// openThrough opens the emulator's machine through a proxy.
func openThrough(t *testing.T, emulator *lab.Emulator, uuid string) (fault.Target, bmc.Machine) {
	t.Helper()
	address, err := bmc.ParseAddress(emulator.Address(uuid))
	if err != nil {
		t.Fatal(err)
	}
	behind, err := url.Parse(address.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(emulator.CA()) {
		t.Fatal("the emulator's CA is no certificate")
	}
	front := proxy.To(behind, &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}})
	server, err := endpoint.Start(endpoint.Options{Handler: front, TLS: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		front.Close()
		server.Close()
	})
	address.Host = server.Host()
	m, err := redfish.Open(t.Context(), bmc.Options{
		Address: address, CA: server.CA(), UUID: uuid, Credentials: bmc.Credentials{Username: user, Password: password},
	})
	if err != nil {
		t.Fatal(err)
	}

	return fault.Target{Proxy: front, Endpoint: server}, m
}
