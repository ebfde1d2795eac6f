package osimage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/trust"
)

const (
	// kindAnnotation with kindSignatures marks the manifest of the "….sig" tag in a folder of `cosign save`, which writes
	// no tags (cosign, pkg/oci/layout).
	kindAnnotation = "kind"
	kindSignatures = "dev.cosignproject.cosign/sigs"

	// maxLayoutReferrers bounds how many manifests of a folder are read to find those with a subject.
	maxLayoutReferrers = 256
)

// LayoutSignatures gives access to the signatures in an OCI layout folder. Those with a tag have it in the index as
// org.opencontainers.image.ref.name, and bundles are entries of the index whose manifests have a subject, as oras, skopeo
// and we write them; signatures of `cosign save` are found, too.
func LayoutSignatures(dir string) SignatureStore {
	return layoutSignatures{dir}
}

type layoutSignatures struct {
	dir string
}

// isSignature tells the entries of a layout's index that are signatures from those that are images.
func isSignature(entry v1.Descriptor) bool {
	return trust.IsSignatureTag(entry.Annotations[refNameAnnotation]) || trust.IsBundleType(entry.ArtifactType) ||
		entry.Annotations[kindAnnotation] == kindSignatures
}

// Manifest reads a manifest.
func (l layoutSignatures) Manifest(_ context.Context, tagOrDigest string) (trust.Manifest, error) {
	if digest, err := v1.NewHash(tagOrDigest); err == nil {
		data, err := l.read(digest)

		return trust.Manifest{Bytes: data, MediaType: types.OCIManifestSchema1}, err
	}

	index, err := readIndex(l.dir)
	if err != nil {
		return trust.Manifest{}, err
	}

	entry, found := entryOf(index, tagOrDigest)
	if !found {
		return trust.Manifest{}, fmt.Errorf("%w: %s has no tag %s", trust.ErrNotFound, l.dir, tagOrDigest)
	}

	data, err := l.read(entry.Digest)

	return trust.Manifest{Bytes: data, MediaType: entry.MediaType}, err
}

// Blob reads a blob and verifies it.
func (l layoutSignatures) Blob(ctx context.Context, descriptor v1.Descriptor) ([]byte, error) {
	return readSignatureBlob(ctx, layoutBlobs(l), l.dir, descriptor)
}

// Referrers looks at the manifests that the index names.
func (l layoutSignatures) Referrers(_ context.Context, digest string) ([]v1.Descriptor, error) {
	index, err := readIndex(l.dir)
	if err != nil {
		return nil, err
	}

	var found []v1.Descriptor

	for _, entry := range index.Manifests[:min(maxLayoutReferrers, len(index.Manifests))] {
		if entry.MediaType != types.OCIManifestSchema1 || entry.ArtifactType == ArtifactType {
			continue
		}

		data, err := l.read(entry.Digest)
		if errors.Is(err, trust.ErrNotFound) {
			continue // What is not there has no subject.
		}

		if err != nil {
			return nil, err
		}

		manifest, err := v1.ParseManifest(bytes.NewReader(data))
		if err == nil && manifest.Subject != nil && manifest.Subject.Digest.String() == digest {
			entry.ArtifactType, entry.Annotations = manifest.ArtifactType, manifest.Annotations
			found = append(found, entry)
		}
	}

	return found, nil
}

// read reads a manifest. Whether it has its digest is the caller's to check.
func (l layoutSignatures) read(digest v1.Hash) ([]byte, error) {
	if digest.Hex == "" {
		return nil, fmt.Errorf("%w: an entry of %s has no digest", trust.ErrNotFound, l.dir)
	}

	data, err := readFile(blobPath(l.dir, digest.String()), maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s has no blob %s", trust.ErrNotFound, l.dir, digest)
	}

	if err != nil {
		return nil, fmt.Errorf("reading the signatures in %s: %w", l.dir, err)
	}

	return data, nil
}

// Add writes an update into the folder.
func (l layoutSignatures) Add(_ context.Context, update trust.Update) (err error) {
	target, err := openFolder(l.dir)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, target.close()) }()

	for _, blob := range update.Blobs {
		if _, err := target.writeBlob(blob.Bytes); err != nil {
			return err
		}
	}

	index, err := readIndex(l.dir)
	if err != nil {
		return err
	}

	for _, manifest := range update.Manifests {
		if _, err := target.writeBlob(manifest.Bytes); err != nil {
			return err
		}

		entry := manifest.Descriptor
		entry.Annotations = nil

		if manifest.Tag != "" {
			entry.Annotations = map[string]string{refNameAnnotation: manifest.Tag}
		}

		index.Manifests = append(slices.DeleteFunc(index.Manifests, func(other v1.Descriptor) bool {
			return other.Digest == entry.Digest || manifest.Tag != "" && other.Annotations[refNameAnnotation] == manifest.Tag
		}), entry)
	}

	return target.writeIndex(index)
}
