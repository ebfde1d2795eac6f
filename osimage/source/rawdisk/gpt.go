package rawdisk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"unicode/utf16"

	"github.com/google/uuid"

	"github.com/stayput-dev/stayput/osimage"
)

// The layout of a GPT is that of the UEFI specification 2.10, chapter 5.3.
const (
	headerSize   = 92
	minEntrySize = 128
	maxEntrySize = 4096
	maxEntries   = 1024
	// maxSectors keeps all sums of offsets below 2^63.
	maxSectors = 1 << 48
	nameOffset = 56
	nameEnd    = 128

	// Unknown is the size of a disk whose end is not known yet.
	Unknown = int64(-1)

	// TableSize is how much of a disk's beginning Read looks at, in bytes: all partition tables that a vendor ships end
	// before the first MiB.
	TableSize = 1 << 20
)

// Disk is the partition table of a raw disk image.
type Disk struct {
	// Name is the file's, for errors.
	Name string
	// SectorSize is 512 or 4096 bytes.
	SectorSize int64
	// Size is how many bytes the table says that the disk has.
	Size int64
	// GUID is the disk's, in lower case.
	GUID string
	// Partitions are those in use, in the order of the table.
	Partitions []Partition

	reader io.ReaderAt
}

// Partition is a partition of a Disk.
type Partition struct {
	// Number is its place in the table, from 1.
	Number int
	// Label, Type and UUID are as in the table; both GUIDs in lower case.
	Label, Type, UUID string
	// Attributes are the 64 bits of the table.
	Attributes uint64
	// Start and Size are in bytes.
	Start, Size int64
}

// Read reads the GPT at the beginning of a disk image of the given size, which may be Unknown. Only the primary table
// is looked at: a vendor's artifact whose first table is broken is a broken download, not a disk to be rescued.
func Read(reader io.ReaderAt, size int64, name string) (*Disk, error) {
	for _, sector := range []int64{512, 4096} {
		header := make([]byte, headerSize)
		if count, err := reader.ReadAt(header, sector); count < headerSize {
			if errors.Is(err, io.EOF) {
				break
			}

			return nil, fmt.Errorf("reading the partition table of %s: %w", name, err)
		}

		if string(header[:8]) != "EFI PART" {
			continue
		}

		disk := &Disk{Name: name, SectorSize: sector, reader: reader}
		if err := disk.parse(header, size); err != nil {
			return nil, err
		}

		return disk, nil
	}

	return nil, &osimage.Error{
		Kind: osimage.ErrInvalid, Subject: name,
		Detail: "there is no partition table: want \"EFI PART\" at offset 512 (or 4096)",
		Fix:    "give a raw disk image with a GPT",
	}
}

func (d *Disk) parse(header []byte, size int64) error {
	stored := binary.LittleEndian.Uint32(header[16:])
	zeroed := bytes.Clone(header)
	clear(zeroed[16:20])

	if length := binary.LittleEndian.Uint32(header[12:]); length != headerSize {
		return d.refuse(12, "the header's size is %d, want %d", length, headerSize)
	}

	if sum := crc32.ChecksumIEEE(zeroed); sum != stored {
		return d.refuse(16, "the header's checksum is %08x, want %08x", stored, sum)
	}

	last := binary.LittleEndian.Uint64(header[32:])
	if last == 0 || last >= maxSectors {
		return d.refuse(32, "the last sector is %d", last)
	}

	d.Size = int64(last+1) * d.SectorSize
	if size != Unknown && d.Size > size {
		return d.truncated(d.Size, size)
	}

	id, err := uuid.FromBytes(mixedEndian(header[56:72]))
	if err != nil {
		return d.refuse(56, "the disk's GUID cannot be read")
	}

	d.GUID = id.String()

	return d.parseEntries(header)
}

