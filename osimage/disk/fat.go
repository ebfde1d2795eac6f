package disk

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/fat32"
)

// Places in a FAT32 (Microsoft FAT specification 1.03, sections 3, 5 and 6).
const (
	bpbSectorsPerCluster = 13
	bpbReservedSectors   = 14
	bpbFATs              = 16
	bpbTotalSectors      = 32
	bpbSectorsPerFAT     = 36
	bpbVolumeID          = 67
	backupBootSector     = 6

	infoSector     = 1
	infoFreeCount  = 488
	infoNextFree   = 492
	firstCluster   = 2
	rootCluster    = 2
	clusterMask    = 0x0fffffff
	clusterEnd     = 0x0ffffff8
	clusterEntry   = 4
	entrySize      = 32
	entryAttribute = 11
	entryTenths    = 13
	entryTimes     = 14
	entryHigh      = 20
	entryWritten   = 22
	entryLow       = 26
	attributeLong  = 0x0f
	attributeDir   = 0x10
	entryDeleted   = 0xe5

	// fileDate is 1980-01-01, the first that FAT can express.
	fileDate = 1<<5 | 1
)

var errBrokenFAT = errors.New("the FAT that was made is broken")

// fat looks at a FAT32 in a file, below the driver.
type fat struct {
	out   *os.File
	start int64

	cluster, tables, data int64
	count                 uint32
	table                 []byte
}

// noted keeps the first error of writing, whose kind the libraries do not pass on.
type noted struct {
	*os.File

	failed error
}

func (n *noted) WriteAt(data []byte, offset int64) (int, error) {
	count, err := n.File.WriteAt(data, offset)
	n.failed = cmp.Or(n.failed, err)

	return count, err
}

// explain is the error of a library, or the one that it came from.
func (n *noted) explain(err error) error {
	if err != nil && n.failed != nil {
		return n.failed
	}

	return err
}

// createFAT makes an empty FAT32. The driver rounds the table down for some sizes, so that the last clusters have no
// entry; then a few clusters at the partition's end stay unused.
func createFAT(out *noted, place partition, sectorSize int64) (*fat32.FileSystem, error) {
	const attempts = 8

	size := place.size

	for range attempts {
		fs, err := fat32.Create(file.New(out, false), size, place.start, sectorSize, "ESP", true)
		if err != nil {
			return nil, fmt.Errorf("making the file system: %w", err)
		}

		made, err := openFAT(out.File, place.start, sectorSize)
		if err != nil {
			return nil, err
		}

		if int64(made.count)+firstCluster <= int64(len(made.table))/clusterEntry {
			return fs, nil
		}

		size -= made.cluster
	}

	return nil, fmt.Errorf("making the file system of %d bytes: %w", place.size, errBrokenFAT)
}

func openFAT(out *os.File, start, sectorSize int64) (*fat, error) {
	boot := make([]byte, sectorSize)
	if _, err := out.ReadAt(boot, start); err != nil {
		return nil, fmt.Errorf("reading the boot sector: %w", err)
	}

	perTable := int64(binary.LittleEndian.Uint32(boot[bpbSectorsPerFAT:])) * sectorSize
	total := int64(binary.LittleEndian.Uint32(boot[bpbTotalSectors:])) * sectorSize
	result := &fat{
		out: out, start: start,
		cluster: int64(boot[bpbSectorsPerCluster]) * sectorSize,
		tables:  int64(binary.LittleEndian.Uint16(boot[bpbReservedSectors:])) * sectorSize,
		table:   make([]byte, perTable),
	}
	result.data = result.tables + int64(boot[bpbFATs])*perTable

	if result.cluster == 0 || total <= result.data {
		return nil, errBrokenFAT
	}

	result.count = uint32((total - result.data) / result.cluster) //nolint:gosec // FAT32 has at most 2^28.

	if _, err := out.ReadAt(result.table, start+result.tables); err != nil {
		return nil, fmt.Errorf("reading the allocation table: %w", err)
	}

	return result, nil
}

