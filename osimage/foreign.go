package osimage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Foreign reads OCI artifacts that others publish in a form of their own, so that they need not be published again. The
// contents of such an image are layers as they are, not compressed by us.
type Foreign interface {
	// Choose finds the image for an architecture in an index. It tells false of an index of another kind.
	Choose(subject string, index *v1.IndexManifest, architecture string) (entry v1.Descriptor, found bool, err error)
	// Config describes the image of a manifest. It tells false of a manifest of another kind. Read gives a small layer,
	// verified.
	Config(
		ctx context.Context, subject string, manifest *v1.Manifest, read func(layer v1.Descriptor) ([]byte, error),
	) (config Config, found bool, err error)
}

// WithForeign reads images of another kind, too. They can be resolved, inspected and written, but not pulled.
func WithForeign(foreign Foreign) Option {
	return func(client *Client) error {
		client.foreign = append(client.foreign, foreign)

		return nil
	}
}

// chooseForeign looks for an image in an index that is not of ours. It tells false when it is of no kind that is known.
func (c *Client) chooseForeign(subject string, index *v1.IndexManifest, architecture string) (v1.Descriptor, bool, error) {
	for _, foreign := range c.foreign {
		if entry, found, err := foreign.Choose(subject, index, architecture); found || err != nil {
			return entry, found, err
		}
	}

	return v1.Descriptor{}, false, nil
}

// loadForeign makes the config of an image that is not of ours. It tells false when it is of no kind that is known.
func (i *Image) loadForeign(ctx context.Context, kinds []Foreign) (bool, error) {
	manifest, err := v1.ParseManifest(bytes.NewReader(i.manifest))
	if err != nil {
		return false, notAnImage(i.reference, "the manifest cannot be read", err)
	}

	if manifest.ArtifactType == ArtifactType {
		return false, nil
	}

	read := func(layer v1.Descriptor) ([]byte, error) {
		if layer.Size > maxConfigSize {
			return nil, notAnImage(i.reference, fmt.Sprintf("the layer %s has %d bytes, at most %d are read", layer.MediaType,
				layer.Size, maxConfigSize), nil)
		}

		return readBlob(ctx, i.blobs, blob{
			digest: layer.Digest.String(), size: layer.Size, subject: fmt.Sprintf("%s of %s", layer.MediaType, i.reference),
		})
	}

	for _, foreign := range kinds {
		config, found, err := foreign.Config(ctx, i.reference, manifest, read)
		if err != nil {
			return false, err
		}

		if !found {
			continue
		}

		if err := checkForeign(i.reference, config, manifest); err != nil {
			return false, err
		}

		i.config, i.foreign = config, true

		return true, nil
	}

	return false, nil
}

// checkForeign makes sure that every content is a layer of the manifest as it is, so that whoever trusts the manifest can
// trust the contents.
func checkForeign(subject string, config Config, manifest *v1.Manifest) error {
	if err := config.Validate(); err != nil {
		return fmt.Errorf("reading the config of %s: %w", subject, err)
	}

	for _, content := range config.Contents {
		known := false

		for _, layer := range manifest.Layers {
			known = known || layer.Digest.String() == content.Digest && layer.Size == content.Size
		}

		if !known || !content.stored() {
			return notAnImage(subject, fmt.Sprintf("%s is not a layer of the manifest", content.Role), nil)
		}
	}

	return nil
}

func refuseForeign(reference string) error {
	return invalid(reference, "its layers are not made for a folder of ours", "use `stayput image import` to make an image of it")
}

// stored tells that the layer is the raw bytes: no others have the same SHA-256.
func (c Content) stored() bool { return c.Digest == c.RawDigest && c.Size == c.RawSize }

// openStored reads a layer that is the raw bytes from an offset.
func (i *Image) openStored(ctx context.Context, content Content, offset int64, hashRaw bool) (io.ReadCloser, error) {
	source := i.blobOf(content)

	body, err := i.blobs.open(ctx, source, offset, content.Size)
	start := offset

	if errors.Is(err, errNoRanges) {
		start = 0
		body, err = i.blobs.open(ctx, source, 0, content.Size)
	}

	if err != nil {
		return nil, err
	}

	reader := &storedReader{blob: source, body: body, pos: start}
	if start == 0 && hashRaw {
		reader.hash = sha256.New()
	}

	if _, err := io.CopyN(io.Discard, reader, offset-start); err != nil {
		return nil, errors.Join(fmt.Errorf("skipping to byte %d: %w", offset, err), reader.Close())
	}

	return reader, nil
}

// storedReader reads the rest of a blob and verifies it.
type storedReader struct {
	blob blob
	body io.ReadCloser
	pos  int64
	// hash is nil when the blob is not read from its start, or not to be verified.
	hash hash.Hash
	err  error
}

// Read gives bytes, and io.EOF only when all of them were verified.
func (r *storedReader) Read(buffer []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}

	count, err := r.body.Read(buffer)
	r.pos += int64(count)

	if r.hash != nil {
		r.hash.Write(buffer[:count])
	}

	if errors.Is(err, io.EOF) {
		err = r.verify()
	}

	r.err = err

	if count > 0 && errors.Is(err, io.EOF) {
		return count, nil
	}

	return count, r.err
}

// verify returns io.EOF when everything that was read matches.
func (r *storedReader) verify() error {
	if r.pos != r.blob.size {
		return truncated(r.blob.subject, "layer", r.pos, r.blob.size)
	}

	if r.hash != nil {
		if got := digestOf(r.hash); got != r.blob.digest {
			return wrongDigest(r.blob.subject, "layer", got, r.blob.digest)
		}
	}

	return io.EOF
}

// Close ends the transfer.
func (r *storedReader) Close() error {
	if err := r.body.Close(); err != nil {
		return fmt.Errorf("closing %s: %w", r.blob.subject, err)
	}

	return nil
}
