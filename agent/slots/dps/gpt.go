package dps

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// Sizes and offsets of the GPT header and entries (UEFI 2.10, section 5.3).
const (
	gptSignature   = "EFI PART"
	gptHeaderBytes = 92
	gptEntryBytes  = 128
	// The two parts of an entry that this package writes: the part UUID, and the name.
	entryUUIDStart, entryUUIDEnd = 16, 32
	entryNameStart               = 56
	// The number of entries is bounded so that a damaged header cannot ask for all memory.
	gptMaxEntries = 1024
	primaryLBA    = 1
)

var errGPT = errors.New("invalid GPT")

// tableFile lets go-diskfs read and write the partition table of a Medium.
type tableFile struct {
	Medium

	size   int64
	offset int64
}

// partitions is a partition table that was validated.
type partitions struct {
	*gpt.Table

	// damaged says what is wrong with the table though it can be used, "" when nothing is.
	damaged string
}

// readPartitions reads the partition table and validates both of its copies, entries included: go-diskfs looks neither
// at the entries of the backup nor at whether both copies say the same.
//
// A table of which one copy is damaged, or whose copies differ in nothing but names and UUIDs, is what a power cut in
// the middle of a write leaves. It can be used, and the next write mends it.
func readPartitions(medium Medium, place Place) (partitions, error) {
	last := place.Size/place.SectorSize - 1
	primary, primaryErr := readCopy(medium, place, primaryLBA)

	backupLBA := last
	if primaryErr == nil && primary.other > primaryLBA && primary.other <= last {
		backupLBA = primary.other
	}

	backup, backupErr := readCopy(medium, place, backupLBA)
	result := partitions{}

	switch {
	case primaryErr != nil && backupErr != nil:
		return partitions{}, slots.Refuse(v1alpha1.ReasonStorageError, "both copies of the partition table of %s are "+
			"damaged (%v; %v); look at it with `sgdisk --verify`", place.Disk, primaryErr, backupErr)
	case primaryErr != nil:
		result.damaged = fmt.Sprintf("the first copy of the partition table of %s is damaged: %v", place.Disk, primaryErr)
	case backupErr != nil:
		result.damaged = fmt.Sprintf("the backup of the partition table of %s is damaged: %v", place.Disk, backupErr)
	case !sameLayout(primary.entries, backup.entries):
		return partitions{}, slots.Refuse(v1alpha1.ReasonStorageError, "the two copies of the partition table of %s "+
			"describe different partitions; look at it with `sgdisk --verify`", place.Disk)
	case !bytes.Equal(primary.entries, backup.entries):
		result.damaged = "the two copies of the partition table of " + place.Disk + " differ in names or UUIDs"
	case backupLBA != last:
		result.damaged = "the backup of the partition table of " + place.Disk + " is not at the end of the disk"
	}

	table, err := gpt.Read(&tableFile{Medium: medium, size: place.Size}, int(place.SectorSize), int(place.SectorSize))
	if err != nil {
		return partitions{}, fmt.Errorf("reading the partition table of %s: %w", place.Disk, err)
	}

	result.Table = table

	return result, checkBounds(table, place)
}

// mend makes both copies of the table valid without changing it. A write begins with the backup, so the first copy has to
// be valid before: otherwise a power cut would leave none.
func (p partitions) mend(medium Medium, place Place) error {
	if !p.RecoveredFromBackup {
		return nil
	}

	return p.write(medium, place)
}

// write writes both copies of the table, backup first, and reads them back. Nothing but names and UUIDs may have been
// changed, so the kernel need not read the table again; its own idea of the UUIDs stays stale until the next boot.
func (p partitions) write(medium Medium, place Place) error {
	// After an image was written to a larger disk the backup is not at the end, where firmware looks for it.
	if err := p.Repair(uint64(place.Size)); err != nil { //nolint:gosec // a size
		return fmt.Errorf("writing the partition table of %s: %w", place.Disk, err)
	}

	if err := checkBounds(p.Table, place); err != nil {
		return err
	}

	if err := p.Write(&tableFile{Medium: medium, size: place.Size}, place.Size); err != nil {
		return fmt.Errorf("writing the partition table of %s: %w", place.Disk, err)
	}

	if err := medium.DropCache(); err != nil {
		return fmt.Errorf("reading back the partition table of %s: %w", place.Disk, err)
	}

	back, err := readPartitions(medium, place)
	if err != nil {
		return fmt.Errorf("reading back the partition table of %s: %w", place.Disk, err)
	}

	if back.damaged != "" || !back.Equal(p.Table) {
		return fmt.Errorf("reading back the partition table of %s: %w %s", place.Disk, errReadBack, back.damaged)
	}

	return nil
}

func (p partitions) number(index int) *gpt.Partition {
	for _, partition := range p.Partitions {
		if partition.Index == index {
			return partition
		}
	}

	return nil
}

// tableCopy is one of the two copies of a table.
type tableCopy struct {
	other   int64
	entries []byte
}