// finishFAT makes reproducible and correct what the driver leaves otherwise: times, the volume ID, the number of free
// clusters, and the '..' entries below the root, which must say 0.
func finishFAT(out *os.File, start, sectorSize int64, volumeID []byte) error {
	made, err := openFAT(out, start, sectorSize)
	if err != nil {
		return err
	}

	if err := made.finishDirectory(rootCluster); err != nil {
		return fmt.Errorf("finishing the directories: %w", err)
	}

	info := make([]byte, infoNextFree+clusterEntry-infoFreeCount)
	free, next := made.free()
	binary.LittleEndian.PutUint32(info, free)
	binary.LittleEndian.PutUint32(info[infoNextFree-infoFreeCount:], next)

	for _, copyAt := range []int64{0, backupBootSector} {
		_, idErr := out.WriteAt(volumeID, start+copyAt*sectorSize+bpbVolumeID)
		_, infoErr := out.WriteAt(info, start+(copyAt+infoSector)*sectorSize+infoFreeCount)

		if err := errors.Join(idErr, infoErr); err != nil {
			return fmt.Errorf("finishing the boot sector: %w", err)
		}
	}

	return nil
}

// free counts the free clusters, and finds the last one that is taken before them.
func (f *fat) free() (count, last uint32) {
	for cluster := uint32(firstCluster); cluster < f.count+firstCluster; cluster++ {
		if f.next(cluster) == 0 {
			count++
		} else {
			last = cluster
		}
	}

	return count, last
}

func (f *fat) next(cluster uint32) uint32 {
	return binary.LittleEndian.Uint32(f.table[int64(cluster)*clusterEntry:]) & clusterMask
}

// finishDirectory works through a directory and those below it.
func (f *fat) finishDirectory(cluster uint32) error {
	for cluster >= firstCluster && cluster < min(clusterEnd, f.count+firstCluster) {
		position := f.start + f.data + int64(cluster-firstCluster)*f.cluster
		entries := make([]byte, f.cluster)

		if _, err := f.out.ReadAt(entries, position); err != nil {
			return fmt.Errorf("reading cluster %d: %w", cluster, err)
		}

		for ; len(entries) > 0; entries, position = entries[entrySize:], position+entrySize {
			if entries[0] == 0 {
				return nil
			}

			if err := f.finishEntry(entries[:entrySize], position); err != nil {
				return err
			}
		}

		cluster = f.next(cluster)
	}

	return nil
}

func (f *fat) finishEntry(entry []byte, position int64) error {
	if entry[0] == entryDeleted || entry[entryAttribute] == attributeLong {
		return nil
	}

	entry[entryTenths] = 0
	binary.LittleEndian.PutUint16(entry[entryTimes:], 0)
	binary.LittleEndian.PutUint16(entry[entryTimes+2:], fileDate)
	binary.LittleEndian.PutUint16(entry[entryTimes+4:], fileDate)
	binary.LittleEndian.PutUint16(entry[entryWritten:], 0)
	binary.LittleEndian.PutUint16(entry[entryWritten+2:], fileDate)

	high, low := entry[entryHigh:entryHigh+2], entry[entryLow:entryLow+2]
	cluster := uint32(binary.LittleEndian.Uint16(high))<<16 | uint32(binary.LittleEndian.Uint16(low))
	isDot := entry[0] == '.'

	if isDot && entry[1] == '.' && cluster == rootCluster {
		copy(high, []byte{0, 0})
		copy(low, []byte{0, 0})
	}

	if _, err := f.out.WriteAt(entry, position); err != nil {
		return fmt.Errorf("writing a directory entry: %w", err)
	}

	if isDot || entry[entryAttribute]&attributeDir == 0 {
		return nil
	}

	return f.finishDirectory(cluster)
}
