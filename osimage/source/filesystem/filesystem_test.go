package filesystem_test

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/stayput-dev/stayput/osimage/source/filesystem"
)

const mib = 1 << 20

// tree makes a folder like /usr, with many files, so that directories and trees have more than one block.
func tree(tb testing.TB) string {
	tb.Helper()

	dir := tb.TempDir()
	files := map[string][]byte{
		"lib64/os-release": []byte("ID=flatcar\nVERSION_ID=4459.2.1\n"),
		"share/large":      bytes.Repeat([]byte("0123456789abcdef"), 6000),
		"lib64/sub/one":    []byte("1"),
		"lib64/empty":      nil,
	}

	for index := range 600 {
		files[filepath.Join("lib64", strings.Repeat("x", 40)+string(rune('a'+index%26))+string(rune('a'+index/26)))] = []byte("filler")
	}

	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			tb.Fatal(err)
		}

		if err := os.WriteFile(path, content, 0o644); err != nil {
			tb.Fatal(err)
		}
	}

	for name, target := range map[string]string{
		"lib": "lib64", "share/up": "../lib/sub/../os-release", "share/root": "/lib/os-release", "share/loop": "loop",
		"share/long": strings.Repeat("../share/", 20) + "large", "share/dangling": "nothing",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			tb.Fatal(err)
		}
	}

	return dir
}

// makers make an image of a folder, each another kind.
func makers() map[string][]string {
	return map[string][]string{
		"ext4":          {"mkfs.ext4", "-q", "-d", "DIR", "-O", "^has_journal", "IMAGE"},
		"ext4 1k":       {"mkfs.ext4", "-q", "-b", "1024", "-d", "DIR", "IMAGE"},
		"ext2":          {"mke2fs", "-q", "-t", "ext2", "-b", "4096", "-d", "DIR", "IMAGE"},
		"ext2 1k":       {"mke2fs", "-q", "-t", "ext2", "-b", "1024", "-d", "DIR", "IMAGE"},
		"btrfs mixed":   {"mkfs.btrfs", "-q", "--mixed", "-m", "single", "-d", "single", "--rootdir", "DIR", "IMAGE"},
		"btrfs":         {"mkfs.btrfs", "-q", "--rootdir", "DIR", "IMAGE"},
		"btrfs 8k node": {"mkfs.btrfs", "-q", "-n", "8192", "-m", "dup", "--rootdir", "DIR", "IMAGE"},
	}
}

func image(tb testing.TB, maker []string, dir string, size int64) []byte {
	tb.Helper()

	file := filepath.Join(tb.TempDir(), "image")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		tb.Fatal(err)
	}

	if err := os.Truncate(file, size); err != nil {
		tb.Fatal(err)
	}

	args := make([]string, len(maker))
	for index, arg := range maker {
		args[index] = strings.NewReplacer("DIR", dir, "IMAGE", file).Replace(arg)
	}

	if out, err := exec.CommandContext(tb.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
		tb.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}

	data, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}

	return data
}

func TestReadFile(t *testing.T) {
	t.Parallel()

	dir := tree(t)

	release, err := os.ReadFile(filepath.Join(dir, "lib64/os-release"))
	if err != nil {
		t.Fatal(err)
	}

	for name, maker := range makers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			size := int64(24 * mib)
			if name != "btrfs mixed" && strings.HasPrefix(name, "btrfs") {
				size = 128 * mib // the least that it takes
			}

			data := image(t, maker, dir, size)
			reader := bytes.NewReader(data)

			kind, length, err := filesystem.Identify(reader)
			if err != nil || !strings.HasPrefix(name, kind) || length != size {
				t.Errorf("got %s of %d bytes, %v", kind, length, err)
			}

			for _, path := range []string{"/lib64/os-release", "lib/os-release", "/share/up", "/share/root", "//lib/./sub/../os-release"} {
				got, err := filesystem.ReadFile(reader, path, mib)
				if err != nil || !bytes.Equal(got, release) {
					t.Errorf("%s: got %q, %v", path, got, err)
				}
			}

			for _, path := range []string{"/share/large", "/share/long"} {
				got, err := filesystem.ReadFile(reader, path, mib)
				if err != nil || !bytes.Equal(got, bytes.Repeat([]byte("0123456789abcdef"), 6000)) {
					t.Errorf("%s: got %d bytes, %v", path, len(got), err)
				}
			}

			if got, err := filesystem.ReadFile(reader, "/lib/empty", mib); err != nil || len(got) != 0 {
				t.Errorf("the empty file has %d bytes, %v", len(got), err)
			}

			for _, path := range []string{"/lib/none", "/lib/os-release/x", "/lib", "/", "/share/dangling"} {
				if _, err := filesystem.ReadFile(reader, path, mib); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s: %v", path, err)
				}
			}

			for _, path := range []string{"/share/loop", "/share/large"} {
				if _, err := filesystem.ReadFile(reader, path, 1000); !errors.Is(err, filesystem.ErrBroken) {
					t.Errorf("%s: %v", path, err)
				}
			}
		})
	}
}

