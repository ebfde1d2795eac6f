package trust_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/osimage/trust/sign"
	"github.com/stayput-dev/stayput/osimage/trust/trusttest"
)

// signed is an artifact in a store, and who may sign it.
type signed struct {
	store    *trusttest.Store
	artifact sign.Artifact
	signer   *sign.Signer
}

// digest is what is to be signed.
func (s signed) digest() string {
	return s.artifact.Descriptor.Digest.String()
}

func newArtifact(tb testing.TB, key crypto.Signer) signed {
	tb.Helper()

	signer, err := sign.ParseKey("key", trusttest.PrivatePEM(tb, key), nil)
	trusttest.Must(tb, err)

	store := trusttest.New()
	manifest := trusttest.Marshal(tb, v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1})

	return signed{store, sign.Artifact{Name: "registry.example/os", Descriptor: store.Put("", manifest, types.OCIManifestSchema1)}, signer}
}

// sign signs with the artifact's signer and puts the signature into the store.
func (s signed) sign(tb testing.TB, form trust.Form) {
	tb.Helper()
	signAs(tb, s.store, s.signer, s.artifact, form)
}

func signAs(tb testing.TB, store *trusttest.Store, signer *sign.Signer, artifact sign.Artifact, form trust.Form) {
	tb.Helper()

	signIn := signer.Tag
	if form == trust.FormBundle {
		signIn = signer.Bundle
	}

	update, err := signIn(tb.Context(), store, artifact)
	trusttest.Must(tb, err)
	store.Apply(tb, update)
}

func require(tb testing.TB, keys ...trust.Key) trust.Policy {
	tb.Helper()

	policy, err := trust.NewPolicy(trust.ModeRequire, keys)
	trusttest.Must(tb, err)

	return policy
}

func forms() []trust.Form {
	return []trust.Form{trust.FormTag, trust.FormBundle}
}

func TestEachKeyInEachForm(t *testing.T) {
	t.Parallel()

	other := newArtifact(t, trusttest.Ed25519(t))

	for algorithm, key := range trusttest.Keys(t) {
		for _, form := range forms() {
			t.Run(algorithm+" "+string(form), func(t *testing.T) {
				t.Parallel()

				image := newArtifact(t, key)
				image.sign(t, form)

				result, err := trust.Verify(t.Context(), image.store, require(t, other.signer.Key(), image.signer.Key()), image.digest())
				if err != nil || !result.Verified || result.Form != form || result.Digest != image.digest() ||
					result.Key.Fingerprint != image.signer.Key().Fingerprint || result.Mode != trust.ModeRequire {
					t.Errorf("got %+v, %v", result, err)
				}

				_, err = trust.Verify(t.Context(), image.store, require(t, other.signer.Key()), image.digest())
				if !errors.Is(err, trust.ErrWrongKey) || !strings.Contains(err.Error(), other.signer.Key().Fingerprint) {
					t.Errorf("got %v, want an error of the key that names the trusted one", err)
				}
			})
		}
	}
}

