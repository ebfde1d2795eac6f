package trust

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	bundlev1 "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	commonv1 "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

const (
	// emptyConfigType is the media type of a config without content, which old registries report as artifactType.
	emptyConfigType = "application/vnd.oci.empty.v1+json"
	// maxEnvelopeSignatures bounds the signatures of one envelope; sigstore's bundles have exactly one.
	maxEnvelopeSignatures = 8
	// statementPrefix starts the types of the versions of an in-toto statement.
	statementPrefix = "https://in-toto.io/Statement/v"
)

// lookAtBundles looks at the sigstore bundles of the manifests that refer to the digest.
func (s *search) lookAtBundles(ctx context.Context, digest v1.Hash) error {
	referrers, err := s.referrers(ctx, digest)
	if err != nil {
		return err
	}

	for index, referrer := range referrers {
		if index == MaxSignatures {
			s.cut = true

			return nil
		}

		if err := s.referrer(ctx, digest, referrer); err != nil || s.good != nil {
			return err
		}
	}

	return nil
}

// referrers lists what may be bundles. Where the store's own list has none, the fallback tag is looked at: a registry may
// have learned to list referrers after signatures were pushed, and copies of a repository may have the tag alone.
func (s *search) referrers(ctx context.Context, digest v1.Hash) ([]v1.Descriptor, error) {
	listed, err := s.store.Referrers(ctx, digest.String())
	if err != nil && !isNotFound(err) {
		return nil, err
	}

	mayBeBundle := func(entry v1.Descriptor) bool {
		return IsBundleType(entry.ArtifactType) || slices.Contains([]string{"", emptyConfigType}, entry.ArtifactType)
	}

	if found := filter(listed, mayBeBundle); len(found) > 0 {
		return found, nil
	}

	manifest, problem, err := s.manifest(ctx, ReferrersTag(digest.String()))
	if isNotFound(err) {
		return nil, nil
	}

	if err != nil {
		return nil, err
	}

	index, err := v1.ParseIndexManifest(bytes.NewReader(manifest.Bytes))
	if err != nil && problem == "" {
		problem = "its index cannot be read: " + err.Error()
	}

	if problem != "" {
		s.note(refused(ErrMalformed, "tag "+ReferrersTag(digest.String())+": "+problem))

		return nil, nil
	}

	return filter(index.Manifests, mayBeBundle), nil
}

func filter(entries []v1.Descriptor, keep func(v1.Descriptor) bool) []v1.Descriptor {
	var kept []v1.Descriptor

	for _, entry := range entries {
		if keep(entry) {
			kept = append(kept, entry)
		}
	}

	return kept
}

// referrer verifies the bundle of one manifest, if it has one.
func (s *search) referrer(ctx context.Context, digest v1.Hash, referrer v1.Descriptor) error {
	// The annotation saves reading SBOMs and the like. Nothing good follows from it.
	if predicate := referrer.Annotations[PredicateAnnotation]; predicate != "" && predicate != SignPredicate {
		s.note(refused(ErrWrongType, predicate))

		return nil
	}

	if referrer.Digest.Algorithm != "sha256" {
		s.note(refused(ErrMalformed, noDigest))

		return nil
	}

	manifest, problem, err := s.manifest(ctx, referrer.Digest.String())

	switch {
	case isNotFound(err):
		problem = "the store does not have its manifest " + referrer.Digest.String()
	case err != nil:
		return err
	}

	var layers []v1.Descriptor

	if problem == "" {
		layers, problem = layersOf(manifest, func(mediaType types.MediaType) bool { return IsBundleType(string(mediaType)) })
	}

	switch {
	case problem != "":
		s.note(refused(ErrMalformed, problem))

		return nil
	case len(layers) == 0:
		return nil
	}

	// Sigstore's manifests have one bundle each.
	data, problem, err := readBlob(ctx, s.store, layers[0])
	if err != nil {
		return err
	}

	found := refused(ErrMalformed, problem)

	if problem == "" {
		found, err = s.bundle(ctx, digest, data)
		if err != nil {
			return err
		}
	}

	s.note(found)

	return nil
}

// bundle verifies one bundle: its JSON form (sigstore/protobuf-specs, sigstore_bundle.proto). Certificates, timestamps and
// log entries in it are not used, only its signature.
func (s *search) bundle(ctx context.Context, digest v1.Hash, data []byte) (verdict, error) {
	var bundle bundlev1.Bundle

	if problem := parseBundle(data, &bundle); problem != "" {
		return refused(ErrMalformed, problem), nil
	}

	switch content := bundle.GetContent().(type) {
	case *bundlev1.Bundle_DsseEnvelope:
		return s.envelope(digest, &bundle), nil
	case *bundlev1.Bundle_MessageSignature:
		return s.message(ctx, digest, content.MessageSignature, bundle.GetVerificationMaterial())
	default:
		return refused(ErrMalformed, "its bundle has no signature"), nil
	}
}

