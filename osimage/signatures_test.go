package osimage_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/osimage/trust/sign"
	"github.com/stayput-dev/stayput/osimage/trust/trusttest"
)

func newSigner(t *testing.T) *sign.Signer {
	t.Helper()

	signer, err := sign.ParseKey("my.key", trusttest.PrivatePEM(t, trusttest.Ed25519(t)), nil)
	trusttest.Must(t, err)

	return signer
}

func requireBy(t *testing.T, signers ...*sign.Signer) osimage.Option {
	t.Helper()

	keys := make([]trust.Key, 0, len(signers))
	for _, signer := range signers {
		keys = append(keys, signer.Key())
	}

	policy, err := trust.NewPolicy(trust.ModeRequire, keys)
	trusttest.Must(t, err)

	return osimage.WithTrust(policy)
}

// signDigest signs what a store has under a digest.
func signDigest(t *testing.T, store osimage.SignatureStore, signer *sign.Signer, digest string, form trust.Form) {
	t.Helper()

	manifest, err := store.Manifest(t.Context(), digest)
	trusttest.Must(t, err)

	hash, err := v1.NewHash(digest)
	trusttest.Must(t, err)

	artifact := sign.Artifact{
		Name:       "registry.example/os/labos",
		Descriptor: v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: hash, Size: int64(len(manifest.Bytes))},
	}

	signIn := signer.Tag
	if form == trust.FormBundle {
		signIn = signer.Bundle
	}

	update, err := signIn(t.Context(), store, artifact)
	trusttest.Must(t, err)
	trusttest.Must(t, store.Add(t.Context(), update))
}

func signatures(t *testing.T, client *osimage.Client, reference string) osimage.SignatureStore {
	t.Helper()

	store, err := client.Signatures(reference)
	trusttest.Must(t, err)

	return store
}

// liar is a registry with TLS that may change its answers.
type liar struct {
	server *httptest.Server
	// lie, when set, answers in place of the registry; it tells false to let it answer.
	lie atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
}

func newLiar(t *testing.T, options ...registry.Option) *liar {
	t.Helper()

	result := &liar{}
	inner := registry.New(append([]registry.Option{registry.Logger(discardLogger())}, options...)...)

	result.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if lie := result.lie.Load(); lie != nil && (*lie)(w, r) {
			return
		}

		inner.ServeHTTP(w, r)
	}))
	result.server.Config.ErrorLog = discardLogger()
	t.Cleanup(result.server.Close)

	return result
}

func (l *liar) reference(tag string) string {
	return strings.TrimPrefix(l.server.URL, "https://") + "/os/labos:" + tag
}

func (l *liar) client(t *testing.T, options ...osimage.Option) *osimage.Client {
	t.Helper()

	transport, ok := l.server.Client().Transport.(*http.Transport)
	if !ok {
		t.Fatal("httptest changed")
	}

	return newClient(t, append([]osimage.Option{osimage.WithRootCAs(transport.TLSClientConfig.RootCAs)}, options...)...)
}

// push puts an image into the registry.
func (l *liar) push(t *testing.T, tag string, seed uint64) osimage.Copied {
	t.Helper()

	parts := someContents()
	parts[osimage.RoleUKI] = randomBytes(seed, 300001)

	pushed, err := l.client(t).Push(background(t), build(t, parts), "", l.reference(tag), nil)
	trusttest.Must(t, err)

	return pushed
}

