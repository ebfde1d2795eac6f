package trust_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/osimage/trust/trusttest"
)

// rfc8410 is the example key of RFC 8410, section 10.1. Its SubjectPublicKeyInfo is 12 fixed bytes and the 32 of the key.
const (
	rfc8410            = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n"
	rfc8410SubjectInfo = "302a300506032b657003210019bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1"
)

func parseKeys(t *testing.T, data []byte) []trust.Key {
	t.Helper()

	keys, err := trust.ParseKeys("keys.pem", data)
	if err != nil {
		t.Fatal(err)
	}

	return keys
}

func TestKeysOfEachKind(t *testing.T) {
	t.Parallel()

	var file bytes.Buffer

	want := map[string]bool{}

	for algorithm, key := range trusttest.Keys(t) {
		want[algorithm] = true

		file.WriteString("# the key of " + algorithm + "\n")
		file.Write(trusttest.PublicPEM(t, key))
	}

	for _, key := range parseKeys(t, file.Bytes()) {
		if !want[key.Algorithm] || key.Source != "keys.pem" || !strings.Contains(key.String(), key.Fingerprint) {
			t.Errorf("unexpected key %+v", key)
		}

		delete(want, key.Algorithm)
	}

	if len(want) != 0 {
		t.Errorf("not read: %v", want)
	}
}

func TestFingerprint(t *testing.T) {
	t.Parallel()

	key := parseKeys(t, []byte(rfc8410))[0]

	der, err := hex.DecodeString(rfc8410SubjectInfo)
	trusttest.Must(t, err)

	if want := trust.DigestOf(der); key.Fingerprint != want {
		t.Errorf("fingerprint = %s, want %s", key.Fingerprint, want)
	}
}

func TestPKCS1PublicKey(t *testing.T) {
	t.Parallel()

	private, ok := trusttest.Keys(t)["RSA 2048"].(*rsa.PrivateKey)
	if !ok {
		t.Fatal("not an RSA key")
	}

	old := parseKeys(t, pem.EncodeToMemory(&pem.Block{
		Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&private.PublicKey),
	}))
	if key := parseKeys(t, trusttest.PublicPEM(t, private)); old[0].Fingerprint != key[0].Fingerprint {
		t.Error("the same key has two fingerprints")
	}
}

// publicPEM writes a public key that may be unfit.
func publicPEM(t *testing.T, key crypto.PublicKey) string {
	t.Helper()

	der, err := x509.MarshalPKIXPublicKey(key)
	trusttest.Must(t, err)

	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// ones is a number with so many bits.
func ones(bits uint) *big.Int {
	return new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), bits), big.NewInt(1))
}

func TestKeysThatAreRefused(t *testing.T) {
	t.Parallel()

	small, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	trusttest.Must(t, err)

	private := string(trusttest.PrivatePEM(t, trusttest.Ed25519(t)))

	for name, test := range map[string]struct{ text, want string }{
		"empty":              {" \n", "it is empty"},
		"no PEM":             {"hello", "no PEM block"},
		"an SSH key":         {"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGb9 me", "it is an SSH key"},
		"private":            {private, "private key"},
		"one private":        {rfc8410 + private, "private key"},
		"encrypted private":  {pemOf("ENCRYPTED SIGSTORE PRIVATE KEY"), "private key"},
		"certificate":        {pemOf("CERTIFICATE"), "-pubkey"},
		"something else":     {pemOf("PARAMETERS"), `"PARAMETERS"`},
		"no key inside":      {pemOf("PUBLIC KEY"), "cannot be read as a public key"},
		"a broken second":    {rfc8410 + "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2Vw", "1 of its 2 PEM blocks are broken"},
		"a broken first":     {"-----BEGIN PUBLIC KEY-----\nMCo*\n-----END PUBLIC KEY-----\n" + rfc8410, "1 of its 2"},
		"RSA 1024":           {publicPEM(t, &rsa.PublicKey{N: ones(1024), E: 65537}), "1024 bits"},
		"RSA 2047":           {publicPEM(t, &rsa.PublicKey{N: ones(2047), E: 65537}), "2047 bits"},
		"RSA 16384":          {publicPEM(t, &rsa.PublicKey{N: ones(16384), E: 65537}), "16384 bits"},
		"RSA with exponent1": {publicPEM(t, &rsa.PublicKey{N: ones(2048), E: 1}), "exponent 1"},
		"an even exponent":   {publicPEM(t, &rsa.PublicKey{N: ones(2048), E: 4}), "exponent 4"},
		"P-224":              {publicPEM(t, &small.PublicKey), "P-224"},
		"too large":          {strings.Repeat(rfc8410, 1000), "at most 65536"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, err := trust.ParseKeys("/etc/keys/x.pem", []byte(test.text))

			var typed *trust.Error

			switch {
			case !errors.Is(err, trust.ErrKey) || !errors.As(err, &typed):
				t.Errorf("got %v, want an error of a key", err)
			case !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "/etc/keys/x.pem") || typed.Fix == "":
				t.Errorf("the error names not the file, %q and a fix: %v", test.want, err)
			case strings.Contains(err.Error(), "MC4CAQ"):
				t.Errorf("the error has a private key in it: %v", err)
			}
		})
	}
}

