package osimage

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

var errMedium = errors.New("the medium is broken")

// A name that is on the medium before its bytes, or an index before the blobs that it names, is what a power cut would show.
func TestRenamedFilesAreOnTheMedium(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	final := filepath.Join(dir, "final")

	create := func() *os.File {
		file, err := os.CreateTemp(dir, "new-")
		if err != nil {
			t.Fatal(err)
		}

		t.Cleanup(func() { _ = file.Close() })

		return file
	}

	var flushed []string

	file := create()
	err := renameFile(file, final, func(of *os.File) error {
		_, err := os.Stat(final)
		flushed = append(flushed, map[bool]string{true: "renamed: ", false: "not yet: "}[err == nil]+of.Name())

		return nil
	})

	if want := []string{"not yet: " + file.Name(), "renamed: " + dir}; err != nil || !slices.Equal(flushed, want) {
		t.Errorf("flushed %q, %v; want %q", flushed, err, want)
	}

	for _, broken := range []string{"the file", "the folder"} {
		file := create()
		err := renameFile(file, final, func(of *os.File) error {
			if (of == file) == (broken == "the file") {
				return errMedium
			}

			return nil
		})

		if !errors.Is(err, errMedium) {
			t.Errorf("%s cannot be flushed: got %v", broken, err)
		}
	}
}
