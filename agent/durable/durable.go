package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

const (
	fileMode = 0o600
	dirMode  = 0o700
)

// WriteFile replaces a file, which only its owner can read, and makes its folder when it is missing.
func WriteFile(path string, content []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("making the folder of %s: %w", path, err)
	}

	if err := renameio.WriteFile(path, content, fileMode, renameio.WithTempDir(dir)); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}

	return syncDir(dir)
}

// Remove removes a file. When there is none, that is fine.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing %s: %w", path, err)
	}

	return syncDir(filepath.Dir(path))
}

// syncDir makes a new name last: renameio syncs the file, but not its folder.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("opening %s: %w", path, err)
	}

	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("syncing %s: %w", path, err)
	}

	return nil
}
