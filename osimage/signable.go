package osimage

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/trust"
)

const (
	// nameAnnotation is the name of an image in its manifest (OCI image-spec, annotations).
	nameAnnotation = "org.opencontainers.image.title"
	// maxSignable bounds how many images of an index are signed or verified one by one.
	maxSignable = 256
)

// Signable is an artifact of any kind that can be signed or verified.
type Signable struct {
	// Reference names exactly this artifact: "repository@sha256:…".
	Reference string
	// Name is what a signature claims it to be: the repository, or the title in its manifest when it is in a folder.
	Name string
	// Artifact is the manifest or index that the reference means.
	Artifact v1.Descriptor
	// Images are those that an index names, with their platforms. Each can be named by its own digest, and then needs a
	// signature of its own.
	Images []v1.Descriptor
	// Signatures is where its signatures are.
	Signatures SignatureStore
}

// Signable finds out what a reference means.
func (c *Client) Signable(ctx context.Context, reference string) (Signable, error) {
	parsed, err := c.parse(reference)
	if err != nil {
		return Signable{}, err
	}

	descriptor, err := c.get(ctx, parsed)
	if err != nil {
		return Signable{}, err
	}

	return newSignable(Signable{
		Reference: parsed.Context().Name() + "@" + descriptor.Digest.String(), Name: parsed.Context().Name(),
		Artifact:   v1.Descriptor{MediaType: descriptor.MediaType, Digest: descriptor.Digest, Size: descriptor.Size},
		Signatures: &registrySignatures{c, parsed.Context()},
	}, descriptor.Manifest)
}

// LayoutSignable finds out what a tag of an OCI layout folder means.
func LayoutSignable(ctx context.Context, dir, tag string) (Signable, error) {
	entry, err := findInLayout(ctx, dir, tag)
	if err != nil {
		return Signable{}, err
	}

	store := layoutSignatures{dir}

	manifest, err := store.Manifest(ctx, entry.Digest.String())
	if err != nil {
		return Signable{}, err
	}

	if got := trust.DigestOf(manifest.Bytes); got != entry.Digest.String() {
		return Signable{}, wrongDigest(dir, "manifest", got, entry.Digest.String())
	}

	return newSignable(Signable{
		Reference: dir + "@" + entry.Digest.String(), Name: filepath.Base(dir), Signatures: store,
		Artifact: v1.Descriptor{MediaType: entry.MediaType, Digest: entry.Digest, Size: int64(len(manifest.Bytes))},
	}, manifest.Bytes)
}

// newSignable adds what the manifest tells.
func newSignable(found Signable, manifest []byte) (Signable, error) {
	// An index has no layers, and an image no manifests: one type reads both.
	index, err := v1.ParseIndexManifest(bytes.NewReader(manifest))
	if err != nil {
		return Signable{}, notAnImage(found.Reference, "the manifest cannot be read", err)
	}

	if _, isLayout := found.Signatures.(layoutSignatures); isLayout && index.Annotations[nameAnnotation] != "" {
		found.Name = index.Annotations[nameAnnotation]
	}

	if len(index.Manifests) > maxSignable {
		return Signable{}, &Error{
			Kind: ErrTooLarge, Subject: found.Reference, Fix: "sign them one by one, by their digests",
			Detail: fmt.Sprintf("the index names %d images, at most %d are taken", len(index.Manifests), maxSignable),
		}
	}

	for _, entry := range index.Manifests {
		if entry.MediaType == types.OCIManifestSchema1 || entry.MediaType == types.OCIImageIndex ||
			entry.MediaType == types.DockerManifestSchema2 || entry.MediaType == types.DockerManifestList {
			found.Images = append(found.Images, entry)
		}
	}

	return found, nil
}

// Verify is trust.Verify for one of the digests, with errors that name the artifact.
func (s Signable) Verify(ctx context.Context, policy trust.Policy, digest string) (trust.Result, error) {
	return verifySignature(ctx, s.Reference, s.Signatures, policy, digest)
}
