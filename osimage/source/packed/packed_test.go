package packed_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source/packed"
)

// holes is random bytes with 4 MiB of zeros between them.
func holes() []byte {
	content := make([]byte, 300<<10)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(content) // never fails

	return append(append(bytes.Clone(content), make([]byte, 4<<20)...), content[:1234]...)
}

// compress lets the real programs do it.
func compress(tb testing.TB, format packed.Format, content []byte) []byte {
	tb.Helper()

	if format == packed.None {
		return content
	}

	command := exec.CommandContext(tb.Context(), string(format), "-c")
	command.Stdin = bytes.NewReader(content)

	out, err := command.Output()
	if err != nil {
		tb.Fatalf("%s: %v", format, err)
	}

	return out
}

func write(tb testing.TB, content []byte) string {
	tb.Helper()

	path := filepath.Join(tb.TempDir(), "artifact")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		tb.Fatal(err)
	}

	return path
}

func formats() []packed.Format {
	return []packed.Format{packed.None, packed.Bzip2, packed.Gzip, packed.XZ, packed.Zstd}
}

func TestOpen(t *testing.T) {
	t.Parallel()

	content := holes()

	for _, format := range formats() {
		temp := t.TempDir()
		artifact := compress(t, format, content)

		var done, total int64

		file, err := packed.Open(t.Context(), write(t, artifact), packed.Options{
			TempDir: temp, Limit: int64(len(content)), Progress: func(d, t int64) { done, total = d, t },
		})
		if err != nil {
			t.Fatalf("%s: %v", format, err)
		}

		if file.Format != format || file.Size != int64(len(content)) {
			t.Errorf("%s: %+v", format, file)
		}

		if want := int64(len(artifact)); format != packed.None && (done != want || total != want) {
			t.Errorf("%s: progress %d of %d, want %d", format, done, total, want)
		}

		if left, _ := os.ReadDir(temp); len(left) > 0 {
			t.Errorf("%s: %v is in the temporary folder", format, left)
		}

		body, err := file.Input("all", 0, file.Size).Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}

		if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: other bytes, %v", format, err)
		}

		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenRanges(t *testing.T) {
	t.Parallel()

	content := holes()
	end := int64(len(content))

	for _, format := range formats() {
		path := write(t, compress(t, format, content))
		temp := t.TempDir()

		file, err := packed.OpenRanges(t.Context(), path, 1000, func(head []byte) ([]packed.Range, error) {
			if !bytes.Equal(head, content[:1000]) {
				t.Errorf("%s: the head has %d bytes, or others", format, len(head))
			}

			return []packed.Range{{end - 1234, 34}, {500, 1000}}, nil
		}, packed.Options{TempDir: temp, Limit: end})
		if err != nil {
			t.Fatalf("%s: %v", format, err)
		}

		want, size := bytes.Clone(content), end
		if format != packed.None {
			clear(want[:500])
			clear(want[1500 : end-1234])

			want, size = want[:end-1200], end-1200
		}

		if got, err := io.ReadAll(io.NewSectionReader(file, 0, file.Size)); err != nil || file.Size != size || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, or others, %v", format, file.Size, err)
		}

		if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %v, %v", format, left, err)
		}

		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenRangesRefuses(t *testing.T) {
	t.Parallel()

	content := holes()
	end := int64(len(content))
	whole := compress(t, packed.Gzip, content)

	for name, test := range map[string]struct {
		artifact []byte
		ranges   []packed.Range
		err      error
		kind     error
	}{
		"overlapping":        {whole, []packed.Range{{0, 100}, {99, 1}}, nil, osimage.ErrInvalid},
		"behind the limit":   {whole, []packed.Range{{2 * end, 1}}, nil, osimage.ErrInvalid},
		"far behind it":      {whole, []packed.Range{{1<<63 - 1, 1<<63 - 1}}, nil, osimage.ErrInvalid},
		"longer than it is":  {whole, []packed.Range{{end - 10, 11}}, nil, osimage.ErrTruncated},
		"begins behind it":   {whole, []packed.Range{{end + 1, 1}}, nil, osimage.ErrTruncated},
		"cut off":            {whole[:len(whole)/2], []packed.Range{{end - 10, 10}}, nil, osimage.ErrTruncated},
		"cut off in a part":  {whole[:len(whole)/2], []packed.Range{{0, end}}, nil, osimage.ErrTruncated},
		"nothing is chosen":  {whole, nil, context.Canceled, context.Canceled},
		"cut off before all": {whole[:12], nil, nil, osimage.ErrTruncated},
	} {
		_, err := packed.OpenRanges(t.Context(), write(t, test.artifact), 10,
			func([]byte) ([]packed.Range, error) { return test.ranges, test.err }, packed.Options{TempDir: t.TempDir(), Limit: end + 10})
		if !errors.Is(err, test.kind) || errors.Is(err, os.ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestHead(t *testing.T) {
	t.Parallel()

	content := holes()

	for _, format := range formats() {
		artifact := compress(t, format, content)

		// A part of the file is enough.
		for _, part := range [][]byte{artifact, artifact[:len(artifact)-1]} {
			head, got, err := packed.Head(write(t, part), 1000)
			if err != nil || got != format || !bytes.Equal(head, content[:1000]) {
				t.Errorf("%s: %s, %d bytes, %v", format, got, len(head), err)
			}
		}

		if head, _, err := packed.Head(write(t, compress(t, format, []byte("abc"))), 1000); err != nil || string(head) != "abc" {
			t.Errorf("%s: %q, %v", format, head, err)
		}
	}

	if head, _, err := packed.Head(write(t, nil), 10); err != nil || len(head) != 0 {
		t.Errorf("an empty file: %q, %v", head, err)
	}
}

func TestBroken(t *testing.T) {
	t.Parallel()

	content := holes()

	for _, format := range formats()[1:] {
		artifact := compress(t, format, content)
		damaged := bytes.Clone(artifact)
		damaged[len(damaged)/3] ^= 0x55

		for name, test := range map[string]struct {
			artifact []byte
			limit    int64
			kind     error
		}{
			"cut by a byte":  {artifact[:len(artifact)-1], 1 << 30, nil},
			"cut in half":    {artifact[:len(artifact)/2], 1 << 30, nil},
			"another byte":   {damaged, 1 << 30, nil},
			"only the magic": {artifact[:10], 1 << 30, nil},
			"too large":      {artifact, int64(len(content)) - 1, osimage.ErrTooLarge},
		} {
			_, err := packed.Open(t.Context(), write(t, test.artifact), packed.Options{TempDir: t.TempDir(), Limit: test.limit})

			problem, ok := errors.AsType[*osimage.Error](err)
			if !ok || problem.Fix == "" || test.kind != nil && !errors.Is(err, test.kind) {
				t.Errorf("%s, %s: %v, want %v", format, name, err, test.kind)
			}
		}
	}
}

// What asks for more memory than anything real does is refused.
func TestLargeWindows(t *testing.T) {
	t.Parallel()

	for program, args := range map[string][]string{
		"zstd": {"-c", "-1", "--long=31"},
		"xz":   {"-c", "--lzma2=preset=0,dict=512MiB"},
	} {
		command := exec.CommandContext(t.Context(), program, args...)
		command.Stdin = bytes.NewReader(holes())

		// A stream of unknown size keeps the window that was asked for.
		out, err := command.Output()
		if err != nil {
			t.Fatalf("%s: %v", program, err)
		}

		_, err = packed.Open(t.Context(), write(t, out), packed.Options{TempDir: t.TempDir(), Limit: 1 << 30})
		if !errors.Is(err, osimage.ErrInvalid) {
			t.Errorf("%s: %v", program, err)
		}
	}
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	t.Parallel()

	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}

	reading, err := os.OpenFile(pipe, os.O_RDWR, 0) // so that opening it to read does not wait
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = reading.Close() }()

	for _, path := range []string{"/dev/null", t.TempDir(), pipe} {
		if _, err := packed.Open(t.Context(), path, packed.Options{}); err == nil || !strings.Contains(err.Error(), "regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}

	if _, _, err := packed.Head(filepath.Join(t.TempDir(), "none"), 1); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestOpenStops(t *testing.T) {
	t.Parallel()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	for _, format := range formats()[1:] {
		_, err := packed.Open(ctx, write(t, compress(t, format, holes())), packed.Options{TempDir: t.TempDir(), Limit: 1 << 30})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", format, err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	for _, format := range formats() {
		f.Add(compress(f, format, []byte(strings.Repeat("some text ", 100))))
		f.Add(compress(f, format, nil))
	}

	dir := f.TempDir()

	f.Fuzz(func(t *testing.T, artifact []byte) {
		path := filepath.Join(dir, "artifact")
		if err := os.WriteFile(path, artifact, 0o600); err != nil {
			t.Fatal(err)
		}

		head, _, headErr := packed.Head(path, 100)

		file, err := packed.Open(t.Context(), path, packed.Options{TempDir: dir, Limit: 1 << 20})
		if err != nil {
			return
		}

		start := make([]byte, min(100, file.Size))
		if _, err := file.ReadAt(start, 0); err != nil || headErr != nil || !bytes.Equal(start, head) {
			t.Errorf("%q, %v; the head is %q, %v", start, err, head, headErr)
		}

		if err := file.Close(); err != nil {
			t.Error(err)
		}
	})
}