func TestSignedImages(t *testing.T) {
	t.Parallel()

	for name, options := range map[string][]registry.Option{
		"with referrers": {registry.WithReferrersSupport(true)}, "without": {registry.WithReferrersSupport(false)},
	} {
		for _, form := range []trust.Form{trust.FormTag, trust.FormBundle} {
			t.Run(name+" "+string(form), func(t *testing.T) {
				t.Parallel()

				place, signer, other := newLiar(t, options...), newSigner(t), newSigner(t)
				pushed := place.push(t, "1.1.0", 1)

				_, err := place.client(t, requireBy(t, signer)).Image(background(t), place.reference("1.1.0"))
				if !errors.Is(err, osimage.ErrUntrusted) || !errors.Is(err, trust.ErrUnsigned) || osimage.IsTransient(err) {
					t.Errorf("unsigned: got %v", err)
				}

				signDigest(t, signatures(t, place.client(t), pushed.Reference), signer, pushed.Digest, form)

				for _, reference := range []string{place.reference("1.1.0"), pushed.Reference} {
					got, err := place.client(t, requireBy(t, signer, other)).Resolve(background(t), reference)
					if err != nil || !got.Signature.Verified || got.Signature.Form != form || got.Signature.Digest != pushed.Digest {
						t.Errorf("%s: got %+v, %v", reference, got.Signature, err)
					}
				}

				_, err = place.client(t, requireBy(t, other)).Resolve(background(t), pushed.Reference)
				if !errors.Is(err, osimage.ErrUntrusted) || !errors.Is(err, trust.ErrWrongKey) ||
					!strings.HasPrefix(err.Error(), pushed.Reference+": signature refused: not signed by a trusted key: 1 signature found") {
					t.Errorf("another key: got %v", err)
				}
			})
		}
	}
}

// TestRealRegistryWithSignatures has Debian's docker-registry, which knows nothing of referrers.
func TestRealRegistryWithSignatures(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	reference := server.Address + "/os/labos:1.1.0"
	access := []osimage.Option{osimage.WithCAFile(server.CAFile), osimage.WithDockerConfig(server.DockerConfig)}
	signers := []*sign.Signer{newSigner(t), newSigner(t)}

	pushed, err := newClient(t, access...).Push(background(t), build(t, someContents()), "", reference, nil)
	trusttest.Must(t, err)

	store := signatures(t, newClient(t, access...), reference)
	for _, form := range []trust.Form{trust.FormTag, trust.FormBundle} {
		for _, signer := range signers {
			signDigest(t, store, signer, pushed.Digest, form)
		}
	}

	for _, signer := range signers {
		for _, form := range []trust.Form{trust.FormTag, trust.FormBundle} {
			policy, err := trust.NewPolicy(trust.ModeRequire, []trust.Key{signer.Key()})
			trusttest.Must(t, err)

			result, err := trust.VerifyForm(background(t), store, policy, form, pushed.Digest)
			if err != nil || !result.Verified {
				t.Errorf("%s: got %+v, %v", form, result, err)
			}
		}
	}

	// Without credentials it is not known whether there are signatures.
	_, err = newClient(t, access[0], requireBy(t, signers[0])).Image(background(t), pushed.Reference)
	if !errors.Is(err, osimage.ErrUnauthorized) || errors.Is(err, osimage.ErrUntrusted) {
		t.Errorf("without credentials: got %v", err)
	}
}

func TestRegistryThatFailsIsNotUnsigned(t *testing.T) {
	t.Parallel()

	place, signer := newLiar(t, registry.WithReferrersSupport(true)), newSigner(t)
	pushed := place.push(t, "1.1.0", 1)
	signDigest(t, signatures(t, place.client(t), pushed.Reference), signer, pushed.Digest, trust.FormBundle)

	for _, part := range []string{".sig", "/referrers/"} {
		for status, want := range map[int]error{
			http.StatusServiceUnavailable: osimage.ErrTransient, http.StatusForbidden: osimage.ErrUnauthorized,
		} {
			lie := func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, part) {
					return false
				}

				w.WriteHeader(status)

				return true
			}
			place.lie.Store(&lie)

			_, err := place.client(t, requireBy(t, signer)).Image(background(t), pushed.Reference)
			if !errors.Is(err, want) || errors.Is(err, osimage.ErrUntrusted) {
				t.Errorf("%d for %s: got %v, want %v", status, part, err, want)
			}
		}
	}
}

