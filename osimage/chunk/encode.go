package chunk

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	seekable "github.com/SaveTheRbtz/zstd-seekable-format-go/pkg"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

const (
	// DefaultFrame is the greatest raw size of a frame. Larger ones hardly compress better.
	DefaultFrame = 128 << 10
	// DefaultGain is what a chunk must save to join a frame, in percent: see packer. On images of Debian, layers are a little
	// larger than with frames that are always full, and updates move less than half of what they move with those.
	DefaultGain = 6
	// batchSize is the least number of raw bytes that one goroutine compresses at a time.
	batchSize = 1 << 20
)

// Options change how Encode works. Params must be set, see ParamsFor.
type Options struct {
	Params Params
	// Frame is the most raw bytes in a frame of more than one chunk, zeros left aside. 0 means DefaultFrame.
	Frame int
	// Gain is what a chunk must save to join the frame of the chunks before it, in percent of what it needs alone. 0 means
	// DefaultGain. 100 gives each chunk a frame.
	Gain int
	// Level is the effort of the zstd encoder. 0 means zstd.SpeedBestCompression: an image is compressed once, and fetched by
	// many machines. It has 36 MiB of tables for each goroutine. The next one needs two thirds of the time, and makes layers 3
	// to 5 % larger.
	Level zstd.EncoderLevel
	// Program, when set, compresses in place of the built-in encoder. Where the frames end does not depend on it.
	Program *Program
	// Concurrency is the number of goroutines that compress. 0 means 1. The result does not depend on it.
	Concurrency int
	// Progress, when set, is called with the number of raw bytes that are written.
	Progress func(done int64)
}

// Result is what Encode made.
type Result struct {
	// Digest and Size are those of the layer, RawDigest and RawSize those of the content, digests as "sha256:…".
	Digest    string
	Size      int64
	RawDigest string
	RawSize   int64
	// Head and IDs are the two parts of the chunk index. Head is nil when the content has more than MaxChunks chunks: then
	// greater Params are needed.
	Head, IDs []byte
}

// Encode compresses a content to a layer: zstd frames that end only where chunks do, and a seek table. Any zstd program
// decompresses it. It reads the input once, to its end, and uses a bounded amount of memory, but for 44 bytes a chunk. The
// same input and options give the same layer and index with the same version of Stayput.
func Encode(ctx context.Context, input io.Reader, output io.Writer, options Options) (Result, error) {
	encoding, err := newEncoding(output, options)
	if err != nil {
		return Result{}, err
	}

	err = encoding.run(ctx, input)
	if err := errors.Join(err, encoding.packer.close()); err != nil {
		return Result{}, err
	}

	return encoding.finish()
}

// encoding is one call of Encode: a goroutine cuts the input into batches, others compress them, one writes them in order.
type encoding struct {
	options Options
	chunker *Chunker
	packer  packer
	output  io.Writer
	raw     hash.Hash
	layer   hash.Hash
	size    int64
	// table is fed with frames that are compressed already.
	table    *seekable.Encoder
	finished *finishedFrame
	index    *Index
	// spare has batches that are written, so that their memory is used again.
	spare chan *batch
}

func newEncoding(output io.Writer, options Options) (*encoding, error) {
	options.Concurrency = max(options.Concurrency, 1)

	options.Frame = cmp.Or(options.Frame, DefaultFrame)
	options.Gain = cmp.Or(options.Gain, DefaultGain)

	if options.Frame < 0 || options.Frame > MaxFrame || options.Gain < 0 || options.Gain > 100 {
		return nil, fmt.Errorf("%w: frames of %d bytes at %d %%, want at most %d at 0 to 100 %%",
			ErrParams, options.Frame, options.Gain, MaxFrame)
	}

	options.Level = cmp.Or(options.Level, zstd.SpeedBestCompression)

	chunker, err := NewChunker(options.Params)
	if err != nil {
		return nil, err
	}

	packer, err := newPacker(options)
	if err != nil {
		return nil, err
	}

	finished := &finishedFrame{}

	table, err := seekable.NewEncoder(finished)
	if err != nil {
		return nil, fmt.Errorf("starting the seek table: %w", err)
	}

	return &encoding{
		options: options, chunker: chunker, output: output, raw: sha256.New(), layer: sha256.New(),
		packer: packer, table: table, finished: finished, index: newIndex(options.Params, 0, 0),
		spare: make(chan *batch, 2*options.Concurrency+2),
	}, nil
}

