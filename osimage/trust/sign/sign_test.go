package sign_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"

	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/osimage/trust/sign"
	"github.com/stayput-dev/stayput/osimage/trust/trusttest"
)

const secret = "correct horse"

var errTerminal = errors.New("no terminal")

func artifact(store *trusttest.Store) sign.Artifact {
	return sign.Artifact{
		Name:       "registry.example/os",
		Descriptor: store.Put("", []byte(`{"schemaVersion":2}`), types.OCIManifestSchema1),
	}
}

func signerOf(t *testing.T, key crypto.Signer) *sign.Signer {
	t.Helper()

	signer, err := sign.ParseKey("key", trusttest.PrivatePEM(t, key), nil)
	trusttest.Must(t, err)

	return signer
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// privateKeys are keys as tools write them, and whether they need the password.
func privateKeys(t *testing.T) map[string]struct {
	data     []byte
	password bool
} {
	t.Helper()

	type file = struct {
		data     []byte
		password bool
	}

	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	trusttest.Must(t, err)

	key, err := rsa.GenerateKey(rand.Reader, 2048)
	trusttest.Must(t, err)

	sec1, err := x509.MarshalECPrivateKey(ec)
	trusttest.Must(t, err)

	pkcs8, err := x509.MarshalPKCS8PrivateKey(ec)
	trusttest.Must(t, err)

	box, err := encrypted.Encrypt(pkcs8, []byte(secret))
	trusttest.Must(t, err)

	return map[string]file{
		"PKCS8":                     {block("PRIVATE KEY", pkcs8), false},
		"PKCS8 Ed25519":             {trusttest.PrivatePEM(t, trusttest.Ed25519(t)), false},
		"SEC1 after its parameters": {append(block("EC PARAMETERS", []byte{6, 0}), block("EC PRIVATE KEY", sec1)...), false},
		"PKCS1":                     {block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)), false},
		"cosign":                    {block("ENCRYPTED SIGSTORE PRIVATE KEY", box), true},
		"cosign before v2":          {block("ENCRYPTED COSIGN PRIVATE KEY", box), true},
	}
}

func TestPrivateKeys(t *testing.T) {
	t.Parallel()

	for name, file := range privateKeys(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			asked := 0
			signer, err := sign.ParseKey("my.key", file.data, func() ([]byte, error) {
				asked++

				return []byte(secret), nil
			})
			trusttest.Must(t, err)

			if (asked > 0) != file.password {
				t.Errorf("the password was asked for %d times", asked)
			}

			store := trusttest.New()
			update, err := signer.Tag(t.Context(), store, artifact(store))
			trusttest.Must(t, err)
			store.Apply(t, update)
			verify(t, store, signer, trust.FormTag)

			if !file.password {
				return
			}

			for problem, password := range map[string]sign.Password{
				"wrong":  func() ([]byte, error) { return []byte("battery staple"), nil },
				"empty":  func() ([]byte, error) { return nil, nil },
				"failed": func() ([]byte, error) { return nil, errTerminal },
				"none":   nil,
			} {
				_, err := sign.ParseKey("my.key", file.data, password)
				if !errors.Is(err, trust.ErrKey) || !strings.Contains(err.Error(), "my.key") || !strings.Contains(err.Error(), "password") {
					t.Errorf("%s password: got %v", problem, err)
				}
			}
		})
	}
}

func verify(t *testing.T, store *trusttest.Store, signer *sign.Signer, form trust.Form) {
	t.Helper()

	policy, err := trust.NewPolicy(trust.ModeRequire, []trust.Key{signer.Key()})
	trusttest.Must(t, err)

	digest := artifact(store).Descriptor.Digest.String()
	if result, err := trust.VerifyForm(t.Context(), store, policy, form, digest); err != nil || !result.Verified {
		t.Errorf("the signature is not good: %+v, %v", result, err)
	}
}

