package osimage

import (
	"errors"
	"fmt"
	"io"
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
)

// mediumSize returns the size of a target that cannot grow.
func mediumSize(target Target) (size int64, bounded bool, err error) {
	file, ok := target.(*os.File)
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

	size, err = file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, false, fmt.Errorf("finding its end: %w", err)
	}

	return size, true, nil
}

// flusher starts writing dirty pages out early.
type flusher struct {
	file        *os.File
	from, until int64
}

func newFlusher(target Target) *flusher {
	file, _ := target.(*os.File)

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

// medium reads a target past the page cache where that can be done.
type medium struct {
	reader io.ReaderAt
	// direct is set when reader is a descriptor of its own with O_DIRECT.
	direct *os.File
	buffer []byte
}

// openMedium flushes a target and prepares reading from what is below its caches.
func openMedium(target Target, offset int64) (*medium, error) {
	if syncer, ok := target.(interface{ Sync() error }); ok {
		if err := syncer.Sync(); err != nil {
			return nil, fmt.Errorf("flushing %s: %w", targetName(target), err)
		}
	}

	if dropper, ok := target.(interface{ DropCache() error }); ok {
		if err := dropper.DropCache(); err != nil {
			return nil, fmt.Errorf("dropping the cache of %s: %w", targetName(target), err)
		}
	}

	result := &medium{reader: target, buffer: alignedBuffer(readBackSize)}

	file, ok := target.(*os.File)
	if !ok {
		return result, nil
	}

	if err := dropPages(file); err != nil {
		return nil, fmt.Errorf("dropping the cache of %s: %w", file.Name(), err)
	}

	if offset%directAlignment != 0 {
		return result, nil
	}

	// Some file systems have no O_DIRECT; then the dropped cache has to do.
	direct, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), os.O_RDONLY|unix.O_DIRECT, 0)
	if err == nil {
		result.reader, result.direct = direct, direct
	}

	return result, nil
}

// dropPages makes the kernel forget the clean pages of a file or block device.
func dropPages(file *os.File) error {
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("posix_fadvise: %w", err)
	}

	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("looking at it: %w", err)
	}

	if info.Mode()&os.ModeDevice == 0 {
		return nil
	}

	// BLKFLSBUF needs root; O_DIRECT, which is used next, does not.
	if err := unix.IoctlSetInt(int(file.Fd()), unix.BLKFLSBUF, 0); err != nil && !errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("BLKFLSBUF: %w", err)
	}

	return nil
}

// next reads up to limit bytes, at most a piece. The result is valid until the next call.
func (m *medium) next(position, limit int64) ([]byte, error) {
	var (
		count int
		err   error
	)

	if m.direct != nil {
		// Not ReadAt: that would go on after a short read, at a position that O_DIRECT does not take.
		count, err = unix.Pread(int(m.direct.Fd()), m.buffer, position)
	} else {
		count, err = m.reader.ReadAt(m.buffer[:min(int64(len(m.buffer)), limit)], position)
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

	return m.buffer[:min(int64(count), limit)], nil
}

func (m *medium) close() error {
	if m.direct == nil {
		return nil
	}

	return m.direct.Close()
}

// alignedBuffer returns a buffer whose address O_DIRECT takes.
func alignedBuffer(size int) []byte {
	buffer := make([]byte, size+directAlignment)
	//nolint:gosec // Only the address is looked at.
	misaligned := int(uintptr(unsafe.Pointer(unsafe.SliceData(buffer))) % directAlignment)

	return buffer[directAlignment-misaligned:][:size]
}
