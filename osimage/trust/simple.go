package trust

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

// maxSignature bounds a signature: RSA with 8192 bits makes one of 1 KiB.
const maxSignature = 4 << 10

// lookAtTag looks at the simple signatures: layers of the manifest with the tag "sha256-….sig". Each layer is the payload,
// which names the digest, and has its signature in an annotation (cosign, specs/SIGNATURE_SPEC.md).
func (s *search) lookAtTag(ctx context.Context, digest v1.Hash) error {
	tag := SignatureTag(digest.String())

	manifest, problem, err := s.manifest(ctx, tag)
	if isNotFound(err) {
		return nil
	}

	if err != nil {
		return err
	}

	var layers []v1.Descriptor

	if problem == "" {
		layers, problem = layersOf(manifest, func(mediaType types.MediaType) bool { return mediaType == SimpleSigningType })
	}

	if problem != "" {
		s.note(refused(ErrMalformed, "tag "+tag+": "+problem))

		return nil
	}

	for index, layer := range layers {
		if index == MaxSignatures {
			s.cut = true

			return nil
		}

		found, err := s.simple(ctx, digest, layer)
		if err != nil {
			return err
		}

		if s.note(found); s.good != nil {
			return nil
		}
	}

	return nil
}

// simple verifies one simple signature. The payload is read only once a trusted key vouches for it.
func (s *search) simple(ctx context.Context, digest v1.Hash, layer v1.Descriptor) (verdict, error) {
	sig := decodeSignature(layer.Annotations[SignatureAnnotation])
	if sig == nil {
		return refused(ErrMalformed, "it has no base64 in the annotation "+SignatureAnnotation), nil
	}

	data, problem, err := readBlob(ctx, s.store, layer)
	if err != nil {
		return verdict{}, err
	}

	if problem != "" {
		return refused(ErrMalformed, problem), nil
	}

	key, ok := s.policy.signer(data, sig)
	if !ok {
		return refused(ErrWrongKey, ""), nil
	}

	return checkPayload(key, data, digest), nil
}

// decodeSignature returns nil for what is no signature.
func decodeSignature(text string) []byte {
	sig, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(sig) == 0 || len(sig) > maxSignature {
		return nil
	}

	return sig
}

// checkPayload says what a payload is worth that a trusted key signed.
func checkPayload(key Key, data []byte, digest v1.Hash) verdict {
	var claim payload.SimpleContainerImage

	if err := json.Unmarshal(data, &claim); err != nil {
		return refused(ErrMalformed, "its payload is no JSON: "+err.Error())
	}

	if claim.Critical.Type != payload.CosignSignatureType {
		return refused(ErrWrongType, fmt.Sprintf("critical.type is %q, want %q", claim.Critical.Type, payload.CosignSignatureType))
	}

	if got := claim.Critical.Image.DockerManifestDigest; got != digest.String() {
		return refused(ErrWrongDigest, fmt.Sprintf("%q", got))
	}

	return madeBy(key)
}
