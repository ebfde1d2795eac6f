package osimage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sync/semaphore"
)

const (
	defaultParallel = 4
	defaultWindow   = 16 << 20
	// maxPiece bounds one request, so that a long range is fetched in parallel too.
	maxPiece = 4 << 20
	// maxQueued bounds the pieces that are not read yet when they are so small that the window does not.
	maxQueued = 1024
)

// Range is the bytes [From, To) of a layer.
type Range struct {
	From, To int64
}

// RangeOptions say how ranges are fetched.
type RangeOptions struct {
	// Parallel is the number of requests at the same time; 0 means 4.
	Parallel int
	// Window bounds the bytes in memory that are not read yet; 0 means 16 MiB.
	Window int64
}

// rangedBlobs can be asked for parts of a blob.
type rangedBlobs interface {
	// openRange is open for nothing but what was asked for: it returns errNoRanges when that is not to be had, also from
	// a Read when a host that is asked later has no ranges.
	openRange(ctx context.Context, blob blob, from, to int64) (io.ReadCloser, error)
}

// IsNoRanges tells whether an error of Ranges means that the registry cannot serve parts of a blob.
func IsNoRanges(err error) bool {
	return errors.Is(err, errNoRanges)
}

// DistrustMirrors is for whoever got other bytes than the digests say: from now on only the registry itself is asked. It
// returns false when there is nobody else to ask, so that the bytes are wrong for good.
func (i *Image) DistrustMirrors() bool {
	source, ok := i.blobs.(interface{ distrustMirrors() bool })

	return ok && source.distrustMirrors()
}

// Ranges reads parts of a content's layer, one after the other as if they were one, while those that follow are fetched
// already. It does not verify them. Each is asked for with closed single ranges over kept connections, and is taken up
// where it broke; when the client's tries are used up, Read returns ErrTransient.
//
// Read returns an error for which IsNoRanges is true when the registry serves no ranges: read the layer from its start then.
// Closing the reader ends all requests and waits for that.
func (i *Image) Ranges(ctx context.Context, content Content, ranges []Range, options RangeOptions) (io.ReadCloser, error) {
	return i.ranges(ctx, i.blobOf(content), ranges, options)
}

func (i *Image) ranges(ctx context.Context, source blob, ranges []Range, options RangeOptions) (io.ReadCloser, error) {
	if options.Parallel == 0 {
		options.Parallel = defaultParallel
	}

	if options.Window == 0 {
		options.Window = defaultWindow
	}

	if options.Parallel < 1 || options.Window < 1 {
		return nil, invalid(fmt.Sprintf("%d requests with a window of %d bytes", options.Parallel, options.Window), "",
			"use at least 1 of each")
	}

	for _, part := range ranges {
		if part.From < 0 || part.From > part.To || part.To > source.size {
			return nil, invalid(source.subject, fmt.Sprintf("the range from %d to %d is not within its %d bytes",
				part.From, part.To, source.size), "read from within it")
		}
	}

	open := i.blobs.open
	if ranged, ok := i.blobs.(rangedBlobs); ok {
		open = ranged.openRange
	}

	ctx, cancel := context.WithCancelCause(ctx)
	result := &rangeReader{
		ctx: ctx, cancel: cancel, blob: source, open: open,
		window: semaphore.NewWeighted(options.Window), slots: semaphore.NewWeighted(int64(options.Parallel)),
		pieces:  make(chan *piece, maxQueued),
		largest: min(maxPiece, max(options.Window/int64(options.Parallel), 1)),
	}

	result.running.Go(func() { result.schedule(ranges) })

	return result, nil
}

// rangeReader hands out pieces in order. Its goroutines are one that starts the pieces, and one for each in flight.
type rangeReader struct {
	ctx     context.Context //nolint:containedctx // A reader's context is that of the call that opened it.
	cancel  context.CancelCauseFunc
	blob    blob
	open    func(ctx context.Context, blob blob, from, to int64) (io.ReadCloser, error)
	largest int64

	window, slots *semaphore.Weighted
	pieces        chan *piece
	running       sync.WaitGroup

	current *piece
	pos     int64
	err     error
}

// piece is one request.
type piece struct {
	part Range
	done chan struct{}
	data []byte
	err  error
}

var errClosed = errors.New("the reader was closed")

// schedule starts the pieces in order, as many as fit.
func (r *rangeReader) schedule(ranges []Range) {
	defer close(r.pieces)

	for _, part := range ranges {
		for from := part.From; from < part.To; from += r.largest {
			if !r.startPiece(Range{From: from, To: min(part.To, from+r.largest)}) {
				return
			}
		}
	}
}

// startPiece waits until there is room for a piece. It returns false when nothing more is to be started.
func (r *rangeReader) startPiece(part Range) bool {
	// In this order: a piece that has no room in the window must not hold a slot, and the other way round it is the
	// oldest that waits, so that those before it end.
	if r.window.Acquire(r.ctx, part.To-part.From) != nil || r.slots.Acquire(r.ctx, 1) != nil {
		return false
	}

	next := &piece{part: part, done: make(chan struct{})}

	select {
	case r.pieces <- next:
	case <-r.ctx.Done():
		return false
	}

	r.running.Go(func() {
		defer r.slots.Release(1)
		defer close(next.done)

		next.data, next.err = r.fetch(part)
		if next.err != nil {
			// Those that follow are of no use. The first in order has the error that counts.
			r.cancel(next.err)
		}
	})

	return true
}

func (r *rangeReader) fetch(part Range) ([]byte, error) {
	body, err := r.open(r.ctx, r.blob, part.From, part.To)
	if err != nil {
		return nil, err
	}

	data := make([]byte, part.To-part.From)

	if _, err := io.ReadFull(body, data); err != nil {
		return nil, errors.Join(fmt.Errorf("reading the bytes from %d to %d: %w", part.From, part.To, err), body.Close())
	}

	return data, body.Close()
}

// Read gives the next bytes, never of two pieces at once.
func (r *rangeReader) Read(buffer []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}

	if len(buffer) == 0 {
		return 0, nil
	}

	if r.current == nil {
		if r.err = r.next(); r.err != nil {
			return 0, r.err
		}
	}

	n := copy(buffer, r.current.data[r.pos:])
	r.pos += int64(n)

	if r.pos == int64(len(r.current.data)) {
		r.window.Release(r.pos)
		r.current, r.pos = nil, 0
	}

	return n, nil
}

// next waits for the next piece.
func (r *rangeReader) next() error {
	next, ok := <-r.pieces
	if !ok && r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}

	if !ok {
		return io.EOF
	}

	<-next.done

	if next.err != nil {
		// A piece can have ended because another one failed first.
		return cmp.Or(context.Cause(r.ctx), next.err)
	}

	r.current = next

	return nil
}

// Close ends what is in flight.
func (r *rangeReader) Close() error {
	r.cancel(errClosed)
	r.running.Wait()

	if r.err == nil {
		r.err = errClosed
	}

	return nil
}
