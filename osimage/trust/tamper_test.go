package trust_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/osimage/trust/trusttest"
)

// forge is a signer that signs whatever it is told to, and writes it down as it likes.
type forge struct {
	key *ecdsa.PrivateKey
	pub trust.Key
}

func newForge(tb testing.TB) forge {
	tb.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	trusttest.Must(tb, err)

	pub, err := trust.NewKey("forge.pub", key.Public())
	trusttest.Must(tb, err)

	return forge{key, pub}
}

func (f forge) sign(tb testing.TB, message []byte) []byte {
	tb.Helper()

	sum := sha256.Sum256(message)
	sig, err := ecdsa.SignASN1(rand.Reader, f.key, sum[:])
	trusttest.Must(tb, err)

	return sig
}

// simple puts a payload with its signature at the tag of a digest.
func (f forge) simple(tb testing.TB, store *trusttest.Store, digest, payload string) {
	tb.Helper()
	putSimple(tb, store, digest, []byte(payload), base64.StdEncoding.EncodeToString(f.sign(tb, []byte(payload))))
}

func putSimple(tb testing.TB, store *trusttest.Store, digest string, payload []byte, annotation string) {
	tb.Helper()

	layer := store.PutBlob(payload, trust.SimpleSigningType)
	layer.Annotations = map[string]string{trust.SignatureAnnotation: annotation}
	putLayer(tb, store, digest, layer)
}

func putLayer(tb testing.TB, store *trusttest.Store, digest string, layer v1.Descriptor) {
	tb.Helper()

	manifest := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: store.PutBlob([]byte("{}"), types.OCIConfigJSON),
		Layers: []v1.Descriptor{layer},
	}
	store.Put(trust.SignatureTag(digest), trusttest.Marshal(tb, manifest), types.OCIManifestSchema1)
}

func payloadOf(digest, kind string) string {
	return `{"critical":{"identity":{"docker-reference":"x"},"image":{"docker-manifest-digest":"` + digest +
		`"},"type":"` + kind + `"},"optional":null}`
}

const cosignType = "cosign container image signature"

// bundleOf writes a bundle around an envelope or a message signature.
func (f forge) bundleOf(tb testing.TB, content map[string]any) []byte {
	tb.Helper()

	sum := strings.TrimPrefix(f.pub.Fingerprint, "sha256:")
	bundle := map[string]any{
		"mediaType":            trust.BundleType,
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": hexToBase64(tb, sum)}},
	}

	maps.Copy(bundle, content)

	return trusttest.Marshal(tb, bundle)
}

func (f forge) envelope(tb testing.TB, payloadType, payload string) []byte {
	tb.Helper()

	return f.bundleOf(tb, map[string]any{"dsseEnvelope": map[string]any{
		"payload": []byte(payload), "payloadType": payloadType,
		"signatures": []any{map[string]any{"sig": f.sign(tb, dsse.PAE(payloadType, []byte(payload)))}},
	}})
}

func (f forge) message(tb testing.TB, message []byte) []byte {
	tb.Helper()

	sum := sha256.Sum256(message)

	return f.bundleOf(tb, map[string]any{"messageSignature": map[string]any{
		"messageDigest": map[string]any{"algorithm": "SHA2_256", "digest": sum[:]}, "signature": f.sign(tb, message),
	}})
}

func statementOf(digest, predicate string) string {
	return `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":"` +
		strings.TrimPrefix(digest, "sha256:") + `"}}],"predicateType":"` + predicate + `","predicate":{}}`
}

// putBundle adds a bundle to the referrers of a digest.
func putBundle(tb testing.TB, store *trusttest.Store, digest string, bundle []byte) v1.Descriptor {
	tb.Helper()

	layer := store.PutBlob(bundle, trust.BundleType)
	data := trusttest.Marshal(tb, v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: trust.BundleType,
		Config: store.PutBlob([]byte("{}"), types.OCIConfigJSON), Layers: []v1.Descriptor{layer},
	})
	referrer := store.Put("", data, types.OCIManifestSchema1)
	referrer.ArtifactType = trust.BundleType
	store.Refers[digest] = append(store.Refers[digest], referrer)

	return referrer
}

