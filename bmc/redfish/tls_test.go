package redfish_test

import (
	"crypto/tls"
	"testing"

	"github.com/stayput-dev/stayput/bmc"
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
