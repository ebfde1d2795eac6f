package osimage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the memory that a layer can make the decoder use. `zstd -19` makes windows of 8 MiB; layers made
// with --ultra or --long can need more and are refused.
const maxWindow = 8 << 20

// position is a place in a content where decompression can start.
type position struct {
	compressed, raw int64
}

// contentReader decompresses one content and verifies it.
type contentReader struct {
	content Content
	blob    blob

	cancel  context.CancelFunc
	body    io.ReadCloser
	layer   *countingHash
	decoder *zstd.Decoder

	// whole tells whether the layer is read from its start.
	whole bool
	// hash is that of the raw bytes, nil when they are not all read, or not to be verified.
	hash hash.Hash
	pos  int64
	err  error
}

// openContent opens a content so that the first byte read is the one at offset.
func (i *Image) openContent(
	ctx context.Context, content Content, start position, offset int64, hashRaw bool,
) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	source := i.blobOf(content)

	body, err := i.blobs.open(ctx, source, start.compressed, content.Size)
	if errors.Is(err, errNoRanges) {
		start = position{}
		body, err = i.blobs.open(ctx, source, 0, content.Size)
	}

	if err != nil {
		cancel()

		return nil, err
	}

	reader := &contentReader{
		content: content, blob: source, cancel: cancel, body: body, pos: start.raw, whole: start == position{},
	}
	reader.layer = &countingHash{hash: sha256.New(), count: start.compressed}

	if reader.whole && hashRaw {
		reader.hash = sha256.New()
	}

	reader.decoder, err = zstd.NewReader(io.TeeReader(body, reader.layer),
		zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting the zstd decoder for %s: %w", source.subject, err), reader.Close())
	}

	if _, err := io.CopyN(io.Discard, reader, offset-start.raw); err != nil {
		return nil, errors.Join(fmt.Errorf("skipping to byte %d: %w", offset, err), reader.Close())
	}

	return reader, nil
}

// Read gives raw bytes, and io.EOF only when all of them were verified.
func (r *contentReader) Read(buffer []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}

	count, err := r.decoder.Read(buffer)
	r.pos += int64(count)

	if r.hash != nil {
		r.hash.Write(buffer[:count])
	}

	switch {
	case r.pos > r.content.RawSize:
		r.err = &Error{
			Kind: ErrTooLarge, Subject: r.blob.subject,
			Detail: fmt.Sprintf("the layer holds more than the %d raw bytes that the config says", r.content.RawSize),
			Fix:    fixRebuild,
		}

		return 0, r.err
	case errors.Is(err, io.EOF):
		r.err = r.verify()
	case err != nil:
		r.err = r.decodeError(err)
	}

	if count > 0 && errors.Is(r.err, io.EOF) {
		return count, nil
	}

	return count, r.err
}

// Close stops the transfer. The order matters: the decoder's reading goroutine ends only when the transfer does.
func (r *contentReader) Close() error {
	r.cancel()

	if r.decoder != nil {
		r.decoder.Close()
	}

	if err := r.body.Close(); err != nil {
		return fmt.Errorf("closing %s: %w", r.blob.subject, err)
	}

	return nil
}

// verify returns io.EOF when everything that was read matches.
func (r *contentReader) verify() error {
	if r.layer.count != r.content.Size {
		return truncated(r.blob.subject, "layer", r.layer.count, r.content.Size)
	}

	if r.whole {
		if got := digestOf(r.layer.hash); got != r.content.Digest {
			return wrongDigest(r.blob.subject, "layer", got, r.content.Digest)
		}
	}

	if r.pos != r.content.RawSize {
		return truncated(r.blob.subject, "content", r.pos, r.content.RawSize)
	}

	if r.hash != nil {
		if got := digestOf(r.hash); got != r.content.RawDigest {
			return wrongDigest(r.blob.subject, "content", got, r.content.RawDigest)
		}
	}

	return io.EOF
}

// decodeError tells a failed transfer from bytes that are not what they should be.
func (r *contentReader) decodeError(err error) error {
	var typed *Error
	if errors.As(err, &typed) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}

	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &Error{
			Kind: ErrTruncated, Subject: r.blob.subject, Err: err, Fix: fixRebuild,
			Detail: fmt.Sprintf("the zstd data ends at raw byte %d of %d", r.pos, r.content.RawSize),
		}
	}

	if errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		return &Error{
			Kind: ErrTooLarge, Subject: r.blob.subject, Err: err,
			Detail: fmt.Sprintf("the layer's zstd window is larger than %d bytes", maxWindow), Fix: fixRebuild,
		}
	}

	return &Error{
		Kind: ErrWrongDigest, Subject: r.blob.subject, Err: err, Fix: fixRebuild,
		Detail: fmt.Sprintf("the layer is not valid zstd at raw byte %d", r.pos),
	}
}

// countingHash hashes what is written to it and counts it.
type countingHash struct {
	hash  hash.Hash
	count int64
}

func (h *countingHash) Write(data []byte) (int, error) {
	h.count += int64(len(data))

	// A hash.Hash never returns an error.
	return h.hash.Write(data)
}

const fixRebuild = "build, pull or push the image again, or use another"

func digestOf(sum hash.Hash) string {
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}

func digestOfBytes(data []byte) string {
	sum := sha256.New()
	sum.Write(data)

	return digestOf(sum)
}

func wrongDigest(subject, what, got, want string) error {
	return &Error{
		Kind: ErrWrongDigest, Subject: subject, Fix: fixRebuild,
		Detail: fmt.Sprintf("the %s has %s, want %s", what, got, want),
	}
}

func truncated(subject, what string, got, want int64) error {
	return &Error{
		Kind: ErrTruncated, Subject: subject, Fix: fixRebuild,
		Detail: fmt.Sprintf("the %s has %d bytes, want %d", what, got, want),
	}
}

// HasOtherBytes tells whether an error says that somebody, the registry or a mirror of it, gave other bytes than the image's
// digests say: their digest, their number, or their form is wrong, whatever was looked at first. To ask the same host once
// more is of no use.
func HasOtherBytes(err error) bool {
	return errors.Is(err, ErrWrongDigest) || errors.Is(err, ErrTruncated) || errors.Is(err, ErrTooLarge)
}
