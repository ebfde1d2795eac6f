package flatcar

import (
	"compress/bzip2"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"

	"github.com/stayput-dev/stayput/osimage"
)

// maxBlocks, 1 TiB, is more than any content has, and small enough that no sum of maxExtents of them overflows.
const maxBlocks = 1 << 28

// content is what a list of operations makes: the partition, or the kernel.
type content struct {
	name       string
	payload    io.ReaderAt
	blobs      int64 // where the blobs begin in the payload
	operations []operation
	pieces     []piece
	size       int64
	sum        []byte
}

// piece is a part of a content that comes from one operation in one piece.
type piece struct {
	// start and length are in the content, in bytes.
	start, length int64
	// operation is an index, from how many bytes of what its blob unpacks to come before.
	operation int
	from      int64
}

// newContent checks operations, and sorts what they write. Whatever none writes is zeros. Limit is for the content's size.
func newContent(container *payload, name string, operations []operation, made *info, limit uint64) (*content, error) {
	switch {
	case made == nil:
		return nil, container.refuse(headerSize, "the manifest does not tell size and hash of the "+name)
	case made.size == 0 || made.size > limit:
		return nil, container.refuse(headerSize, fmt.Sprintf("the %s has %d bytes, want 1 to %d", name, made.size, limit))
	case len(made.sum) != sha256.Size:
		return nil, container.refuse(headerSize, fmt.Sprintf("the hash of the %s has %d bytes, want %d", name, len(made.sum), sha256.Size))
	}

	result := &content{
		name: fmt.Sprintf("the %s of %s", name, container.Name), payload: container.File, blobs: container.blobs,
		//nolint:gosec // Checked above.
		operations: operations, size: int64(made.size), sum: made.sum,
	}

	for index, operation := range operations {
		if err := container.check(operation); err != nil {
			return nil, err
		}

		result.place(index, operation)
	}

	slices.SortFunc(result.pieces, func(a, b piece) int { return int(min(max(a.start-b.start, -1), 1)) })

	for index := 1; index < len(result.pieces); index++ {
		if before := result.pieces[index-1]; before.start+before.length > result.pieces[index].start {
			return nil, container.refuse(operations[result.pieces[index].operation].at,
				fmt.Sprintf("two operations write block %d of the %s", result.pieces[index].start/blockSize, name))
		}
	}

	return result, nil
}

// check refuses an operation that cannot be done.
func (p *payload) check(operation operation) error {
	end := uint64(p.Size - p.blobs) //nolint:gosec // The file is not shorter, openPayload has seen to it.

	switch {
	case operation.kind == opMove || operation.kind == opBSDiff:
		return &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: p.Name,
			Detail: fmt.Sprintf("offset %d: a delta payload needs the exact old image", operation.at), Fix: "give the full payload",
		}
	case operation.kind != opReplace && operation.kind != opReplaceBZ:
		return p.refuse(operation.at, fmt.Sprintf("the operation's type is %d, want 0 (REPLACE) or 1 (REPLACE_BZ)", operation.kind))
	case operation.length == 0 || operation.length > end || operation.offset > end-operation.length:
		return p.refuse(operation.at,
			fmt.Sprintf("the operation's data has %d bytes at %d, there are %d", operation.length, operation.offset, end))
	case len(operation.sum) != sha256.Size:
		return p.refuse(operation.at, fmt.Sprintf("the hash of the operation's data has %d bytes, want %d", len(operation.sum), sha256.Size))
	case len(operation.extents) == 0:
		return p.refuse(operation.at, "the operation writes nowhere")
	}

	for _, extent := range operation.extents {
		if extent.count == 0 || extent.count > maxBlocks || extent.start > maxBlocks {
			return p.refuse(operation.at, fmt.Sprintf("the operation writes %d blocks from block %d", extent.count, extent.start))
		}
	}

	return nil
}

// place adds the pieces of an operation. The last operation of a generated payload goes on for its full MiB even where
// the file ends before (FullUpdateGenerator::Add), so what lies behind the end is left out.
func (c *content) place(index int, operation operation) {
	var from int64

	for _, extent := range operation.extents {
		//nolint:gosec // Both were checked.
		start, length := int64(extent.start)*blockSize, int64(extent.count)*blockSize

		if visible := min(length, c.size-start); visible > 0 {
			c.pieces = append(c.pieces, piece{start: start, length: visible, operation: index, from: from})
		}

		from += length
	}
}