func TestForgeIsGoodByItself(t *testing.T) {
	t.Parallel()

	f := newForge(t)

	for name, put := range map[string]func(image signed){
		"simple": func(image signed) { f.simple(t, image.store, image.digest(), payloadOf(image.digest(), cosignType)) },
		"statement": func(image signed) {
			f.put(t, image, trust.StatementPayload, statementOf(image.digest(), trust.SignPredicate))
		},
		"statement v0.1": func(image signed) {
			f.put(t, image, trust.StatementPayload,
				strings.Replace(statementOf(image.digest(), trust.SignPredicate), "Statement/v1", "Statement/v0.1", 1))
		},
		"second subject": func(image signed) {
			f.put(t, image, trust.StatementPayload,
				strings.Replace(statementOf(image.digest(), trust.SignPredicate), `"subject":[`, `"subject":[{"digest":{"sha256":"00"}},`, 1))
		},
		"message": func(image signed) {
			putBundle(t, image.store, image.digest(), f.message(t, image.store.Manifests[image.digest()].Bytes))
		},
		"message without the hint of its digest": func(image signed) {
			text := strings.Replace(string(f.message(t, image.store.Manifests[image.digest()].Bytes)), "SHA2_256", "SHA2_512", 1)
			putBundle(t, image.store, image.digest(), []byte(text))
		},
	} {
		image := newArtifact(t, trusttest.Ed25519(t))
		put(image)

		result, err := trust.Verify(t.Context(), image.store, require(t, f.pub), image.digest())
		if err != nil || !result.Verified || result.Key.Source != "forge.pub" {
			t.Errorf("%s: got %+v, %v", name, result, err)
		}
	}
}

func (f forge) put(tb testing.TB, image signed, payloadType, payload string) {
	tb.Helper()
	putBundle(tb, image.store, image.digest(), f.envelope(tb, payloadType, payload))
}

// scene is where it happens.
type scene struct {
	t     *testing.T
	forge forge
	image signed
}

// tampering is one way to deceive, and how it is refused.
type tampering struct {
	name string
	do   func(s scene)
	kind error
	want string
}

