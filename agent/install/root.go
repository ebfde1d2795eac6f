package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

var (
	errOutside  = errors.New("a link on the way leads out of the root directory; make it relative")
	errDangling = errors.New("a link on the way leads nowhere; make what it names, or remove it")
)

// inside makes sure that a file of an image is in the image: a link such as /opt -> /var/opt, followed from here, names
// a directory of this machine.
func (i Installer) inside(path string) error {
	root, err := filepath.EvalSymlinks(i.Root)
	if err != nil {
		return err
	}

	if root, err = filepath.Abs(root); err != nil {
		return err
	}

	// Of the directories that are not there yet, nothing can be a link.
	for dir := i.at(filepath.Dir(path)); ; dir = filepath.Dir(dir) {
		found, err := filepath.EvalSymlinks(dir)
		if errors.Is(err, fs.ErrNotExist) {
			if _, err := os.Lstat(dir); err == nil {
				return fmt.Errorf("%s: %w", dir, errDangling)
			}

			continue
		}

		if err != nil {
			return err
		}

		if found, err = filepath.Abs(found); err != nil {
			return err
		}

		if root != "/" && found != root && !strings.HasPrefix(found, root+"/") {
			return fmt.Errorf("%s is %s: %w", dir, found, errOutside)
		}

		return nil
	}
}

// prepare checks where a file is, and removes what a killed call has left beside it: files are written under a name of
// their own and digits, with a dot before it.
func (i Installer) prepare(path string) error {
	if err := i.inside(path); err != nil {
		return err
	}

	dir, own := filepath.Split(i.at(path))

	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}

	for _, entry := range entries {
		digits, ours := strings.CutPrefix(entry.Name(), "."+own)
		if !ours || digits == "" || strings.Trim(digits, "0123456789") != "" {
			continue
		}

		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}

	return nil
}
