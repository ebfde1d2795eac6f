package osimage

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/stayput-dev/stayput/osimage/chunk"
)

// rangeWindow bounds the compressed bytes that wait in memory for their turn.
const rangeWindow = 4 << 20

// errOtherFrame is returned for a frame that does not have the ids that were learned for its chunks. It need not be the frame
// that is wrong: whoever can choose the bytes of a package can make two groups of ids with one sum (see chunk.Outline.Learn).
// The layer's digest decides.
var errOtherFrame = errors.New("it is not what the chunk index says")

// frames gives the frames that a plan fetches, in their order.
type frames struct {
	image   *Image
	content Content
	index   *chunk.Index
	plan    *chunk.Plan
	decoder *zstd.Decoder

	body io.ReadCloser
	// next is the frame that the body is at, requests are those that are not read to their end.
	next     int
	requests []chunk.Request

	current     int
	packed, raw []byte
}

// frames starts fetching.
func (i *Image) frames(ctx context.Context, content Content, index *chunk.Index, plan *chunk.Plan) (*frames, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(chunk.MaxFrame), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, fmt.Errorf("starting a zstd decoder: %w", err)
	}

	result := &frames{
		image: i, content: content, index: index, plan: plan, decoder: decoder, requests: plan.Requests(), current: -1,
	}

	if len(result.requests) == 0 {
		return result, nil
	}

	result.next = result.requests[0].First
	ranges := make([]Range, 0, len(result.requests))

	for _, request := range result.requests {
		ranges = append(ranges, Range{From: request.Offset, To: request.Offset + request.Length})
	}

	result.body, err = i.Ranges(ctx, content, ranges, RangeOptions{Window: rangeWindow})
	if err != nil {
		return nil, errors.Join(err, result.close())
	}

	return result, nil
}

func (f *frames) close() error {
	f.decoder.Close()

	if f.body == nil {
		return nil
	}

	return f.body.Close()
}

// frame returns the raw bytes of a frame that the plan fetches. They are valid until the next call.
func (f *frames) frame(ctx context.Context, number int) ([]byte, error) {
	for f.current != number {
		if err := f.read(ctx); err != nil {
			return nil, err
		}
	}

	return f.raw, nil
}

// read goes on to the next frame that is needed.
func (f *frames) read(ctx context.Context) error {
	if len(f.requests) == 0 {
		return fmt.Errorf("%w: the plan wants a frame that it does not fetch", chunk.ErrPlan)
	}

	number := f.next

	f.next++
	if end := f.requests[0]; f.next == end.First+end.Frames {
		f.requests = f.requests[1:]

		if len(f.requests) > 0 {
			f.next = f.requests[0].First
		}
	}

	frame := f.index.Frame(number)
	f.packed = grown(f.packed, frame.Length)

	if _, err := io.ReadFull(f.body, f.packed); err != nil {
		return fmt.Errorf("fetching frame %d of %s: %w", number, f.image.blobOf(f.content).subject, err)
	}

	if !f.plan.Needs(number) {
		return nil
	}

	if f.decode(frame) {
		f.current = number

		return nil
	}

	return f.again(ctx, number)
}

func grown(buffer []byte, size int64) []byte {
	if int64(cap(buffer)) < size {
		return make([]byte, size)
	}

	return buffer[:size]
}

// decode decompresses a frame and tells whether it is what the index says.
func (f *frames) decode(frame chunk.Frame) bool {
	f.current = -1

	raw, err := f.decoder.DecodeAll(f.packed, f.raw[:0])
	f.raw = raw

	if err != nil || int64(len(raw)) != frame.RawLength {
		return false
	}

	for number := frame.First; number < frame.First+frame.Chunks; number++ {
		piece := f.index.Chunk(number)
		begin := piece.Offset - frame.RawOffset

		if !f.index.Matches(number, raw[begin:begin+piece.Length]) {
			return false
		}
	}

	return true
}

// again fetches a frame alone, from the registry itself if what a mirror gave was wrong.
func (f *frames) again(ctx context.Context, number int) error {
	frame := f.index.Frame(number)
	subject := f.image.blobOf(f.content).subject

	for f.image.DistrustMirrors() {
		if err := f.fetchAlone(ctx, frame); err != nil {
			return err
		}

		if f.decode(frame) {
			f.current = number

			return nil
		}
	}

	return &Error{
		Kind: ErrWrongDigest, Subject: subject, Fix: fixRebuild, Err: errOtherFrame,
		Detail: fmt.Sprintf("frame %d, the bytes from %d to %d", number, frame.Offset,
			frame.Offset+frame.Length),
	}
}

func (f *frames) fetchAlone(ctx context.Context, frame chunk.Frame) error {
	body, err := f.image.Ranges(ctx, f.content, []Range{{From: frame.Offset, To: frame.Offset + frame.Length}},
		RangeOptions{Window: rangeWindow})
	if err != nil {
		return err
	}

	f.packed = grown(f.packed, frame.Length)
	_, err = io.ReadFull(body, f.packed)

	return errors.Join(err, body.Close())
}

// chunkAlone fetches a chunk that was thought to be at hand.
func (f *frames) chunkAlone(ctx context.Context, number int) ([]byte, error) {
	frame := f.index.FrameOf(number)
	place := f.index.Frame(frame)

	if f.current != frame {
		if err := f.fetchAlone(ctx, place); err != nil {
			return nil, err
		}

		if f.decode(place) {
			f.current = frame
		} else if err := f.again(ctx, frame); err != nil {
			return nil, err
		}
	}

	piece := f.index.Chunk(number)
	begin := piece.Offset - place.RawOffset

	return f.raw[begin : begin+piece.Length], nil
}