// TestGardenLinux has a signature as `cosign sign --key awskms://…` v2.4.1 leaves it, made without any of our code.
func TestGardenLinux(t *testing.T) {
	t.Parallel()

	private, ok := trusttest.Keys(t)["RSA 3072"].(*rsa.PrivateKey)
	if !ok {
		t.Fatal("not an RSA key")
	}

	store := trusttest.New()
	digest := trust.DigestOf([]byte("a manifest"))
	text := fmt.Sprintf(`{"critical":{"identity":{"docker-reference":"ghcr.io/gardenlinux/gardenlinux"},`+
		`"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, digest)
	sum := sha256.Sum256([]byte(text))

	sig, err := rsa.SignPKCS1v15(rand.Reader, private, crypto.SHA256, sum[:])
	trusttest.Must(t, err)

	layer := store.PutBlob([]byte(text), trust.SimpleSigningType)
	layer.Annotations = map[string]string{trust.SignatureAnnotation: base64.StdEncoding.EncodeToString(sig)}

	store.Put(trust.SignatureTag(digest), trusttest.Marshal(t, v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: store.PutBlob([]byte("{}"), types.OCIConfigJSON),
		Layers: []v1.Descriptor{layer},
	}), types.OCIManifestSchema1)

	keys := parseKeys(t, trusttest.PublicPEM(t, private))
	if result, err := trust.Verify(t.Context(), store, require(t, keys...), digest); err != nil || !result.Verified {
		t.Errorf("got %+v, %v", result, err)
	}
}

func TestAnyOfTheDigests(t *testing.T) {
	t.Parallel()

	image := newArtifact(t, trusttest.Ed25519(t))
	image.sign(t, trust.FormTag)

	other := trust.DigestOf([]byte("an index"))

	for _, digests := range [][]string{{other, image.digest()}, {image.digest(), other}} {
		result, err := trust.Verify(t.Context(), image.store, require(t, image.signer.Key()), digests...)
		if err != nil || result.Digest != image.digest() {
			t.Errorf("got %+v, %v", result, err)
		}
	}

	_, err := trust.Verify(t.Context(), image.store, require(t, image.signer.Key()), other)
	if !errors.Is(err, trust.ErrUnsigned) {
		t.Errorf("got %v, want that it is not signed", err)
	}

	for _, digest := range []string{"", "sha256:12", "sha512:" + strings.Repeat("ab", 64), "1.0", image.digest() + " "} {
		if _, err := trust.Verify(t.Context(), image.store, require(t, image.signer.Key()), digest); !errors.Is(err, trust.ErrMalformed) {
			t.Errorf("digest %q: got %v", digest, err)
		}
	}
}

func TestModes(t *testing.T) {
	t.Parallel()

	image := newArtifact(t, trusttest.Ed25519(t))
	keys := []trust.Key{image.signer.Key()}

	warn, err := trust.NewPolicy(trust.ModeWarn, keys)
	trusttest.Must(t, err)

	result, err := trust.Verify(t.Context(), image.store, warn, image.digest())
	if err != nil || result.Verified || !strings.Contains(result.Reason, "not signed") {
		t.Errorf("warn: got %+v, %v", result, err)
	}

	image.store.Err = errDown

	result, err = trust.Verify(t.Context(), image.store, warn, image.digest())
	if err != nil || result.Verified || !strings.Contains(result.Reason, "down") {
		t.Errorf("warn with a registry that is down: got %+v, %v", result, err)
	}

	off, err := trust.NewPolicy(trust.ModeOff, keys)
	trusttest.Must(t, err)

	image.store.Asked = 0

	result, err = trust.Verify(t.Context(), image.store, off, image.digest())
	if err != nil || result.Verified || result.Mode != trust.ModeOff || image.store.Asked != 0 {
		t.Errorf("off: got %+v, %v, after %d questions", result, err, image.store.Asked)
	}
}

var errDown = errors.New("the registry is down")

func TestStoreThatFailsIsNotUnsigned(t *testing.T) {
	t.Parallel()

	image := newArtifact(t, trusttest.Ed25519(t))
	policy := require(t, image.signer.Key())

	for _, form := range forms() {
		image.sign(t, form)
	}

	// However far the questions come, an answer that is missing is never "not signed".
	for good := range 20 {
		store := &failing{Store: image.store.Clone(), good: good}

		result, err := trust.Verify(t.Context(), store, policy, image.digest())
		if err == nil && result.Verified {
			return
		}

		if !errors.Is(err, trust.ErrUnavailable) || !errors.Is(err, errDown) || errors.Is(err, trust.ErrUnsigned) {
			t.Errorf("after %d answers: got %v", good, err)
		}
	}

	t.Error("it never verified")
}

// failing answers so many questions, then no more.
type failing struct {
	*trusttest.Store

	good int
}

func (f *failing) fail() error {
	if f.good--; f.good < 0 {
		return errDown
	}

	return nil
}

func (f *failing) Manifest(ctx context.Context, tagOrDigest string) (trust.Manifest, error) {
	if err := f.fail(); err != nil {
		return trust.Manifest{}, err
	}

	return f.Store.Manifest(ctx, tagOrDigest)
}

func (f *failing) Blob(ctx context.Context, blob v1.Descriptor) ([]byte, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}

	return f.Store.Blob(ctx, blob)
}

func (f *failing) Referrers(ctx context.Context, digest string) ([]v1.Descriptor, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}

	return f.Store.Referrers(ctx, digest)
}

func TestFallbackTag(t *testing.T) {
	t.Parallel()

	image := newArtifact(t, trusttest.Ed25519(t))
	image.store.NoReferrers = true
	image.sign(t, trust.FormBundle)

	policy := require(t, image.signer.Key())
	if result, err := trust.Verify(t.Context(), image.store, policy, image.digest()); err != nil || result.Form != trust.FormBundle {
		t.Errorf("got %+v, %v", result, err)
	}

	// The registry was updated, and lists what was pushed since then.
	image.store.NoReferrers = false
	image.store.Refers[image.digest()] = []v1.Descriptor{{ArtifactType: "application/spdx+json"}}

	if result, err := trust.Verify(t.Context(), image.store, policy, image.digest()); err != nil || result.Form != trust.FormBundle {
		t.Errorf("got %+v, %v", result, err)
	}
}

func TestManySignatures(t *testing.T) {
	t.Parallel()

	image := newArtifact(t, trusttest.Ed25519(t))
	image.sign(t, trust.FormTag)

	manifest := manifestAt(t, image.store, trust.SignatureTag(image.digest()))
	good := manifest.Layers[0]

	bad := good
	bad.Annotations = map[string]string{trust.SignatureAnnotation: base64.StdEncoding.EncodeToString(make([]byte, 64))}

	for _, test := range []struct {
		before int
		want   error
	}{{trust.MaxSignatures - 1, nil}, {trust.MaxSignatures, trust.ErrWrongKey}} {
		manifest.Layers = nil
		for range test.before {
			manifest.Layers = append(manifest.Layers, bad)
		}

		manifest.Layers = append(manifest.Layers, good)
		image.store.Put(trust.SignatureTag(image.digest()), trusttest.Marshal(t, manifest), types.OCIManifestSchema1)

		_, err := trust.Verify(t.Context(), image.store, require(t, image.signer.Key()), image.digest())
		if !errors.Is(err, test.want) || test.want != nil && !strings.Contains(err.Error(), "only the first 64") {
			t.Errorf("%d bad signatures before a good one: got %v", test.before, err)
		}
	}
}

func manifestAt(tb testing.TB, store *trusttest.Store, tag string) *v1.Manifest {
	tb.Helper()

	found, err := store.Manifest(tb.Context(), tag)
	trusttest.Must(tb, err)

	manifest, err := v1.ParseManifest(bytes.NewReader(found.Bytes))
	trusttest.Must(tb, err)

	return manifest
}

func TestResultAsJSON(t *testing.T) {
	t.Parallel()

	image := newArtifact(t, trusttest.Ed25519(t))
	image.sign(t, trust.FormTag)

	result, err := trust.Verify(t.Context(), image.store, require(t, image.signer.Key()), image.digest())
	trusttest.Must(t, err)

	data, err := json.Marshal(result)
	trusttest.Must(t, err)

	for _, want := range []string{
		`"mode":"require"`, `"verified":true`, image.signer.Key().Fingerprint, `"form":"tag"`, `"algorithm":"Ed25519"`,
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%s has no %s", data, want)
		}
	}
}
