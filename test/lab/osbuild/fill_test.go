package osbuild

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fillSource is a folder with 2 MiB in 64 files and a link.
func fillSource(t *testing.T) string {
	t.Helper()

	root := t.TempDir()
	for number := range 64 {
		name := filepath.Join(root, fmt.Sprintf("file-%02d", number))
		if err := os.WriteFile(name, make([]byte, 32<<10-number), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	if err := os.Symlink("file-00", filepath.Join(root, "a-link")); err != nil {
		t.Fatal(err)
	}

	return root
}

func TestFill(t *testing.T) {
	t.Parallel()

	root := fillSource(t)
	trees := map[string]tree{}

	for _, version := range []string{"1.1.0", "1.2.0"} {
		files := tree{}
		files.addFile("lib/os-release", modeFile, "here before")

		if err := files.fill(root, Variant{Version: version, FillMiB: 1}); err != nil {
			t.Fatal(err)
		}

		if size := files.bytes(); size < 1<<20 || size > 1<<20+32<<10 {
			t.Errorf("%s: %d bytes, want a MiB and at most one file more", version, size)
		}

		for name, found := range files {
			if strings.HasPrefix(name, fillFolder+"/") && (found.mode != modeFile || found.uid != 0) {
				t.Errorf("%s: %s has mode %s and owner %d", version, name, found.mode, found.uid)
			}
		}

		trees[version] = files
	}

	shared := 0

	for name := range trees["1.1.0"] {
		if _, both := trees["1.2.0"][name]; both {
			shared++
		}
	}

	if few := len(trees["1.1.0"]) / 2; shared < few || shared == len(trees["1.1.0"]) {
		t.Errorf("two versions share %d of %d files, want most but not all", shared, len(trees["1.1.0"]))
	}
}

func TestFillLeavesTheTreeAlone(t *testing.T) {
	t.Parallel()

	files := tree{}
	if err := files.fill(fillSource(t), Variant{Version: "1.1.0"}); err != nil || len(files) > 0 {
		t.Errorf("%d files, %v; want none", len(files), err)
	}
}

func TestFillWithTooFewFiles(t *testing.T) {
	t.Parallel()

	if err := (tree{}).fill(fillSource(t), Variant{Version: "1.1.0", FillMiB: 3}); !errors.Is(err, errFill) {
		t.Errorf("got %v, want %v", err, errFill)
	}
}
