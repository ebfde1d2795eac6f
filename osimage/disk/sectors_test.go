package disk_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/fat32"
	"github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/disk"
)

const sector4K = 4096

// cut copies a partition to a file of its own.
func cut(t *testing.T, from string, partition disk.Partition) string {
	t.Helper()

	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = in.Close() }()

	alone := filepath.Join(t.TempDir(), "partition.raw")

	out, err := os.Create(alone)
	if err != nil {
		t.Fatal(err)
	}

	_, err = io.Copy(out, io.NewSectionReader(in, partition.Start, partition.Size))
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}

	return alone
}

// Other programs read the partition table and the ESP of a disk with sectors of 4096 bytes.
func TestLargeSectors(t *testing.T) {
	t.Parallel()

	for _, size := range []int64{0, 270 * mib, 301 * mib} {
		t.Run(strconv.FormatInt(size/mib, 10), func(t *testing.T) {
			t.Parallel()

			contents := usrContents()
			path, result := create(t, build(t, "amd64", contents),
				disk.Options{SectorSize: sector4K, Sizes: disk.Sizes{ESP: size}})

			listed := run(t, "fdisk", "--sector-size", "4096", "-x", path)
			for index, partition := range result.Partitions {
				want := strconv.FormatInt(partition.Start/sector4K, 10)
				if !strings.Contains(listed, " "+want+" ") || !strings.Contains(listed, partition.UUID) {
					t.Errorf("fdisk does not see partition %d at %s with %s:\n%s", index+1, want, partition.UUID, listed)
				}
			}

			if strings.Contains(listed, "corrupt") || strings.Contains(listed, "not agree") {
				t.Errorf("fdisk: %s", listed)
			}

			checkLargeESP(t, cut(t, path, result.Partitions[0]), contents)
			checkLargeTable(t, path, result)
		})
	}
}

func checkLargeESP(t *testing.T, alone string, contents map[osimage.Role][]byte) {
	t.Helper()

	out := run(t, "fsck.fat", "-n", "-v", alone)
	if !strings.Contains(out, "4096 bytes per logical sector") || strings.Contains(out, "Free cluster summary") ||
		strings.Contains(out, "differ") {
		t.Errorf("fsck.fat: %s", out)
	}

	in, err := os.Open(alone)
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = in.Close() }()

	info, err := in.Stat()
	if err != nil {
		t.Fatal(err)
	}

	fs, err := fat32.Read(file.New(in, true), info.Size(), 0, sector4K)
	if err != nil {
		t.Fatal(err)
	}

	got, err := fs.OpenFile("/EFI/Linux/labos_1.0.0.efi", os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}

	sum := sha256.New()
	if _, err := io.Copy(sum, got); err != nil {
		t.Fatal(err)
	}

	if want := sha256.Sum256(contents[osimage.RoleUKI]); !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Error("go-diskfs reads another UKI")
	}
}

func checkLargeTable(t *testing.T, path string, result disk.Result) {
	t.Helper()

	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = in.Close() }()

	table, err := gpt.Read(file.New(in, true), sector4K, sector4K)
	if err != nil {
		t.Fatal(err)
	}

	if err := table.Verify(file.New(in, true), uint64(result.Size)); err != nil || table.RecoveredFromBackup {
		t.Errorf("the backup table: %v", err)
	}

	if result.SectorSize != sector4K || len(table.Partitions) != len(result.Partitions) {
		t.Errorf("read %d partitions, the result is %+v", len(table.Partitions), result)
	}

	signature := make([]byte, 8)
	if _, err := in.ReadAt(signature, 512); err != nil || string(signature) == "EFI PART" {
		t.Errorf("there is a table for 512-byte sectors, too: %q %v", signature, err)
	}
}

// Other systems find room for the next UKIs.
func TestLargeSectorsTakeTheNextUKI(t *testing.T) {
	t.Parallel()

	path, result := create(t, build(t, "amd64", usrContents()),
		disk.Options{SectorSize: sector4K, Sizes: disk.Sizes{ESP: 260 * mib}})
	alone := cut(t, path, result.Partitions[0])

	for _, name := range []string{"labos_1.1.0+3.efi", "labos_1.2.0+3.efi"} {
		uki := filepath.Join(t.TempDir(), "uki")
		if err := os.WriteFile(uki, randomBytes(8, 9*mib), 0o600); err != nil {
			t.Fatal(err)
		}

		run(t, "mcopy", "-i", alone, uki, "::/EFI/Linux/"+name)
	}

	run(t, "fsck.fat", "-n", alone)
}