// TestSignedIndex has an index whose images are not signed themselves, and images of which one is.
func TestSignedIndex(t *testing.T) {
	t.Parallel()

	place, signer := newLiar(t), newSigner(t)
	good, bad := place.push(t, "good", 1), place.push(t, "bad", 2)
	store := signatures(t, place.client(t), place.reference("index"))

	index := func(image osimage.Copied) string {
		hash, err := v1.NewHash(image.Digest)
		trusttest.Must(t, err)

		manifest, err := store.Manifest(t.Context(), image.Digest)
		trusttest.Must(t, err)

		data := trusttest.Marshal(t, v1.IndexManifest{
			SchemaVersion: 2, MediaType: types.OCIImageIndex,
			Manifests: []v1.Descriptor{{
				MediaType: types.OCIManifestSchema1, ArtifactType: osimage.ArtifactType, Digest: hash,
				Size: int64(len(manifest.Bytes)), Platform: &v1.Platform{OS: "linux", Architecture: "amd64"},
			}},
		})
		trusttest.Must(t, store.Add(t.Context(), trust.Update{Manifests: []trust.NewManifest{{
			Tag: "index", Descriptor: v1.Descriptor{MediaType: types.OCIImageIndex}, Bytes: data,
		}}}))

		return trust.DigestOf(data)
	}

	resolve := func() (osimage.Resolved, error) {
		client := place.client(t, requireBy(t, signer), osimage.WithArchitecture("amd64"))

		return client.Resolve(background(t), place.reference("index"))
	}

	indexDigest := index(bad)
	if _, err := resolve(); !errors.Is(err, trust.ErrUnsigned) || !strings.Contains(err.Error(), "index") {
		t.Errorf("nothing is signed: got %v", err)
	}

	signDigest(t, store, signer, indexDigest, trust.FormTag)

	if got, err := resolve(); err != nil || got.Digest != bad.Digest || got.Signature.Digest != indexDigest {
		t.Errorf("the index is signed: got %+v, %v", got, err)
	}

	// An index that names another image is another index.
	index(good)

	if _, err := resolve(); !errors.Is(err, trust.ErrUnsigned) {
		t.Errorf("a changed index: got %v", err)
	}

	signDigest(t, store, signer, good.Digest, trust.FormTag)

	if got, err := resolve(); err != nil || got.Digest != good.Digest || got.Signature.Digest != good.Digest {
		t.Errorf("the image is signed: got %+v, %v", got, err)
	}
}

// lies are what a registry may answer in place of the good image's manifest.
func lies(good, bad []byte, digest string) map[string]func(w http.ResponseWriter) {
	serve := func(mediaType, claimed string, body []byte) func(w http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", mediaType)
			w.Header().Set("Docker-Content-Digest", claimed)
			_, _ = w.Write(body)
		}
	}

	return map[string]func(w http.ResponseWriter){
		"another image":                       serve(string(types.OCIManifestSchema1), trust.DigestOf(bad), bad),
		"another image with its name":         serve(string(types.OCIManifestSchema1), digest, bad),
		"a type whose digest is not computed": serve(string(types.DockerManifestSchema1Signed), digest, bad),
		"a byte more":                         serve(string(types.OCIManifestSchema1), digest, append(bytes.Clone(good), ' ')),
		"something endless": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			_, _ = io.CopyN(w, zeros{}, 64<<20)
		},
	}
}

type zeros struct{}

func (zeros) Read(buffer []byte) (int, error) {
	clear(buffer)

	return len(buffer), nil
}

func TestRegistryThatLies(t *testing.T) {
	t.Parallel()

	place, signer := newLiar(t), newSigner(t)
	good, bad := place.push(t, "good", 1), place.push(t, "bad", 2)
	store := signatures(t, place.client(t), good.Reference)
	signDigest(t, store, signer, good.Digest, trust.FormTag)

	manifest := func(digest string) []byte {
		found, err := store.Manifest(t.Context(), digest)
		trusttest.Must(t, err)

		return found.Bytes
	}

	for name, answer := range lies(manifest(good.Digest), manifest(bad.Digest), good.Digest) {
		for _, reference := range []string{place.reference("good"), good.Reference} {
			lie := func(w http.ResponseWriter, r *http.Request) bool {
				isIt := strings.HasSuffix(r.URL.Path, "/manifests/good") || strings.HasSuffix(r.URL.Path, "/manifests/"+good.Digest)
				if isIt && r.Method == http.MethodGet {
					answer(w)
				}

				return isIt
			}
			place.lie.Store(&lie)

			image, err := place.client(t, requireBy(t, signer)).Image(background(t), reference)
			if err == nil {
				t.Errorf("%s for %s: an image was opened: %s", name, reference, image.Digest())
			}

			// Without any policy, a digest is still what it says.
			image, err = place.client(t).Image(background(t), good.Reference)
			if err == nil {
				t.Errorf("%s for %s: an image was opened without a policy: %s", name, reference, image.Digest())
			}
		}
	}
}

