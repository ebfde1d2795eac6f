package osimage

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// uploaded is an image of a layout folder as the registry library wants it. Its manifest and config were verified when it
// was made, and its layers are while they are sent.
type uploaded struct {
	image    *Image
	dir      string
	manifest *v1.Manifest
	config   []byte
}

var _ partial.CompressedImageCore = (*uploaded)(nil)

func newUpload(ctx context.Context, image *Image, dir string) (v1.Image, error) {
	manifest, err := parseManifest(image.reference, image.manifest)
	if err != nil {
		return nil, err
	}

	config, err := readBlob(ctx, image.blobs, configBlob(image.reference, manifest))
	if err != nil {
		return nil, err
	}

	return partial.CompressedToImage(&uploaded{image: image, dir: dir, manifest: manifest, config: config})
}

func (u *uploaded) MediaType() (types.MediaType, error) { return u.manifest.MediaType, nil }
func (u *uploaded) RawManifest() ([]byte, error)        { return u.image.manifest, nil }
func (u *uploaded) RawConfigFile() ([]byte, error)      { return u.config, nil }

// LayerByDigest finds a layer of the manifest.
func (u *uploaded) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	for index, layer := range u.manifest.Layers {
		if layer.Digest == digest {
			source := u.image.layers()[index].blob

			return &uploadedLayer{blobs: u.image.blobs, blob: source, path: blobPath(u.dir, source.digest), descriptor: layer}, nil
		}
	}

	return nil, &Error{Kind: ErrNotFound, Subject: u.image.reference, Detail: "it has no layer " + digest.String()}
}

// uploadedLayer is one layer; what is read of it is verified.
type uploadedLayer struct {
	blobs      blobs
	blob       blob
	path       string
	descriptor v1.Descriptor
}

func (l *uploadedLayer) Digest() (v1.Hash, error)            { return l.descriptor.Digest, nil }
func (l *uploadedLayer) Size() (int64, error)                { return l.descriptor.Size, nil }
func (l *uploadedLayer) MediaType() (types.MediaType, error) { return l.descriptor.MediaType, nil }
func (l *uploadedLayer) Descriptor() (*v1.Descriptor, error) { return &l.descriptor, nil }
func (l *uploadedLayer) Compressed() (io.ReadCloser, error) {
	// A file of the layout needs no context.
	body, err := l.blobs.open(context.Background(), l.blob, 0, l.blob.size)
	if err != nil {
		return nil, err
	}

	return &verifiedFile{ReadCloser: body, layer: l, sum: &countingHash{hash: sha256.New()}}, nil
}

// verifiedFile hands out the last bytes of a layer only when all of them have the layer's digest: a registry that got the
// others cannot take them for the layer.
type verifiedFile struct {
	io.ReadCloser

	layer *uploadedLayer
	sum   *countingHash
}

func (f *verifiedFile) Read(buffer []byte) (int, error) {
	count, err := f.ReadCloser.Read(buffer)
	// A hash never returns an error.
	_, _ = f.sum.Write(buffer[:count])

	ended := f.sum.count == f.layer.blob.size || errors.Is(err, io.EOF)
	if !ended {
		return count, err
	}

	if got := digestOf(f.sum.hash); got != f.layer.blob.digest {
		return 0, wrongDigest(f.layer.path, "file", got, f.layer.blob.digest)
	}

	return count, err
}
