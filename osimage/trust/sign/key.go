package sign

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/stayput-dev/stayput/osimage/trust"
)

// maxKeyFile bounds a private key file: RSA with 8192 bits, encrypted, takes 10 KiB.
const maxKeyFile = 64 << 10

// Types of PEM blocks (RFC 7468, RFC 5915, cosign's pkg/cosign/keys.go).
const (
	typePKCS8    = "PRIVATE KEY"
	typePKCS1    = "RSA PRIVATE KEY"
	typeSEC1     = "EC PRIVATE KEY"
	typeSigstore = "ENCRYPTED SIGSTORE PRIVATE KEY"
	typeCosign   = "ENCRYPTED COSIGN PRIVATE KEY"
)

const fixKey = "give a PEM private key: cosign.key of `cosign generate-key-pair`, or PKCS #8 of `openssl genpkey`"

// Password gives the password of an encrypted key. It is not called for a key that is not encrypted.
type Password func() ([]byte, error)

// Signer signs with a private key.
type Signer struct {
	key    trust.Key
	signer signature.Signer
}

// Key is the public half of the signer's key.
func (s *Signer) Key() trust.Key {
	return s.key
}

// LoadKey reads a private key from a PEM file.
func LoadKey(path string, password Password) (*Signer, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, badKey("key file "+path, "", "name a file that can be read", err)
	}

	return ParseKey(path, data, password)
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, errors.Unwrap(err) // The subject names the file.
	}

	if !info.Mode().IsRegular() {
		return nil, os.ErrInvalid
	}

	file, err := os.Open(path)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	defer file.Close()

	return io.ReadAll(io.LimitReader(file, maxKeyFile+1))
}

// ParseKey reads a private key: PKCS #8, PKCS #1 or SEC 1, or one that cosign encrypted. The source names it in errors,
// which never have anything of the key in them.
func ParseKey(source string, data []byte, password Password) (*Signer, error) {
	if len(data) > maxKeyFile {
		return nil, badKey(source, fmt.Sprintf("it has more than %d bytes", maxKeyFile), fixKey, nil)
	}

	block := firstKey(data)
	if block == nil {
		return nil, badKey(source, "it has no PEM block with a private key", fixKey, nil)
	}

	private, err := parseBlock(source, block, password)
	if err != nil {
		return nil, err
	}

	key, err := trust.NewKey(source, private.Public())
	if err != nil {
		return nil, err
	}

	// The default of an ECDSA key is the hash of its curve's size, of an RSA key SHA-256, and of an Ed25519 key to sign the
	// message itself: what `cosign verify --key` takes.
	signer, err := signature.LoadDefaultSigner(private)
	if err != nil {
		return nil, badKey(source, "it cannot sign", fixKey, err)
	}

	return &Signer{key: key, signer: signer}, nil
}

// firstKey skips the parameters that `openssl ecparam -genkey` writes before the key.
func firstKey(data []byte) *pem.Block {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "EC PARAMETERS" {
			return block
		}
	}

	return nil
}

func parseBlock(source string, block *pem.Block, password Password) (crypto.Signer, error) {
	der := block.Bytes
	parse := x509.ParsePKCS8PrivateKey

	switch block.Type {
	case typePKCS8:
	case typePKCS1:
		parse = func(der []byte) (any, error) { return x509.ParsePKCS1PrivateKey(der) }
	case typeSEC1:
		parse = func(der []byte) (any, error) { return x509.ParseECPrivateKey(der) }
	case typeSigstore, typeCosign:
		var err error

		if der, err = decrypt(source, der, password); err != nil {
			return nil, err
		}
	case "PUBLIC KEY", "RSA PUBLIC KEY":
		return nil, badKey(source, "it is the public half; signing needs the private one", fixKey, nil)
	default:
		return nil, badKey(source, fmt.Sprintf("a PEM block %q is not supported", block.Type), fixKey, nil)
	}

	if block.Headers["DEK-Info"] != "" {
		return nil, badKey(source, "it is encrypted in OpenSSL's old way",
			"convert it with `cosign import-key-pair`, or decrypt it with `openssl pkey`", nil)
	}

	private, err := parse(der)
	if err != nil {
		return nil, badKey(source, "its "+block.Type+" cannot be read", fixKey, err)
	}

	signer, ok := private.(crypto.Signer)
	if !ok {
		return nil, badKey(source, fmt.Sprintf("a key of the type %T cannot sign", private), fixKey, nil)
	}

	return signer, nil
}

func decrypt(source string, data []byte, password Password) ([]byte, error) {
	if password == nil {
		return nil, badKey(source, "it is encrypted, and there is no password", "give the password", nil)
	}

	secret, err := password()
	if err != nil {
		return nil, fmt.Errorf("reading the password of %s: %w", source, err)
	}

	// The library refuses scrypt parameters that would take long.
	der, err := encrypted.Decrypt(data, secret)
	clear(secret)

	if err != nil {
		return nil, badKey(source, "it cannot be decrypted", "check the password", err)
	}

	return der, nil
}

func badKey(source, detail, fix string, cause error) error {
	return &trust.Error{Kind: trust.ErrKey, Subject: source, Detail: detail, Fix: fix, Err: cause}
}

// sign makes a signature over a message.
func (s *Signer) sign(message []byte) ([]byte, error) {
	sig, err := s.signer.SignMessage(bytes.NewReader(message))
	if err != nil {
		return nil, fmt.Errorf("signing with the %s: %w", s.key, err)
	}

	return sig, nil
}
