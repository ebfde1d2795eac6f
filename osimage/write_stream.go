package osimage

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"
)

const (
	// pieceSize is how much is written at once, at most, and pieces how many of them may wait for the medium.
	pieceSize = 1 << 20
	pieces    = 4
	// sparseBlock is the least run of zeros that is left out.
	sparseBlock = 64 << 10
	// defaultSyncEvery is a bound on what waits in the page cache, on what a power cut costs, and on how far reading back
	// lies behind.
	defaultSyncEvery = 32 << 20
)

// errReadBack is returned when the medium holds other bytes than the config says.
var errReadBack = errors.New("the medium gave back other bytes")

// opener starts reading a content's raw bytes at an offset.
type opener func(ctx context.Context, role Role, offset int64) (io.ReadCloser, error)

// openForWriting leaves the raw digest to reading back, where that can be: hashing is what costs most here.
func (w *writing) openForWriting(ctx context.Context, role Role, offset int64) (io.ReadCloser, error) {
	if image, ok := w.source.(*Image); ok {
		return image.open(ctx, role, offset, false)
	}

	return w.source.Open(ctx, role, offset)
}

// supply puts the content's bytes into the feed, from some position on without a gap.
type supply func(ctx context.Context, feed *feed) error

// from writes everything from a raw offset on, and reads all of the content back.
//
// Three things go on at once: fetching and decompressing, writing, and flushing and reading back what was written, so
// that the network, the processors and the medium do not wait for one another.
func (w *writing) from(ctx context.Context, start int64, supply supply) (err error) {
	if err := w.lengthen(); err != nil {
		return err
	}

	back := newReadBack(w.content, w.target, w.options.Offset)
	back.told = w.meter.verified

	defer func() { err = errors.Join(err, back.close()) }()

	w.meter.writing(start)

	feed := newFeed(start, min(pieceSize, max(1, w.syncEvery()/2)))
	settler := &settler{writing: w, back: back, due: make(chan int64, 1), failed: make(chan struct{})}
	// Only the supply ends when another one fails. What it gave before it failed itself is still written and flushed.
	group, supplying := errgroup.WithContext(ctx)

	var (
		sourceErr error
		done      int64
	)

	group.Go(func() error {
		defer close(feed.full)

		err := supply(supplying, feed)
		if supplying.Err() == nil {
			sourceErr = err
		}

		return err
	})

	group.Go(func() error {
		defer close(settler.due)

		var err error
		done, err = w.write(ctx, feed, func(done int64) error { return settler.settle(ctx, done) })

		switch {
		case err != nil || sourceErr != nil:
			return err
		case ctx.Err() != nil: // the supply saw it first
			return context.Cause(ctx)
		case done < w.content.RawSize:
			return truncated(string(w.content.Role), "content", done, w.content.RawSize)
		}

		return settler.settle(ctx, done)
	})

	group.Go(func() error { return settler.run(ctx) })

	if err := group.Wait(); err != nil {
		return errors.Join(err, w.keep(back, done, err, sourceErr != nil))
	}

	if got := back.digest(); got != w.content.RawDigest {
		return fmt.Errorf("reading back %s: %s holds %s, want %s: %w",
			w.content.Role, targetName(w.target), got, w.content.RawDigest, errReadBack)
	}

	return nil
}

// lengthen makes a file as long as it will be, since what is left out at its end has to be read back as zeros before
// anything is written behind it.
func (w *writing) lengthen() error {
	file, ok := w.target.(interface {
		descriptor
		Truncate(size int64) error
	})
	if !ok || !w.options.Sparse {
		return nil
	}

	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("looking at %s: %w", file.Name(), err)
	}

	end := w.options.Offset + w.content.RawSize
	if !info.Mode().IsRegular() || info.Size() >= end {
		return nil
	}

	if err := file.Truncate(end); err != nil {
		return fmt.Errorf("making %s as long as %s: %w", file.Name(), w.content.Role, err)
	}

	return nil
}

// settler flushes what was written so far, tells of it, and reads it back: beside the writer, where the target allows that.
type settler struct {
	writing *writing
	back    *readBack
	// due has the position up to which was written.
	due chan int64
	// failed is closed when err is set.
	failed chan struct{}
	err    error
}

// settle waits until reading back lies no more than one flush behind.
func (s *settler) settle(ctx context.Context, done int64) error {
	if !s.back.concurrent() {
		return s.do(ctx, done)
	}

	select {
	case s.due <- done:
		return nil
	case <-s.failed:
		return s.err
	}
}

func (s *settler) run(ctx context.Context) error {
	for done := range s.due {
		if s.err = s.do(ctx, done); s.err != nil {
			close(s.failed)

			return s.err
		}
	}

	return nil
}

func (s *settler) do(ctx context.Context, done int64) error {
	if err := s.back.sync(); err != nil {
		return err
	}

	if err := s.writing.synced(done); err != nil {
		return err
	}

	return s.back.upTo(ctx, done)
}

