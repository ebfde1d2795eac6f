package osimage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"
)

// Target is a medium: a block device, a partition, a file. An *os.File is one, and is treated best: its size is known,
// and it is read back past the page cache. Others may have these methods:
//
//   - Sync() error, called before reading back
//   - DropCache() error, called between Sync and reading back
//   - Name() string, for errors
type Target interface {
	io.ReaderAt
	io.WriterAt
}

// WriteOptions change how a content is written to a target.
type WriteOptions struct {
	// Offset is where the content begins on the target.
	Offset int64
	// Room is the number of bytes that may be written. 0 means the target's end, when it has one: a block device.
	Room int64
	// Resume keeps what is on the target already. That is found by reading the target and comparing it with the frame
	// checksums of the layer, so nothing needs to be remembered. Without it all is written.
	Resume bool
	// Sparse leaves out blocks of zeros: only for a target that reads as zeros where nothing was written.
	Sparse bool
	// Progress, when set, is called with the raw bytes written so far, those that were kept included.
	Progress func(done int64)
}

const (
	// pieceSize is how much is written at once, and pieces how many of them may wait for the medium.
	pieceSize = 1 << 20
	pieces    = 4
	// sparseBlock is the least run of zeros that is left out.
	sparseBlock = 64 << 10
)

// framed is a Source that knows the checksums of its frames.
type framed interface {
	Frames(ctx context.Context, role Role) ([]Frame, error)
}

// Write streams a content to the target, flushes it, reads it back from the medium, and compares it with the raw
// digest. Only when it returns nil the target holds the content. It is safe to call again after any error.
//
// It returns ErrTooLarge before it writes anything when the content does not fit, and ErrWrongDigest when the medium
// does not return what was written to it.
func Write(ctx context.Context, source Source, role Role, target Target, options WriteOptions) error {
	content, ok := source.Config().Content(role)
	if !ok {
		return &Error{Kind: ErrNotFound, Subject: source.Config().Label(), Detail: "it has no content " + string(role)}
	}

	if err := checkRoom(content, target, options); err != nil {
		return err
	}

	writing := &writing{source: source, content: content, target: target, options: options}

	start, err := writing.kept(ctx)
	if err != nil {
		return err
	}

	err = writing.from(ctx, start)
	if start > 0 && errors.Is(err, ErrWrongDigest) && ctx.Err() == nil {
		// Frame checksums have 32 bits only: what looked right was not.
		err = writing.from(ctx, 0)
	}

	return err
}

// Verify reads a content back from the medium and compares it with its raw digest. It returns ErrWrongDigest when the
// target holds something else.
func Verify(ctx context.Context, config Config, role Role, target Target, options WriteOptions) error {
	content, ok := config.Content(role)
	if !ok {
		return &Error{Kind: ErrNotFound, Subject: config.Label(), Detail: "it has no content " + string(role)}
	}

	if err := checkRoom(content, target, options); err != nil {
		return err
	}

	return verifyMedium(ctx, content, target, options.Offset)
}

func checkRoom(content Content, target Target, options WriteOptions) error {
	room := options.Room

	if room == 0 {
		size, bounded, err := mediumSize(target)
		if err != nil {
			return fmt.Errorf("finding the size of %s: %w", targetName(target), err)
		}

		if !bounded {
			return nil
		}

		room = size - options.Offset
	}

	if content.RawSize > room {
		return &Error{
			Kind: ErrTooLarge, Subject: string(content.Role),
			Detail: fmt.Sprintf("it has %d bytes, %s has room for %d", content.RawSize, targetName(target), room),
			Fix:    "use a smaller image, or a machine with larger slots",
		}
	}

	return nil
}

// writing is one call of Write.
type writing struct {
	source  Source
	content Content
	target  Target
	options WriteOptions
}

