package trust

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Media types and annotations of cosign's specs/SIGNATURE_SPEC.md and specs/BUNDLE_SPEC.md, and of sigstore's bundle.
const (
	// SimpleSigningType is the media type of a layer with a simple-signing payload.
	SimpleSigningType types.MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"
	// SignatureAnnotation is the annotation of such a layer that has the signature, in base64.
	SignatureAnnotation = "dev.cosignproject.cosign/signature"
	// BundleType is the media type of a sigstore bundle, and the artifactType of the manifest that has one.
	BundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	// PredicateAnnotation tells, in that manifest, what the bundle's statement is about.
	PredicateAnnotation = "dev.sigstore.bundle.predicateType"
	// SignPredicate is the type of the in-toto statement that approves an artifact.
	SignPredicate = "https://sigstore.dev/cosign/sign/v1"
	// StatementPayload is the type of a DSSE payload with an in-toto statement.
	StatementPayload = "application/vnd.in-toto+json"

	// bundlePrefix starts the names of all versions of the bundle.
	bundlePrefix = "application/vnd.dev.sigstore.bundle"
)

// Bounds of what is read of a store.
const (
	// MaxManifest is what a Store reads of a manifest: a registry need not take larger ones (OCI distribution-spec).
	MaxManifest = 4 << 20
	// MaxBlob is what a Store reads of a blob. A bundle with a certificate and proofs of a log takes 10 KiB.
	MaxBlob = 256 << 10
	// MaxSignatures is how many signatures of one artifact are looked at in each form.
	MaxSignatures = 64
)

// Manifest is a manifest as the store has it.
type Manifest struct {
	Bytes     []byte
	MediaType types.MediaType
}

// Store is where an artifact and its signatures are: a repository of a registry, or an OCI layout folder. What it does
// not have is ErrNotFound. Any other error means that the question was not answered.
type Store interface {
	// Manifest reads at most MaxManifest bytes of the manifest with a tag or a digest.
	Manifest(ctx context.Context, tagOrDigest string) (Manifest, error)
	// Blob reads a blob of at most MaxBlob bytes.
	Blob(ctx context.Context, blob v1.Descriptor) ([]byte, error)
	// Referrers lists the manifests that have the digest as their subject. A store that keeps no such list returns
	// ErrNotFound; the list at the fallback tag is then read as a manifest.
	Referrers(ctx context.Context, digest string) ([]v1.Descriptor, error)
}

// Update is what is to be put into a store: the blobs, then the manifests in their order.
type Update struct {
	Blobs     []Blob
	Manifests []NewManifest
}

// Blob is a blob to be put into a store.
type Blob struct {
	Descriptor v1.Descriptor
	Bytes      []byte
}

// NewManifest is a manifest to be put into a store. Without a tag it is named by its digest alone. When it has a subject,
// it must be among the store's referrers of that afterwards.
type NewManifest struct {
	Tag        string
	Descriptor v1.Descriptor
	Bytes      []byte
}

// IsEmpty tells that there is nothing to do.
func (u Update) IsEmpty() bool {
	return len(u.Manifests) == 0
}

// SignatureTag is the tag of the manifest with the simple signatures of a digest: "sha256-<hex>.sig".
func SignatureTag(digest string) string {
	return ReferrersTag(digest) + ".sig"
}

// ReferrersTag is the tag of the index with the referrers of a digest, where a registry does not list them itself:
// "sha256-<hex>" (OCI distribution-spec, referrers tag schema).
func ReferrersTag(digest string) string {
	return strings.Replace(digest, ":", "-", 1)
}

// IsSignatureTag tells whether a tag is one of those that cosign and referrers use, and so names no image.
func IsSignatureTag(tag string) bool {
	const prefix, digits = "sha256-", 2 * sha256.Size

	if !strings.HasPrefix(tag, prefix) || len(tag) < len(prefix)+digits {
		return false
	}

	_, err := hex.DecodeString(tag[len(prefix) : len(prefix)+digits])

	switch tag[len(prefix)+digits:] {
	case "", ".sig", ".att", ".sbom":
		return err == nil
	default:
		return false
	}
}

// IsBundleType tells whether an artifactType or a media type is that of a sigstore bundle.
func IsBundleType(mediaType string) bool {
	return strings.HasPrefix(mediaType, bundlePrefix)
}

// DigestOf returns the digest of some bytes as OCI writes it.
func DigestOf(data []byte) string {
	sum := sha256.Sum256(data)

	return "sha256:" + hex.EncodeToString(sum[:])
}

// noDigest is what is wrong with a descriptor that names nothing.
const noDigest = "it is not named by a SHA-256 digest"

// readBlob reads a blob and makes sure that it is what the descriptor says. Problems with it are told in words: the
// second result. An error means that the store failed.
func readBlob(ctx context.Context, store Store, blob v1.Descriptor) (data []byte, problem string, err error) {
	if blob.Digest.Algorithm != "sha256" {
		return nil, noDigest, nil
	}

	if blob.Size < 0 || blob.Size > MaxBlob {
		return nil, fmt.Sprintf("it has %d bytes, at most %d are read", blob.Size, MaxBlob), nil
	}

	data, err = store.Blob(ctx, blob)

	switch {
	case isNotFound(err):
		return nil, "the store does not have its blob " + blob.Digest.String(), nil
	case err != nil:
		return nil, "", err
	case int64(len(data)) != blob.Size:
		return nil, fmt.Sprintf("its blob has %d bytes, want %d", len(data), blob.Size), nil
	case DigestOf(data) != blob.Digest.String():
		return nil, "its blob has the digest " + DigestOf(data) + ", want " + blob.Digest.String(), nil
	default:
		return data, "", nil
	}
}
