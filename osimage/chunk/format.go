package chunk

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// The format, version 1. Numbers are unsigned varints of encoding/binary; "zigzag" maps signed to unsigned ones as
// encoding/binary does.
//
//	"SPCHUNK" 0x01                      magic and version
//	align min avg max                   the parameters
//	raw-size frames-size                bytes of the content, and of all frames of the layer
//	chunks frames ids                   how many of each; ids are those that are not zero
//	table-size packed-size              bytes of the table, and of its zstd frame, which follows
//	  table: chunks times length        in units of align, rounded up, times two; plus one for a chunk of zeros
//	         frames times count         chunks in the frame
//	         frames times overhead      zigzag of the frame's length minus its raw length
//	ids times 8 bytes                   the ids that are not zero, in the order of the chunks
//
// The last chunk ends at raw-size. The table is compressed because it is regular, above all where the content is zero or
// cannot be compressed; ids are random. There is no checksum: an index is named by its digest.
const magic = "SPCHUNK\x01"

const (
	// MaxChunks is the greatest number of chunks in an index.
	MaxChunks = 1 << 20
	// MaxFrame is the greatest number of raw bytes in a frame.
	MaxFrame = 4 << 20
	// MaxIndex is the greatest size of an index in bytes: MaxChunks chunks, each in a frame of its own.
	MaxIndex = 24 << 20
	// longestNumber is the most bytes that a number of the table has: lengths, counts and overheads have less than 28 bits.
	longestNumber = 4
	// leastWindow is what a zstd decoder may use for the smallest table.
	leastWindow = 64 << 10
)

// ErrIndex is returned for an index that is damaged, of another version, or made for another content.
var ErrIndex = errors.New("not a valid chunk index")

func broken(field, format string, arguments ...any) error {
	return fmt.Errorf("%w: %s: %s", ErrIndex, field, fmt.Sprintf(format, arguments...))
}

// Sizes are what the signed config says about the content and its layer, in bytes. The index must agree.
type Sizes struct {
	Raw, Layer int64
}

// header is the fixed part of an index.
type header struct {
	params              Params
	raw, layer          int64
	chunks, frames, ids int
	table, packed       int
}

// marshal writes an index. The same index gives the same bytes.
func (x *Index) marshal() ([]byte, error) {
	var table, ids []byte

	align := int64(x.params.Align)

	for number := range x.Chunks() {
		chunk := x.Chunk(number)
		length := (chunk.Length + align - 1) / align * 2

		if chunk.ID == 0 {
			length++
		} else {
			ids = binary.BigEndian.AppendUint64(ids, uint64(chunk.ID))
		}

		table = binary.AppendUvarint(table, uint64(length)) //nolint:gosec // Never negative.
	}

	for number := range x.Frames() {
		table = binary.AppendUvarint(table, uint64(x.Frame(number).Chunks)) //nolint:gosec // Never negative.
	}

	for number := range x.Frames() {
		frame := x.Frame(number)
		table = binary.AppendVarint(table, frame.Length-frame.RawLength)
	}

	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1),
		zstd.WithSingleSegment(true))
	if err != nil {
		return nil, fmt.Errorf("starting the zstd encoder: %w", err)
	}

	packed := encoder.EncodeAll(table, nil)
	data := []byte(magic)

	for _, number := range []int64{
		align, int64(x.params.Min), int64(x.params.Avg), int64(x.params.Max), x.RawSize(), x.FramesSize(),
		int64(x.Chunks()), int64(x.Frames()), int64(len(ids) / idSize), int64(len(table)), int64(len(packed)),
	} {
		data = binary.AppendUvarint(data, uint64(number)) //nolint:gosec // Never negative.
	}

	return append(append(data, packed...), ids...), encoder.Close()
}

// Parse reads an index. It allocates at most three times len(data) and 32 bytes for each chunk, and returns ErrIndex when
// anything does not fit together or does not add up to the sizes.
func Parse(data []byte, sizes Sizes) (*Index, error) {
	if len(data) > MaxIndex {
		return nil, broken("size", "%d bytes, want at most %d", len(data), MaxIndex)
	}

	if len(data) < len(magic) || string(data[:len(magic)]) != magic {
		return nil, broken("magic", "want %q; a newer version may have made it", magic)
	}

	source := &numbers{data: data[len(magic):]}

	head, err := parseHead(source, sizes)
	if err != nil {
		return nil, err
	}

	if rest := len(source.data); rest != head.packed+head.ids*idSize {
		return nil, broken("size", "%d bytes after the header, want %d", rest, head.packed+head.ids*idSize)
	}

	table, err := unpack(source.data[:head.packed], head.table)
	if err != nil {
		return nil, err
	}

	index := newIndex(head.params, head.chunks, head.frames)
	rows := &numbers{data: table}
	if err := parseChunks(index, head, rows, source.data[head.packed:]); err != nil {
		return nil, err
	}

	if err := parseFrames(index, head, rows); err != nil {
		return nil, err
	}

	if len(rows.data) > 0 {
		return nil, broken("table", "%d bytes too many", len(rows.data))
	}

	return index, nil
}

