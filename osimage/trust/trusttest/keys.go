package trusttest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Keys makes a private key of each kind that can be trusted, by its name in trust.Key.Algorithm.
func Keys(tb testing.TB) map[string]crypto.Signer {
	tb.Helper()

	keys := map[string]crypto.Signer{"Ed25519": Ed25519(tb)}

	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		key, err := ecdsa.GenerateKey(curve, rand.Reader)
		Must(tb, err)

		keys["ECDSA "+curve.Params().Name] = key
	}

	for name, bits := range map[string]int{"RSA 2048": 2048, "RSA 3072": 3072} {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		Must(tb, err)

		keys[name] = key
	}

	return keys
}

// Ed25519 makes a private key, which takes no time.
func Ed25519(tb testing.TB) ed25519.PrivateKey {
	tb.Helper()

	_, key, err := ed25519.GenerateKey(rand.Reader)
	Must(tb, err)

	return key
}

// PrivatePEM writes a private key as PKCS #8.
func PrivatePEM(tb testing.TB, key crypto.Signer) []byte {
	tb.Helper()

	der, err := x509.MarshalPKCS8PrivateKey(key)
	Must(tb, err)

	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// PublicPEM writes the public half of a key.
func PublicPEM(tb testing.TB, key crypto.Signer) []byte {
	tb.Helper()

	der, err := x509.MarshalPKIXPublicKey(key.Public())
	Must(tb, err)

	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

// Marshal writes JSON.
func Marshal(tb testing.TB, value any) []byte {
	tb.Helper()

	data, err := json.Marshal(value)
	Must(tb, err)

	return data
}

// Must ends the test at an error.
func Must(tb testing.TB, err error) {
	tb.Helper()

	if err != nil {
		tb.Fatal(err)
	}
}

func hash(digest string) v1.Hash {
	parsed, err := v1.NewHash(digest)
	if err != nil {
		panic(err) // DigestOf wrote it.
	}

	return parsed
}