func (d *Disk) parseEntries(header []byte) error {
	first := binary.LittleEndian.Uint64(header[72:])
	count := binary.LittleEndian.Uint32(header[80:])
	length := binary.LittleEndian.Uint32(header[84:])

	switch {
	case count == 0 || count > maxEntries:
		return d.refuse(80, "there are %d partition entries, want 1 to %d", count, maxEntries)
	case length < minEntrySize || length > maxEntrySize || length%8 != 0:
		return d.refuse(84, "a partition entry has %d bytes, want %d to %d", length, minEntrySize, maxEntrySize)
	case first < 2 || first > TableSize/512 ||
		int64(first)*d.SectorSize+int64(count)*int64(length) > TableSize:
		return d.refuse(72, "%d partition entries of %d bytes at sector %d do not end before %d", count, length, first, TableSize)
	}

	entries := make([]byte, count*length)
	if _, err := d.reader.ReadAt(entries, int64(first)*d.SectorSize); err != nil {
		return fmt.Errorf("reading the partition table of %s: %w", d.Name, err)
	}

	if stored, sum := binary.LittleEndian.Uint32(header[88:]), crc32.ChecksumIEEE(entries); sum != stored {
		return d.refuse(88, "the checksum of the partition entries is %08x, want %08x", stored, sum)
	}

	for index := range int(count) {
		if err := d.parseEntry(index+1, entries[index*int(length):]); err != nil {
			return err
		}
	}

	return nil
}

func (d *Disk) parseEntry(number int, entry []byte) error {
	if bytes.Equal(entry[:16], make([]byte, 16)) {
		return nil
	}

	start, end := binary.LittleEndian.Uint64(entry[32:]), binary.LittleEndian.Uint64(entry[40:])
	if start == 0 || end < start || end >= maxSectors || int64(end) >= d.Size/d.SectorSize {
		return &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: d.Name,
			Detail: fmt.Sprintf("partition %d goes from sector %d to %d of %d", number, start, end, d.Size/d.SectorSize),
			Fix:    "download the image again and compare its checksum",
		}
	}

	d.Partitions = append(d.Partitions, Partition{
		Number: number, Label: label(entry[nameOffset:nameEnd]),
		Type: guid(entry[:16]), UUID: guid(entry[16:32]), Attributes: binary.LittleEndian.Uint64(entry[48:]),
		//nolint:gosec // Both are below the disk's size.
		Start: int64(start) * d.SectorSize, Size: int64(end-start+1) * d.SectorSize,
	})

	return nil
}

// Section gives the first bytes of a partition, all of it when it has fewer.
func (d *Disk) Section(partition Partition, length int64) *io.SectionReader {
	return io.NewSectionReader(d.reader, partition.Start, min(length, partition.Size))
}

// On gives the same disk, read from elsewhere.
func (d *Disk) On(reader io.ReaderAt) *Disk {
	other := *d
	other.reader = reader

	return &other
}

// List is all partitions in one line, for errors.
func (d *Disk) List() string {
	names := make([]string, 0, len(d.Partitions))
	for _, partition := range d.Partitions {
		names = append(names, fmt.Sprintf("%d %q", partition.Number, partition.Label))
	}

	return strings.Join(names, ", ")
}

func (d *Disk) refuse(offset int64, format string, values ...any) error {
	return &osimage.Error{
		Kind: osimage.ErrInvalid, Subject: d.Name,
		Detail: fmt.Sprintf("partition table, offset %d: %s", d.SectorSize+offset, fmt.Sprintf(format, values...)),
		Fix:    "download the image again and compare its checksum",
	}
}

func (d *Disk) truncated(want, have int64) error {
	return &osimage.Error{
		Kind: osimage.ErrTruncated, Subject: d.Name,
		Detail: fmt.Sprintf("the partition table wants %d bytes, the file has %d", want, have),
		Fix:    "download the image again and compare its checksum",
	}
}

// label decodes UTF-16LE up to the first zero.
func label(data []byte) string {
	units := make([]uint16, 0, len(data)/2)

	for ; len(data) >= 2; data = data[2:] {
		unit := binary.LittleEndian.Uint16(data)
		if unit == 0 {
			break
		}

		units = append(units, unit)
	}

	return string(utf16.Decode(units))
}

func guid(data []byte) string {
	return uuid.UUID(mixedEndian(data)).String()
}

// mixedEndian turns a GUID as it is on disk, its first three fields little-endian, into the order of RFC 9562.
func mixedEndian(data []byte) []byte {
	return []byte{
		data[3], data[2], data[1], data[0], data[5], data[4], data[7], data[6],
		data[8], data[9], data[10], data[11], data[12], data[13], data[14], data[15],
	}
}
