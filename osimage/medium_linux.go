package osimage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// directAlignment suits O_DIRECT on every medium: logical sectors have 512 or 4096 bytes.
	directAlignment = 4096
	// flushWindow is how much may be dirty in the page cache before it is pushed to the medium, so that neither the
	// final flush nor other writers of the node wait for gigabytes.
	flushWindow = 16 << 20
	// readBackSize is how much is read back at once: past the cache each read waits for the medium.
	readBackSize = 4 << 20
	// blkZeroOut is BLKZEROOUT of linux/fs.h.
	blkZeroOut = 0x127f
)

// descriptor is a target that is a file or a device of the kernel's: an *os.File, or what has one inside.
type descriptor interface {
	Fd() uintptr
	Name() string
	Stat() (fs.FileInfo, error)
}

// mediumSize returns the size of a target that cannot grow.
func mediumSize(target Target) (size int64, bounded bool, err error) {
	file, ok := target.(descriptor)
	if !ok {
		return 0, false, nil
	}

	info, err := file.Stat()
	if err != nil {
		return 0, false, fmt.Errorf("looking at it: %w", err)
	}

	if info.Mode()&os.ModeDevice == 0 {
		return 0, false, nil
	}

	size, err = unix.Seek(int(file.Fd()), 0, io.SeekEnd)
	if err != nil {
		return 0, false, fmt.Errorf("finding its end: %w", err)
	}

	return size, true, nil
}

// flusher starts writing dirty pages out early.
type flusher struct {
	file        descriptor
	from, until int64
}

func newFlusher(target Target) *flusher {
	file, _ := target.(descriptor)

	return &flusher{file: file}
}

func (f *flusher) wrote(position, count int64) {
	if f.file == nil {
		return
	}

	if f.until != position {
		f.from = position
	}

	f.until = position + count

	if f.until-f.from < flushWindow {
		return
	}

	// This only spreads the work; the Sync before reading back is what counts and reports errors.
	_ = unix.SyncFileRange(int(f.file.Fd()), f.from, f.until-f.from, unix.SYNC_FILE_RANGE_WRITE)
	f.from = f.until
}

// zeroOut lets a block device make zeros, which can be faster than writing them, and tells it that the blocks hold nothing.
// It returns false when that cannot be: then they have to be written.
func zeroOut(target Target, position, count int64) bool {
	file, ok := target.(descriptor)
	if !ok || position%directAlignment != 0 || count%directAlignment != 0 {
		return false
	}

	info, err := file.Stat()
	if err != nil || info.Mode()&(os.ModeDevice|os.ModeCharDevice) != os.ModeDevice {
		return false
	}

	extent := [2]uint64{uint64(position), uint64(count)} //nolint:gosec // Never negative.
	//nolint:gosec // The ioctl wants a pointer to start and length .
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), blkZeroOut, uintptr(unsafe.Pointer(&extent)))

	return errno == 0
}

// readBack reads a content from its medium while it is still being written, and hashes it.
type readBack struct {
	content Content
	target  Target
	offset  int64

	// file is nil when the target is not of the kernel's.
	file descriptor
	// direct reads past the page cache. It is opened at the first read, and stays nil where there is no such thing.
	direct *os.File
	opened bool
	buffer []byte

	sum hash.Hash
	// done is the number of the content's bytes that were read; told, when set, is called with it as it grows.
	done int64
	told func(done int64)
}

func newReadBack(content Content, target Target, offset int64) *readBack {
	file, _ := target.(descriptor)

	return &readBack{
		content: content, target: target, offset: offset, file: file,
		buffer: alignedBuffer(readBackSize), sum: sha256.New(),
	}
}

// concurrent tells whether the target can be flushed and read while it is written to.
func (r *readBack) concurrent() bool { return r.file != nil }

// digest is that of what was read.
func (r *readBack) digest() string { return digestOf(r.sum) }

// sync returns when what was written is on the medium.
func (r *readBack) sync() error {
	if syncer, ok := r.target.(interface{ Sync() error }); ok {
		if err := syncer.Sync(); err != nil {
			return fmt.Errorf("flushing %s: %w", targetName(r.target), err)
		}
	}

	return nil
}

// upTo reads what was flushed, up to a position of the content. Before the content's end it may stop a little earlier,
// where a read can begin the next time.
func (r *readBack) upTo(ctx context.Context, end int64) error {
	if end < r.content.RawSize {
		end -= end % directAlignment
	}

	if r.done >= end {
		return nil
	}

	if err := r.dropCache(end); err != nil {
		return err
	}

	for r.done < end {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		piece, err := r.next(end)
		if err != nil {
			return fmt.Errorf("reading %s back at byte %d: %w", targetName(r.target), r.offset+r.done, err)
		}

		r.sum.Write(piece)
		r.done += int64(len(piece))

		if r.told != nil {
			r.told(r.done)
		}
	}

	return nil
}

// dropCache makes the reads up to a position come from the medium.
func (r *readBack) dropCache(end int64) error {
	var err error

	dropper, own := r.target.(interface{ DropCache() error })

	switch {
	case r.file != nil:
		err = r.dropPages(end)
	case own:
		err = dropper.DropCache()
	}

	if err != nil {
		return fmt.Errorf("dropping the cache of %s: %w", targetName(r.target), err)
	}

	return nil
}

func (r *readBack) dropPages(end int64) error {
	if !r.opened {
		r.opened = true

		if r.offset%directAlignment == 0 {
			// Some file systems have no O_DIRECT; then dropping the pages has to do.
			if direct, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", r.file.Fd()), os.O_RDONLY|unix.O_DIRECT, 0); err == nil {
				r.direct = direct
			}
		}
	}

	// Also with O_DIRECT: what was written is of no use in the cache of a node that serves.
	return unix.Fadvise(int(r.file.Fd()), r.offset+r.done, end-r.done, unix.FADV_DONTNEED)
}

// next reads up to a position, at most a piece. The result is valid until the next call.
func (r *readBack) next(end int64) ([]byte, error) {
	var (
		count int
		err   error
	)

	limit := end - r.done

	if r.direct != nil {
		// Not ReadAt: that would go on after a short read, at a position that O_DIRECT does not take. A read that begins
		// and ends at whole blocks takes no byte that is being written.
		size := min(int64(len(r.buffer)), limit+directAlignment-1)
		count, err = unix.Pread(int(r.direct.Fd()), r.buffer[:size-size%directAlignment], r.offset+r.done)
	} else {
		count, err = r.target.ReadAt(r.buffer[:min(int64(len(r.buffer)), limit)], r.offset+r.done)
		if errors.Is(err, io.EOF) && count > 0 {
			err = nil
		}
	}

	if err != nil {
		return nil, err
	}

	if count == 0 {
		return nil, io.ErrUnexpectedEOF
	}

	return r.buffer[:min(int64(count), limit)], nil
}

func (r *readBack) close() error {
	if r.direct == nil {
		return nil
	}

	return r.direct.Close()
}

// alignedBuffer returns a buffer whose address O_DIRECT takes.
func alignedBuffer(size int) []byte {
	buffer := make([]byte, size+directAlignment)
	//nolint:gosec // Only the address is looked at.
	misaligned := int(uintptr(unsafe.Pointer(unsafe.SliceData(buffer))) % directAlignment)

	return buffer[directAlignment-misaligned:][:size]
}
