package flatcar

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
)

func TestReadDisk(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		architecture, system string
		spec                 diskSpec
		pack                 []string
	}{
		"amd64, btrfs":         {"amd64", "btrfs", diskSpec{}, nil},
		"arm64, ext4":          {"arm64", "ext4", diskSpec{}, nil},
		"sectors of 4096":      {"amd64", "btrfs", diskSpec{sector: 4096}, nil},
		"a disk of CoreOS":     {"amd64", "ext4", diskSpec{kernelPath: "/coreos/vmlinuz-a"}, nil},
		"bzip2":                {"amd64", "btrfs", diskSpec{}, []string{"bzip2", "-1"}},
		"gzip":                 {"amd64", "btrfs", diskSpec{}, []string{"gzip", "-1"}},
		"bzip2, sector 4096":   {"arm64", "btrfs", diskSpec{sector: 4096}, []string{"bzip2", "-1"}},
		"bzip2, many streams ": {"amd64", "ext4", diskSpec{}, []string{"split"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			from := makeRelease(t, test.architecture, test.system, goodRelease)
			disk := makeDisk(t, from, test.spec)
			disk = pack(t, disk, test.pack)
			temp := t.TempDir()

			var done, total int64

			parts, err := Read(t.Context(), disk, Options{Full: true, TempDir: temp, Progress: func(d, all int64) {
				if d < done || d > all {
					t.Errorf("progress %d after %d of %d", d, done, all)
				}

				done, total = d, all
			}})
			if err != nil {
				t.Fatal(err)
			}

			if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
				t.Errorf("left in the folder for temporary files: %v, %v", left, err)
			}

			if info, err := os.Stat(disk); err != nil || test.pack != nil && (total != info.Size() || done == 0) {
				t.Errorf("the progress was %d of %d bytes, %v", done, total, err)
			}

			if !noted(parts, "all of /usr was compared") || !noted(parts, ".DIGESTS") {
				t.Errorf("the notes are %q", parts.Notes)
			}

			check(t, parts, from, test.architecture)
		})
	}
}

// pack compresses a file; "split" as lbzip2 does, several streams after one another.
func pack(t *testing.T, file string, with []string) string {
	t.Helper()

	switch {
	case with == nil:
		return file
	case with[0] == "split":
		data := read(t, file)

		var packed []byte

		for part := range slices.Chunk(data, 40*mib) {
			piece := write(t, filepath.Join(t.TempDir(), "piece"), part)
			command(t, "bzip2", piece)

			packed = append(packed, read(t, piece+".bz2")...)
		}

		return write(t, file+".bz2", packed)
	default:
		command(t, with[0], append(with[1:], file)...)

		suffix := ".bz2"
		if with[0] == "gzip" {
			suffix = ".gz"
		}

		return file + suffix
	}
}

func TestReadDiskRefuses(t *testing.T) {
	t.Parallel()

	from := makeRelease(t, "amd64", "btrfs", goodRelease)
	other := makeRelease(t, "arm64", "btrfs", goodRelease)
	bare := makeRelease(t, "amd64", "btrfs", "")

	for name, test := range map[string]struct {
		release release
		spec    diskSpec
		change  func(disk []byte) []byte
		options Options
		kind    error
		says    string
	}{
		"no USR-A by type": {
			release: from,
			spec:    diskSpec{usrType: "0fc63daf-8483-4772-8e79-3d69d8477de4"},
			says:    `there are 1 "EFI-SYSTEM", 3 "USR-A"`,
		},
		"no USR-A by UUID": {
			release: from, spec: diskSpec{usrID: "0fc63daf-8483-4772-8e79-3d69d8477de4"}, says: "no partition is USR-A",
		},
		"no ESP":   {release: from, spec: diskSpec{noESP: true}, says: "no partition is an EFI system partition"},
		"two ESPs": {release: from, spec: diskSpec{secondESP: true}, says: "partitions 1 and 12 are both"},
		"no kernel": {
			release: from, spec: diskSpec{kernelPath: "/flatcar/vmlinuz-b"}, says: "has none of [/flatcar/vmlinuz-a",
		},
		"no disk": {
			release: from, change: func([]byte) []byte { return make([]byte, 4*mib) }, says: "no partition table",
		},
		"truncated": {
			from,
			diskSpec{},
			func(d []byte) []byte { return d[:len(d)-1] },
			Options{},
			osimage.ErrTruncated, "the partition table wants 75497472 bytes, the file has 75497471",
		},
		"an ESP that is none": {
			release: from, change: func(d []byte) []byte { clear(d[2*mib : 2*mib+512]); return d }, says: "partition 1 of",
		},
		"the kernel of another": {
			release: release{usr: from.usr, kernel: bare.kernel}, says: "do not belong together",
		},
		"another architecture": {
			release: release{usr: from.usr, kernel: makeKernel("arm64", from.rootHash)},
			says:    "/usr is for amd64-usr, the kernel for arm64",
		},
		"the /usr of another": {
			release: release{usr: other.usr, kernel: from.kernel}, says: "do not belong together",
		},
		"a kernel without a hash": {
			release{usr: from.usr, kernel: makeKernel("amd64", strings.Repeat("x", 64))},
			diskSpec{},
			nil,
			Options{},
			osimage.ErrInvalid, "offset 0x40: the kernel holds",
		},
		"no version":             {release: bare, says: "give it with --version"},
		"a kernel file":          {release: from, options: Options{Kernel: "x"}, says: "leave --kernel"},
		"a tree without its top": {release: changed(from, fsSize+4096), says: "do not belong together"},
		"no tree":                {release: changed(from, fsSize), says: "/usr has no hash tree"},
		"a tree that covers more": {
			release: changed(from, fsSize+74), says: "the hash tree at offset 25165824 covers",
		},
		"changed data": {
			release: changed(from, 20*mib), options: Options{Full: true}, kind: osimage.ErrWrongDigest, says: "byte 20971520",
		},
		"changed tree": {
			release: changed(from, fsSize+3*4096), options: Options{Full: true}, kind: osimage.ErrWrongDigest, says: "dm-verity",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			path := makeDisk(t, test.release, test.spec)

			if test.change != nil {
				write(t, path, test.change(read(t, path)))
			}

			parts, err := ReadDisk(t.Context(), path, test.options)
			refused(t, parts, err, test.kind, test.says, "_image.bin")
		})
	}
}

