package chunk

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// The format, version 2. Numbers are unsigned varints of encoding/binary; "zigzag" maps signed to unsigned ones as
// encoding/binary does. An index has two parts. The head is:
//
//	"SPCHUNK" 0x02                      magic and version
//	align min avg max                   the parameters
//	raw-size frames-size                bytes of the content, and of all frames of the layer
//	chunks frames ids groups            how many of each; ids are those that are not zero
//	table-size packed-size              bytes of the table, and of its zstd frame, which follows
//	  table: chunks times length        in units of align, rounded up, times two; plus one for a chunk of zeros
//	         frames times count         chunks in the frame
//	         frames times overhead      zigzag of the frame's length minus its raw length
//	         groups times count         ids in the group
//	groups times 8 bytes                the groups' sums
//
// and the ids are
//
//	ids times 8 bytes                   the ids that are not zero, in the order of the chunks
//
// The last chunk ends at raw-size. The table is compressed because it is regular, above all where the content is zero or
// cannot be compressed; ids and sums are random. A group ends after an id whose lowest five bits are zero, after 256 ids,
// or with the last one; its sum is the first 8 bytes of the SHA-256 of its ids. There is no other checksum: each part is
// named by its digest. Whoever has most of the ids of a content from a former one fetches the head, and the others.
const magic = "SPCHUNK\x02"

const (
	// MaxChunks is the greatest number of chunks in an index: twice as many as a content of ours should have, see ParamsFor. It
	// is what bounds the memory of a node that reads an index which somebody made to be large: see
	// TestTheGreatestIndexIsBounded.
	MaxChunks = 1 << 19
	// MaxFrame is the greatest number of raw bytes in a frame.
	MaxFrame = 4 << 20
	// MaxHead is the greatest size of a head in bytes: MaxChunks chunks, each in a frame and a group of its own.
	MaxHead = 12 << 20
	// MaxIDs is the greatest size of the ids in bytes.
	MaxIDs = MaxChunks * idSize
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

// Sizes are what the signed config says about the content, its layer and the ids, in bytes. The head must agree.
type Sizes struct {
	Raw, Layer, IDs int64
}

// header is the fixed part of a head.
type header struct {
	params                      Params
	raw, layer                  int64
	chunks, frames, ids, groups int
	table, packed               int
}

// marshal writes an index. The same index gives the same bytes.
func (x *Index) marshal() (head, ids []byte, err error) {
	var table, sums []byte

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

	groups := x.groups()
	for _, group := range groups {
		table = binary.AppendUvarint(table, uint64(group.count))
		sums = binary.BigEndian.AppendUint64(sums, uint64(group.sum))
	}

	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1),
		zstd.WithSingleSegment(true))
	if err != nil {
		return nil, nil, fmt.Errorf("starting the zstd encoder: %w", err)
	}

	packed := encoder.EncodeAll(table, nil)
	head = []byte(magic)

	for _, number := range []int64{
		align, int64(x.params.Min), int64(x.params.Avg), int64(x.params.Max), x.RawSize(), x.FramesSize(),
		int64(x.Chunks()), int64(x.Frames()), int64(len(ids) / idSize), int64(len(groups)),
		int64(len(table)), int64(len(packed)),
	} {
		head = binary.AppendUvarint(head, uint64(number)) //nolint:gosec // Never negative.
	}

	return append(append(head, packed...), sums...), ids, encoder.Close()
}

func (x *Index) groups() []idGroup {
	var (
		result  []idGroup
		grouper idGrouper
	)

	for number, id := range x.ids {
		if group, ended := grouper.add(number, id); ended {
			result = append(result, group)
		}
	}

	if group, ended := grouper.end(); ended {
		result = append(result, group)
	}

	return result
}

// Parse reads an index of both parts. It returns ErrIndex when anything does not fit together or does not add up to the
// sizes.
func Parse(head, ids []byte, sizes Sizes) (*Index, error) {
	outline, err := ParseHead(head, sizes)
	if err != nil {
		return nil, err
	}

	if err := outline.Fill(Span{To: sizes.IDs}, ids); err != nil {
		return nil, err
	}

	return outline.Index()
}

