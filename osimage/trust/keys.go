package trust

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"
)

const (
	// maxKeyFile bounds a file of public keys; an RSA key of 4096 bits takes 800 bytes.
	maxKeyFile = 64 << 10
	// maxKeys bounds how many keys a policy has, since each of them may be tried on each signature.
	maxKeys = 64

	minRSABits = 2048
	// maxRSABits bounds the time that one check takes.
	maxRSABits = 8192
	// minRSAExponent refuses exponents that make a signature of anything.
	minRSAExponent = 3

	pemBegin = "-----BEGIN "
	fixKey   = "give the public half as PEM, `-----BEGIN PUBLIC KEY-----`: cosign writes it as cosign.pub, " +
		"`openssl pkey -in KEY -pubout` prints it"
)

// Key is a public key that is trusted.
type Key struct {
	// Fingerprint is what to compare keys by: "sha256:" and the SHA-256 of the key's SubjectPublicKeyInfo, as
	// `openssl pkey -pubin -in FILE -outform DER | sha256sum` prints it.
	Fingerprint string `json:"fingerprint"`
	// Algorithm is the kind and size: "ECDSA P-256", "RSA 3072", "Ed25519".
	Algorithm string `json:"algorithm"`
	// Source is the file that it comes from, or whatever else names it.
	Source string `json:"source,omitempty"`

	public    crypto.PublicKey
	verifiers []signature.Verifier
}

// Public returns the key itself.
func (k Key) Public() crypto.PublicKey {
	return k.public
}

// String returns the key as people are told of it.
func (k Key) String() string {
	text := k.Algorithm + " key " + k.Fingerprint
	if k.Source != "" {
		text += " of " + k.Source
	}

	return text
}

// verifies tells whether the key made the signature over the message.
func (k Key) verifies(message, sig []byte) bool {
	for _, verifier := range k.verifiers {
		if verifier.VerifySignature(bytes.NewReader(sig), bytes.NewReader(message)) == nil {
			return true
		}
	}

	return false
}

// verifiesDigest does the same for a message of which only the SHA-256 is known. Ed25519 needs the message, so such a key
// never does.
func (k Key) verifiesDigest(sum, sig []byte) bool {
	if _, isEd25519 := k.public.(ed25519.PublicKey); isEd25519 {
		return false
	}

	verifier, err := signature.LoadVerifier(k.public, crypto.SHA256)
	if err != nil {
		return false
	}

	return verifier.VerifySignature(bytes.NewReader(sig), nil,
		options.WithDigest(sum), options.WithCryptoSignerOpts(crypto.SHA256)) == nil
}

// NewKey takes a public key: *ecdsa.PublicKey (P-256, P-384 or P-521), *rsa.PublicKey (2048 to 8192 bits) or
// ed25519.PublicKey. The source names it in errors and results.
func NewKey(source string, public crypto.PublicKey) (Key, error) {
	algorithm, problem := describe(public)
	if problem != "" {
		return Key{}, badKey(source, problem, "use ECDSA (P-256, P-384, P-521), Ed25519, or RSA of 2048 bits or more", nil)
	}

	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return Key{}, badKey(source, "it cannot be encoded", fixKey, err)
	}

	verifiers, err := verifiersOf(public)
	if err != nil {
		return Key{}, badKey(source, "", fixKey, err)
	}

	sum := sha256.Sum256(der)

	return Key{
		Fingerprint: "sha256:" + hex.EncodeToString(sum[:]), Algorithm: algorithm, Source: source,
		public: public, verifiers: verifiers,
	}, nil
}

// describe returns the kind and size of a key, or what is wrong with it.
func describe(public crypto.PublicKey) (algorithm, problem string) {
	switch key := public.(type) {
	case *ecdsa.PublicKey:
		algorithm = "ECDSA " + key.Params().Name
		if !slices.Contains([]elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()}, key.Curve) {
			problem = "the curve " + key.Params().Name + " is not used for signatures"
		}
	case ed25519.PublicKey:
		algorithm = "Ed25519"
	case *rsa.PublicKey:
		algorithm = fmt.Sprintf("RSA %d", key.N.BitLen())

		switch bits := key.N.BitLen(); {
		case bits < minRSABits:
			problem = fmt.Sprintf("an RSA key of %d bits can be forged, at least %d are needed", bits, minRSABits)
		case bits > maxRSABits:
			problem = fmt.Sprintf("an RSA key of %d bits is too slow to check, at most %d are taken", bits, maxRSABits)
		case key.E < minRSAExponent || key.E%2 == 0:
			problem = fmt.Sprintf("an RSA key with the exponent %d proves nothing", key.E)
		}
	default:
		problem = fmt.Sprintf("it is a key of the type %T", public)
	}

	return algorithm, problem
}

