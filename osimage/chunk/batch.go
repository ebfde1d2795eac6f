package chunk

import (
	"context"
	"errors"

	"github.com/klauspost/compress/zstd"
)

// batch is what one goroutine compresses: some groups of chunks. No frame has chunks of two groups.
type batch struct {
	raw []byte
	// lengths are those of the chunks.
	lengths []int
	groups  []group

	// The open group: its chunks, its raw bytes, and whether it is zeros only.
	chunks, size int
	zeros        bool

	// What compress makes.
	ids    []ID
	frames []packedFrame
	packed []byte
	done   chan struct{}
}

// group is a number of chunks that are zeros, or are not.
type group struct {
	chunks int
	zeros  bool
}

// packedFrame has the frame's size in batch.packed, its raw size, and its number of chunks.
type packedFrame struct {
	packed, raw, chunks int
}

// newBatch makes an empty batch with the memory of one that is written, if there is one.
func newBatch(spare *batch) *batch {
	if spare == nil {
		spare = &batch{raw: make([]byte, 0, batchSize+greatestChunk)}
	}

	return &batch{
		raw: spare.raw[:0], lengths: spare.lengths[:0], groups: spare.groups[:0], ids: spare.ids[:0], frames: spare.frames[:0],
		packed: spare.packed[:0], done: make(chan struct{}),
	}
}

// add appends a chunk, and tells whether the batch is large enough and may end here.
func (b *batch) add(data []byte) bool {
	zeros := zeroRun(data) == len(data)

	// Zeros are known without their frame. Nobody who needs their neighbours shall have to fetch it.
	if zeros != b.zeros {
		b.endGroup()
	}

	b.raw = append(b.raw, data...)
	b.lengths = append(b.lengths, len(data))
	b.chunks++
	b.size += len(data)
	b.zeros = zeros

	if zeros && b.size <= MaxFrame-greatestChunk || b.size < batchSize {
		return false
	}

	b.endGroup()

	return true
}

func (b *batch) endGroup() {
	if b.chunks > 0 {
		b.groups = append(b.groups, group{chunks: b.chunks, zeros: b.zeros})
	}

	b.chunks, b.size = 0, 0
}

// compress makes the frames and the ids.
func (b *batch) compress(ctx context.Context, packer *packer) (err error) {
	raw, lengths := b.raw, b.lengths

	for _, group := range b.groups {
		left := lengths[:group.chunks]
		lengths = lengths[group.chunks:]

		for len(left) > 0 {
			size, chunks := sum(left), len(left)
			if !group.zeros {
				size, chunks = packer.fill(raw, left)
			}

			before := len(b.packed)

			b.packed, err = packer.compress(ctx, raw[:size], b.packed)
			if err != nil {
				return err
			}

			b.frames = append(b.frames, packedFrame{packed: len(b.packed) - before, raw: size, chunks: chunks})

			for _, length := range left[:chunks] {
				b.ids = append(b.ids, IDOf(raw[:length]))
				raw = raw[length:]
			}

			left = left[chunks:]
		}
	}

	return nil
}

func sum(lengths []int) int {
	size := 0
	for _, length := range lengths {
		size += length
	}

	return size
}

// packer decides what becomes a frame, and compresses it. Each goroutine has its own.
//
// An update has to fetch a whole frame even when it needs one chunk of it, so frames should end where what is changed
// together ends: at the borders of files. The packer does not know files. But a chunk compresses much better after others
// of its own file than after strangers; so a chunk joins the frame only when it saves enough by that. Where joining saves
// nothing, in what is compressed already, each chunk has a frame of its own.
type packer struct {
	// program compresses, or else encoder.
	program *Program
	encoder *zstd.Encoder
	// trial is a fast encoder that only measures.
	trial *zstd.Encoder
	// size is the most raw bytes of a frame of more than one chunk, gain what a chunk must save in percent of its own
	// compressed size.
	size, gain int
	scratch    []byte
}

func (p *packer) compress(ctx context.Context, raw, packed []byte) ([]byte, error) {
	if p.program != nil {
		return p.program.compress(ctx, raw, packed)
	}

	return p.encoder.EncodeAll(raw, packed), nil
}

func (p *packer) close() error {
	err := p.trial.Close()
	if p.encoder != nil {
		err = errors.Join(err, p.encoder.Close())
	}

	return err
}

// fill returns the raw size and the number of the first chunks that shall be one frame.
func (p *packer) fill(raw []byte, lengths []int) (size, chunks int) {
	size, chunks = lengths[0], 1
	packed := p.measure(raw[:size])

	for _, length := range lengths[1:] {
		if size+length > p.size {
			break
		}

		alone := p.measure(raw[size : size+length])
		joined := p.measure(raw[:size+length])

		if 100*(packed+alone-joined) < p.gain*alone {
			break
		}

		size, packed = size+length, joined
		chunks++
	}

	return size, chunks
}

func (p *packer) measure(raw []byte) int {
	p.scratch = p.trial.EncodeAll(raw, p.scratch[:0])

	return len(p.scratch)
}