func tamperings() []tampering {
	other := trust.DigestOf([]byte("another artifact"))

	return []tampering{
		{"nothing there", func(scene) {}, trust.ErrUnsigned, "stayput image sign"},
		{"payload of another digest", func(s scene) {
			s.forge.simple(s.t, s.image.store, s.image.digest(), payloadOf(other, cosignType))
		}, trust.ErrWrongDigest, other},
		{"payload of no digest", func(s scene) {
			s.forge.simple(s.t, s.image.store, s.image.digest(), `{"critical":{"type":"`+cosignType+`"}}`)
		}, trust.ErrWrongDigest, `over another digest ("")`},
		{"digest in upper case", func(s scene) {
			s.forge.simple(s.t, s.image.store, s.image.digest(), payloadOf(strings.ToUpper(s.image.digest()), cosignType))
		}, trust.ErrWrongDigest, "SHA256:"},
		{"payload of another type", func(s scene) {
			s.forge.simple(s.t, s.image.store, s.image.digest(), payloadOf(s.image.digest(), "atomic container signature"))
		}, trust.ErrWrongType, "atomic"},
		{"payload that is no JSON", func(s scene) {
			s.forge.simple(s.t, s.image.store, s.image.digest(), "hello")
		}, trust.ErrMalformed, "no JSON"},
		{"signature that is no base64", func(s scene) {
			putSimple(s.t, s.image.store, s.image.digest(), []byte(payloadOf(s.image.digest(), cosignType)), "***")
		}, trust.ErrMalformed, "base64"},
		{"no signature", func(s scene) {
			putSimple(s.t, s.image.store, s.image.digest(), []byte(payloadOf(s.image.digest(), cosignType)), "")
		}, trust.ErrMalformed, "base64"},
		{"signature over another payload", func(s scene) {
			putSimple(s.t, s.image.store, s.image.digest(), []byte(payloadOf(s.image.digest(), cosignType)),
				base64.StdEncoding.EncodeToString(s.forge.sign(s.t, []byte("else"))))
		}, trust.ErrWrongKey, "1 by an unknown key, or altered"},
		{"payload that the store changed", func(s scene) {
			s.forge.simple(s.t, s.image.store, s.image.digest(), payloadOf(other, cosignType))
			replaceBlobs(s.image.store, []byte(payloadOf(s.image.digest(), cosignType)))
		}, trust.ErrMalformed, "its blob has the digest"},
		{"payload that is longer than told", func(s scene) {
			s.forge.simple(s.t, s.image.store, s.image.digest(), payloadOf(s.image.digest(), cosignType))
			replaceBlobs(s.image.store, []byte(payloadOf(s.image.digest(), cosignType)+" "))
		}, trust.ErrMalformed, "bytes, want"},
		{"payload that is missing", func(s scene) {
			s.forge.simple(s.t, s.image.store, s.image.digest(), payloadOf(s.image.digest(), cosignType))
			clear(s.image.store.Blobs)
		}, trust.ErrMalformed, "does not have its blob"},
		{"payload that is huge", func(s scene) {
			putLayer(s.t, s.image.store, s.image.digest(), v1.Descriptor{
				MediaType: trust.SimpleSigningType, Size: 1 << 40, Digest: s.image.artifact.Descriptor.Digest,
				Annotations: map[string]string{trust.SignatureAnnotation: "AAAA"},
			})
		}, trust.ErrMalformed, "at most 262144 are read"},
		{"size below zero", func(s scene) {
			putLayer(s.t, s.image.store, s.image.digest(), v1.Descriptor{
				MediaType: trust.SimpleSigningType, Size: -1, Digest: s.image.artifact.Descriptor.Digest,
				Annotations: map[string]string{trust.SignatureAnnotation: "AAAA"},
			})
		}, trust.ErrMalformed, "-1 bytes"},
		{"payload without a digest", func(s scene) {
			putLayer(s.t, s.image.store, s.image.digest(), v1.Descriptor{
				MediaType: trust.SimpleSigningType, Size: 2,
				Annotations: map[string]string{trust.SignatureAnnotation: "AAAA"},
			})
			replaceText(s.image.store, `"digest":":"`, `"nothing":":"`)
		}, trust.ErrMalformed, "not named by a SHA-256"},
		{"referrer without a digest", func(s scene) {
			s.image.store.Refers[s.image.digest()] = []v1.Descriptor{{ArtifactType: trust.BundleType}}
		}, trust.ErrMalformed, "not named by a SHA-256"},
		{"tag that is no manifest", func(s scene) {
			s.image.store.Put(trust.SignatureTag(s.image.digest()), []byte("hello"), types.OCIManifestSchema1)
		}, trust.ErrMalformed, ".sig: its manifest cannot be read"},
		{"tag with another media type's layers", func(s scene) {
			putLayer(s.t, s.image.store, s.image.digest(), s.image.store.PutBlob([]byte("hello"), types.OCILayer))
		}, trust.ErrUnsigned, ""},

		{"statement about another digest", func(s scene) {
			s.forge.put(s.t, s.image, trust.StatementPayload, statementOf(other, trust.SignPredicate))
		}, trust.ErrWrongDigest, other},
		{"statement about nothing", func(s scene) {
			s.forge.put(s.t, s.image, trust.StatementPayload,
				`{"_type":"https://in-toto.io/Statement/v1","predicateType":"`+trust.SignPredicate+`"}`)
		}, trust.ErrWrongDigest, "names none"},
		{"statement about another algorithm's digest", func(s scene) {
			s.forge.put(s.t, s.image, trust.StatementPayload,
				strings.Replace(statementOf(s.image.digest(), trust.SignPredicate), "sha256", "sha1", 1))
		}, trust.ErrWrongDigest, ""},
		{"SBOM by the trusted key", func(s scene) {
			s.forge.put(s.t, s.image, trust.StatementPayload, statementOf(s.image.digest(), "https://spdx.dev/Document"))
		}, trust.ErrWrongType, "https://spdx.dev/Document"},
		{"no statement at all", func(s scene) {
			s.forge.put(s.t, s.image, trust.StatementPayload, `{"predicateType":"`+trust.SignPredicate+`"}`)
		}, trust.ErrWrongType, ""},
		{"payload of another kind", func(s scene) {
			s.forge.put(s.t, s.image, "text/plain", statementOf(s.image.digest(), trust.SignPredicate))
		}, trust.ErrWrongType, "text/plain"},
		{"statement that is no JSON", func(s scene) {
			s.forge.put(s.t, s.image, trust.StatementPayload, "hello")
		}, trust.ErrMalformed, "no JSON"},
		{"statement changed after it was signed", func(s scene) {
			old, changed := statementOf(other, trust.SignPredicate), statementOf(s.image.digest(), trust.SignPredicate)
			text := strings.Replace(string(s.forge.envelope(s.t, trust.StatementPayload, old)),
				base64.StdEncoding.EncodeToString([]byte(old)), base64.StdEncoding.EncodeToString([]byte(changed)), 1)
			putBundle(s.t, s.image.store, s.image.digest(), []byte(text))
		}, trust.ErrMalformed, "it was altered"},
		{"payload type changed after it was signed", func(s scene) {
			text := strings.Replace(string(s.forge.envelope(s.t, "text/plain", statementOf(s.image.digest(), trust.SignPredicate))),
				"text/plain", trust.StatementPayload, 1)
			putBundle(s.t, s.image.store, s.image.digest(), []byte(text))
		}, trust.ErrMalformed, "it was altered"},
		{"statement by another key", func(s scene) {
			s.image.sign(s.t, trust.FormBundle)
		}, trust.ErrWrongKey, "key sha256:"},
		{"bundle with a certificate", func(s scene) {
			var bundle map[string]any

			other := newForge(s.t).envelope(s.t, trust.StatementPayload, statementOf(s.image.digest(), trust.SignPredicate))
			trusttest.Must(s.t, json.Unmarshal(other, &bundle))
			bundle["verificationMaterial"] = map[string]any{"certificate": map[string]any{"rawBytes": "AAAA"}}
			putBundle(s.t, s.image.store, s.image.digest(), trusttest.Marshal(s.t, bundle))
		}, trust.ErrWrongKey, "certificate"},
		{"bundle without signatures", func(s scene) {
			putBundle(s.t, s.image.store, s.image.digest(), s.forge.bundleOf(s.t, map[string]any{"dsseEnvelope": map[string]any{}}))
		}, trust.ErrMalformed, "altered"},
		{"bundle without content", func(s scene) {
			putBundle(s.t, s.image.store, s.image.digest(), s.forge.bundleOf(s.t, nil))
		}, trust.ErrMalformed, "no signature"},
		{"bundle of a later version", func(s scene) {
			text := string(s.forge.envelope(s.t, trust.StatementPayload, statementOf(s.image.digest(), trust.SignPredicate)))
			putBundle(s.t, s.image.store, s.image.digest(), []byte(strings.Replace(text, "v0.3", "v9.3", 1)))
		}, trust.ErrMalformed, "v9.3"},
		{"bundle that is no JSON", func(s scene) {
			putBundle(s.t, s.image.store, s.image.digest(), []byte("hello"))
		}, trust.ErrMalformed, "bundle cannot be read"},
		{"bundle that the store changed", func(s scene) {
			s.forge.put(s.t, s.image, trust.StatementPayload, statementOf(other, trust.SignPredicate))
			replaceBlobs(s.image.store, s.forge.envelope(s.t, trust.StatementPayload, statementOf(s.image.digest(), trust.SignPredicate)))
		}, trust.ErrMalformed, "its blob has"},
		{"message signature over another artifact", func(s scene) {
			putBundle(s.t, s.image.store, s.image.digest(), s.forge.message(s.t, []byte("another artifact")))
		}, trust.ErrWrongDigest, other},
		{"message signature over another artifact that claims to be over this", func(s scene) {
			sum := sha256.Sum256([]byte("another artifact"))
			text := strings.Replace(string(s.forge.message(s.t, []byte("another artifact"))), base64.StdEncoding.EncodeToString(sum[:]),
				hexToBase64(s.t, s.image.artifact.Descriptor.Digest.Hex), 1)
			putBundle(s.t, s.image.store, s.image.digest(), []byte(text))
		}, trust.ErrMalformed, "altered"},
		{"message signature, and an artifact that the store changed", func(s scene) {
			putBundle(s.t, s.image.store, s.image.digest(), s.forge.message(s.t, []byte("another artifact")))
			s.image.store.Manifests[s.image.digest()] = trust.Manifest{Bytes: []byte("another artifact")}
		}, trust.ErrMalformed, "its manifest has the digest"},
		{"message signature, and no artifact", func(s scene) {
			putBundle(s.t, s.image.store, s.image.digest(), s.forge.message(s.t, s.image.store.Manifests[s.image.digest()].Bytes))
			delete(s.image.store.Manifests, s.image.digest())
		}, trust.ErrMalformed, "does not have what it is over"},
		{"referrer that is missing", func(s scene) {
			referrer := putBundle(s.t, s.image.store, s.image.digest(), s.forge.message(s.t, nil))
			delete(s.image.store.Manifests, referrer.Digest.String())
		}, trust.ErrMalformed, "does not have its manifest"},
		{"referrer that the store changed", func(s scene) {
			good := s.image.store.Clone()
			referrer := putBundle(s.t, good, s.image.digest(), s.forge.envelope(s.t, trust.StatementPayload,
				statementOf(s.image.digest(), trust.SignPredicate)))
			bad := putBundle(s.t, s.image.store, s.image.digest(), []byte("else"))
			s.image.store.Manifests[bad.Digest.String()] = good.Manifests[referrer.Digest.String()]
		}, trust.ErrMalformed, "its manifest has the digest"},
		{"annotation that tells of an SBOM", func(s scene) {
			s.forge.put(s.t, s.image, trust.StatementPayload, statementOf(s.image.digest(), trust.SignPredicate))
			s.image.store.Refers[s.image.digest()][0].Annotations = map[string]string{trust.PredicateAnnotation: "https://spdx.dev/\x1b[31m"}
		}, trust.ErrWrongType, "spdx.dev/\uFFFD[31m"},
		{"fallback tag that is no index", func(s scene) {
			s.image.store.Put(trust.ReferrersTag(s.image.digest()), []byte("hello"), types.OCIImageIndex)
		}, trust.ErrMalformed, "its index cannot be read"},
		{"manifest that is too large", func(s scene) {
			s.image.store.Put(trust.SignatureTag(s.image.digest()), make([]byte, trust.MaxManifest+1), types.OCIManifestSchema1)
		}, trust.ErrMalformed, "at most 4194304"},
		{"three that are bad in their own ways", func(s scene) {
			s.forge.simple(s.t, s.image.store, s.image.digest(), payloadOf(other, cosignType))
			s.image.sign(s.t, trust.FormBundle)
			signAs(s.t, s.image.store, newArtifact(s.t, trusttest.Ed25519(s.t)).signer, s.image.artifact, trust.FormBundle)
		}, trust.ErrWrongDigest, "3 signatures found: 1 over another digest"},
	}
}

