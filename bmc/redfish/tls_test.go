package redfish_test

import (
	"crypto/tls"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/fault"
	"github.com/stayput-dev/stayput/bmc/redfish"
)

// An old BMC has RSA key exchange only; it is refused, and told so, unless its host allows it.
func TestLegacyTLS(t *testing.T) {
	t.Parallel()
	for _, suite := range []uint16{tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_256_CBC_SHA} {
		s := scriptTLS(t, &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite}})
		options := s.options()
		_, err := redfish.Open(t.Context(), options)
		wantKind(t, err, bmc.Unsupported, "allow old TLS ciphers")
		options.LegacyTLS = true
		if _, err := redfish.Open(t.Context(), options); err != nil {
			t.Errorf("%s: %v", tls.CipherSuiteName(suite), err)
		}
		options.CA = nil
		_, err = redfish.Open(t.Context(), options)
		wantKind(t, err, bmc.Untrusted)
	}
	s := scriptTLS(t, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	options := s.options()
	options.LegacyTLS = true
	_, err := redfish.Open(t.Context(), options)
	wantKind(t, err, bmc.Unsupported, "update the BMC's firmware")
	modern := scriptTLS(t, &tls.Config{MinVersion: tls.VersionTLS13}).options()
	modern.LegacyTLS = true
	if _, err := redfish.Open(t.Context(), modern); err != nil {
		t.Errorf("TLS 1.3: %v", err)
	}
}

// Connections are not kept, but the TLS session is; not beyond a change of the BMC's certificate.
func TestTLSSessionIsResumed(t *testing.T) {
	t.Parallel()
	var resumed, full atomic.Int32
	b, err := fault.Start(fault.Options{BMC: simulated(), TLS: true, Around: func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.TLS.DidResume {
				resumed.Add(1)
			} else {
				full.Add(1)
			}
			next.ServeHTTP(w, r)
		})
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	m := openMachine(t, b)
	for range 10 {
		if _, err := m.Power(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if full.Load() != 1 || resumed.Load() < 10 {
		t.Errorf("%d handshakes in full, %d resumed, want 1 in full", full.Load(), resumed.Load())
	}
	if b.Endpoint.Connections() != int(full.Load()+resumed.Load()) {
		t.Errorf("%d connections, want one for each request", b.Endpoint.Connections())
	}
	if err := b.Inject(fault.UnknownIssuer); err != nil {
		t.Fatal(err)
	}
	_, err = m.Power(t.Context())
	wantKind(t, err, bmc.Untrusted)
}
