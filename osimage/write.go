package osimage

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cespare/xxhash/v2"
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
	// Start is how many of the content's first bytes an earlier call has written, as Synced told. They are not fetched
	// again, but read back like all others.
	Start int64
	// Synced, when set, is called each time more of the content is on the medium for good, with the number of its first
	// bytes that are. After an error of it Write ends.
	Synced func(done int64) error
	// SyncEvery is how many bytes may be written between two flushes of the medium, in at least two pieces of at most
	// 1 MiB; 0 means 32 MiB.
	SyncEvery int64
	// Progress, when set, is called with the raw bytes written so far, those that were kept included.
	Progress func(done int64)
}

// framed is a Source that knows the checksums of its frames.
type framed interface {
	Frames(ctx context.Context, role Role) ([]Frame, error)
}

// Write streams a content to the target, flushes it, reads it back from the medium, and compares it with the raw
// digest. Only when it returns nil the target holds the content. It is safe to call again after any error.
//
// It returns ErrTooLarge before it writes anything when the content does not fit, ErrWrongDigest when the image's bytes
// are not those of its config, and ErrBrokenMedium when the medium does not return what was written to it.
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

	err = writing.from(ctx, start, writing.openForWriting)
	if !errors.Is(err, errReadBack) || ctx.Err() != nil {
		return err
	}

	// What was kept may be wrong: frame checksums have 32 bits only, and a power cut can take what was synced. And the raw
	// bytes are hashed only once, when they are read back. Once more from the start, this time hashed on their way too:
	// then it is either the image that is wrong, which its reader says, or the medium.
	if err := writing.synced(0); err != nil {
		return err
	}

	err = writing.from(ctx, 0, source.Open)
	if !errors.Is(err, errReadBack) {
		return err
	}

	return errors.Join(&Error{
		Kind: ErrBrokenMedium, Subject: targetName(target),
		Detail: fmt.Sprintf("twice it gave back other bytes of %s than were written", role),
		Fix:    "try again; if it happens again replace the disk",
	}, writing.synced(0))
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

// verifyMedium flushes a target and reads a content of it back, past the caches, to check its digest.
func verifyMedium(ctx context.Context, content Content, target Target, offset int64) (err error) {
	back := newReadBack(content, target, offset)

	defer func() { err = errors.Join(err, back.close()) }()

	if err := back.sync(); err != nil {
		return err
	}

	if err := back.upTo(ctx, content.RawSize); err != nil {
		return err
	}

	if got := back.digest(); got != content.RawDigest {
		return &Error{
			Kind: ErrWrongDigest, Subject: targetName(target),
			Detail: fmt.Sprintf("the medium holds %s, want %s for %s", got, content.RawDigest, content.Role),
			Fix:    "write it again; if it happens again the medium is broken",
		}
	}

	return nil
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
	if start := w.options.Start; start != 0 {
		if start < 0 || start > w.content.RawSize {
			return 0, invalid(fmt.Sprintf("start %d", start), fmt.Sprintf("%s has %d bytes", w.content.Role, w.content.RawSize),
				"use what Synced told")
		}

		return start, nil
	}

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

func targetName(target Target) string {
	if named, ok := target.(interface{ Name() string }); ok {
		return named.Name()
	}

	return "the target"
}
