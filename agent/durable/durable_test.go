package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stayput-dev/stayput/agent/durable"
)

func TestWriteFileReplaces(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "made", "when", "missing", "file")

	for _, content := range []string{"first, and longer", "second"} {
		if err := durable.WriteFile(path, []byte(content)); err != nil {
			t.Fatal(err)
		}

		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("got %q, %v; want %q", got, err, content)
		}
	}

	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v; want that only its owner can read it", info.Mode(), err)
	}

	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("the folder holds %v, %v; want the file alone", left, err)
	}
}

func TestWriteFileThatFailsLeavesTheOldContents(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := durable.WriteFile(filepath.Join(dir, "file", "below"), []byte("new")); err == nil {
		t.Error("a file was made below a file")
	}

	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != "old" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "file")
	if err := durable.WriteFile(path, []byte("x")); err != nil {
		t.Fatal(err)
	}

	for _, again := range []bool{false, true} {
		if err := durable.Remove(path); err != nil {
			t.Errorf("again %v: %v", again, err)
		}
	}

	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}

	if err := durable.Remove(filepath.Join(t.TempDir(), "missing", "file")); err != nil {
		t.Errorf("in a folder that is missing: %v", err)
	}
}
