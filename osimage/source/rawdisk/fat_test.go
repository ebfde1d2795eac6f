package rawdisk_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source/rawdisk"
)

func run(tb testing.TB, name string, args ...string) {
	tb.Helper()

	if out, err := exec.CommandContext(tb.Context(), name, args...).CombinedOutput(); err != nil {
		tb.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func pattern(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}

	return data
}

// fat makes a file system with dosfstools and mtools. Files are written so that vmlinuz-a lies in two pieces.
func fat(tb testing.TB, bits string, size int64, content []byte) []byte {
	tb.Helper()

	dir := tb.TempDir()
	image, gap, kernel := filepath.Join(dir, "fat"), filepath.Join(dir, "gap"), filepath.Join(dir, "kernel")

	for file, data := range map[string][]byte{image: nil, gap: make([]byte, 3000), kernel: content} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			tb.Fatal(err)
		}
	}

	if err := os.Truncate(image, size); err != nil {
		tb.Fatal(err)
	}

	run(tb, "mkfs.fat", "-F", bits, "-s", "1", "-n", "EFI-SYSTEM", image)
	run(tb, "mmd", "-i", image, "::/flatcar", "::/EFI")
	run(tb, "mcopy", "-i", image, gap, "::/flatcar/gap")
	run(tb, "mcopy", "-i", image, gap, "::/flatcar/a rather long name that needs several entries.txt")
	run(tb, "mdel", "-i", image, "::/flatcar/gap")
	run(tb, "mcopy", "-i", image, kernel, "::/flatcar/vmlinuz-a")
	run(tb, "mcopy", "-i", image, gap, "::/EFI/SHORT.EFI")

	data, err := os.ReadFile(image)
	if err != nil {
		tb.Fatal(err)
	}

	return data
}

func open(data []byte) (*rawdisk.FAT, error) {
	return rawdisk.OpenFAT(io.NewSectionReader(bytes.NewReader(data), 0, int64(len(data))), "EFI-SYSTEM of image.bin")
}

func TestFAT(t *testing.T) {
	t.Parallel()

	content := pattern(20_001)

	for bits, size := range map[string]int64{"32": 40 * mib, "16": 4 * mib} {
		system, err := open(fat(t, bits, size, content))
		if err != nil {
			t.Fatal(err)
		}

		for _, path := range []string{"/flatcar/vmlinuz-a", "flatcar/VMLINUZ-A", "/FLATCAR/VMLINU~1", "//flatcar//vmlinuz-a"} {
			file, err := system.Open(path, mib)
			if err != nil {
				t.Fatalf("FAT%s: %s: %v", bits, path, err)
			}

			if file.Size() != int64(len(content)) {
				t.Fatalf("FAT%s: %s has %d bytes", bits, path, file.Size())
			}

			if err := iotest.TestReader(io.NewSectionReader(file, 0, file.Size()), content); err != nil {
				t.Errorf("FAT%s: %s: %v", bits, path, err)
			}
		}

		for _, path := range []string{
			"/flatcar/a rather long name that needs several entries.txt", "/efi/short.efi",
		} {
			if file, err := system.Open(path, mib); err != nil || file.Size() != 3000 {
				t.Errorf("FAT%s: %s: %v", bits, path, err)
			}
		}

		for _, path := range []string{
			"/flatcar", "/coreos/vmlinuz-a", "/flatcar/vmlinuz-b", "/flatcar/gap", "/flatcar/vmlinuz-a/x", "/", "/EFI-SYSTEM",
		} {
			if _, err := system.Open(path, mib); !errors.Is(err, osimage.ErrNotFound) {
				t.Errorf("FAT%s: %s: %v", bits, path, err)
			}
		}

		for path, want := range map[string]string{
			"/flatcar": "[a rather long name that needs several entries.txt vmlinuz-a]", "/efi/": "[SHORT.EFI]", "": "[]", "/": "[]",
		} {
			if names, err := system.List(path); err != nil || fmt.Sprint(names) != want {
				t.Errorf("FAT%s: %s has %v, %v", bits, path, names, err)
			}
		}

		for _, path := range []string{"/coreos", "/flatcar/vmlinuz-a"} {
			if _, err := system.List(path); !errors.Is(err, osimage.ErrNotFound) {
				t.Errorf("FAT%s: %s: %v", bits, path, err)
			}
		}

		if _, err := system.Open("/flatcar/vmlinuz-a", 20_000); !errors.Is(err, osimage.ErrTooLarge) {
			t.Errorf("FAT%s: %v", bits, err)
		}
	}
}

