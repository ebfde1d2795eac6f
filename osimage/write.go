package osimage

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	// Seeds are where bytes of the content may be found that then need not be fetched, such as the running slot. They must
	// not change meanwhile. It takes a content with a chunk index.
	Seeds []Seed
	// Resume makes a seed of what is on the target already: what is where it shall be is kept, what is elsewhere is moved.
	// That is found by reading the target, so nothing needs to be remembered.
	Resume bool
	// Sparse leaves out blocks of zeros: only for a target that reads as zeros where nothing was written.
	Sparse bool
	// Start is how many of the content's first bytes an earlier call has written, as Synced told. They are not fetched
	// again, but read back like all others. It does what Resume does where there is a chunk index.
	Start int64
	// Synced, when set, is called each time more of the content is on the medium for good, with the number of its first
	// bytes that are. After an error of it Write ends.
	Synced func(done int64) error
	// SyncEvery is how many bytes may be written between two flushes of the medium, in at least two pieces of at most
	// 1 MiB; 0 means 32 MiB.
	SyncEvery int64
	// Progress, when set, is called often: by several goroutines, but by one at a time. It must be quick.
	Progress func(progress Progress)
}

// Seed is an older content at hand.
type Seed struct {
	// Name names it in errors, such as a path.
	Name string
	// Reader gives its bytes, Size is how many there are.
	Reader io.ReaderAt
	Size   int64
}

// Planned says how a content will be written.
type Planned struct {
	// Fetch is the number of bytes of the layer that will be fetched, in so many Requests. It is an upper bound when all
	// of the layer is fetched from WriteOptions.Start on.
	Fetch    int64
	Requests int
	// Index is the number of bytes of the chunk index that were fetched to know that.
	Index int64
	// Kept, Reused and Zeros are raw bytes: those on the target already, those copied from seeds, and those that are zero.
	Kept, Reused, Zeros int64
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

	writing := newWriting(source, content, options)
	writing.target = target

	err := writing.first(ctx)
	if ctx.Err() != nil || !writing.worthAll(err) {
		return err
	}

	// A chunk's id has 64 bits only, a power cut can take what was synced, and a mirror can be anybody. And the raw bytes are
	// hashed only once, when they are read back. Once more from the start, this time hashed on their way too: then it is either
	// the image that is wrong, which its reader says, or the medium.
	for again := true; again; again = ctx.Err() == nil && writing.otherBytes(err) {
		if err := writing.synced(0); err != nil {
			return err
		}

		writing.meter.planned(Planned{Fetch: content.Size, Requests: 1})

		err = writing.from(ctx, 0, writing.stream(writing.source.Open, 0))
	}

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
	meter   *meter
}

func newWriting(source Source, content Content, options WriteOptions) *writing {
	result := &writing{source: source, content: content, options: options, meter: newMeter(content, options.Progress)}

	if image, ok := source.(*Image); ok {
		result.source, result.meter.counts = image.metered(result.meter.fetched), true
	}

	return result
}

// first tries to write with as few bytes as can be, and with as little hashing.
func (w *writing) first(ctx context.Context) error {
	start := w.options.Start
	if start < 0 || start > w.content.RawSize {
		return invalid(fmt.Sprintf("start %d", start), fmt.Sprintf("%s has %d bytes", w.content.Role, w.content.RawSize),
			"use what Synced told")
	}

	assembly, err := w.plan(ctx)
	if err != nil {
		return err
	}

	if assembly != nil {
		err := w.from(ctx, 0, assembly.supply)
		if !IsNoRanges(err) {
			return err
		}

		start = 0
	}

	w.meter.planned(Planned{Fetch: w.content.Size, Requests: 1, Kept: start})

	return w.from(ctx, start, w.stream(w.openForWriting, start))
}

// worthAll tells whether the error of a writing may be gone when all of the content is fetched.
func (w *writing) worthAll(err error) bool {
	return errors.Is(err, errReadBack) || errors.Is(err, errOtherFrame) || w.otherBytes(err)
}

// otherBytes tells whether a writing ended since its source had other bytes than it should, and another host may have the
// right ones. It returns true once.
func (w *writing) otherBytes(err error) bool {
	image, ok := w.source.(*Image)

	return ok && HasOtherBytes(err) && image.DistrustMirrors()
}

func targetName(target Target) string {
	if named, ok := target.(interface{ Name() string }); ok {
		return named.Name()
	}

	return "the target"
}
