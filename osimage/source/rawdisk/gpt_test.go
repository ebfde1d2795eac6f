package rawdisk_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source/rawdisk"
)

const (
	mib    = 1 << 20
	usr    = "5dfbf5f4-2848-4bac-aa5e-0d9a20b745a6"
	usrA   = "7130c94a-213a-4e5a-8e26-6cce9662f132"
	esp    = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
	diskID = "00000000-0000-0000-0000-000000000001"
)

// table makes a disk of 4 MiB with two partitions, by another implementation than the one under test.
func table(tb testing.TB, sector int) []byte {
	tb.Helper()

	file, err := os.Create(filepath.Join(tb.TempDir(), "disk"))
	if err != nil {
		tb.Fatal(err)
	}

	defer func() { _ = file.Close() }()

	if err := file.Truncate(4 * mib); err != nil {
		tb.Fatal(err)
	}

	per := uint64(mib / sector)

	disk := &gpt.Table{
		GUID: diskID, ProtectiveMBR: true, LogicalSectorSize: sector, PhysicalSectorSize: sector,
		Partitions: []*gpt.Partition{
			{Index: 1, Name: "EFI-SYSTEM", Type: gpt.EFISystemPartition, GUID: "11111111-2222-3333-4444-555555555555", Start: per, End: 2*per - 1},
			{Index: 3, Name: "USR-A Ä", Type: gpt.Type(usr), GUID: usrA, Start: 2 * per, End: 3*per - 1, Attributes: 1 << 56},
		},
	}

	if err := disk.Write(file, 4*mib); err != nil {
		tb.Fatal(err)
	}

	data, err := os.ReadFile(file.Name())
	if err != nil {
		tb.Fatal(err)
	}

	return data
}

func TestRead(t *testing.T) {
	t.Parallel()

	for _, sector := range []int{512, 4096} {
		disk, err := rawdisk.Read(bytes.NewReader(table(t, sector)), 4*mib, "image.bin")
		if err != nil {
			t.Fatal(err)
		}

		if disk.SectorSize != int64(sector) || disk.Size != 4*mib || disk.GUID != diskID || len(disk.Partitions) != 2 {
			t.Fatalf("%+v", disk)
		}

		if got, want := disk.Partitions[0], (rawdisk.Partition{
			Number: 1, Label: "EFI-SYSTEM", Type: esp, UUID: "11111111-2222-3333-4444-555555555555", Start: mib, Size: mib,
		}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}

		if got, want := disk.Partitions[1], (rawdisk.Partition{
			Number: 3, Label: "USR-A Ä", Type: usr, UUID: usrA, Start: 2 * mib, Size: mib, Attributes: 1 << 56,
		}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}

		if got := disk.List(); got != `1 "EFI-SYSTEM", 3 "USR-A Ä"` {
			t.Error(got)
		}

		if disk.Section(disk.Partitions[1], 100).Size() != 100 || disk.Section(disk.Partitions[1], 9*mib).Size() != mib {
			t.Error("a section has the wrong size")
		}
	}
}

