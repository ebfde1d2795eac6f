package chunk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// What the program compresses is cut as the built-in encoder's, is read the same way, and is smaller.
func TestProgram(t *testing.T) {
	t.Parallel()

	data := sources(t)

	for _, level := range []int{LeastLevel, 19, GreatestLevel} {
		program, err := FindProgram(level)
		if err != nil {
			t.Fatal(err)
		}

		want, got := encode(t, data, Options{Params: anywhere()}), encode(t, data, Options{Params: anywhere(), Program: program, Concurrency: 3})
		if !bytes.Equal(unpacked(t, got.layer), data) {
			t.Fatalf("level %d: the layer is not the content", level)
		}

		if got.index.Frames() != want.index.Frames() || got.RawDigest != want.RawDigest {
			t.Errorf("level %d: %d frames of %s, want %d of %s", level, got.index.Frames(), got.RawDigest, want.index.Frames(), want.RawDigest)
		}

		for number := range got.index.Frames() {
			frame := got.index.Frame(number)

			var header zstd.Header
			if err := header.Decode(got.layer[frame.Offset:]); err != nil || !header.SingleSegment ||
				header.FrameContentSize != uint64(frame.RawLength) {
				t.Fatalf("level %d: frame %d has the header %+v, %v", level, number, header, err)
			}
		}

		if level > LeastLevel && got.Size >= want.Size {
			t.Errorf("level %d: %d bytes, the fastest built-in encoder makes %d", level, got.Size, want.Size)
		}
	}
}

// sources are the files of this package: something that compresses.
func sources(t *testing.T) []byte {
	t.Helper()

	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}

	var all []byte

	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}

		all = append(all, data...)
	}

	return all
}

func TestProgramsThatAreOfNoUse(t *testing.T) {
	for _, level := range []int{-1, 0, 23} {
		if _, err := FindProgram(level); !errors.Is(err, ErrLevel) {
			t.Errorf("level %d: %v", level, err)
		}
	}

	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))

	for name, script := range map[string]string{
		"fails":           "echo 'no space' >&2; exit 1",
		"makes no frame":  "cat",
		"makes nothing":   "cat > /dev/null",
		"makes another":   "cat > /dev/null; printf '\\050\\265\\057\\375\\040\\000\\001\\000\\000'", // a frame without a byte
		"does not listen": "exit 0",
	} {
		path := filepath.Join(dir, zstdProgram)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}

		program, err := FindProgram(19)
		if err != nil {
			t.Fatal(err)
		}

		_, err = Encode(t.Context(), bytes.NewReader(golden()), &bytes.Buffer{}, Options{Params: anywhere(), Program: program, Concurrency: 2})
		if !errors.Is(err, ErrProgram) {
			t.Errorf("a program that %s: %v", name, err)
		}
	}

	t.Setenv("PATH", t.TempDir())

	if _, err := FindProgram(19); !errors.Is(err, ErrNoProgram) {
		t.Errorf("without the program: %v", err)
	}
}
