package disk_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/disk"
)

// stored is the number of bytes that a file takes up on its medium.
func stored(t *testing.T, file string) int64 {
	t.Helper()

	var info unix.Stat_t
	if err := unix.Stat(file, &info); err != nil {
		t.Fatal(err)
	}

	return info.Blocks * 512
}

// QEMU's own program finds nothing wrong with the QCOW2 file, and the same disk in it.
func TestQCOW2(t *testing.T) {
	t.Parallel()

	for name, options := range map[string]disk.Options{
		"512":             {Sizes: small()},
		"4096":            {SectorSize: sector4K},
		"several tables":  {Sizes: disk.Sizes{Disk: 3 << 30, ESP: 64 * mib}},
		"many refcounts":  {Sizes: disk.Sizes{Disk: 1 << 42, ESP: 64 * mib}},
		"odd last table":  {Sizes: disk.Sizes{Disk: 513 * mib, ESP: 64 * mib}},
		"last table full": {Sizes: disk.Sizes{Disk: 512 * mib, ESP: 64 * mib}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			image := build(t, "amd64", usrContents())
			raw, rawResult := create(t, image, options)

			options.Format = disk.FormatQCOW2
			packed, result := create(t, image, options)

			if out := run(t, "qemu-img", "check", packed); !strings.Contains(out, "No errors were found") {
				t.Errorf("qemu-img check: %s", out)
			}

			if out := run(t, "qemu-img", "compare", "-f", "raw", "-F", "qcow2", raw, packed); !strings.Contains(out, "identical") {
				t.Errorf("qemu-img compare: %s", out)
			}

			if result.Size != rawResult.Size || result.GUID != rawResult.GUID || result.Format != disk.FormatQCOW2 {
				t.Errorf("got %+v, the raw disk is %+v", result, rawResult)
			}

			info, err := os.Stat(packed)
			if err != nil || info.Size() > 40*mib || info.Mode().Perm() != 0o644 {
				t.Errorf("the file has %d bytes and mode %s, %v", info.Size(), info.Mode(), err)
			}

			checkInfo(t, packed, result)
		})
	}
}

// checkInfo makes sure that the file uses nothing that Ironic refuses, such as a backing file.
func checkInfo(t *testing.T, file string, result disk.Result) {
	t.Helper()

	var info struct {
		Size     int64  `json:"virtual-size"`
		Backing  string `json:"backing-filename"`
		Specific struct {
			Data struct {
				Compat   string `json:"compat"`
				Corrupt  bool   `json:"corrupt"`
				DataFile string `json:"data-file"`
			} `json:"data"`
		} `json:"format-specific"`
	}

	if err := json.Unmarshal([]byte(run(t, "qemu-img", "info", "--output=json", file)), &info); err != nil {
		t.Fatal(err)
	}

	if data := info.Specific.Data; info.Size != result.Size || info.Backing != "" || data.DataFile != "" ||
		data.Corrupt || data.Compat != "1.1" {
		t.Errorf("qemu-img info: %+v", info)
	}
}

// What Ironic does with a QCOW2 image, and that it comes out the same.
func TestQCOW2ConvertsBack(t *testing.T) {
	t.Parallel()

	image := build(t, "amd64", usrContents())
	raw, _ := create(t, image, disk.Options{Sizes: small()})
	packed, _ := create(t, image, disk.Options{Sizes: small(), Format: disk.FormatQCOW2})
	back := filepath.Join(t.TempDir(), "back.raw")

	run(t, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", packed, back)
	run(t, "cmp", raw, back)
}

func TestQCOW2IsReproducible(t *testing.T) {
	t.Parallel()

	image := build(t, "amd64", usrContents())
	options := disk.Options{Sizes: small(), Format: disk.FormatQCOW2}
	first, _ := create(t, image, options)
	second, _ := create(t, image, options)

	run(t, "cmp", first, second)
}

func TestSparse(t *testing.T) {
	t.Parallel()

	const room = 48 * mib

	image := build(t, "amd64", usrContents())

	for _, format := range disk.Formats() {
		file, _ := create(t, image, disk.Options{Sizes: disk.Sizes{Disk: 100 << 30, ESP: 64 * mib}, Format: format})
		if got := stored(t, file); got > room {
			t.Errorf("%s: the file takes up %d MiB", format, got/mib)
		}
	}
}

func TestChecksum(t *testing.T) {
	t.Parallel()

	image := build(t, "amd64", usrContents())

	for _, format := range disk.Formats() {
		t.Run(string(format), func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			file := filepath.Join(dir, "node.img")
			options := disk.Options{Sizes: small(), Format: format, Checksum: true}

			result, err := disk.Create(t.Context(), image, file, options)
			if err != nil {
				t.Fatal(err)
			}

			run(t, "sh", "-c", "cd "+dir+" && sha256sum -c node.img.sha256")

			line, err := os.ReadFile(file + disk.ChecksumSuffix)
			if err != nil || string(line) != result.SHA256+"  node.img\n" {
				t.Errorf("the checksum file has %q, the result %s, %v", line, result.SHA256, err)
			}

			// A disk without a checksum does not keep the old one's.
			options.Checksum, options.Seed = false, "other"

			if _, err := disk.Create(t.Context(), image, file, options); err != nil {
				t.Fatal(err)
			}

			if names := namesIn(t, dir); names != "node.img" {
				t.Errorf("the folder has %s", names)
			}
		})
	}
}