// keep flushes and tells what the source gave before it broke, for a later call to go on with. When the image is wrong,
// what was written of it is worth nothing.
func (w *writing) keep(back *readBack, done int64, cause error, ofSource bool) error {
	for _, wrong := range []error{ErrWrongDigest, ErrTruncated, ErrTooLarge, ErrNotAnImage} {
		if errors.Is(cause, wrong) {
			return w.synced(0)
		}
	}

	// Otherwise the medium failed, or the caller does not want to wait.
	if w.options.Synced == nil || done == 0 || !ofSource {
		return nil
	}

	if err := back.sync(); err != nil {
		return err
	}

	return w.synced(done)
}

func (w *writing) synced(done int64) error {
	if w.options.Synced == nil {
		return nil
	}

	return w.options.Synced(done)
}

// stream supplies the content from one reader.
func (w *writing) stream(open opener, start int64) supply {
	return func(ctx context.Context, feed *feed) (err error) {
		if start == w.content.RawSize {
			return nil
		}

		body, err := open(ctx, w.content.Role, start)
		if err != nil {
			return err
		}

		defer func() { err = errors.Join(err, body.Close()) }()

		for {
			buffer, err := feed.buffer(ctx)
			if err != nil {
				return err
			}

			count, readErr := io.ReadFull(body, buffer)
			if err := feed.put(ctx, portion{data: buffer[:count]}); err != nil {
				return err
			}

			switch {
			case errors.Is(readErr, io.EOF):
				return nil
			case errors.Is(readErr, io.ErrUnexpectedEOF) && !isTyped(readErr):
				return nil
			case readErr != nil:
				return readErr
			}
		}
	}
}

func isTyped(err error) bool {
	var typed *Error

	return errors.As(err, &typed)
}

// write puts what is fed on the target, and calls settled with each position before the end that is to be flushed.
func (w *writing) write(ctx context.Context, feed *feed, settled func(done int64) error) (done int64, err error) {
	done = feed.written.position

	flusher := newFlusher(w.target)
	due := done + w.syncEvery()

	for next := range feed.full {
		if err := ctx.Err(); err != nil {
			return done, context.Cause(ctx)
		}

		if rest := w.content.RawSize - done; next.size() > rest {
			return done, &Error{
				Kind: ErrTooLarge, Subject: string(w.content.Role), Fix: fixRebuild,
				Detail: fmt.Sprintf("it has more than the %d bytes of its config", w.content.RawSize),
			}
		}

		position := w.options.Offset + done
		if err := w.writePortion(next, position); err != nil {
			return done, fmt.Errorf("writing %s to %s at byte %d: %w", w.content.Role, targetName(w.target), position, err)
		}

		done += next.size()

		flusher.wrote(position, next.size())
		feed.reached(done, next)
		w.meter.written(done)

		if done >= due && done < w.content.RawSize {
			if err := settled(done); err != nil {
				return done, err
			}

			due = done + w.syncEvery()
		}
	}

	return done, nil
}

var zeros [sparseBlock]byte //nolint:gochecknoglobals // A constant: Go has no constant arrays.

func (w *writing) writePortion(next portion, position int64) error {
	if next.zeros > 0 {
		return w.writeZeros(position, next.zeros)
	}

	for piece := next.data; len(piece) > 0; {
		count := zeroBlocks(piece)
		if count > 0 {
			if err := w.writeZeros(position, int64(count)); err != nil {
				return err
			}
		} else {
			count = otherBlocks(piece)
			if _, err := w.target.WriteAt(piece[:count], position); err != nil {
				return err
			}
		}

		piece, position = piece[count:], position+int64(count)
	}

	return nil
}

// zeroBlocks is the length of the whole blocks of zeros at the beginning.
func zeroBlocks(data []byte) int {
	count := 0
	for len(data)-count >= sparseBlock && bytes.Equal(data[count:count+sparseBlock], zeros[:]) {
		count += sparseBlock
	}

	return count
}

// otherBlocks is the length of what comes before the next whole block of zeros.
func otherBlocks(data []byte) int {
	count := min(sparseBlock, len(data))
	for count < len(data) && (len(data)-count < sparseBlock || !bytes.Equal(data[count:count+sparseBlock], zeros[:])) {
		count = min(count+sparseBlock, len(data))
	}

	return count
}

// writeZeros leaves zeros out where nothing was written before, lets a device make them, or writes them.
func (w *writing) writeZeros(position, count int64) error {
	if w.options.Sparse || zeroOut(w.target, position, count) {
		return nil
	}

	for count > 0 {
		size := min(count, sparseBlock)
		if _, err := w.target.WriteAt(zeros[:size], position); err != nil {
			return err
		}

		position, count = position+size, count-size
	}

	return nil
}

func (w *writing) syncEvery() int64 { return cmp.Or(w.options.SyncEvery, defaultSyncEvery) }