func TestPrivateKeysThatAreRefused(t *testing.T) {
	t.Parallel()

	small, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	trusttest.Must(t, err)

	exchange, err := ecdh.X25519().GenerateKey(rand.Reader)
	trusttest.Must(t, err)

	der, err := x509.MarshalPKCS8PrivateKey(exchange)
	trusttest.Must(t, err)

	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"empty":         {nil, "no PEM block"},
		"public":        {trusttest.PublicPEM(t, trusttest.Ed25519(t)), "public half"},
		"certificate":   {block("CERTIFICATE", nil), `"CERTIFICATE"`},
		"unknown":       {block("WEIRD PRIVATE KEY", nil), "WEIRD"},
		"no DER":        {block("PRIVATE KEY", []byte("x")), "cannot be read"},
		"P-224":         {trusttest.PrivatePEM(t, small), "P-224"},
		"key agreement": {block("PRIVATE KEY", der), "cannot sign"},
		"too large":     {bytes.Repeat([]byte("x"), 65537), "more than 65536"},
	} {
		_, err := sign.ParseKey("my.key", test.data, nil)
		if !errors.Is(err, trust.ErrKey) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "my.key") {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}

	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "missing"), "/dev/zero"} {
		if _, err := sign.LoadKey(path, nil); !errors.Is(err, trust.ErrKey) || strings.Count(err.Error(), path) != 1 {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

func TestLoadKey(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "my.key")
	key := trusttest.Ed25519(t)
	trusttest.Must(t, os.WriteFile(path, trusttest.PrivatePEM(t, key), 0o600))

	signer, err := sign.LoadKey(path, nil)
	if err != nil || signer.Key().Source != path || signer.Key().Algorithm != "Ed25519" {
		t.Errorf("got %+v, %v", signer, err)
	}
}

// maker signs the artifact of a store in one form.
type maker func(ctx context.Context, store trust.Store, artifact sign.Artifact) (trust.Update, error)

func makers(signer *sign.Signer) map[trust.Form]maker {
	return map[trust.Form]maker{trust.FormTag: signer.Tag, trust.FormBundle: signer.Bundle}
}

func (m maker) do(t *testing.T, store *trusttest.Store) trust.Update {
	t.Helper()

	update, err := m(t.Context(), store, artifact(store))
	trusttest.Must(t, err)

	return update
}

func TestSigningTwiceLeavesOne(t *testing.T) {
	t.Parallel()

	for algorithm, key := range trusttest.Keys(t) {
		signer := signerOf(t, key)

		for form, in := range makers(signer) {
			store := trusttest.New()

			update := in.do(t, store)
			if update.IsEmpty() {
				t.Errorf("%s %s: nothing was signed", algorithm, form)
			}

			store.Apply(t, update)

			if again := in.do(t, store); !again.IsEmpty() || len(again.Blobs) != 0 {
				t.Errorf("%s %s: it was signed twice", algorithm, form)
			}
		}
	}
}

func TestSameSignatureEachTime(t *testing.T) {
	t.Parallel()

	for algorithm, key := range trusttest.Keys(t) {
		if strings.HasPrefix(algorithm, "ECDSA") {
			continue // Its signatures are random.
		}

		for form, in := range makers(signerOf(t, key)) {
			first, second := in.do(t, trusttest.New()), in.do(t, trusttest.New())
			if !bytes.Equal(first.Manifests[0].Bytes, second.Manifests[0].Bytes) {
				t.Errorf("%s %s: %s\n%s", algorithm, form, first.Manifests[0].Bytes, second.Manifests[0].Bytes)
			}
		}
	}
}

func TestSignaturesOfOthersStay(t *testing.T) {
	t.Parallel()

	store := trusttest.New()

	keys := trusttest.Keys(t)
	signers := make([]*sign.Signer, 0, len(keys))

	for _, key := range keys {
		signer := signerOf(t, key)
		signers = append(signers, signer)

		for _, in := range makers(signer) {
			store.Apply(t, in.do(t, store))
		}
	}

	for _, signer := range signers {
		verify(t, store, signer, trust.FormTag)
		verify(t, store, signer, trust.FormBundle)
	}

	found, err := store.Manifest(t.Context(), trust.SignatureTag(artifact(store).Descriptor.Digest.String()))
	trusttest.Must(t, err)

	manifest, err := v1.ParseManifest(bytes.NewReader(found.Bytes))
	trusttest.Must(t, err)

	config, err := v1.ParseConfigFile(bytes.NewReader(store.Blobs[manifest.Config.Digest.String()]))
	trusttest.Must(t, err)

	if len(manifest.Layers) != len(signers) || len(config.RootFS.DiffIDs) != len(signers) || len(config.History) != len(signers) {
		t.Errorf("%d signers, %d layers, config %+v", len(signers), len(manifest.Layers), config)
	}

	for index, layer := range manifest.Layers {
		if config.RootFS.DiffIDs[index] != layer.Digest {
			t.Errorf("layer %d is %s, the config has %s", index, layer.Digest, config.RootFS.DiffIDs[index])
		}
	}
}

func TestAppendingToWhatOthersMade(t *testing.T) {
	t.Parallel()

	tag := func(store *trusttest.Store) string {
		return trust.SignatureTag(artifact(store).Descriptor.Digest.String())
	}
	manifest := func(store *trusttest.Store, config string, layers ...v1.Descriptor) v1.Manifest {
		return v1.Manifest{
			SchemaVersion: 2, Config: store.PutBlob([]byte(config), types.OCIConfigJSON), Layers: layers,
			Annotations: map[string]string{"who": "other"},
		}
	}

	for name, test := range map[string]struct {
		data func(store *trusttest.Store) []byte
		want string // what the error says; "" for none
	}{
		"an empty config": {func(store *trusttest.Store) []byte {
			return trusttest.Marshal(t, manifest(store, "{}", store.PutBlob([]byte("x"), trust.SimpleSigningType)))
		}, ""},
		"a config that is no JSON": {func(store *trusttest.Store) []byte {
			return trusttest.Marshal(t, manifest(store, "hello", store.PutBlob([]byte("x"), trust.SimpleSigningType)))
		}, ""},
		"no manifest": {func(*trusttest.Store) []byte { return []byte("hello") }, "cannot be read"},
		"an index": {func(store *trusttest.Store) []byte {
			other := manifest(store, "{}")
			other.MediaType = types.OCIImageIndex

			return trusttest.Marshal(t, other)
		}, "image.index"},
		"none left": {func(store *trusttest.Store) []byte { return trusttest.Marshal(t, manifest(store, "{}")) }, ""},
		"too many": {func(store *trusttest.Store) []byte {
			layer := store.PutBlob([]byte("x"), trust.SimpleSigningType)

			layers := make([]v1.Descriptor, trust.MaxSignatures)
			for index := range layers {
				layers[index] = layer
			}

			return trusttest.Marshal(t, manifest(store, "{}", layers...))
		}, "64 signatures"},
		"a huge config": {func(store *trusttest.Store) []byte {
			return trusttest.Marshal(t, manifest(store, strings.Repeat(" ", trust.MaxBlob+1)))
		}, "its config has"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			store := trusttest.New()
			store.Put(tag(store), test.data(store), types.OCIManifestSchema1)

			signer := signerOf(t, trusttest.Ed25519(t))

			update, err := signer.Tag(t.Context(), store, artifact(store))
			if test.want != "" {
				if !errors.Is(err, trust.ErrMalformed) || !strings.Contains(err.Error(), test.want) || !update.IsEmpty() {
					t.Errorf("got %v, want a refusal with %q", err, test.want)
				}

				return
			}

			trusttest.Must(t, err)
			store.Apply(t, update)
			verify(t, store, signer, trust.FormTag)

			found, err := store.Manifest(t.Context(), tag(store))
			trusttest.Must(t, err)

			if !bytes.Contains(found.Bytes, []byte(`"who":"other"`)) {
				t.Errorf("the annotations of others are lost: %s", found.Bytes)
			}
		})
	}
}

func TestStoreThatFails(t *testing.T) {
	t.Parallel()

	for form, in := range makers(signerOf(t, trusttest.Ed25519(t))) {
		store := trusttest.New()
		store.Err = errTerminal

		// Signing anew over what cannot be seen would lose it.
		if _, err := in(t.Context(), store, artifact(store)); !errors.Is(err, errTerminal) {
			t.Errorf("%s: got %v", form, err)
		}
	}
}