func parseBundle(data []byte, bundle *bundlev1.Bundle) (problem string) {
	// Later versions of 0.3 may have more fields.
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, bundle); err != nil {
		return "its bundle cannot be read: " + err.Error()
	}

	if got := bundle.GetMediaType(); got != BundleType && got != bundlePrefix+"+json;version=0.3" {
		return fmt.Sprintf("its bundle is of the type %q, want %q", got, BundleType)
	}

	return ""
}

// envelope verifies a signed statement about the digest, which is what `cosign sign` has made since v3.
func (s *search) envelope(digest v1.Hash, bundle *bundlev1.Bundle) verdict {
	envelope := bundle.GetDsseEnvelope()
	signed := dsse.PAE(envelope.GetPayloadType(), envelope.GetPayload())
	signatures := envelope.GetSignatures()

	for _, sig := range signatures[:min(maxEnvelopeSignatures, len(signatures))] {
		key, ok := s.policy.signer(signed, sig.GetSig())
		if !ok {
			continue
		}

		return checkStatement(key, envelope.GetPayloadType(), envelope.GetPayload(), digest)
	}

	return s.unknownSigner(bundle.GetVerificationMaterial())
}

// statement is what is read of an in-toto statement (in-toto/attestation, spec/v1/statement.md).
type statement struct {
	Type          string `json:"_type"`
	PredicateType string `json:"predicateType"`
	Subject       []struct {
		Digest map[string]string `json:"digest"`
	} `json:"subject"`
}

// checkStatement says what a statement is worth that a trusted key signed.
func checkStatement(key Key, payloadType string, data []byte, digest v1.Hash) verdict {
	if payloadType != StatementPayload {
		return refused(ErrWrongType, fmt.Sprintf("the payload is %q, want %q", payloadType, StatementPayload))
	}

	var claim statement

	if err := json.Unmarshal(data, &claim); err != nil {
		return refused(ErrMalformed, "its statement is no JSON: "+err.Error())
	}

	if !strings.HasPrefix(claim.Type, statementPrefix) || claim.PredicateType != SignPredicate {
		return refused(ErrWrongType, fmt.Sprintf("%q, want %q", claim.PredicateType, SignPredicate))
	}

	for _, subject := range claim.Subject {
		if subject.Digest[digest.Algorithm] == digest.Hex {
			return madeBy(key)
		}
	}

	if len(claim.Subject) == 0 {
		return refused(ErrWrongDigest, "it names none")
	}

	return refused(ErrWrongDigest, fmt.Sprintf("%q", digest.Algorithm+":"+claim.Subject[0].Digest[digest.Algorithm]))
}

// message verifies a signature over the artifact's bytes, such as `cosign sign-blob` makes of a manifest.
func (s *search) message(
	ctx context.Context, digest v1.Hash, signed *commonv1.MessageSignature, material *bundlev1.VerificationMaterial,
) (verdict, error) {
	artifact, problem, err := s.manifest(ctx, digest.String())

	switch {
	case isNotFound(err):
		return refused(ErrMalformed, "the store does not have what it is over: "+digest.String()), nil
	case err != nil:
		return verdict{}, err
	case problem != "":
		return refused(ErrMalformed, problem), nil
	}

	if key, ok := s.policy.signer(artifact.Bytes, signed.GetSignature()); ok {
		return madeBy(key), nil
	}

	// The digest in the bundle is only a hint, and tells another artifact of a trusted signer from an unknown signer.
	sum := signed.GetMessageDigest()
	if sum.GetAlgorithm() == commonv1.HashAlgorithm_SHA2_256 && hex.EncodeToString(sum.GetDigest()) != digest.Hex {
		for _, key := range s.policy.keys {
			if key.verifiesDigest(sum.GetDigest(), signed.GetSignature()) {
				return refused(ErrWrongDigest, fmt.Sprintf("%q", "sha256:"+hex.EncodeToString(sum.GetDigest()))), nil
			}
		}
	}

	return s.unknownSigner(material), nil
}

// unknownSigner is the verdict on a bundle that no trusted key made. When it names one of them it was altered.
func (s *search) unknownSigner(material *bundlev1.VerificationMaterial) verdict {
	sum, err := base64.StdEncoding.DecodeString(material.GetPublicKey().GetHint())
	fingerprint := "sha256:" + hex.EncodeToString(sum)

	switch {
	case err == nil && slices.ContainsFunc(s.policy.keys, func(key Key) bool { return key.Fingerprint == fingerprint }):
		return refused(ErrMalformed, "it names the trusted key "+fingerprint+", which did not make it: it was altered")
	case err == nil && len(sum) == sha256.Size:
		return refused(ErrWrongKey, "key "+fingerprint)
	case material.GetPublicKey() == nil:
		return refused(ErrWrongKey, "it has a certificate, and only keys are trusted")
	default:
		return refused(ErrWrongKey, "")
	}
}
