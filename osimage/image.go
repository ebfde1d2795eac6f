package osimage

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/stayput-dev/stayput/osimage/trust"
)

// Source gives the raw bytes of an image's contents, from an offset. A reader returns an error at its end when the
// bytes do not match the config.
type Source interface {
	Config() Config
	Open(ctx context.Context, role Role, offset int64) (io.ReadCloser, error)
}

// Image is one image in a registry or in an OCI layout folder, resolved to its digest. It is safe for concurrent use.
type Image struct {
	reference string
	digest    string
	// chosenFrom is the digest of the index that the image was chosen from, "" when there was none.
	chosenFrom string
	manifest   []byte
	config     Config
	blobs      blobs
	// foreign tells that the manifest is not one of ours.
	foreign bool
	// signature is what was verified before the manifest was read.
	signature trust.Result
}

var _ Source = (*Image)(nil)

// blob is a part of an image as the manifest names it.
type blob struct {
	digest string
	size   int64
	// subject names it in errors: the image and the role.
	subject string
}

// blobs is where an image's bytes are.
type blobs interface {
	// open streams the bytes [from, to) of a blob. It does not verify them. It returns errNoRanges when from is not 0
	// and the place can only be read from the start.
	open(ctx context.Context, blob blob, from, to int64) (io.ReadCloser, error)
}

var errNoRanges = errors.New("the registry does not serve ranges")

// Config returns the image's validated config.
func (i *Image) Config() Config {
	return i.config
}

// Digest returns the digest of the image's manifest, "sha256:…".
func (i *Image) Digest() string {
	return i.digest
}

// Reference returns the reference that names exactly this image: "repository@sha256:…".
func (i *Image) Reference() string {
	return i.reference
}

// Manifest returns the bytes of the image's OCI manifest.
func (i *Image) Manifest() []byte {
	return append([]byte(nil), i.manifest...)
}

// Open streams the raw bytes of a content from an offset to its end. Closing the reader before its end is fine.
//
// Read from 0, the layer's digest and the raw digest are verified, and the last Read returns ErrWrongDigest when one
// does not match. Read from an offset, only frame checksums and the size are verified: verify what was written.
// A broken transfer is taken up where it stopped; when the client's tries are used up, Read returns ErrTransient.
func (i *Image) Open(ctx context.Context, role Role, offset int64) (io.ReadCloser, error) {
	return i.open(ctx, role, offset, true)
}

// open is Open, with or without verifying the raw digest.
func (i *Image) open(ctx context.Context, role Role, offset int64, hashRaw bool) (io.ReadCloser, error) {
	content, err := i.content(role)
	if err != nil {
		return nil, err
	}

	if offset < 0 || offset > content.RawSize {
		return nil, invalid(fmt.Sprintf("%s of %s", role, i.reference),
			fmt.Sprintf("it has %d bytes and cannot be read from byte %d", content.RawSize, offset), "read from within it")
	}

	if offset == content.RawSize {
		return io.NopCloser(eofReader{}), nil
	}

	if content.stored() {
		return i.openStored(ctx, content, offset, hashRaw)
	}

	start, err := i.startOf(ctx, content, offset)
	if err != nil {
		return nil, err
	}

	return i.openContent(ctx, content, start, offset, hashRaw)
}

func (i *Image) content(role Role) (Content, error) {
	content, ok := i.config.Content(role)
	if !ok {
		return Content{}, &Error{
			Kind: ErrNotFound, Subject: i.reference,
			Detail: fmt.Sprintf("the image has no content with the role %q", role),
			Fix:    "`stayput image inspect` lists its contents",
		}
	}

	return content, nil
}

func (i *Image) blobOf(content Content) blob {
	return blob{digest: content.Digest, size: content.Size, subject: fmt.Sprintf("%s of %s", content.Role, i.reference)}
}

func (i *Image) indexBlobOf(content Content) blob {
	return blob{
		digest: content.ChunkIndex.Digest, size: content.ChunkIndex.Size,
		subject: fmt.Sprintf("chunk index of %s of %s", content.Role, i.reference),
	}
}

func (i *Image) idsBlobOf(content Content) blob {
	return blob{
		digest: content.ChunkIndex.IDs.Digest, size: content.ChunkIndex.IDs.Size,
		subject: fmt.Sprintf("chunk ids of %s of %s", content.Role, i.reference),
	}
}

type eofReader struct{}

func (eofReader) Read([]byte) (int, error) {
	return 0, io.EOF
}