// parseHead reads the fixed part and checks everything that can be checked before memory is allocated.
func parseHead(source *numbers, sizes Sizes) (header, error) {
	head := header{
		params: Params{
			Align: source.small("align", greatestAlign), Min: source.small("min", greatestChunk),
			Avg: source.small("avg", greatestChunk), Max: source.small("max", greatestChunk),
		},
		raw: source.exactly("raw-size", sizes.Raw), layer: source.next("frames-size", 0, sizes.Layer),
		chunks: source.small("chunks", MaxChunks), frames: source.small("frames", MaxChunks),
		ids: source.small("ids", MaxChunks), table: source.small("table-size", MaxIndex),
		packed: source.small("packed-size", MaxIndex),
	}

	if source.err != nil {
		return header{}, source.err
	}

	if err := head.params.Validate(); err != nil {
		return header{}, broken("parameters", "%v", err)
	}

	least := int64(head.params.Min)

	switch {
	case head.raw < 0 || (head.chunks == 0) != (head.raw == 0) || int64(head.chunks) > (head.raw+least-1)/least:
		return header{}, broken("chunks", "%d of at least %d bytes for a content of %d", head.chunks, least, head.raw)
	case head.frames > head.chunks || (head.frames == 0) != (head.chunks == 0):
		return header{}, broken("frames", "%d for %d chunks", head.frames, head.chunks)
	case head.ids > head.chunks:
		return header{}, broken("ids", "%d for %d chunks", head.ids, head.chunks)
	case head.table > longestNumber*(head.chunks+2*head.frames):
		return header{}, broken("table-size", "%d bytes for %d chunks and %d frames", head.table, head.chunks, head.frames)
	}

	return head, nil
}

// unpack decompresses the table, to its exact size.
func unpack(packed []byte, size int) ([]byte, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(uint64(max(size, leastWindow))))
	if err != nil {
		return nil, fmt.Errorf("starting a zstd decoder: %w", err)
	}
	defer decoder.Close()

	table, err := decoder.DecodeAll(packed, make([]byte, 0, size))
	if err != nil {
		return nil, broken("table", "not valid zstd of %d bytes: %v", size, err)
	}

	if len(table) != size {
		return nil, broken("table", "%d bytes, want %d", len(table), size)
	}

	return table, nil
}

// parseChunks reads lengths and ids. Together the chunks are as long as the content.
func parseChunks(index *Index, head header, rows *numbers, ids []byte) error {
	align := int64(head.params.Align)
	left := head.raw

	for number := range head.chunks {
		value := rows.next("length", 2, 2*int64(head.params.Max)/align+1)
		length := value / 2 * align

		if rows.err != nil {
			return rows.err
		}

		last := number == head.chunks-1

		switch {
		case last && length >= left && length < left+align:
			length = left
		case last || length >= left || length < int64(head.params.Min):
			return broken("length", "chunk %d has %d bytes, %d bytes of the content are left", number, length, left)
		}

		var id ID

		if value%2 == 0 {
			if len(ids) < idSize {
				return broken("ids", "none for chunk %d", number)
			}

			if id = ID(binary.BigEndian.Uint64(ids)); id == 0 {
				return broken("ids", "zero for chunk %d, which is not zeros", number)
			}

			ids = ids[idSize:]
		}

		index.add(int(length), id)

		left -= length
	}

	if len(ids) > 0 || left > 0 {
		return broken("ids", "%d bytes too many", len(ids))
	}

	return nil
}

// parseFrames reads how the chunks are grouped. Together the frames are as long as the header says.
func parseFrames(index *Index, head header, rows *numbers) error {
	for number := range head.frames {
		first := index.firsts[number]
		next := int64(first) + rows.next("count", 1, int64(head.chunks)-int64(first))

		if rows.err != nil {
			return rows.err
		}

		if raw := index.starts[next] - index.starts[first]; raw > MaxFrame {
			return broken("count", "frame %d has %d raw bytes, want at most %d", number, raw, MaxFrame)
		}

		index.firsts = append(index.firsts, uint32(next)) //nolint:gosec // At most MaxChunks.
	}

	if last := index.firsts[head.frames]; int(last) != head.chunks {
		return broken("count", "all frames have %d chunks, want %d", last, head.chunks)
	}

	for number := range head.frames {
		first, next := index.firsts[number], index.firsts[number+1]
		length := index.starts[next] - index.starts[first] + rows.signed("overhead")

		if rows.err != nil {
			return rows.err
		}

		if length < 1 || length > head.layer-index.places[number] {
			return broken("overhead", "frame %d has %d bytes at byte %d of %d", number, length, index.places[number], head.layer)
		}

		index.places = append(index.places, index.places[number]+length)
	}

	if last := index.places[head.frames]; last != head.layer {
		return broken("overhead", "all frames have %d bytes, want %d", last, head.layer)
	}

	return nil
}

// numbers reads varints, and keeps the first error.
type numbers struct {
	data []byte
	err  error
}

// next reads a number from least to most.
func (n *numbers) next(field string, least, most int64) int64 {
	if n.err != nil {
		return 0
	}

	value, length := binary.Uvarint(n.data)
	if length <= 0 {
		n.err = broken(field, "the number ends too soon or is too large")

		return 0
	}

	n.data = n.data[length:]

	//nolint:gosec // The second comparison is of non-negative numbers.
	if int64(value) < least || int64(value) > most {
		n.err = broken(field, "%d, want %d to %d", value, least, most)

		return 0
	}

	return int64(value) //nolint:gosec // At most most.
}

func (n *numbers) small(field string, most int64) int {
	return int(n.next(field, 0, most))
}

func (n *numbers) exactly(field string, want int64) int64 {
	return n.next(field, want, want)
}

// signed reads a number in zigzag form that is small enough for a frame's overhead.
func (n *numbers) signed(field string) int64 {
	value := n.next(field, 0, 2*(2*MaxFrame))

	return value>>1 ^ -(value & 1)
}
