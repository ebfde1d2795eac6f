package gardenlinux_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/trust"
)

// sign does what `cosign sign --tlog-upload=false --key` does with an RSA key, by hand.
func (h *hub) sign(t *testing.T, key *rsa.PrivateKey, digest v1.Hash) {
	t.Helper()

	payload := fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":"%s"},"image":{"docker-manifest-digest":"%s"},`+
		`"type":"cosign container image signature"},"optional":null}`, h.repository(), digest)
	sum := sha256.Sum256(payload)

	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	if err != nil {
		t.Fatal(err)
	}

	layer := h.layer(t, payload, "application/vnd.dev.cosign.simplesigning.v1+json")
	layer.Annotations = map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(signature)}

	h.put(t, "sha256-"+digest.Hex+".sig", v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: h.layer(t, []byte("{}"), "application/vnd.oci.image.config.v1+json"),
		Layers: []v1.Descriptor{layer},
	}, types.OCIManifestSchema1)
}

func policy(t *testing.T, key *rsa.PrivateKey) osimage.Option {
	t.Helper()

	public, err := trust.NewKey("key.pem", &key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}

	result, err := trust.NewPolicy(trust.ModeRequire, []trust.Key{public})
	if err != nil {
		t.Fatal(err)
	}

	return osimage.WithTrust(result)
}

func newKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()

	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}

	return key
}

func TestSignatures(t *testing.T) {
	t.Parallel()

	h := newHub(t)
	entries := h.publish(t)
	key, other := newKey(t), newKey(t)

	h.sign(t, key, entries[5].Digest) // the flavour
	h.sign(t, key, entries[4].Digest) // the same for another architecture

	for _, reference := range []string{":" + version, "@" + entries[5].Digest.String()} {
		image, err := h.open(t, reference, usi, policy(t, key))
		if err != nil {
			t.Fatal(err)
		}

		if got := image.Signature(); !got.Verified || got.Digest != entries[5].Digest.String() {
			t.Errorf("%s: %+v", reference, got)
		}
	}

	if _, err := h.open(t, ":"+version, usi, policy(t, other)); !errors.Is(err, osimage.ErrUntrusted) {
		t.Errorf("another key: %v", err)
	}

	if _, err := h.open(t, ":"+version, "baremetal-capi_usi", policy(t, key)); !errors.Is(err, osimage.ErrUntrusted) {
		t.Errorf("a flavour that is not signed: %v", err)
	}

	// Whoever controls the registry can let the index name anything that was ever signed.
	h.sign(t, key, entries[3].Digest)

	for instead, says := range map[int]string{3: "its index names another image", 4: "it is made for arm64"} {
		entries[5].Digest, entries[5].Size = entries[instead].Digest, entries[instead].Size
		h.index(t, entries)

		if _, err := h.open(t, ":"+version, usi, policy(t, key)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("entry %d instead: %v, want it to say %q", instead, err, says)
		}
	}
}