// kept returns the number of bytes that are on the target already.
func (w *writing) kept(ctx context.Context) (int64, error) {
	source, ok := w.source.(framed)
	if !w.options.Resume || !ok {
		return 0, nil
	}

	frames, err := source.Frames(ctx, w.content.Role)
	if err != nil {
		return 0, err
	}

	var kept int64

	buffer := make([]byte, frameSize)

	for _, frame := range frames {
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("looking for what is on %s already: %w", targetName(w.target), err)
		}

		// A frame that is larger than ours is written anew, as is what cannot be read.
		if frame.Length > frameSize || !w.holds(frame, buffer[:frame.Length]) {
			break
		}

		kept = frame.Offset + frame.Length
		w.progress(kept)
	}

	return kept, nil
}

// holds tells whether a frame is on the target already, as far as its checksum can tell.
func (w *writing) holds(frame Frame, buffer []byte) bool {
	if n, _ := w.target.ReadAt(buffer, w.options.Offset+frame.Offset); n < len(buffer) {
		return false
	}

	return uint32(xxhash.Sum64(buffer)) == frame.Checksum //nolint:gosec // The format has the lower 32 bits.
}

// from writes everything from a raw offset on, and verifies all of it.
func (w *writing) from(ctx context.Context, start int64) error {
	if start < w.content.RawSize {
		if err := w.stream(ctx, start); err != nil {
			return err
		}
	}

	if err := verifyMedium(ctx, w.content, w.target, w.options.Offset); err != nil {
		return fmt.Errorf("reading back %s: %w", w.content.Role, err)
	}

	return nil
}

// stream copies in two goroutines, so that the network and the decoder do not wait for the medium.
func (w *writing) stream(ctx context.Context, start int64) (err error) {
	group, ctx := errgroup.WithContext(ctx)
	free, full := make(chan []byte, pieces), make(chan []byte, pieces)

	for range pieces {
		free <- make([]byte, pieceSize)
	}

	group.Go(func() error {
		defer close(full)

		return w.read(ctx, start, free, full)
	})

	group.Go(func() error {
		return w.write(ctx, start, free, full)
	})

	return group.Wait()
}

func (w *writing) read(ctx context.Context, start int64, free <-chan []byte, full chan<- []byte) (err error) {
	body, err := w.source.Open(ctx, w.content.Role, start)
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

func (w *writing) write(ctx context.Context, start int64, free chan<- []byte, full <-chan []byte) error {
	flusher := newFlusher(w.target)
	done := start

	for piece := range full {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}

		position := w.options.Offset + done
		if err := w.writePiece(piece, position); err != nil {
			return fmt.Errorf("writing %s to %s at byte %d: %w", w.content.Role, targetName(w.target), position, err)
		}

		done += int64(len(piece))

		flusher.wrote(position, int64(len(piece)))
		w.progress(done)
		free <- piece
	}

	return nil
}

var zeros [sparseBlock]byte //nolint:gochecknoglobals // A constant: Go has no constant arrays.

func (w *writing) writePiece(piece []byte, position int64) error {
	if !w.options.Sparse {
		_, err := w.target.WriteAt(piece, position)

		return err
	}

	end := w.options.Offset + w.content.RawSize

	for len(piece) > 0 {
		block := piece[:min(sparseBlock, len(piece))]
		// The last block is always written, so that a file gets its full length.
		if position+int64(len(block)) == end || !bytes.Equal(block, zeros[:len(block)]) {
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

// verifyMedium reads a content from the medium, past the caches, and checks its digest.
func verifyMedium(ctx context.Context, content Content, target Target, offset int64) (err error) {
	medium, err := openMedium(target, offset)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, medium.close()) }()

	sum := sha256.New()

	for done := int64(0); done < content.RawSize; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		piece, err := medium.next(offset+done, content.RawSize-done)
		if err != nil {
			return fmt.Errorf("reading %s at byte %d: %w", targetName(target), offset+done, err)
		}

		sum.Write(piece)
		done += int64(len(piece))
	}

	if got := digestOf(sum); got != content.RawDigest {
		return &Error{
			Kind: ErrWrongDigest, Subject: targetName(target),
			Detail: fmt.Sprintf("the medium holds %s, want %s for %s", got, content.RawDigest, content.Role),
			Fix:    "write it again; if it happens again the medium is broken",
		}
	}

	return nil
}

func targetName(target Target) string {
	if named, ok := target.(interface{ Name() string }); ok {
		return named.Name()
	}

	return "the target"
}
