package osimage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"
)

const (
	// pieceSize is how much is written at once, and pieces how many of them may wait for the medium.
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

// from writes everything from a raw offset on, and reads all of the content back.
//
// Three things go on at once: fetching and decompressing, writing, and flushing and reading back what was written, so
// that the network, the processors and the medium do not wait for one another.
func (w *writing) from(ctx context.Context, start int64, open opener) (err error) {
	if err := w.lengthen(); err != nil {
		return err
	}

	back := newReadBack(w.content, w.target, w.options.Offset)

	defer func() { err = errors.Join(err, back.close()) }()

	group, ctx := errgroup.WithContext(ctx)
	free, full := make(chan []byte, pieces), make(chan []byte, pieces)

	for range pieces {
		free <- make([]byte, pieceSize)
	}

	var readErr error

	group.Go(func() error {
		defer close(full)

		readErr = w.read(ctx, open, start, free, full)

		return readErr
	})

	written := make(chan int64, 1)
	settled := func(done int64) error {
		if !back.concurrent() {
			return w.settle(ctx, back, done)
		}

		select {
		case written <- done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}

	group.Go(func() error {
		defer close(written)

		done, err := w.write(ctx, start, free, full, settled)
		// The end of the pieces can be an error's, of which the context does not know yet.
		if err := errors.Join(err, readErr); err != nil {
			return err
		}

		if done < w.content.RawSize {
			return truncated(string(w.content.Role), "content", done, w.content.RawSize)
		}

		return settled(done)
	})

	group.Go(func() error {
		for done := range written {
			if err := w.settle(ctx, back, done); err != nil {
				return err
			}
		}

		return nil
	})

	if err := group.Wait(); err != nil {
		return err
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

// settle flushes what was written so far, tells of it, and reads it back.
func (w *writing) settle(ctx context.Context, back *readBack, done int64) error {
	if err := back.sync(); err != nil {
		return err
	}

	if w.options.Synced != nil {
		if err := w.options.Synced(done); err != nil {
			return err
		}
	}

	return back.upTo(ctx, done)
}

// read fills pieces with the content's bytes. All but the last one are full.
func (w *writing) read(
	ctx context.Context, open opener, start int64, free <-chan []byte, full chan<- []byte,
) (err error) {
	if start == w.content.RawSize {
		return nil
	}

	body, err := open(ctx, w.content.Role, start)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, body.Close()) }()

	for {
		var piece []byte

		select {
		case piece = <-free:
		case <-ctx.Done():
			return context.Cause(ctx)
		}

		count, err := io.ReadFull(body, piece[:pieceSize])

		if count > 0 {
			full <- piece[:count]
		}

		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF) && !isTyped(err):
			return nil
		case err != nil:
			return err
		}
	}
}

func isTyped(err error) bool {
	var typed *Error

	return errors.As(err, &typed)
}

// write puts the pieces on the target, and calls settled with each position before the end that is to be flushed.
func (w *writing) write(
	ctx context.Context, start int64, free chan<- []byte, full <-chan []byte, settled func(done int64) error,
) (done int64, err error) {
	done = start

	every := w.options.SyncEvery
	if every == 0 {
		every = defaultSyncEvery
	}

	flusher := newFlusher(w.target)
	due := start + every

	for piece := range full {
		if err := ctx.Err(); err != nil {
			return done, context.Cause(ctx)
		}

		if rest := w.content.RawSize - done; int64(len(piece)) > rest {
			return done, &Error{
				Kind: ErrTooLarge, Subject: string(w.content.Role), Fix: fixRebuild,
				Detail: fmt.Sprintf("it has more than the %d bytes of its config", w.content.RawSize),
			}
		}

		position := w.options.Offset + done
		if err := w.writePiece(piece, position); err != nil {
			return done, fmt.Errorf("writing %s to %s at byte %d: %w", w.content.Role, targetName(w.target), position, err)
		}

		done += int64(len(piece))

		flusher.wrote(position, int64(len(piece)))
		w.progress(done)
		free <- piece

		if done >= due && done < w.content.RawSize {
			if err := settled(done); err != nil {
				return done, err
			}

			due = done + every
		}
	}

	return done, nil
}

var zeros [sparseBlock]byte //nolint:gochecknoglobals // A constant: Go has no constant arrays.

func (w *writing) writePiece(piece []byte, position int64) error {
	if !w.options.Sparse {
		_, err := w.target.WriteAt(piece, position)

		return err
	}

	for len(piece) > 0 {
		block := piece[:min(sparseBlock, len(piece))]
		if !bytes.Equal(block, zeros[:len(block)]) {
			if _, err := w.target.WriteAt(block, position); err != nil {
				return err
			}
		}

		piece, position = piece[len(block):], position+int64(len(block))
	}

	return nil
}

func (w *writing) progress(done int64) {
	if w.options.Progress != nil {
		w.options.Progress(done)
	}
}