func newPacker(options Options) (packer, error) {
	result := packer{program: options.Program, size: options.Frame, gain: options.Gain}

	var err error

	if result.program == nil {
		if result.encoder, err = newEncoder(options.Level, options.Concurrency); err != nil {
			return packer{}, err
		}
	}

	result.trial, err = newEncoder(zstd.SpeedFastest, options.Concurrency)

	return result, err
}

func newEncoder(level zstd.EncoderLevel, concurrency int) (*zstd.Encoder, error) {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(concurrency),
		zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(MaxFrame), zstd.WithSingleSegment(true))
	if err != nil {
		return nil, fmt.Errorf("starting the zstd encoder: %w", err)
	}

	return encoder, nil
}

// finishedFrame hands the seekable package, which wants to compress by itself, one frame after another.
type finishedFrame struct {
	packed []byte
}

// EncodeAll returns what was compressed already.
func (f *finishedFrame) EncodeAll(_, _ []byte) []byte {
	return f.packed
}

func (e *encoding) run(ctx context.Context, input io.Reader) error {
	group, ctx := errgroup.WithContext(ctx)
	todo := make(chan *batch, e.options.Concurrency)
	ordered := make(chan *batch, e.options.Concurrency)

	group.Go(func() error {
		defer close(todo)
		defer close(ordered)

		return e.cut(ctx, input, todo, ordered)
	})

	for range e.options.Concurrency {
		packer := e.packer

		group.Go(func() error {
			for work := range todo {
				if err := work.compress(ctx, &packer); err != nil {
					return err
				}

				close(work.done)
			}

			return nil
		})
	}

	group.Go(func() error {
		for work := range ordered {
			select {
			case <-work.done:
			case <-ctx.Done():
				return context.Cause(ctx)
			}

			if err := e.write(work); err != nil {
				return err
			}
		}

		return nil
	})

	return group.Wait()
}

// cut reads the input and makes batches of it. Where a batch ends depends on the input only.
func (e *encoding) cut(ctx context.Context, input io.Reader, todo, ordered chan<- *batch) error {
	work := newBatch(nil)

	send := func() error {
		for _, queue := range []chan<- *batch{ordered, todo} {
			select {
			case queue <- work:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}

		select {
		case spare := <-e.spare:
			work = newBatch(spare)
		default:
			work = newBatch(nil)
		}

		return nil
	}

	err := e.chunker.Split(ctx, input, func(_ int64, data []byte) error {
		e.raw.Write(data)

		if work.add(data) {
			return send()
		}

		return nil
	})
	if err != nil || len(work.raw) == 0 {
		return err
	}

	work.endGroup()

	return send()
}

func (e *encoding) write(work *batch) error {
	raw, packed := work.raw, work.packed
	chunk := 0

	for _, frame := range work.frames {
		e.finished.packed = packed[:frame.packed]
		packed = packed[frame.packed:]

		if _, err := e.table.Encode(raw[:frame.raw]); err != nil {
			return fmt.Errorf("adding to the seek table: %w", err)
		}

		if err := e.emit(e.finished.packed); err != nil {
			return err
		}

		for range frame.chunks {
			e.index.add(work.lengths[chunk], work.ids[chunk])
			chunk++
		}

		e.index.endFrame(frame.packed)

		raw = raw[frame.raw:]
	}

	if e.options.Progress != nil {
		e.options.Progress(e.index.RawSize())
	}

	select {
	case e.spare <- work:
	default:
	}

	return nil
}

func (e *encoding) emit(data []byte) error {
	e.layer.Write(data)

	count, err := e.output.Write(data)
	e.size += int64(count)

	if err != nil {
		return fmt.Errorf("writing the layer at byte %d: %w", e.size, err)
	}

	return nil
}

func (e *encoding) finish() (Result, error) {
	table, err := e.table.EndStream()
	if err != nil {
		return Result{}, fmt.Errorf("writing the seek table: %w", err)
	}

	if err := e.emit(table); err != nil {
		return Result{}, err
	}

	result := Result{
		Digest: digest(e.layer), Size: e.size, RawDigest: digest(e.raw), RawSize: e.index.RawSize(),
	}

	if e.index.Chunks() <= MaxChunks {
		result.Head, result.IDs, err = e.index.marshal()
	}

	return result, err
}

func digest(sum hash.Hash) string {
	return "sha256:" + hex.EncodeToString(sum.Sum(nil))
}