func TestUnknown(t *testing.T) {
	t.Parallel()

	for _, data := range [][]byte{nil, make([]byte, mib)} {
		if _, _, err := filesystem.Identify(bytes.NewReader(data)); !errors.Is(err, filesystem.ErrUnknown) {
			t.Errorf("got %v", err)
		}

		if _, err := filesystem.ReadFile(bytes.NewReader(data), "/x", mib); !errors.Is(err, filesystem.ErrUnknown) {
			t.Errorf("got %v", err)
		}
	}
}

// A tree that leads back to itself ends in an error, not in a walk without an end.
func TestBtrfsTreeInItself(t *testing.T) {
	t.Parallel()

	const nodeSize, header, pointer = 8192, 101, 33

	data := image(t, makers()["btrfs 8k node"], tree(t), 128*mib)
	id := data[0x10020:0x10030]
	changed := 0

	for at := 0x11000; at+nodeSize <= len(data); at += 4096 {
		node := data[at : at+nodeSize]
		if count := int(binary.LittleEndian.Uint32(node[0x60:])); bytes.Equal(node[0x20:0x30], id) && node[0x64] > 0 && count <= 200 {
			for index := range count {
				copy(node[header+index*pointer+17:], node[0x30:0x38])
			}

			changed++
		}
	}

	_, err := filesystem.ReadFile(bytes.NewReader(data), "/lib64/os-release", mib)
	if changed == 0 || !errors.Is(err, filesystem.ErrBroken) || !strings.Contains(err.Error(), "has level") {
		t.Errorf("got %v after changing %d nodes", err, changed)
	}
}

// patched reads a medium with changes, without a copy of it.
type patched struct {
	io.ReaderAt

	patches []patch
}

type patch struct {
	at   int64
	data []byte
}

func (p patched) ReadAt(buffer []byte, offset int64) (int, error) {
	count, err := p.ReaderAt.ReadAt(buffer, offset)

	for _, patch := range p.patches {
		if from := patch.at - offset; from < 0 && -from < int64(len(patch.data)) {
			copy(buffer[:count], patch.data[-from:])
		} else if from >= 0 && from < int64(count) {
			copy(buffer[from:count], patch.data)
		}
	}

	return count, err
}

// FuzzReadFile changes some bytes of real file systems.
func FuzzReadFile(f *testing.F) {
	dir := tree(f)

	systems := [][]byte{
		image(f, makers()["ext4"], dir, 24*mib), image(f, makers()["ext2 1k"], dir, 24*mib), image(f, makers()["btrfs mixed"], dir, 24*mib),
	}

	for index, data := range systems {
		for _, at := range []int64{0x404, 0x418, 0x458, 0x10094, 0x100a0, 0x1032b, int64(bytes.Index(data, []byte("os-release")))} {
			f.Add(uint8(index), uint32(at), []byte{0xff, 0xff, 0xff, 0xff}, uint32(at+4), []byte{0})
		}
	}

	f.Fuzz(func(t *testing.T, which uint8, at uint32, change []byte, at2 uint32, change2 []byte) {
		data := systems[int(which)%len(systems)]
		medium := patched{bytes.NewReader(data), []patch{{int64(at) % (24 * mib), change}, {int64(at2) % (24 * mib), change2}}}

		for _, path := range []string{"/share/up", "/share/large"} {
			if got, err := filesystem.ReadFile(medium, path, mib); err == nil && len(got) > mib {
				t.Errorf("%s has %d bytes", path, len(got))
			}
		}
	})
}

// mkfs does not compress, so what Flatcar's /usr has is put into the place of a small file's only extent. It is padded, as
// larger extents are.
func TestReadCompressedFile(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	want := bytes.Repeat([]byte("a line of os-release\n"), 50)

	if err := os.WriteFile(filepath.Join(dir, "os-release"), want, 0o600); err != nil {
		t.Fatal(err)
	}

	good := image(t, makers()["btrfs mixed"], dir, 24*mib)
	at := bytes.Index(good, want)

	var packed bytes.Buffer

	writer, err := zstd.NewWriter(&packed)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := writer.Write(want); err != nil || writer.Close() != nil {
		t.Fatal(err)
	}

	var deflated bytes.Buffer

	deflate := zlib.NewWriter(&deflated)
	if _, err := deflate.Write(want); err != nil || deflate.Close() != nil {
		t.Fatal(err)
	}

	for compression, stream := range map[byte][]byte{1: deflated.Bytes(), 3: packed.Bytes()} {
		data := bytes.Clone(good)
		clear(data[at : at+len(want)])
		copy(data[at:], stream)
		data[at-5] = compression

		got, err := filesystem.ReadFile(bytes.NewReader(data), "/os-release", mib)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("compression %d: got %q, %v", compression, got, err)
		}
	}

	for says, change := range map[string]func(data []byte){
		"compression 2":         func(d []byte) { d[at-5] = 2 },
		"encrypted":             func(d []byte) { d[at-4] = 1 },
		"unpacking an extent":   func(d []byte) { d[at-5] = 3 },
		"unpacks to 1073741824": func(d []byte) { d[at-5], d[at-10] = 3, 0x40; d[at-12], d[at-13] = 0, 0 },
	} {
		data := bytes.Clone(good)
		change(data)

		if _, err := filesystem.ReadFile(bytes.NewReader(data), "/os-release", mib); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}
