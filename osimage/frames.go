package osimage

import (
	"context"
	"errors"
	"fmt"
	"io"

	seekable "github.com/SaveTheRbtz/zstd-seekable-format-go/pkg"
	"github.com/klauspost/compress/zstd"
)

const (
	// frameSize is the number of raw bytes in one zstd frame of the layers that Build makes. It is what a resumed
	// transfer may have to fetch again.
	frameSize = 4 << 20
	// maxSeekTable bounds the seek table that is read into memory: 12 bytes a frame, so 2.7 TiB of raw bytes.
	maxSeekTable = 8 << 20
	// seekTableFooter is the length of a seek table's fixed end.
	seekTableFooter = 9
)

var errSeekTableTooLarge = errors.New("the seek table is too large")

// startOf finds the last frame that begins at or before a raw offset. Layers without a usable seek table, and places
// without ranges, are read from their start.
func (i *Image) startOf(ctx context.Context, content Content, offset int64) (position, error) {
	if offset < frameSize/2 {
		// Reading the seek table costs two requests, more than what it could save here.
		return position{}, nil
	}

	table, err := i.seekTable(ctx, content)
	if err != nil || table == nil {
		return position{}, err
	}

	entry, ok := table.EntryByDecompressedOffset(uint64(offset))
	if !ok {
		return position{}, nil
	}

	//nolint:gosec // A table of at most maxSeekTable bytes cannot reach 2^63.
	return position{compressed: int64(entry.CompressedOffset), raw: int64(entry.DecompressedOffset)}, nil
}

// seekTable reads a layer's seek table, nil when it has none that can be used.
func (i *Image) seekTable(ctx context.Context, content Content) (*seekable.SeekTable, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("starting a zstd decoder: %w", err)
	}
	defer decoder.Close()

	tail := &layerTail{ctx: ctx, blobs: i.blobs, blob: i.blobOf(content)}

	reader, err := seekable.NewReader(nil, decoder, seekable.WithReaderEnvironment(tail))

	switch {
	case tail.err != nil && !errors.Is(tail.err, errNoRanges) && !errors.Is(tail.err, errSeekTableTooLarge):
		return nil, fmt.Errorf("reading the seek table: %w", tail.err)
	case err != nil:
		// A layer that other tools made is plain zstd: fine, but read from its start.
		return nil, nil //nolint:nilnil // "No table" is an answer, not an error.
	}

	table, err := reader.SeekTable()
	if err != nil {
		return nil, fmt.Errorf("reading the seek table of %s: %w", tail.blob.subject, err)
	}

	if !usable(table, content) {
		return nil, nil //nolint:nilnil // As above; verification at the end tells what is wrong with the layer.
	}

	return &table, nil
}

// usable tells whether a table describes the layer that the config names.
func usable(table seekable.SeekTable, content Content) bool {
	last, ok := table.EntryByID(table.NumFrames() - 1)

	//nolint:gosec // Config.Validate refuses negative sizes.
	return ok && table.Size() == uint64(content.RawSize) &&
		last.CompressedOffset+uint64(last.CompressedSize) < uint64(content.Size)
}

// layerTail reads the end of a layer for the seekable package.
type layerTail struct {
	ctx   context.Context //nolint:containedctx // The package's interface has no context, and one call uses this.
	blobs blobs
	blob  blob
	err   error
}

var _ seekable.ReaderEnvironment = (*layerTail)(nil)

// ReadFooter gives the last bytes of the layer.
func (t *layerTail) ReadFooter() ([]byte, error) {
	return t.read(seekTableFooter)
}

// ReadSkipFrame gives the frame with the seek table, which is at the end of the layer.
func (t *layerTail) ReadSkipFrame(length int64) ([]byte, error) {
	return t.read(length)
}

// GetFrameByIndex is not called: only the table is read through this.
func (t *layerTail) GetFrameByIndex(seekable.FrameOffsetEntry) ([]byte, error) {
	return nil, errors.ErrUnsupported
}

func (t *layerTail) read(length int64) ([]byte, error) {
	if length > min(maxSeekTable, t.blob.size) {
		t.err = errSeekTableTooLarge

		return nil, t.err
	}

	var body io.ReadCloser

	body, t.err = t.blobs.open(t.ctx, t.blob, t.blob.size-length, t.blob.size)
	if t.err != nil {
		return nil, t.err
	}

	buffer := make([]byte, length)
	_, err := io.ReadFull(body, buffer)
	t.err = errors.Join(err, body.Close())

	return buffer, t.err
}

// Frame is a piece of a content that can be decompressed by itself.
type Frame struct {
	// Offset and Length are in raw bytes.
	Offset, Length int64
	// Checksum is the lower half of the XXH64 of the raw bytes (zstd seekable format).
	Checksum uint32
}

// Frames lists the frames of a content, none when the layer has no seek table or the place does not serve ranges. The
// list is not verified: it is good for finding out what need not be fetched, when the result is verified afterwards.
func (i *Image) Frames(ctx context.Context, role Role) ([]Frame, error) {
	content, err := i.content(role)
	if err != nil {
		return nil, err
	}

	if content.stored() {
		return nil, nil
	}

	table, err := i.seekTable(ctx, content)
	if err != nil || table == nil || !table.HasChecksums() {
		return nil, err
	}

	frames := make([]Frame, 0, table.NumFrames())

	for id := range table.NumFrames() {
		entry, _ := table.EntryByID(id)
		//nolint:gosec // A table of at most maxSeekTable bytes cannot reach 2^63.
		frames = append(frames, Frame{
			Offset: int64(entry.DecompressedOffset), Length: int64(entry.DecompressedSize), Checksum: entry.Checksum,
		})
	}

	return frames, nil
}