// changed flips a bit of /usr.
func changed(from release, at int) release {
	from.usr = bytes.Clone(from.usr)
	from.usr[at] ^= 1

	return from
}

// Unless all is compared, only the top of the tree is.
func TestDiskWithoutFull(t *testing.T) {
	t.Parallel()

	from := changed(makeRelease(t, "amd64", "btrfs", goodRelease), 20*mib)

	parts, err := ReadDisk(t.Context(), makeDisk(t, from, diskSpec{}), Options{Name: "ours", Version: "1.2.3"})
	if err != nil {
		t.Fatal(err)
	}

	if parts.Name != "ours" || parts.Version != "1.2.3" || !noted(parts, "os-release says 4459.2.1") || noted(parts, "all of /usr") {
		t.Errorf("%+v", parts)
	}

	if err := parts.Release(); err != nil {
		t.Error(err)
	}
}

func TestDiskVersions(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		osRelease, version, want, note string
	}{
		"a build": {
			"ID=flatcar\nVERSION=4500.0.0+nightly-20260101-2100\nVERSION_ID='4500.0.0'\n# x=y\nbroken\n",
			"", "4500.0.0", "4500.0.0+nightly",
		},
		"none, given": {"", "4459.2.1", "4459.2.1", "os-release cannot be read"},
	} {
		from := makeRelease(t, "amd64", "ext4", test.osRelease)

		parts, err := ReadDisk(t.Context(), makeDisk(t, from, diskSpec{}), Options{Version: test.version})
		if err != nil {
			t.Fatal(err)
		}

		if parts.Name != "flatcar" || parts.Version != test.want || !noted(parts, test.note) {
			t.Errorf("%s: %+v", name, parts)
		}

		if err := parts.Release(); err != nil {
			t.Error(err)
		}
	}
}

func TestPackedDiskRefuses(t *testing.T) {
	t.Parallel()

	packed := read(t, pack(t, makeDisk(t, makeRelease(t, "amd64", "btrfs", goodRelease), diskSpec{}), []string{"bzip2", "-1"}))
	broken := bytes.Clone(packed)
	broken[len(broken)/4] ^= 1 // what comes after /usr is not unpacked, and the first half is too little

	head := read(t, pack(t, write(t, filepath.Join(t.TempDir(), "x"), make([]byte, mib)), []string{"bzip2"}))

	for name, data := range map[string][]byte{
		"the first half": packed[:len(packed)/2], "a flipped bit": broken, "zeros": head, "20 bytes": packed[:20], "3 bytes": {0x1f, 0x8b, 8},
	} {
		path := write(t, filepath.Join(t.TempDir(), "image.bin.bz2"), data)
		temp := t.TempDir()

		for _, read := range []func() error{
			func() error { _, err := ReadDisk(t.Context(), path, Options{TempDir: temp}); return err },
			func() error { _, err := Read(t.Context(), path, Options{TempDir: temp}); return err },
		} {
			err := read()
			if !errors.Is(err, osimage.ErrInvalid) && !errors.Is(err, osimage.ErrTruncated) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: got %v", name, err)
			}
		}

		if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

func TestReadIsCancelled(t *testing.T) {
	t.Parallel()

	packed := pack(t, makeDisk(t, makeRelease(t, "amd64", "btrfs", goodRelease), diskSpec{}), []string{"bzip2", "-1"})

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	if _, err := ReadDisk(ctx, packed, Options{TempDir: t.TempDir()}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestReadOfNoFile(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()

	for _, path := range []string{"/dev/null", dir, filepath.Join(dir, "missing"), write(t, filepath.Join(dir, "empty"), nil)} {
		if _, err := Read(t.Context(), path, Options{}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
