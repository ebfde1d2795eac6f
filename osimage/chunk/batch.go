package chunk

import (
	"github.com/klauspost/compress/zstd"
)

// batch is what one goroutine compresses: some groups of chunks, each of which becomes one frame, or one frame a chunk.
type batch struct {
	raw []byte
	// lengths are those of the chunks, groups the numbers of chunks in each group.
	lengths []int
	groups  []int

	// The open group: its chunks, its raw bytes, and whether it is zeros only.
	chunks, size int
	zeros        bool

	// What compress makes.
	ids    []ID
	frames []packedFrame
	done   chan struct{}
}

type packedFrame struct {
	packed      []byte
	raw, chunks int
}

func newBatch() *batch {
	return &batch{raw: make([]byte, 0, batchSize+greatestChunk), done: make(chan struct{})}
}

// add appends a chunk, and tells whether a group ended with it.
func (b *batch) add(data []byte, frame int) bool {
	zeros := zeroRun(data) == len(data)

	// Zeros are known without their frame. Nobody who needs their neighbours shall have to fetch it.
	ended := b.chunks > 0 && zeros != b.zeros
	if ended {
		b.endGroup()
	}

	b.raw = append(b.raw, data...)
	b.lengths = append(b.lengths, len(data))
	b.chunks++
	b.size += len(data)
	b.zeros = zeros

	if b.size >= frame && !zeros || b.size > MaxFrame-greatestChunk {
		b.endGroup()

		ended = true
	}

	return ended && b.chunks == 0
}

func (b *batch) endGroup() {
	if b.chunks == 0 {
		return
	}

	b.groups = append(b.groups, b.chunks)
	b.chunks, b.size = 0, 0
}

// compress makes the frames and the ids.
func (b *batch) compress(encoder *zstd.Encoder) {
	raw, lengths := b.raw, b.lengths

	for _, count := range b.groups {
		size := 0

		for _, length := range lengths[:count] {
			b.ids = append(b.ids, IDOf(raw[size:size+length]))
			size += length
		}

		packed := encoder.EncodeAll(raw[:size], nil)

		if count > 1 && len(packed) > size-size/hopeless {
			b.split(encoder, raw, lengths[:count])
		} else {
			b.frames = append(b.frames, packedFrame{packed: packed, raw: size, chunks: count})
		}

		raw, lengths = raw[size:], lengths[count:]
	}
}

// split gives each chunk a frame.
func (b *batch) split(encoder *zstd.Encoder, raw []byte, lengths []int) {
	for _, length := range lengths {
		b.frames = append(b.frames, packedFrame{packed: encoder.EncodeAll(raw[:length], nil), raw: length, chunks: 1})
		raw = raw[length:]
	}
}