func ext4(logBlockSize uint32) []byte {
	data := make([]byte, 64<<10)
	copy(data[1024+0x38:], "\x53\xef")
	binary.LittleEndian.PutUint32(data[1024+0x18:], logBlockSize)

	return data
}

func xfs(sector uint16) []byte {
	data := make([]byte, 64<<10)
	copy(data, "XFSB")
	binary.BigEndian.PutUint16(data[102:], sector)

	return data
}

func erofs(bits byte) []byte {
	data := make([]byte, 64<<10)
	copy(data[1024:], "\xe2\xe1\xf5\xe0")
	data[1024+12] = bits

	return data
}

func verity(data, hash uint32) []byte {
	block := make([]byte, 64<<10)
	copy(block, "verity\x00\x00")
	binary.LittleEndian.PutUint32(block[64:], data)
	binary.LittleEndian.PutUint32(block[68:], hash)

	return block
}

// What Linux would not mount from a drive with large sectors is refused before a machine is provisioned with it.
func TestBlocksSmallerThanSectors(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		role osimage.Role
		data []byte
		says string
	}{
		"ext4 1K":           {osimage.RoleState, ext4(0), "mkfs.ext4 -b 4096"},
		"ext4 absurd":       {osimage.RoleState, ext4(1 << 31), "blocks of 0 bytes"},
		"ext4 4K":           {osimage.RoleState, ext4(2), ""},
		"XFS 512":           {osimage.RoleState, xfs(512), "mkfs.xfs -s size=4096"},
		"XFS 4K":            {osimage.RoleState, xfs(4096), ""},
		"EROFS 512":         {osimage.RoleUSR, erofs(9), "mkfs.erofs -b 4096"},
		"EROFS 4K":          {osimage.RoleUSR, erofs(12), ""},
		"EROFS absurd":      {osimage.RoleUSR, erofs(255), "blocks of 0 bytes"},
		"hash blocks of 1K": {osimage.RoleUSRVerity, verity(4096, 1024), "veritysetup"},
		"hash blocks of 4K": {osimage.RoleUSRVerity, verity(4096, 4096), ""},
		"one byte":          {osimage.RoleState, []byte{1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			contents := usrContents()
			contents[test.role] = test.data
			image := build(t, "amd64", contents)
			path := filepath.Join(t.TempDir(), "disk.raw")

			_, err := disk.Create(t.Context(), image, path, disk.Options{SectorSize: sector4K})

			switch {
			case test.says == "" && err != nil:
				t.Errorf("got %v", err)
			case test.says != "" && (!errors.Is(err, osimage.ErrInvalid) || !strings.Contains(err.Error(), test.says)):
				t.Errorf("got %v, want an error that says %q", err, test.says)
			}

			if _, err := disk.Create(t.Context(), image, path, disk.Options{Sizes: small()}); err != nil {
				t.Errorf("with sectors of 512 bytes: %v", err)
			}
		})
	}
}

// Written to a larger drive, the last partition and the second table move to its end, by what the documentation says.
func TestGrowth(t *testing.T) {
	t.Parallel()

	path, result := create(t, build(t, "amd64", usrContents()), disk.Options{Sizes: small()})
	drive := filepath.Join(t.TempDir(), "drive.raw")
	definitions := t.TempDir()

	run(t, "cp", "--sparse=always", path, drive)

	if err := errors.Join(os.Truncate(drive, 4<<30),
		os.WriteFile(filepath.Join(definitions, "50-root.conf"), []byte("[Partition]\nType=root\n"), 0o600)); err != nil {
		t.Fatal(err)
	}

	run(t, "systemd-repart", "--dry-run=no", "--empty=allow", "--definitions="+definitions, "--pretty=no", drive)

	if out := run(t, "sgdisk", "-v", drive); !strings.Contains(out, "No problems found") {
		t.Errorf("sgdisk -v: %s", out)
	}

	in, err := os.Open(drive)
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = in.Close() }()

	table, err := gpt.Read(file.New(in, true), disk.SectorSize512, disk.SectorSize512)
	if err != nil {
		t.Fatal(err)
	}

	for index, partition := range result.Partitions {
		got := table.Partitions[index]

		last := index == len(result.Partitions)-1
		if got.GUID != partition.UUID || got.Name != partition.Label || !last && got.Size != uint64(partition.Size) ||
			last && (got.Size < 3<<30 || got.Attributes != 1<<59) {
			t.Errorf("partition %d is now %+v, was %+v", index+1, got, partition)
		}
	}
}