// change sets a field of the header or of the first entry and mends both checksums.
func change(data []byte, sector, offset int, value uint64, width int) []byte {
	data = bytes.Clone(data)

	field := make([]byte, 8)
	binary.LittleEndian.PutUint64(field, value)
	copy(data[sector+offset:], field[:width])

	header := data[sector : sector+92]

	if start, count, size := binary.LittleEndian.Uint64(header[72:]), binary.LittleEndian.Uint32(header[80:]),
		binary.LittleEndian.Uint32(header[84:]); start == 2 && count == 128 && size == 128 {
		binary.LittleEndian.PutUint32(header[88:], crc32.ChecksumIEEE(data[2*sector:2*sector+128*128]))
	}

	binary.LittleEndian.PutUint32(header[16:], 0)
	binary.LittleEndian.PutUint32(header[16:], crc32.ChecksumIEEE(header))

	return data
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()

	good := table(t, 512)

	for name, test := range map[string]struct {
		data []byte
		size int64
		kind error
		says string
	}{
		"empty":                    {nil, 0, osimage.ErrInvalid, "no partition table"},
		"no table":                 {make([]byte, mib), mib, osimage.ErrInvalid, "no partition table"},
		"one sector":               {good[:600], 600, osimage.ErrInvalid, "no partition table"},
		"truncated":                {good[:3*mib], 3 * mib, osimage.ErrTruncated, "table wants 4194304 bytes, the file has 3145728"},
		"flipped header":           {flip(good, 512+60), 4 * mib, osimage.ErrInvalid, "offset 528: the header's checksum"},
		"flipped entry":            {flip(good, 1024+3), 4 * mib, osimage.ErrInvalid, "offset 600: the checksum of the partition entries"},
		"header size":              {change(good, 512, 12, 1<<31, 4), 4 * mib, osimage.ErrInvalid, "offset 524: the header's size"},
		"last sector 0":            {change(good, 512, 32, 0, 8), 4 * mib, osimage.ErrInvalid, "offset 544: the last sector"},
		"last sector huge":         {change(good, 512, 32, 1<<63, 8), 4 * mib, osimage.ErrInvalid, "offset 544: the last sector"},
		"last sector beyond":       {change(good, 512, 32, 1<<40, 8), 4 * mib, osimage.ErrTruncated, "the file has 4194304"},
		"no entries":               {change(good, 512, 80, 0, 4), 4 * mib, osimage.ErrInvalid, "offset 592: there are 0"},
		"too many entries":         {change(good, 512, 80, 1<<32-1, 4), 4 * mib, osimage.ErrInvalid, "offset 592: there are 4294967295"},
		"entries without a size":   {change(good, 512, 84, 0, 4), 4 * mib, osimage.ErrInvalid, "offset 596: a partition entry has 0 bytes"},
		"huge entries":             {change(good, 512, 84, 1<<31, 4), 4 * mib, osimage.ErrInvalid, "offset 596"},
		"entries in the header":    {change(good, 512, 72, 1, 8), 4 * mib, osimage.ErrInvalid, "offset 584"},
		"entries far away":         {change(good, 512, 72, 1<<63, 8), 4 * mib, osimage.ErrInvalid, "offset 584"},
		"partition at sector 0":    {change(good, 512, 512+32, 0, 8), 4 * mib, osimage.ErrInvalid, "partition 1 goes from sector 0"},
		"partition ends before":    {change(good, 512, 512+40, 5, 8), 4 * mib, osimage.ErrInvalid, "partition 1 goes from sector 2048 to 5"},
		"partition beyond the end": {change(good, 512, 512+40, 1<<63, 8), 4 * mib, osimage.ErrInvalid, "of 8192"},
	} {
		_, err := rawdisk.Read(bytes.NewReader(test.data), test.size, "image.bin")

		if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), "image.bin") {
			t.Errorf("%s: got %v, want %q", name, err, test.says)
		}
	}
}

func flip(data []byte, at int) []byte {
	data = bytes.Clone(data)
	data[at] ^= 1

	return data
}

func TestReadOfUnknownSize(t *testing.T) {
	t.Parallel()

	data := table(t, 512)

	disk, err := rawdisk.Read(bytes.NewReader(data[:rawdisk.TableSize]), rawdisk.Unknown, "image.bin")
	if err != nil {
		t.Fatal(err)
	}

	copy(data[2*mib:], "payload")

	start := make([]byte, 7)
	if _, err := disk.On(bytes.NewReader(data)).Section(disk.Partitions[1], mib).ReadAt(start, 0); err != nil || string(start) != "payload" {
		t.Errorf("%q, %v", start, err)
	}
}

func FuzzRead(f *testing.F) {
	for _, sector := range []int{512, 4096} {
		data := table(f, sector)
		f.Add(data[:6*4096], uint16(84), uint64(0))
		f.Add(data[:6*4096], uint16(80), uint64(1<<20))
	}

	f.Fuzz(func(t *testing.T, data []byte, offset uint16, value uint64) {
		if len(data) >= 2*4096 && int(offset) <= 92-8 {
			// Without mended checksums nearly everything ends at them.
			data = change(append(data, make([]byte, 64<<10)...), 512, int(offset), value, 8)
		}

		disk, err := rawdisk.Read(bytes.NewReader(data), rawdisk.Unknown, "fuzz")
		if err != nil {
			return
		}

		for _, partition := range disk.Partitions {
			if partition.Start <= 0 || partition.Size <= 0 || partition.Start+partition.Size > disk.Size {
				t.Errorf("%+v on a disk of %d bytes", partition, disk.Size)
			}
		}
	})
}
