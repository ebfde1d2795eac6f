package trust_test

import (
	"encoding/base64"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/osimage/trust/trusttest"
)

// FuzzParseKeys: whatever a file of keys has in it, there are keys or an error.
func FuzzParseKeys(f *testing.F) {
	for _, key := range trusttest.Keys(f) {
		f.Add(trusttest.PublicPEM(f, key))
		f.Add(trusttest.PrivatePEM(f, key))
	}

	f.Add([]byte(rfc8410 + pemBroken))

	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := trust.ParseKeys("x", data)
		if (err == nil) == (len(keys) == 0) {
			t.Errorf("got %d keys and %v", len(keys), err)
		}
	})
}

const pemBroken = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2Vw"

// FuzzSimple: nothing that a store has at the tag counts as a signature unless the trusted key made it over this digest.
func FuzzSimple(f *testing.F) {
	forger, image := newForge(f), newArtifact(f, trusttest.Ed25519(f))
	forger.simple(f, image.store, image.digest(), payloadOf(image.digest(), cosignType))

	payload := []byte(payloadOf(image.digest(), cosignType))
	f.Add(image.store.Manifests[image.store.Tags[trust.SignatureTag(image.digest())]].Bytes, payload)
	f.Add([]byte("{}"), []byte("{}"))

	policy := require(f, image.signer.Key()) // who signed nothing

	f.Fuzz(func(t *testing.T, manifest, blob []byte) {
		store := image.store.Clone()
		store.Put(trust.SignatureTag(image.digest()), manifest, types.OCIManifestSchema1)
		store.PutBlob(blob, trust.SimpleSigningType)

		if result, err := trust.Verify(t.Context(), store, policy, image.digest()); err == nil || result.Verified {
			t.Errorf("a signature of nobody was taken: %+v", result)
		}
	})
}

// FuzzPayload: what the trusted key signed is taken only when it approves this digest.
func FuzzPayload(f *testing.F) {
	forger, image := newForge(f), newArtifact(f, trusttest.Ed25519(f))
	policy := require(f, forger.pub)

	f.Add(payloadOf(trust.DigestOf(nil), cosignType), statementOf(trust.DigestOf(nil), trust.SignPredicate), trust.StatementPayload)
	f.Add(`{"critical":[]}`, `{"subject":{}}`, "")
	f.Add("null", "[]", trust.StatementPayload)

	f.Fuzz(func(t *testing.T, payload, statement, payloadType string) {
		store := image.store.Clone()
		forger.simple(t, store, image.digest(), payload)
		putBundle(t, store, image.digest(), forger.envelope(t, payloadType, statement))

		if result, err := trust.Verify(t.Context(), store, policy, image.digest()); err == nil || result.Verified {
			t.Errorf("an approval of something else was taken: %+v", result)
		}
	})
}

// FuzzBundle: whatever a bundle has in it, it is refused unless the trusted key made it.
func FuzzBundle(f *testing.F) {
	forger, image := newForge(f), newArtifact(f, trusttest.Ed25519(f))
	policy := require(f, image.signer.Key())

	f.Add(forger.envelope(f, trust.StatementPayload, statementOf(image.digest(), trust.SignPredicate)))
	f.Add(forger.message(f, image.store.Manifests[image.digest()].Bytes))
	f.Add([]byte(`{"mediaType":"` + trust.BundleType + `","messageSignature":{}}`))
	f.Add([]byte(base64.StdEncoding.EncodeToString([]byte("hello"))))

	f.Fuzz(func(t *testing.T, bundle []byte) {
		store := image.store.Clone()
		putBundle(t, store, image.digest(), bundle)

		if result, err := trust.Verify(t.Context(), store, policy, image.digest()); err == nil || result.Verified {
			t.Errorf("a signature of nobody was taken: %+v", result)
		}
	})
}