func namesIn(t *testing.T, dir string) string {
	t.Helper()

	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}

	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}

	return strings.Join(names, " ")
}

func TestBrokenRequests(t *testing.T) {
	t.Parallel()

	image := build(t, "amd64", usrContents())
	folder := t.TempDir()

	for name, test := range map[string]struct {
		file    string
		options disk.Options
		kind    error
		says    string
	}{
		"unknown format":     {"disk", disk.Options{Format: "vmdk"}, osimage.ErrInvalid, "use raw or qcow2"},
		"sector of 520":      {"disk", disk.Options{SectorSize: 520}, osimage.ErrInvalid, "logical_block_size"},
		"negative sector":    {"disk", disk.Options{SectorSize: -512}, osimage.ErrInvalid, "--sector-size -512"},
		"disk too small":     {"disk", disk.Options{Sizes: disk.Sizes{Disk: 100 * mib}}, osimage.ErrTooLarge, "--disk-size"},
		"ESP for FAT32":      {"disk", disk.Options{SectorSize: sector4K, Sizes: disk.Sizes{ESP: 100 * mib}}, osimage.ErrTooLarge, "260 MiB"},
		"slot too small":     {"disk", disk.Options{Sizes: disk.Sizes{Slot: 5 * mib}}, osimage.ErrTooLarge, "--slot-size"},
		"a folder":           {".", disk.Options{}, osimage.ErrInvalid, "not a regular file"},
		"a device":           {"/dev/null", disk.Options{}, osimage.ErrInvalid, "not a regular file"},
		"no such folder":     {"absent/disk", disk.Options{}, osimage.ErrInvalid, "there is no folder"},
		"not writable":       {"/sys/kernel/disk", disk.Options{}, osimage.ErrInvalid, "no file can be made in /sys/kernel"},
		"not writable qcow2": {"/sys/kernel/disk", disk.Options{Format: disk.FormatQCOW2}, osimage.ErrInvalid, "no file can be made"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			file := test.file
			if !filepath.IsAbs(file) {
				file = filepath.Join(folder, file)
			}

			_, err := disk.Create(t.Context(), image, file, test.options)
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want %v that says %q", err, test.kind, test.says)
			}
		})
	}

	t.Cleanup(func() {
		if names := namesIn(t, folder); names != "" {
			t.Errorf("left behind: %s", names)
		}
	})
}

// The vendors' machines boot from the vendors' disks, and the error says which.
func TestSchemesOfOthers(t *testing.T) {
	t.Parallel()

	usr := usrContents()

	for scheme, test := range map[string]struct {
		spec     osimage.BuildSpec
		contents map[osimage.Role][]byte
		says     string
	}{
		osimage.SchemeGPTPrio: {
			osimage.BuildSpec{Name: "flatcar", Version: "4230.2.1", RootHash: rootHash},
			map[osimage.Role][]byte{osimage.RoleUSR: usr[osimage.RoleUSR], osimage.RoleKernel: usr[osimage.RoleUKI]},
			"flatcar_production_image.bin",
		},
		osimage.SchemeUKI: {
			osimage.BuildSpec{Name: "gardenlinux", Version: "1877.3.0"},
			map[osimage.Role][]byte{osimage.RoleUKI: usr[osimage.RoleUKI]},
			"Garden Linux's .raw",
		},
	} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()

			test.spec.Scheme, test.spec.Architecture = scheme, "amd64"
			image, _ := buildSpec(t, test.contents, test.spec)
			dir := t.TempDir()

			_, err := disk.Create(t.Context(), image, filepath.Join(dir, "disk"), disk.Options{})
			if !errors.Is(err, osimage.ErrInvalid) || !strings.Contains(err.Error(), test.says) ||
				!strings.Contains(err.Error(), "image publish --disk") {
				t.Errorf("got %v", err)
			}

			if names := namesIn(t, dir); names != "" {
				t.Errorf("left behind: %s", names)
			}
		})
	}
}