// verifiersOf returns the ways in which signers use such a key. The hash is not in the signature: cosign takes the one of
// the curve's size since v2, and SHA-256 before; KMSs have RSA keys that are bound to SHA-512. Ed25519 keys sign the
// message (cosign v1, openssl) or its SHA-512 (Ed25519ph, cosign since v2.1). None of them makes a signature of one way
// pass for another way's of another message.
func verifiersOf(public crypto.PublicKey) ([]signature.Verifier, error) {
	ways := [][]signature.LoadOption{
		{options.WithHash(crypto.SHA256)}, {options.WithHash(crypto.SHA384)}, {options.WithHash(crypto.SHA512)},
	}
	if _, isEd25519 := public.(ed25519.PublicKey); isEd25519 {
		ways = [][]signature.LoadOption{nil, {options.WithED25519ph()}}
	}

	verifiers := make([]signature.Verifier, 0, len(ways))

	for _, way := range ways {
		verifier, err := signature.LoadVerifierWithOpts(public, way...)
		if err != nil {
			return nil, err
		}

		verifiers = append(verifiers, verifier)
	}

	return verifiers, nil
}

// ParseKeys reads all public keys of a PEM text. The source names it in errors and results. Text between the keys is
// ignored; a key that cannot be read is an error, so that no key is missing in silence.
func ParseKeys(source string, data []byte) ([]Key, error) {
	if len(data) > maxKeyFile {
		return nil, badKey(source, fmt.Sprintf("it has %d bytes, at most %d are read", len(data), maxKeyFile), fixKey, nil)
	}

	var keys []Key

	blocks := 0

	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		blocks++

		key, err := parseBlock(source, block)
		if err != nil {
			return nil, err
		}

		keys = append(keys, key)
	}

	switch begins := bytes.Count(data, []byte(pemBegin)); {
	case begins > blocks:
		return nil, badKey(source, fmt.Sprintf("%d of its %d PEM blocks are broken", begins-blocks, begins), fixKey, nil)
	case blocks == 0:
		return nil, badKey(source, whatElse(data), fixKey, nil)
	default:
		return keys, nil
	}
}

func parseBlock(source string, block *pem.Block) (Key, error) {
	switch {
	case strings.HasSuffix(block.Type, "PRIVATE KEY"):
		return Key{}, badKey(source, "it has a private key ("+block.Type+"), which belongs to the signer alone", fixKey, nil)
	case block.Type == "CERTIFICATE":
		return Key{}, badKey(source, "it has a certificate, and only bare keys are trusted",
			"give its key: `openssl x509 -in CERTIFICATE -noout -pubkey` prints it", nil)
	}

	public, err := cryptoutils.UnmarshalPEMToPublicKey(pem.EncodeToMemory(block))
	if err != nil {
		return Key{}, badKey(source, fmt.Sprintf("its %q cannot be read as a public key", block.Type), fixKey, err)
	}

	return NewKey(source, public)
}

// whatElse says what a file without PEM is.
func whatElse(data []byte) string {
	switch {
	case len(bytes.TrimSpace(data)) == 0:
		return "it is empty"
	case bytes.HasPrefix(data, []byte("ssh-")) || bytes.HasPrefix(data, []byte("ecdsa-sha2-")):
		return "it is an SSH key"
	default:
		return "it has no PEM block"
	}
}

// LoadKeys reads the public keys of a file, as ParseKeys does.
func LoadKeys(path string) ([]Key, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, badKey("key file "+path, "", "create the file, or name another", withoutPath(err))
	}

	if !info.Mode().IsRegular() {
		return nil, badKey("key file "+path, "it is not a file", fixKey, nil)
	}

	file, err := os.Open(path)
	if err != nil {
		return nil, badKey("key file "+path, "", "make it readable", withoutPath(err))
	}
	defer file.Close()

	data, err := io.ReadAll(io.LimitReader(file, maxKeyFile+1))
	if err != nil {
		return nil, badKey("key file "+path, "", "make it readable", withoutPath(err))
	}

	return ParseKeys(path, data)
}

// LoadKeyFolder reads the public keys of all files *.pub and *.pem of a folder, in the order of their names. Files whose
// names start with a dot are left out: Kubernetes keeps the versions of a mounted ConfigMap in some. A folder without keys
// is an error: whoever names one wants something to be verified.
func LoadKeyFolder(dir string) ([]Key, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, badKey("key folder "+dir, "", "create the folder, or name another", withoutPath(err))
	}

	var keys []Key

	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, ".") || !slices.Contains([]string{".pub", ".pem"}, filepath.Ext(name)) {
			continue
		}

		more, err := LoadKeys(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}

		keys = append(keys, more...)
	}

	if len(keys) == 0 {
		return nil, badKey("key folder "+dir, "it has no file *.pub or *.pem", "put the signers' public keys into it", nil)
	}

	return keys, nil
}

// withoutPath takes the path out of an error whose subject names it already.
func withoutPath(err error) error {
	if path, ok := err.(*os.PathError); ok { //nolint:errorlint // Only the outermost one has nothing to say beside it.
		return path.Err
	}

	return err
}

func badKey(subject, detail, fix string, cause error) error {
	if subject == "" {
		subject = "public key"
	}

	return &Error{Kind: ErrKey, Subject: subject, Detail: detail, Fix: fix, Err: cause}
}
