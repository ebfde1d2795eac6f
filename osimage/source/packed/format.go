package packed

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/therootcompany/xz"
)

// Format is a kind of compression, None for a file that is what it holds.
type Format string

// The formats.
const (
	None  Format = ""
	Bzip2 Format = "bzip2"
	Gzip  Format = "gzip"
	XZ    Format = "xz"
	Zstd  Format = "zstd"
)

const (
	pieceSize = 1 << 20
	// maxWindow is the memory that an artifact can make the decoders use: what `xz -9` and `zstd --long` need.
	maxWindow = 128 << 20
)

// detect finds the format by the first bytes: RFC 1952 (gzip), RFC 8878 (zstd), the .xz file format 1.1.0, and the
// bzip2 program's source (a header and the magic number of a block, or of the end).
func detect(head []byte) Format {
	const blockAt = 4

	switch {
	case bytes.HasPrefix(head, []byte("BZh")) && len(head) > blockAt &&
		(bytes.HasPrefix(head[blockAt:], []byte("1AY&SY")) || bytes.HasPrefix(head[blockAt:], []byte("\x17\x72\x45\x38\x50\x90"))):
		return Bzip2
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b, 8}):
		return Gzip
	case bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")):
		return XZ
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return Zstd
	default:
		return None
	}
}

// reader unpacks a stream. Closing it does not close the stream.
func (f Format) reader(stream io.Reader) (io.ReadCloser, error) {
	buffered := bufio.NewReaderSize(stream, pieceSize)

	switch f {
	case Bzip2:
		return io.NopCloser(bzip2.NewReader(buffered)), nil
	case Gzip:
		return gzip.NewReader(buffered)
	case XZ:
		plain, err := xz.NewReader(buffered, maxWindow)
		if err != nil {
			return nil, err
		}

		return io.NopCloser(plain), nil
	case Zstd:
		plain, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, fmt.Errorf("starting the zstd decoder: %w", err)
		}

		return plain.IOReadCloser(), nil
	default:
		return io.NopCloser(buffered), nil
	}
}
