package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// keepUnused is how long a build is kept that nobody asks for: each change of the agent makes all images anew.
const keepUnused = 3 * 24 * time.Hour

// builds are the names of what osbuild and this package keep in the cache, one for each state of their inputs.
func builds() []string { return []string{"osbuild-*", "oci-*", ".oci-*"} }

// prune removes the builds that nobody has used for a while.
func prune(cache string, now time.Time) error {
	var errs []error

	for _, pattern := range builds() {
		found, err := filepath.Glob(filepath.Join(cache, pattern))
		if err != nil {
			return fmt.Errorf("looking for old builds: %w", err)
		}

		for _, path := range found {
			info, err := os.Stat(path)

			switch {
			case errors.Is(err, fs.ErrNotExist): // another removed it
			case err != nil:
				errs = append(errs, fmt.Errorf("looking for old builds: %w", err))
			case now.Sub(info.ModTime()) > keepUnused:
				if err := os.RemoveAll(path); err != nil {
					errs = append(errs, fmt.Errorf("removing an old build: %w", err))
				}
			}
		}
	}

	return errors.Join(errs...)
}