// TestTagThatMoves has a registry that answers a tag with the signed image first, and with another one afterwards.
func TestTagThatMoves(t *testing.T) {
	t.Parallel()

	place, signer := newLiar(t), newSigner(t)
	good, bad := place.push(t, "good", 1), place.push(t, "bad", 2)
	signDigest(t, signatures(t, place.client(t), good.Reference), signer, good.Digest, trust.FormTag)

	asked := 0
	lie := func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/manifests/moving") {
			return false
		}

		target := good.Digest
		if asked++; asked > 1 {
			target = bad.Digest
		}

		http.Redirect(w, r, strings.Replace(r.URL.Path, "moving", target, 1), http.StatusTemporaryRedirect)

		return true
	}
	place.lie.Store(&lie)

	image, err := place.client(t, requireBy(t, signer)).Image(background(t), place.reference("moving"))
	if err != nil || image.Digest() != good.Digest || asked != 1 {
		t.Errorf("got %v, %v after %d questions", image, err, asked)
	}
}

func TestWarnAndOff(t *testing.T) {
	t.Parallel()

	place, signer := newLiar(t), newSigner(t)
	place.push(t, "1.1.0", 1)

	policy, err := trust.NewPolicy(trust.ModeWarn, []trust.Key{signer.Key()})
	trusttest.Must(t, err)

	image, err := place.client(t, osimage.WithTrust(policy)).Image(background(t), place.reference("1.1.0"))
	if err != nil || image.Signature().Verified || !strings.Contains(image.Signature().Reason, "not signed") {
		t.Errorf("warn: got %+v, %v", image, err)
	}

	image, err = place.client(t).Image(background(t), place.reference("1.1.0"))
	if err != nil || image.Signature().Mode != trust.ModeOff {
		t.Errorf("off: got %+v, %v", image, err)
	}
}

func TestSignaturesInALayout(t *testing.T) {
	t.Parallel()

	for _, form := range []trust.Form{trust.FormTag, trust.FormBundle} {
		t.Run(string(form), func(t *testing.T) {
			t.Parallel()

			dir, signer, other := build(t, someContents()), newSigner(t), newSigner(t)
			open := func(by *sign.Signer, tag string) (*osimage.Image, error) {
				policy, err := trust.NewPolicy(trust.ModeRequire, []trust.Key{by.Key()})
				trusttest.Must(t, err)

				return osimage.OpenTrustedLayout(t.Context(), dir, tag, policy)
			}

			if _, err := open(signer, ""); !errors.Is(err, osimage.ErrUntrusted) || !errors.Is(err, trust.ErrUnsigned) {
				t.Errorf("unsigned: got %v", err)
			}

			image, err := osimage.OpenLayout(t.Context(), dir, "")
			trusttest.Must(t, err)

			for range 2 {
				signDigest(t, osimage.LayoutSignatures(dir), signer, image.Digest(), form)
			}

			// The folder holds one image still.
			for _, tag := range []string{"", "1.1.0", image.Digest()} {
				if opened, err := open(signer, tag); err != nil || opened.Signature().Form != form {
					t.Errorf("tag %q: got %+v, %v", tag, opened, err)
				}
			}

			if _, err := open(other, ""); !errors.Is(err, trust.ErrWrongKey) {
				t.Errorf("another key: got %v", err)
			}
		})
	}
}

// TestLayoutOfCosignSave has the signatures without a tag.
func TestLayoutOfCosignSave(t *testing.T) {
	t.Parallel()

	dir, signer := build(t, someContents()), newSigner(t)

	image, err := osimage.OpenLayout(t.Context(), dir, "")
	trusttest.Must(t, err)
	signDigest(t, osimage.LayoutSignatures(dir), signer, image.Digest(), trust.FormTag)

	path := filepath.Join(dir, "index.json")
	replaceInFile(t, path, `"org.opencontainers.image.ref.name": "sha256-`, `"kind": "dev.cosignproject.cosign/sigs", "was": "sha256-`)

	policy, err := trust.NewPolicy(trust.ModeRequire, []trust.Key{signer.Key()})
	trusttest.Must(t, err)

	if opened, err := osimage.OpenTrustedLayout(t.Context(), dir, "", policy); err != nil || !opened.Signature().Verified {
		t.Errorf("got %+v, %v", opened, err)
	}
}

