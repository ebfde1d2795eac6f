package sign_test

import (
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/osimage/trust/sign"
	"github.com/stayput-dev/stayput/osimage/trust/trusttest"
)

// FuzzParseKey: whatever a key file has in it, there is a signer or an error.
func FuzzParseKey(f *testing.F) {
	for _, key := range trusttest.Keys(f) {
		f.Add(trusttest.PrivatePEM(f, key))
		f.Add(trusttest.PublicPEM(f, key))
	}

	f.Add(block("ENCRYPTED SIGSTORE PRIVATE KEY", []byte(`{"kdf":{"name":"scrypt","params":{"N":1,"r":8,"p":1}}}`)))

	f.Fuzz(func(t *testing.T, data []byte) {
		// Without a password: what its derivation costs is the business of whoever encrypted the key.
		signer, err := sign.ParseKey("x", data, nil)
		if (err == nil) == (signer == nil) {
			t.Errorf("got %v and %v", signer, err)
		}
	})
}

// FuzzAppend: whatever is at the tag, either it stays, or what is put there has our signature in it.
func FuzzAppend(f *testing.F) {
	signer, err := sign.ParseKey("key", trusttest.PrivatePEM(f, trusttest.Ed25519(f)), nil)
	trusttest.Must(f, err)

	policy, err := trust.NewPolicy(trust.ModeRequire, []trust.Key{signer.Key()})
	trusttest.Must(f, err)

	f.Add([]byte(`{"schemaVersion":2,"config":{},"layers":[]}`), []byte("{}"))
	f.Add([]byte(`{"schemaVersion":2,"layers":[{"mediaType":"x"}]}`), []byte(`{"rootfs":{"diff_ids":["sha256:00"]}}`))

	f.Fuzz(func(t *testing.T, manifest, config []byte) {
		store := trusttest.New()
		target := artifact(store)
		digest := target.Descriptor.Digest.String()

		store.PutBlob(config, types.OCIConfigJSON)
		store.Put(trust.SignatureTag(digest), manifest, types.OCIManifestSchema1)

		update, err := signer.Tag(t.Context(), store, target)
		if err != nil {
			return
		}

		store.Apply(t, update)

		if result, err := trust.Verify(t.Context(), store, policy, digest); err != nil || !result.Verified {
			t.Errorf("after signing: %+v, %v", result, err)
		}
	})
}