func readCopy(medium io.ReaderAt, place Place, lba int64) (tableCopy, error) {
	header := make([]byte, place.SectorSize)
	if _, err := medium.ReadAt(header, lba*place.SectorSize); err != nil {
		return tableCopy{}, fmt.Errorf("reading sector %d: %w", lba, err)
	}

	if string(header[:len(gptSignature)]) != gptSignature {
		return tableCopy{}, fmt.Errorf("%w: no header in sector %d", errGPT, lba)
	}

	le := binary.LittleEndian
	sum := le.Uint32(header[16:])
	le.PutUint32(header[16:], 0)

	own, other := le.Uint64(header[24:]), le.Uint64(header[32:])
	entriesLBA, count, size := le.Uint64(header[72:]), le.Uint32(header[80:]), le.Uint32(header[84:])
	last := uint64(place.Size/place.SectorSize) - 1 //nolint:gosec // a size

	switch {
	case le.Uint32(header[12:]) != gptHeaderBytes:
		return tableCopy{}, fmt.Errorf("%w: header of %d bytes in sector %d", errGPT, le.Uint32(header[12:]), lba)
	case crc32.ChecksumIEEE(header[:gptHeaderBytes]) != sum:
		return tableCopy{}, fmt.Errorf("%w: wrong checksum of the header in sector %d", errGPT, lba)
	case own != uint64(lba): //nolint:gosec // a sector
		return tableCopy{}, fmt.Errorf("%w: the header in sector %d says that it is in sector %d", errGPT, lba, own)
	case size != gptEntryBytes || count == 0 || count > gptMaxEntries || entriesLBA > last:
		return tableCopy{}, fmt.Errorf("%w: %d entries of %d bytes in sector %d", errGPT, count, size, entriesLBA)
	case lba == primaryLBA && entriesLBA != primaryLBA+1:
		// go-diskfs would move them.
		return tableCopy{}, fmt.Errorf("%w: the entries are in sector %d instead of %d", errGPT, entriesLBA, primaryLBA+1)
	}

	entries := make([]byte, count*size)
	if _, err := medium.ReadAt(entries, int64(entriesLBA)*place.SectorSize); err != nil { //nolint:gosec // at most last
		return tableCopy{}, fmt.Errorf("reading the entries in sector %d: %w", entriesLBA, err)
	}

	if crc32.ChecksumIEEE(entries) != le.Uint32(header[88:]) {
		return tableCopy{}, fmt.Errorf("%w: wrong checksum of the entries in sector %d", errGPT, entriesLBA)
	}

	return tableCopy{other: int64(other), entries: entries}, nil //nolint:gosec // out of bounds is looked for
}

// sameLayout tells whether two arrays of entries differ in nothing but part UUIDs and names.
func sameLayout(a, b []byte) bool {
	blank := func(entries []byte) []byte {
		entries = slices.Clone(entries)
		for entry := range slices.Chunk(entries, gptEntryBytes) {
			clear(entry[entryUUIDStart:entryUUIDEnd])
			clear(entry[entryNameStart:])
		}

		return entries
	}

	return bytes.Equal(blank(a), blank(b))
}

// checkBounds refuses a table with partitions that overlap each other, the table, or the end of the disk.
func checkBounds(table *gpt.Table, place Place) error {
	sorted := slices.DeleteFunc(slices.Clone(table.Partitions), func(p *gpt.Partition) bool { return p.Type == gpt.Unused })
	slices.SortFunc(sorted, func(a, b *gpt.Partition) int { return compareUint(a.Start, b.Start) })

	// The header, and 128 entries of 128 bytes.
	free := uint64(primaryLBA + 1 + 128*gptEntryBytes/place.SectorSize) //nolint:gosec // a small number

	for _, partition := range sorted {
		if partition.Start < free || partition.End < partition.Start || partition.End > table.LastDataSector() {
			return slots.Refuse(v1alpha1.ReasonStorageError, "partition %d of %s (sectors %d to %d) overlaps another or "+
				"the partition table; look at it with `sgdisk --verify`",
				partition.Index, place.Disk, partition.Start, partition.End)
		}

		free = partition.End + 1
	}

	return nil
}

func compareUint(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

// halves returns the part UUIDs of a slot with that root hash: the first 128 bits for the file system, the last for the
// hash tree (systemd-veritysetup-generator(8)).
func halves(rootHash string) (data, verity string) {
	const digits = 32

	return uuidOf(rootHash[:digits]), uuidOf(rootHash[len(rootHash)-digits:])
}

func uuidOf(hex string) string {
	return strings.ToUpper(hex[:8] + "-" + hex[8:12] + "-" + hex[12:16] + "-" + hex[16:20] + "-" + hex[20:])
}

// hashOf is the root hash that the part UUIDs of a slot stand for.
func hashOf(data, verity string) string {
	return strings.ToLower(strings.ReplaceAll(data+verity, "-", ""))
}

// Stat is not needed for a partition table.
func (f *tableFile) Stat() (fs.FileInfo, error) {
	return nil, fmt.Errorf("looking at a medium: %w", errors.ErrUnsupported)
}

// Read reads on from the present offset.
func (f *tableFile) Read(buffer []byte) (int, error) {
	n, err := f.ReadAt(buffer, f.offset)
	f.offset += int64(n)

	return n, err
}

// Seek sets the offset.
func (f *tableFile) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.offset
	case io.SeekEnd:
		offset += f.size
	}

	f.offset = offset

	return offset, nil
}
