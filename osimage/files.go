package osimage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// LockFile keeps other programs that call it from the file, or from the folder, until it is closed. It does not wait:
// when another one has it, the error is ErrInvalid and says so of the subject.
func LockFile(file *os.File, subject string) error {
	// Other errors than this one come from file systems without locks, which are used without.
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return invalid(subject, "another program is writing to it", "wait until it ends, or name another one")
	}

	return nil
}

// RenameFile gives a file its final name once its bytes are on the medium, and returns when the name is there, too: a
// power cut leaves what had that name before or the whole file, and whoever names the file afterwards names one that is
// there.
func RenameFile(file *os.File, final string) error {
	return renameFile(file, final, (*os.File).Sync)
}

// RemoveFile removes a file. When there is none, that is fine.
func RemoveFile(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	return nil
}

func renameFile(file *os.File, final string, flush func(*os.File) error) error {
	if err := flush(file); err != nil {
		return fmt.Errorf("flushing %s: %w", file.Name(), err)
	}

	if err := os.Rename(file.Name(), final); err != nil {
		return err
	}

	dir, err := os.Open(filepath.Dir(final))
	if err != nil {
		return fmt.Errorf("flushing the folder of %s: %w", final, err)
	}

	if err := errors.Join(flush(dir), dir.Close()); err != nil {
		return fmt.Errorf("flushing the folder of %s: %w", final, err)
	}

	return nil
}