func TestTampering(t *testing.T) {
	t.Parallel()

	for _, test := range tamperings() {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			f, image := newForge(t), newArtifact(t, trusttest.Ed25519(t))
			test.do(scene{t, f, image})

			result, err := trust.Verify(t.Context(), image.store, require(t, f.pub), image.digest())

			var typed *trust.Error

			switch {
			case result.Verified || !errors.Is(err, test.kind) || !errors.As(err, &typed):
				t.Errorf("got %+v, %v; want %v", result, err, test.kind)
			case !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), image.digest()) || typed.Fix == "":
				t.Errorf("the error has not the digest, %q and a fix: %v", test.want, err)
			case strings.ContainsAny(err.Error(), "\x1b\n") || len(err.Error()) > 1200:
				t.Errorf("the error is not fit for a terminal: %q", err)
			}
		})
	}
}

func TestGoodBesideBad(t *testing.T) {
	t.Parallel()

	f, image := newForge(t), newArtifact(t, trusttest.Ed25519(t))
	f.simple(t, image.store, image.digest(), payloadOf(trust.DigestOf(nil), cosignType))
	putBundle(t, image.store, image.digest(), []byte("hello"))
	image.sign(t, trust.FormBundle)
	f.put(t, image, trust.StatementPayload, statementOf(image.digest(), trust.SignPredicate))

	if result, err := trust.Verify(t.Context(), image.store, require(t, f.pub), image.digest()); err != nil || !result.Verified {
		t.Errorf("got %+v, %v", result, err)
	}
}

func hexToBase64(tb testing.TB, text string) string {
	tb.Helper()

	data, err := hex.DecodeString(text)
	trusttest.Must(tb, err)

	return base64.StdEncoding.EncodeToString(data)
}

// replaceText changes the texts of manifests.
func replaceText(store *trusttest.Store, old, replacement string) {
	for digest, manifest := range store.Manifests {
		manifest.Bytes = []byte(strings.Replace(string(manifest.Bytes), old, replacement, 1))
		store.Manifests[digest] = manifest
	}
}

// replaceBlobs puts other bytes under all digests.
func replaceBlobs(store *trusttest.Store, data []byte) {
	for digest := range store.Blobs {
		store.Blobs[digest] = data
	}
}
