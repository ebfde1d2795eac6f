package endpoint

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// Certificate says which certificate a Server shows.
type Certificate int

// The certificates.
const (
	// Valid is issued by Server.CA for 127.0.0.1.
	Valid Certificate = iota
	// OtherIssuer is for 127.0.0.1, issued by a CA that nobody knows.
	OtherIssuer
	// OtherHost is issued by Server.CA for another host.
	OtherHost
	// Expired is issued by Server.CA for 127.0.0.1, and was valid until yesterday.
	Expired
)

const day = 24 * time.Hour

// authority issues the certificates of one Server.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating the key of the endpoint's CA: %w", err)
	}
	template := template()
	template.Subject.CommonName = "simulated BMC CA"
	template.IsCA = true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("making the endpoint's CA: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading the endpoint's CA: %w", err)
	}

	return &authority{certificate: certificate, key: key}, nil
}

// template is valid by the machine's own clock, which is the one that TLS clients ask.
func template() *x509.Certificate {
	now := time.Now()

	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "simulated BMC"},
		NotBefore: now.Add(-2 * day), NotAfter: now.Add(365 * day), BasicConstraintsValid: true,
	}
}

func (a *authority) issue(which Certificate) (*tls.Certificate, error) {
	leaf := template()
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	issuer := a
	switch which {
	case OtherIssuer:
		other, err := newAuthority()
		if err != nil {
			return nil, err
		}
		issuer = other
	case OtherHost:
		leaf.IPAddresses = nil
		leaf.DNSNames = []string{"another-bmc.example"}
	case Expired:
		leaf.NotAfter = leaf.NotBefore.Add(day)
	case Valid:
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generating the endpoint's key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, issuer.certificate, &key.PublicKey, issuer.key)
	if err != nil {
		return nil, fmt.Errorf("making the endpoint's certificate: %w", err)
	}

	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}
