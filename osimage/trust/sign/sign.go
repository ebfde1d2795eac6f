package sign

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	bundlev1 "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	commonv1 "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	dssev1 "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	"github.com/sigstore/sigstore/pkg/signature/payload"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/stayput-dev/stayput/osimage/trust"
)

const (
	emptyConfig     = "{}"
	emptyConfigType = "application/vnd.oci.empty.v1+json"
	// contentAnnotation tells what is in the bundle (cosign, specs/BUNDLE_SPEC.md).
	contentAnnotation = "dev.sigstore.bundle.content"
	statementType     = "https://in-toto.io/Statement/v1"
)

// Artifact is what is to be signed.
type Artifact struct {
	// Name is what the signature claims the artifact to be: usually its repository.
	Name string
	// Descriptor has the media type, digest and size of its manifest.
	Descriptor v1.Descriptor
}

// Tag signs in the form that all versions of cosign read: at the tag "sha256-….sig". Signatures that are there stay; when a
// good one by this key is among them, there is nothing to do and the update is empty.
//
// Two signers at the same moment may lose one of their signatures: the tag is read and written. Verify afterwards.
func (s *Signer) Tag(ctx context.Context, store trust.Store, artifact Artifact) (trust.Update, error) {
	if signed, err := s.signed(ctx, store, artifact, trust.FormTag); signed || err != nil {
		return trust.Update{}, err
	}

	data, err := json.Marshal(payload.SimpleContainerImage{Critical: payload.Critical{
		Identity: payload.Identity{DockerReference: artifact.Name},
		Image:    payload.Image{DockerManifestDigest: artifact.Descriptor.Digest.String()},
		Type:     payload.CosignSignatureType,
	}})
	if err != nil {
		return trust.Update{}, fmt.Errorf("writing the payload: %w", err)
	}

	sig, err := s.sign(data)
	if err != nil {
		return trust.Update{}, err
	}

	layer, err := describe(data, trust.SimpleSigningType)
	if err != nil {
		return trust.Update{}, err
	}

	layer.Annotations = map[string]string{trust.SignatureAnnotation: base64.StdEncoding.EncodeToString(sig)}

	return appendTo(ctx, store, trust.SignatureTag(artifact.Descriptor.Digest.String()), layer, data)
}

// Bundle signs in the form that cosign makes since v3: a sigstore bundle with an in-toto statement, in a manifest that
// refers to the artifact. When there is a good one by this key, there is nothing to do and the update is empty.
func (s *Signer) Bundle(ctx context.Context, store trust.Store, artifact Artifact) (trust.Update, error) {
	if signed, err := s.signed(ctx, store, artifact, trust.FormBundle); signed || err != nil {
		return trust.Update{}, err
	}

	data, err := s.bundle(artifact.Descriptor.Digest)
	if err != nil {
		return trust.Update{}, err
	}

	layer, err := describe(data, trust.BundleType)
	if err != nil {
		return trust.Update{}, err
	}

	config, err := describe([]byte(emptyConfig), emptyConfigType)
	if err != nil {
		return trust.Update{}, err
	}

	manifest := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: trust.BundleType,
		Config: config, Layers: []v1.Descriptor{layer},
		Subject: &v1.Descriptor{
			MediaType: artifact.Descriptor.MediaType, Digest: artifact.Descriptor.Digest, Size: artifact.Descriptor.Size,
		},
		Annotations: map[string]string{contentAnnotation: "dsse-envelope", trust.PredicateAnnotation: trust.SignPredicate},
	}

	added, err := newManifest("", manifest)
	if err != nil {
		return trust.Update{}, err
	}

	added.Descriptor.ArtifactType, added.Descriptor.Annotations = manifest.ArtifactType, manifest.Annotations

	return trust.Update{
		Blobs:     []trust.Blob{{Descriptor: config, Bytes: []byte(emptyConfig)}, {Descriptor: layer, Bytes: data}},
		Manifests: []trust.NewManifest{added},
	}, nil
}

// signed tells whether there is a good signature by this key in the form already.
func (s *Signer) signed(ctx context.Context, store trust.Store, artifact Artifact, form trust.Form) (bool, error) {
	policy, err := trust.NewPolicy(trust.ModeRequire, []trust.Key{s.key})
	if err != nil {
		return false, err
	}

	found, err := trust.VerifyForm(ctx, store, policy, form, artifact.Descriptor.Digest.String())
	if errors.Is(err, trust.ErrUnavailable) || ctx.Err() != nil {
		return false, err
	}

	// Other refusals are about the signatures of others, or old ones.
	return err == nil && found.Verified, nil
}

// statement is an in-toto statement (in-toto/attestation, spec/v1/statement.md). The order of the fields is cosign's.
type statement struct {
	Type          string    `json:"_type"`
	Subject       []subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     struct{}  `json:"predicate"`
}

type subject struct {
	Digest map[string]string `json:"digest"`
}

// bundle makes the bundle's JSON.
func (s *Signer) bundle(digest v1.Hash) ([]byte, error) {
	data, err := json.Marshal(statement{
		Type: statementType, PredicateType: trust.SignPredicate,
		Subject: []subject{{Digest: map[string]string{digest.Algorithm: digest.Hex}}},
	})
	if err != nil {
		return nil, fmt.Errorf("writing the statement: %w", err)
	}

	sig, err := s.sign(dsse.PAE(trust.StatementPayload, data))
	if err != nil {
		return nil, err
	}

	// The hint of a key is the SHA-256 of its SubjectPublicKeyInfo in base64, as cosign writes it.
	sum, err := hex.DecodeString(strings.TrimPrefix(s.key.Fingerprint, "sha256:"))
	if err != nil {
		return nil, fmt.Errorf("reading the fingerprint %s: %w", s.key.Fingerprint, err)
	}

	text, err := protojson.Marshal(&bundlev1.Bundle{
		MediaType: trust.BundleType,
		VerificationMaterial: &bundlev1.VerificationMaterial{
			Content: &bundlev1.VerificationMaterial_PublicKey{
				PublicKey: &commonv1.PublicKeyIdentifier{Hint: base64.StdEncoding.EncodeToString(sum)},
			},
		},
		Content: &bundlev1.Bundle_DsseEnvelope{DsseEnvelope: &dssev1.Envelope{
			Payload: data, PayloadType: trust.StatementPayload, Signatures: []*dssev1.Signature{{Sig: sig}},
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("writing the bundle: %w", err)
	}

	// The library puts spaces where it likes, so that nobody relies on its text. We want the same bytes each time.
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return nil, fmt.Errorf("writing the bundle: %w", err)
	}

	return compact.Bytes(), nil
}

func describe(data []byte, mediaType types.MediaType) (v1.Descriptor, error) {
	digest, size, err := v1.SHA256(bytes.NewReader(data))
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("hashing: %w", err)
	}

	return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: size}, nil
}

func newManifest(tag string, manifest v1.Manifest) (trust.NewManifest, error) {
	data, err := json.Marshal(manifest)
	if err != nil {
		return trust.NewManifest{}, fmt.Errorf("writing the manifest: %w", err)
	}

	descriptor, err := describe(data, manifest.MediaType)

	return trust.NewManifest{Tag: tag, Descriptor: descriptor, Bytes: data}, err
}
