package pki_test

import (
	"crypto/x509"
	"testing"

	"github.com/stayput-dev/stayput/test/lab/pki"
)

func TestIssuedCertificatesVerifyForTheirHostsAndUsesOnly(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	if _, err := pki.LoadOrCreate(dir, "ca"); err != nil {
		t.Fatal(err)
	}

	authority, err := pki.Load(dir, "ca") // what a later command sees
	if err != nil {
		t.Fatal(err)
	}

	server := issue(t, authority, pki.Leaf{CommonName: "server", Hosts: []string{"10.0.2.2", "localhost"}})
	client := issue(t, authority, pki.Leaf{CommonName: "system:node:n1", Organizations: []string{"system:nodes"}})
	serverAuth := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	clientAuth := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}

	for name, test := range map[string]struct {
		certificate *x509.Certificate
		options     x509.VerifyOptions
		good        bool
	}{
		"server by address":           {server, x509.VerifyOptions{DNSName: "10.0.2.2", KeyUsages: serverAuth}, true},
		"server by name":              {server, x509.VerifyOptions{DNSName: "localhost", KeyUsages: serverAuth}, true},
		"server under another name":   {server, x509.VerifyOptions{DNSName: "example.org", KeyUsages: serverAuth}, false},
		"client as client":            {client, x509.VerifyOptions{KeyUsages: clientAuth}, true},
		"client posing as the server": {client, x509.VerifyOptions{KeyUsages: serverAuth}, false},
	} {
		test.options.Roots = authority.Pool()
		if _, err := test.certificate.Verify(test.options); (err == nil) != test.good {
			t.Errorf("%s: verify says %v, want good %v", name, err, test.good)
		}
	}
}

func issue(t *testing.T, authority *pki.Authority, leaf pki.Leaf) *x509.Certificate {
	t.Helper()

	pair, err := authority.Issue(leaf)
	if err != nil {
		t.Fatal(err)
	}

	certificate, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}

	return certificate.Leaf
}