// verify compares the blob of each operation with its hash.
func (c *content) verify(ctx context.Context, container *payload) error {
	buffer := make([]byte, pieceSize)

	for _, operation := range c.operations {
		sum := sha256.New()
		//nolint:gosec // Both were checked.
		blob := io.NewSectionReader(c.payload, c.blobs+int64(operation.offset), int64(operation.length))

		if _, err := io.CopyBuffer(sum, container.counted(ctx, blob), buffer); err != nil {
			return fmt.Errorf("reading %s: %w", container.Name, err)
		}

		if got := sum.Sum(nil); string(got) != string(operation.sum) {
			return &osimage.Error{
				Kind: osimage.ErrWrongDigest, Subject: container.Name, Fix: redownload,
				Detail: fmt.Sprintf("the %d bytes at offset %d have the SHA-256 %x, want %x",
					operation.length, c.blobs+int64(operation.offset), got, operation.sum), //nolint:gosec // Checked.
			}
		}
	}

	return nil
}

// reader reads the content anywhere. Reading forward is fast; going back inside of a compressed operation unpacks that
// again. Memory does not depend on the size of an operation.
func (c *content) reader() *contentReader { return &contentReader{content: c, current: -1} }

type contentReader struct {
	*content

	// current is the operation that stream unpacks, done how much of it was read.
	current int
	stream  io.Reader
	done    int64
}

// ReadAt implements io.ReaderAt, but for one caller at a time.
func (r *contentReader) ReadAt(buffer []byte, offset int64) (int, error) {
	want := buffer[:min(int64(len(buffer)), max(r.size-offset, 0))]
	count := 0

	index, _ := slices.BinarySearchFunc(r.pieces, offset, func(p piece, at int64) int {
		if p.start+p.length <= at {
			return -1
		}

		return 1
	})

	for count < len(want) {
		position := offset + int64(count)
		rest := want[count:]

		switch {
		case index == len(r.pieces):
			clear(rest)
			count += len(rest)
		case position < r.pieces[index].start:
			rest = rest[:min(int64(len(rest)), r.pieces[index].start-position)]
			clear(rest)
			count += len(rest)
		default:
			piece := r.pieces[index]
			rest = rest[:min(int64(len(rest)), piece.start+piece.length-position)]

			if err := r.read(rest, piece.operation, piece.from+position-piece.start); err != nil {
				return count, err
			}

			count += len(rest)
			index++
		}
	}

	if count < len(buffer) {
		return count, io.EOF
	}

	return count, nil
}

// read fills a buffer from what an operation's blob unpacks to. It is padded with zeros.
func (r *contentReader) read(buffer []byte, index int, from int64) error {
	if err := r.seek(index, from); err != nil {
		return err
	}

	count, err := fill(r.stream, buffer)
	if err != nil && !errors.Is(err, io.EOF) {
		return r.broken(err)
	}

	clear(buffer[count:])
	r.done += int64(len(buffer))

	return nil
}

// fill reads until the buffer is full. Other than with io.ReadFull, an end is io.EOF also after some bytes, because
// io.ErrUnexpectedEOF is what the decompressor says of a broken stream.
func fill(from io.Reader, buffer []byte) (count int, err error) {
	for count < len(buffer) && err == nil {
		var read int

		read, err = from.Read(buffer[count:])
		count += read
	}

	return count, err
}

// seek comes to a place of an operation, from its start when that lies behind.
func (r *contentReader) seek(index int, from int64) error {
	operation := r.operations[index]

	if index != r.current || from < r.done {
		//nolint:gosec // Both were checked.
		blob := io.NewSectionReader(r.payload, r.blobs+int64(operation.offset), int64(operation.length))
		r.current, r.stream, r.done = index, blob, 0

		if operation.kind == opReplaceBZ {
			r.stream = bzip2.NewReader(blob)
		}
	}

	if from > r.done {
		if _, err := io.CopyN(io.Discard, r.stream, from-r.done); err != nil && !errors.Is(err, io.EOF) {
			return r.broken(err)
		}

		r.done = from
	}

	return nil
}

func (r *contentReader) broken(err error) error {
	return &osimage.Error{
		Kind: osimage.ErrInvalid, Subject: r.name, Fix: redownload, Err: err,
		Detail: fmt.Sprintf("the operation at offset %d cannot be unpacked", r.operations[r.current].at),
	}
}

// input gives the content from its start, and at its end an error unless it has the manifest's hash.
func (c *content) input() osimage.Input {
	return osimage.Input{Name: c.name, Size: c.size, Open: func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(&checked{content: c, reader: io.NewSectionReader(c.reader(), 0, c.size), hash: sha256.New()}), nil
	}}
}

// checked compares what passes with the content's hash.
type checked struct {
	*content

	reader io.Reader
	hash   hash.Hash
}

func (c *checked) Read(buffer []byte) (int, error) {
	count, err := c.reader.Read(buffer)
	c.hash.Write(buffer[:count])

	if errors.Is(err, io.EOF) {
		if got := c.hash.Sum(nil); string(got) != string(c.sum) {
			return count, &osimage.Error{
				Kind: osimage.ErrWrongDigest, Subject: c.name, Detail: fmt.Sprintf("it has the SHA-256 %x, the manifest says %x", got, c.sum),
				Fix: redownload,
			}
		}
	}

	return count, err
}
