package sign

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/stayput-dev/stayput/osimage/trust"
)

// maxKeyFile bounds a private key file: RSA with 8192 bits, encrypted, takes 10 KiB.
const maxKeyFile = 64 << 10

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

// ParseKey reads a private key: PKCS #8 (encrypted or not), PKCS #1, SEC 1, or one that cosign encrypted. The source names it in errors,
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

	signer, err := signature.LoadSigner(private, hashOf(private.Public()))
	if err != nil {
		return nil, badKey(source, "it cannot sign", fixKey, err)
	}

	return &Signer{key: key, signer: signer}, nil
}

// hashOf is the hash that cosign takes for a key: that of the curve's size, else SHA-256. Ed25519 has its own.
func hashOf(public crypto.PublicKey) crypto.Hash {
	if key, ok := public.(*ecdsa.PublicKey); ok {
		switch key.Curve {
		case elliptic.P384():
			return crypto.SHA384
		case elliptic.P521():
			return crypto.SHA512
		}
	}

	return crypto.SHA256
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
	switch {
	case strings.HasSuffix(block.Type, "PUBLIC KEY"):
		return nil, badKey(source, "it is the public half; signing needs the private one", fixKey, nil)
	case !strings.HasSuffix(block.Type, "PRIVATE KEY"):
		return nil, badKey(source, fmt.Sprintf("it has a %q, not a private key", block.Type), fixKey, nil)
	}

	asked := false

	private, err := cryptoutils.UnmarshalPEMToPrivateKey(pem.EncodeToMemory(block), func(bool) ([]byte, error) {
		asked = true

		return secret(password)
	})

	switch {
	case errors.Is(err, errNoPassword):
		return nil, badKey(source, "", "give its password", err)
	case err != nil && asked:
		return nil, badKey(source, "it cannot be decrypted", "check the password", err)
	case err != nil:
		return nil, badKey(source, "its "+block.Type+" cannot be read", fixKey, err)
	}

	signer, ok := private.(crypto.Signer)
	if !ok {
		return nil, badKey(source, fmt.Sprintf("a key of the type %T cannot sign", private), fixKey, nil)
	}

	return signer, nil
}

var errNoPassword = errors.New("it is encrypted, and there is no password")

// secret asks for the password. The library takes nil for "not encrypted", and cosign allows the empty password.
func secret(password Password) ([]byte, error) {
	if password == nil {
		return nil, errNoPassword
	}

	text, err := password()
	if err != nil {
		return nil, err
	}

	return append([]byte{}, text...), nil
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