// ParseHead reads an index without its ids. It allocates at most three times len(data) and 48 bytes for each chunk, and
// returns ErrIndex when anything does not fit together or does not add up to the sizes.
func ParseHead(data []byte, sizes Sizes) (*Outline, error) {
	if len(data) > MaxHead {
		return nil, broken("size", "%d bytes, want at most %d", len(data), MaxHead)
	}

	if len(data) < len(magic) || string(data[:len(magic)]) != magic {
		return nil, broken("magic", "want %q; a newer version may have made it", magic)
	}

	source := &numbers{data: data[len(magic):]}

	head, err := parseHeader(source, sizes)
	if err != nil {
		return nil, err
	}

	if rest := len(source.data); rest != head.packed+head.groups*groupSumSize {
		return nil, broken("size", "%d bytes after the header, want %d", rest, head.packed+head.groups*groupSumSize)
	}

	table, err := unpack(source.data[:head.packed], head.table)
	if err != nil {
		return nil, err
	}

	outline := &Outline{index: newIndex(head.params, head.chunks, head.frames)}
	rows := &numbers{data: table}

	if err := parseChunks(outline.index, head, rows); err != nil {
		return nil, err
	}

	if err := parseFrames(outline.index, head, rows); err != nil {
		return nil, err
	}

	if err := outline.parseGroups(head, rows, source.data[head.packed:]); err != nil {
		return nil, err
	}

	if len(rows.data) > 0 {
		return nil, broken("table", "%d bytes too many", len(rows.data))
	}

	return outline, nil
}

// parseHeader reads the fixed part and checks everything that can be checked before memory is allocated.
func parseHeader(source *numbers, sizes Sizes) (header, error) {
	head := header{
		params: Params{
			Align: source.small("align", greatestAlign), Min: source.small("min", greatestChunk),
			Avg: source.small("avg", greatestChunk), Max: source.small("max", greatestChunk),
		},
		raw: source.exactly("raw-size", sizes.Raw), layer: source.next("frames-size", 0, sizes.Layer),
		chunks: source.small("chunks", MaxChunks), frames: source.small("frames", MaxChunks),
		ids: source.small("ids", MaxChunks), groups: source.small("groups", MaxChunks), table: source.small("table-size", MaxHead),
		packed: source.small("packed-size", MaxHead),
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
	case int64(head.ids)*idSize != sizes.IDs:
		return header{}, broken("ids", "%d, with %d bytes, of %d bytes", head.ids, head.ids*idSize, sizes.IDs)
	case head.groups > head.ids || (head.groups == 0) != (head.ids == 0):
		return header{}, broken("groups", "%d for %d ids", head.groups, head.ids)
	case head.table > longestNumber*(head.chunks+2*head.frames+head.groups):
		return header{}, broken("table-size", "%d bytes for %d chunks, %d frames and %d groups", head.table, head.chunks,
			head.frames, head.groups)
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

// unknown stands for each id that is not zero, until it is known.
const unknown = ^ID(0)

// parseChunks reads lengths. Together the chunks are as long as the content.
func parseChunks(index *Index, head header, rows *numbers) error {
	align := int64(head.params.Align)
	left := head.raw
	ids := 0

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
			id = unknown
			ids++
		}

		index.add(int(length), id)

		left -= length
	}

	if ids != head.ids {
		return broken("ids", "%d, want %d for the chunks that are not zeros", head.ids, ids)
	}

	return nil
}

// parseGroups reads how the ids are grouped.
func (o *Outline) parseGroups(head header, rows *numbers, sums []byte) error {
	o.groups = make([]idGroup, 0, head.groups)
	chunk, left := 0, head.ids

	for number := range head.groups {
		for chunk < head.chunks && o.index.ids[chunk] == 0 {
			chunk++
		}

		count := int(rows.next("group", 1, int64(min(maxGroup, left))))
		if rows.err != nil {
			return rows.err
		}

		o.groups = append(o.groups, idGroup{
			sum:   groupSum(binary.BigEndian.Uint64(sums[number*groupSumSize:])),
			first: uint32(chunk), count: uint16(count), //nolint:gosec // At most MaxChunks and maxGroup.
		})

		for left -= count; count > 0; chunk++ {
			if o.index.ids[chunk] != 0 {
				count--
			}
		}
	}

	if left > 0 {
		return broken("group", "all groups have %d ids, want %d", head.ids-left, head.ids)
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
