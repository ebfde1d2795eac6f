package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	dirMode  = 0o700
	fileMode = 0o600

	// lifetime is that of every leaf certificate: longer than a lab is left running.
	lifetime = 30 * 24 * time.Hour
	// clockSkew covers guests whose clock is behind the host's.
	clockSkew = time.Hour

	serialBits = 127
)

var errCannotSign = errors.New("the key cannot sign")

// Authority signs certificates.
type Authority struct {
	Certificate *x509.Certificate
	key         crypto.Signer
}

// KeyPair is a certificate and its key, in PEM.
type KeyPair struct {
	CertPEM []byte
	KeyPEM  []byte
}

// Leaf says what to sign.
type Leaf struct {
	// CommonName and Organizations are the user and the groups of a client.
	CommonName    string
	Organizations []string
	// Hosts are the names and addresses of a server; none means that the certificate is for clients only.
	Hosts []string
}

// NewAuthority makes an authority with a new key.
func NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of %s: %w", name, err)
	}

	certificate, err := cert.NewSelfSignedCACert(cert.Config{CommonName: name}, key)
	if err != nil {
		return nil, fmt.Errorf("signing %s: %w", name, err)
	}

	return &Authority{Certificate: certificate, key: key}, nil
}

// LoadOrCreate reads NAME.crt and NAME.key in the directory, or makes the authority and writes them.
func LoadOrCreate(dir, name string) (*Authority, error) {
	authority, err := Load(dir, name)
	if !errors.Is(err, os.ErrNotExist) {
		return authority, err
	}

	if authority, err = NewAuthority(name); err != nil {
		return nil, err
	}

	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(authority.key)
	if err != nil {
		return nil, fmt.Errorf("encoding the key of %s: %w", name, err)
	}

	return authority, KeyPair{CertPEM: authority.CertPEM(), KeyPEM: keyPEM}.Write(dir, name)
}

// Load reads an authority that LoadOrCreate wrote.
func Load(dir, name string) (*Authority, error) {
	keyPEM, err := os.ReadFile(filepath.Join(dir, name+".key"))
	if err != nil {
		return nil, fmt.Errorf("reading the key of %s: %w", name, err)
	}

	certificates, err := cert.CertsFromFile(filepath.Join(dir, name+".crt"))
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of %s: %w", name, err)
	}

	key, err := keyutil.ParsePrivateKeyPEM(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("reading the key of %s: %w", name, err)
	}

	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("reading the key of %s: %w: it is a %T", name, errCannotSign, key)
	}

	return &Authority{Certificate: certificates[0], key: signer}, nil
}

// CertPEM is the authority's certificate.
func (a *Authority) CertPEM() []byte {
	data, err := cert.EncodeCertificates(a.Certificate)
	if err != nil {
		panic(err) // encoding to memory fails only for a certificate without bytes
	}

	return data
}

// Pool holds the authority's certificate alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Certificate)

	return pool
}

// Issue makes a key and signs a certificate for it.
func (a *Authority) Issue(leaf Leaf) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, fmt.Errorf("making the key of %s: %w", leaf.CommonName, err)
	}

	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return KeyPair{}, fmt.Errorf("choosing a serial number: %w", err)
	}

	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: leaf.CommonName, Organization: leaf.Organizations},
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}

	if len(leaf.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}

	for _, host := range leaf.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}

	der, err := x509.CreateCertificate(rand.Reader, template, a.Certificate, key.Public(), a.key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("signing %s: %w", leaf.CommonName, err)
	}

	return encode(der, key)
}

func encode(der []byte, key *ecdsa.PrivateKey) (KeyPair, error) {
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return KeyPair{}, fmt.Errorf("reading the signed certificate: %w", err)
	}

	certPEM, err := cert.EncodeCertificates(certificate)
	if err != nil {
		return KeyPair{}, fmt.Errorf("encoding the certificate: %w", err)
	}

	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("encoding the key: %w", err)
	}

	return KeyPair{CertPEM: certPEM, KeyPEM: keyPEM}, nil
}

// TLS is the pair as Go's TLS wants it.
func (p KeyPair) TLS() (tls.Certificate, error) {
	pair, err := tls.X509KeyPair(p.CertPEM, p.KeyPEM)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("reading the key pair: %w", err)
	}

	return pair, nil
}

// Write writes NAME.crt and NAME.key.
func (p KeyPair) Write(dir, name string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("making the certificate directory: %w", err)
	}

	if err := renameio.WriteFile(filepath.Join(dir, name+".crt"), p.CertPEM, fileMode); err != nil {
		return fmt.Errorf("writing the certificate %s: %w", name, err)
	}

	if err := renameio.WriteFile(filepath.Join(dir, name+".key"), p.KeyPEM, fileMode); err != nil {
		return fmt.Errorf("writing the key %s: %w", name, err)
	}

	return nil
}