func replaceInFile(t *testing.T, path, old, replacement string) {
	t.Helper()

	data, err := os.ReadFile(path)
	trusttest.Must(t, err)

	if !strings.Contains(string(data), old) {
		t.Fatalf("%s has no %s", path, old)
	}

	trusttest.Must(t, os.WriteFile(path, []byte(strings.Replace(string(data), old, replacement, 1)), 0o600))
}

// TestBrokenLayouts has folders in which the signatures cannot be read, or are none.
func TestBrokenLayouts(t *testing.T) {
	t.Parallel()

	const entry = `{"mediaType":"application/vnd.oci.image.manifest.v1+json"`

	for name, test := range map[string]struct {
		index string
		want  error
	}{
		"no JSON":             {"hello", osimage.ErrNotAnImage},
		"too large":           {strings.Repeat(" ", 4<<20+1), osimage.ErrTooLarge},
		"no digest":           {`{"manifests":[` + entry + `}]}`, trust.ErrUnsigned},
		"path for a digest":   {`{"manifests":[` + entry + `,"digest":"sha256:../../etc"}]}`, osimage.ErrNotAnImage},
		"missing manifest":    {`{"manifests":[` + entry + `,"digest":"` + trust.DigestOf(nil) + `"}]}`, trust.ErrUnsigned},
		"tag without digest":  {`{"manifests":[` + entry + `,"annotations":{"org.opencontainers.image.ref.name":"%s"}}]}`, trust.ErrUnsigned},
		"nothing":             {`{}`, trust.ErrUnsigned},
		"manifest is no JSON": {`{"manifests":[` + entry + `,"digest":"` + trust.DigestOf([]byte("hello")) + `"}]}`, trust.ErrUnsigned},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir, signer := build(t, someContents()), newSigner(t)

			image, err := osimage.OpenLayout(t.Context(), dir, "")
			trusttest.Must(t, err)

			text := strings.ReplaceAll(test.index, "%s", trust.SignatureTag(image.Digest()))
			trusttest.Must(t, os.WriteFile(filepath.Join(dir, "index.json"), []byte(text), 0o600))
			trusttest.Must(t, os.WriteFile(
				filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(trust.DigestOf([]byte("hello")), "sha256:")), []byte("hello"), 0o600))

			policy, err := trust.NewPolicy(trust.ModeRequire, []trust.Key{signer.Key()})
			trusttest.Must(t, err)

			_, err = trust.Verify(t.Context(), osimage.LayoutSignatures(dir), policy, image.Digest())
			if !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

// TestSignaturesTravel carries a signed image into a folder and from there into a registry without referrers.
func TestSignaturesTravel(t *testing.T) {
	t.Parallel()

	outside, inside := newLiar(t, registry.WithReferrersSupport(true)), newLiar(t)
	byTag, byBundle := newSigner(t), newSigner(t)
	pushed := outside.push(t, "1.1.0", 1)
	store := signatures(t, outside.client(t), pushed.Reference)

	signDigest(t, store, byTag, pushed.Digest, trust.FormTag)
	signDigest(t, store, byBundle, pushed.Digest, trust.FormBundle)

	stick := filepath.Join(t.TempDir(), "stick")

	_, err := outside.client(t).Copy(background(t),
		osimage.Location{Reference: outside.reference("1.1.0")}, osimage.Location{Dir: stick}, osimage.CopyOptions{})
	trusttest.Must(t, err)

	_, err = inside.client(t).Copy(background(t),
		osimage.Location{Dir: stick}, osimage.Location{Reference: inside.reference("1.1.0")}, osimage.CopyOptions{})
	trusttest.Must(t, err)

	for _, signer := range []*sign.Signer{byTag, byBundle} {
		policy, err := trust.NewPolicy(trust.ModeRequire, []trust.Key{signer.Key()})
		trusttest.Must(t, err)

		if image, err := osimage.OpenTrustedLayout(t.Context(), stick, "", policy); err != nil || image.Digest() != pushed.Digest {
			t.Errorf("in the folder: got %v, %v", image, err)
		}

		image, err := inside.client(t, requireBy(t, signer)).Image(background(t), inside.reference("1.1.0"))
		if err != nil || image.Digest() != pushed.Digest {
			t.Errorf("in the registry: got %v, %v", image, err)
		}
	}
}