func TestFATRefuses(t *testing.T) {
	t.Parallel()

	good := fat(t, "16", 4*mib, pattern(20_001))
	table := int(binary.LittleEndian.Uint16(good[14:])) * 512

	for name, test := range map[string]struct {
		change func(data []byte)
		says   string
	}{
		"signature":         {func(d []byte) { d[510] = 0 }, "offset 510"},
		"sector of 0":       {func(d []byte) { d[11], d[12] = 0, 0 }, "offset 11"},
		"odd sector":        {func(d []byte) { d[11], d[12] = 1, 2 }, "offset 11"},
		"cluster of 0":      {func(d []byte) { d[13] = 0 }, "offset 13"},
		"odd cluster":       {func(d []byte) { d[13] = 3 }, "offset 13"},
		"no table":          {func(d []byte) { d[16] = 0 }, "0 tables"},
		"no table sectors":  {func(d []byte) { d[22], d[23] = 0, 0 }, "no room"},
		"longer than it is": {func(d []byte) { d[19], d[20] = 0xff, 0xff }, "its partition"},
		"no room":           {func(d []byte) { d[19], d[20] = 8, 0 }, "no room"},
		"FAT12":             {func(d []byte) { d[19], d[20] = 0, 2 }, "neither FAT16 nor FAT32"},
		"chain in itself":   {func(d []byte) { loop(d[table:]) }, ""},
		"chain to nowhere":  {func(d []byte) { fill(d[table:], 0xfff0) }, "continues in cluster 65520"},
		"chain to 0":        {func(d []byte) { fill(d[table:], 0) }, "continues in cluster 0"},
		"chain ends early":  {func(d []byte) { fill(d[table:], 0xffff) }, "its clusters 512"},
	} {
		data := bytes.Clone(good)
		test.change(data)

		system, err := open(data)
		if err == nil {
			_, err = system.Open("/flatcar/vmlinuz-a", mib)
		}

		switch {
		case test.says == "" && err != nil:
			// A chain that ends in itself is cut at the file's size. That it ended is what is tested.
			t.Errorf("%s: %v", name, err)
		case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
			t.Errorf("%s: got %v, want %q", name, err, test.says)
		}
	}
}

// A long name belongs to the short name that it was made for. A program that knows no long names renames only that.
func TestFATStaleLongName(t *testing.T) {
	t.Parallel()

	data := bytes.ReplaceAll(fat(t, "16", 4*mib, pattern(5000)), []byte("VMLINU~1"), []byte("OTHER~1 "))

	system, err := open(data)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := system.Open("/flatcar/vmlinuz-a", mib); !errors.Is(err, osimage.ErrNotFound) {
		t.Errorf("got %v", err)
	}

	if file, err := system.Open("/flatcar/other~1", mib); err != nil || file.Size() != 5000 {
		t.Errorf("got %v", err)
	}
}

// loop makes every cluster its own successor.
func loop(table []byte) {
	for cluster := range 8000 {
		binary.LittleEndian.PutUint16(table[2*cluster:], uint16(cluster))
	}
}

func fill(table []byte, value uint16) {
	for cluster := range 8000 {
		binary.LittleEndian.PutUint16(table[2*cluster:], value)
	}
}

// patch is a change of some bytes.
type patch struct {
	at   int64
	data []byte
}

// patched reads a medium with changes, without a copy of it.
type patched struct {
	io.ReaderAt

	patches []patch
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

// FuzzFAT changes some bytes of real file systems, so that it comes behind the boot sector.
func FuzzFAT(f *testing.F) {
	systems := map[bool][]byte{false: fat(f, "16", 4*mib, pattern(5000)), true: fat(f, "32", 40*mib, pattern(5000))}

	for wide := range systems {
		f.Add(wide, uint32(13), []byte{0}, uint32(22), []byte{255, 255})
		f.Add(wide, uint32(0x4000), []byte{0xff, 0xff, 0xff, 0xff}, uint32(0x6000), []byte{3, 0, 3, 0})
	}

	f.Fuzz(func(t *testing.T, wide bool, at uint32, change []byte, at2 uint32, change2 []byte) {
		data := systems[wide]
		medium := patched{bytes.NewReader(data), []patch{{int64(at) % mib, change}, {int64(at2) % mib, change2}}}

		system, err := rawdisk.OpenFAT(io.NewSectionReader(medium, 0, int64(len(data))), "fuzz")
		if err != nil {
			return
		}

		file, err := system.Open("/flatcar/vmlinuz-a", mib)
		if err != nil {
			return
		}

		got, err := io.ReadAll(io.NewSectionReader(file, 0, file.Size()))
		if err == nil && int64(len(got)) != file.Size() {
			t.Errorf("%d bytes of %d", len(got), file.Size())
		}
	})
}