func pemOf(kind string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte("no DER")}))
}

func TestKeyFolder(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	write := func(name string, data []byte) {
		trusttest.Must(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}

	write("b.pem", []byte(rfc8410))
	write("README", []byte("not a key"))
	write("old.pub.disabled", []byte("not a key"))

	// As a ConfigMap is mounted.
	trusttest.Must(t, os.Mkdir(filepath.Join(dir, "..2026_01_01.pem"), 0o700))
	write("..2026_01_01.pem/a.pub", trusttest.PublicPEM(t, trusttest.Ed25519(t)))
	trusttest.Must(t, os.Symlink("..2026_01_01.pem/a.pub", filepath.Join(dir, "a.pub")))

	keys, err := trust.LoadKeyFolder(dir)
	if err != nil || len(keys) != 2 || !strings.HasSuffix(keys[0].Source, "a.pub") || !strings.HasSuffix(keys[1].Source, "b.pem") {
		t.Errorf("got %v, %v; want the keys of a.pub and b.pem", keys, err)
	}

	write("c.pub", []byte("garbage"))

	if _, err := trust.LoadKeyFolder(dir); !errors.Is(err, trust.ErrKey) || !strings.Contains(err.Error(), "c.pub") {
		t.Errorf("got %v, want a refusal that names c.pub", err)
	}
}

func TestKeyFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()

	empty := t.TempDir()
	missing := filepath.Join(empty, "missing")

	for name, read := range map[string]func() ([]trust.Key, error){
		"missing file":   func() ([]trust.Key, error) { return trust.LoadKeys(missing) },
		"folder as file": func() ([]trust.Key, error) { return trust.LoadKeys(empty) },
		"device":         func() ([]trust.Key, error) { return trust.LoadKeys("/dev/zero") },
		"missing folder": func() ([]trust.Key, error) { return trust.LoadKeyFolder(missing) },
		"empty folder":   func() ([]trust.Key, error) { return trust.LoadKeyFolder(empty) },
	} {
		if keys, err := read(); !errors.Is(err, trust.ErrKey) {
			t.Errorf("%s: got %v, %v", name, keys, err)
		}
	}

	if _, err := trust.LoadKeys(missing); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want one that tells that the file is missing", err)
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()

	key := parseKeys(t, []byte(rfc8410+rfc8410))

	for name, test := range map[string]struct {
		mode trust.Mode
		keys []trust.Key
		want trust.Mode
	}{
		"default with keys":    {"", key, trust.ModeRequire},
		"default without keys": {"", nil, trust.ModeOff},
		"require":              {trust.ModeRequire, key, trust.ModeRequire},
		"warn":                 {trust.ModeWarn, key, trust.ModeWarn},
		"off with keys":        {trust.ModeOff, key, trust.ModeOff},
		"require without keys": {trust.ModeRequire, nil, ""},
		"warn without keys":    {trust.ModeWarn, nil, ""},
		"unknown":              {"maybe", key, ""},
	} {
		policy, err := trust.NewPolicy(test.mode, test.keys)

		switch {
		case test.want == "" && !errors.Is(err, trust.ErrPolicy):
			t.Errorf("%s: got %v, want a refusal", name, err)
		case test.want != "" && (err != nil || policy.Mode() != test.want || len(policy.Keys()) != len(test.keys)/2):
			t.Errorf("%s: got %s with %d keys, %v", name, policy.Mode(), len(policy.Keys()), err)
		}
	}

	if (trust.Policy{}).Mode() != trust.ModeOff {
		t.Error("a policy that nobody made asks for signatures")
	}
}
