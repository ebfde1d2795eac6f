package redfish

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"
)

// An expired certificate is the same error at each look: a controller stores what it is told.
func TestAnExpiredCertificateIsOneError(t *testing.T) {
	t.Parallel()
	end := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	looked := func(at string) string {
		return untrustedText(x509.CertificateInvalidError{
			Cert: &x509.Certificate{NotBefore: end.AddDate(-1, 0, 0), NotAfter: end}, Reason: x509.Expired,
			Detail: "current time " + at + " is after 2026-03-04T05:06:07Z",
		})
	}
	first, second := looked("2026-03-05T00:00:00Z"), looked("2026-03-05T00:00:01Z")
	if first != second || !strings.Contains(first, "2026-03-04T05:06:07Z") {
		t.Errorf("first %q, then %q", first, second)
	}
}
