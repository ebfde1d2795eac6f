package dps

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	bootDirMode  = 0o755
	bootFileMode = 0o644
)

// folder is the BootFiles of a directory.
type folder struct {
	root *os.Root
	path string
	done func() error
}

// OpenFolder returns the BootFiles of a directory: where a FAT file system is mounted. Nothing outside of it is reached.
func OpenFolder(dir string) (BootFiles, error) {
	return openFolder(dir, func() error { return nil })
}

func openFolder(dir string, done func() error) (BootFiles, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the boot partition: %w", err), done())
	}

	return &folder{root: root, path: dir, done: done}, nil
}

// mountBoot mounts a FAT file system on a new directory below dir, so that nobody but root reads it, until it is closed.
func mountBoot(node, dir string) (BootFiles, error) {
	if err := os.MkdirAll(dir, bootDirMode); err != nil {
		return nil, fmt.Errorf("mounting the boot partition: %w", err)
	}

	point, err := os.MkdirTemp(dir, "esp-")
	if err != nil {
		return nil, fmt.Errorf("mounting the boot partition: %w", err)
	}

	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOSYMFOLLOW
	if err := unix.Mount(node, point, "vfat", flags, "umask=0077"); err != nil {
		return nil, errors.Join(fmt.Errorf("mounting the boot partition %s on %s: %w", node, point, err), os.Remove(point))
	}

	return openFolder(point, func() error {
		if err := unix.Unmount(point, 0); err != nil {
			return fmt.Errorf("unmounting the boot partition from %s: %w", point, err)
		}

		return os.Remove(point)
	})
}

// List returns the files of a directory.
func (f *folder) List(dir string) ([]FileInfo, error) {
	entries, err := fs.ReadDir(f.root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}

	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", dir, err)
	}

	var files []FileInfo

	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", dir, err)
		}

		if info.Mode().IsRegular() {
			files = append(files, FileInfo{Name: entry.Name(), Size: info.Size()})
		}
	}

	return files, nil
}

// Open opens a file and drops its cached pages.
func (f *folder) Open(name string) (BootFile, error) {
	file, err := f.root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}

	info, err := file.Stat()
	if err == nil {
		err = dropPages(file)
	}

	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening %s: %w", name, err), file.Close())
	}

	return folderFile{file, info.Size()}, nil
}

// Create writes a new file.
func (f *folder) Create(name string, content io.Reader) error {
	if err := f.absent(name); err != nil {
		return fmt.Errorf("creating %s: %w", name, err)
	}

	if err := f.root.MkdirAll(path.Dir(name), bootDirMode); err != nil {
		return fmt.Errorf("creating %s: %w", name, err)
	}

	file, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, bootFileMode)
	if err != nil {
		return fmt.Errorf("creating %s: %w", name, err)
	}

	_, err = io.Copy(file, content)
	if err == nil {
		err = file.Sync()
	}

	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}

	return f.sync(path.Dir(name))
}

// Rename renames a file.
func (f *folder) Rename(from, to string) error {
	if err := f.absent(to); err != nil {
		return fmt.Errorf("renaming %s to %s: %w", from, to, err)
	}

	if err := f.root.Rename(from, to); err != nil {
		return fmt.Errorf("renaming %s: %w", from, err)
	}

	return errors.Join(f.sync(path.Dir(from)), f.sync(path.Dir(to)))
}

// Remove removes a file.
func (f *folder) Remove(name string) error {
	err := f.root.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("removing %s: %w", name, err)
	}

	return f.sync(path.Dir(name))
}

// Free asks the file system.
func (f *folder) Free() (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(f.path, &stat); err != nil {
		return 0, fmt.Errorf("measuring %s: %w", f.path, err)
	}

	return int64(stat.Bavail) * stat.Bsize, nil //nolint:gosec // blocks of a real file system
}

// Close closes the directory, and unmounts what was mounted for it.
func (f *folder) Close() error {
	return errors.Join(f.root.Close(), f.done())
}

// absent fails when there is a file of that name in any case. This is the only writer, so looking first is enough.
func (f *folder) absent(name string) error {
	files, err := f.List(path.Dir(name))
	if err != nil {
		return err
	}

	for _, file := range files {
		if strings.EqualFold(file.Name, path.Base(name)) {
			return fmt.Errorf("%s: %w", file.Name, fs.ErrExist)
		}
	}

	return nil
}

// sync makes a change of a directory last: FAT has no journal, so the whole file system is written out too.
func (f *folder) sync(dir string) error {
	open, err := f.root.Open(filepath.FromSlash(dir))
	if err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}

	err = errors.Join(open.Sync(), unix.Syncfs(int(open.Fd())))
	if err = errors.Join(err, open.Close()); err != nil {
		return fmt.Errorf("syncing %s: %w", dir, err)
	}

	return nil
}

type folderFile struct {
	*os.File

	size int64
}

// Size is the file's size when it was opened.
func (f folderFile) Size() int64 { return f.size }
