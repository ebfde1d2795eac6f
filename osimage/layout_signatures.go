package osimage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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

	index, err := l.index()
	if err != nil {
		return trust.Manifest{}, err
	}

	entry := slices.IndexFunc(index.Manifests, func(entry v1.Descriptor) bool {
		return entry.Annotations[refNameAnnotation] == tagOrDigest
	})

	if entry < 0 && trust.IsSignatureTag(tagOrDigest) && filepath.Ext(tagOrDigest) == ".sig" {
		entry = slices.IndexFunc(index.Manifests, func(entry v1.Descriptor) bool {
			return entry.Annotations[kindAnnotation] == kindSignatures
		})
	}

	if entry < 0 {
		return trust.Manifest{}, fmt.Errorf("%w: %s has no tag %s", trust.ErrNotFound, l.dir, tagOrDigest)
	}

	data, err := l.read(index.Manifests[entry].Digest)

	return trust.Manifest{Bytes: data, MediaType: index.Manifests[entry].MediaType}, err
}

// Blob reads a blob and verifies it.
func (l layoutSignatures) Blob(ctx context.Context, descriptor v1.Descriptor) ([]byte, error) {
	return readSignatureBlob(ctx, layoutBlobs(l), l.dir, descriptor)
}

// Referrers looks at the manifests that the index names.
func (l layoutSignatures) Referrers(_ context.Context, digest string) ([]v1.Descriptor, error) {
	index, err := l.index()
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

func (l layoutSignatures) index() (*v1.IndexManifest, error) {
	data, err := readBounded(filepath.Join(l.dir, indexFile))
	if err != nil {
		return nil, brokenIndex(l.dir, err)
	}

	index, err := v1.ParseIndexManifest(bytes.NewReader(data))
	if err != nil {
		return nil, brokenIndex(l.dir, err)
	}

	return index, nil
}

// read reads a manifest. Whether it has its digest is the caller's to check.
func (l layoutSignatures) read(digest v1.Hash) ([]byte, error) {
	if digest.Hex == "" {
		return nil, fmt.Errorf("%w: an entry of %s has no digest", trust.ErrNotFound, l.dir)
	}

	data, err := readBounded(blobPath(l.dir, digest.String()))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s has no blob %s", trust.ErrNotFound, l.dir, digest)
	}

	if err != nil {
		return nil, fmt.Errorf("reading the signatures in %s: %w", l.dir, err)
	}

	return data, nil
}

// readBounded reads a file of which no more is wanted than of a manifest.
func readBounded(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()

	data, err := io.ReadAll(io.LimitReader(file, maxManifest+1))
	if err == nil && len(data) > maxManifest {
		return nil, &Error{
			Kind: ErrTooLarge, Subject: path, Detail: fmt.Sprintf("it has more than %d bytes", maxManifest), Fix: fixRebuild,
		}
	}

	return data, err
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

	index, err := l.index()
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
