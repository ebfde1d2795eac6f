package rawdisk

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	pathpkg "path"
	"strings"

	"github.com/stayput-dev/stayput/osimage"
)

// The layout is that of Microsoft's FAT specification 1.03 (2000). Which of FAT16 and FAT32 it is follows Linux: an ESP
// may be FAT32 although it has fewer clusters than the specification wants of one.
const (
	bootSectorSize  = 512
	minFAT16        = 4085
	maxFAT16        = 65524
	clusterMask     = 0x0fffffff
	maxDirectory    = 2 << 20
	dirEntrySize    = 32
	attributeVolume = 0x08
	attributeDir    = 0x10
	attributeLong   = 0x0f
	fatCache        = 4096
)

// FAT is a FAT16 or FAT32 file system that is only read.
type FAT struct {
	name   string
	reader *io.SectionReader

	clusterSize    int64
	clusters       uint32 // how many there are; they are numbered from 2
	table          int64  // offset of the first allocation table
	data           int64  // offset of cluster 2
	wide           bool   // FAT32
	rootCluster    uint32 // FAT32
	rootAt, rootLn int64  // FAT16

	cache       []byte
	cacheOffset int64
}

// run is a part of a file that lies in one piece.
type run struct{ offset, length int64 }

// OpenFAT reads the boot sector of a file system; name is for errors.
func OpenFAT(reader *io.SectionReader, name string) (*FAT, error) {
	sector := make([]byte, bootSectorSize)
	if _, err := reader.ReadAt(sector, 0); err != nil {
		return nil, fmt.Errorf("reading the boot sector of %s: %w", name, err)
	}

	fat := &FAT{name: name, reader: reader, cacheOffset: -1, cache: make([]byte, fatCache)}

	if err := fat.parse(sector); err != nil {
		return nil, err
	}

	return fat, nil
}

// bootSector is what is used of a boot sector, in bytes where it is a length.
type bootSector struct {
	sector, cluster, reserved, copies, table, rootEntries, total int64
}

func (f *FAT) parse(sector []byte) error {
	boot := bootSector{
		sector:      int64(binary.LittleEndian.Uint16(sector[11:])),
		cluster:     int64(sector[13]),
		reserved:    int64(binary.LittleEndian.Uint16(sector[14:])),
		copies:      int64(sector[16]),
		rootEntries: int64(binary.LittleEndian.Uint16(sector[17:])),
		total:       int64(binary.LittleEndian.Uint16(sector[19:])),
		table:       int64(binary.LittleEndian.Uint16(sector[22:])),
	}

	if boot.total == 0 {
		boot.total = int64(binary.LittleEndian.Uint32(sector[32:]))
	}

	if f.wide = boot.table == 0; f.wide {
		boot.table = int64(binary.LittleEndian.Uint32(sector[36:]))
		f.rootCluster = binary.LittleEndian.Uint32(sector[44:])
	}

	if err := f.check(sector, boot); err != nil {
		return err
	}

	f.clusterSize = boot.cluster * boot.sector
	f.table = boot.reserved * boot.sector
	f.rootAt = f.table + boot.copies*boot.table*boot.sector
	f.rootLn = boot.rootEntries * dirEntrySize
	f.data = f.rootAt + (f.rootLn+boot.sector-1)/boot.sector*boot.sector

	return f.count(boot)
}

func (f *FAT) check(sector []byte, boot bootSector) error {
	switch {
	case sector[510] != 0x55 || sector[511] != 0xaa:
		return f.refuse("boot sector, offset 510: there is no signature 55 aa")
	case boot.sector < 512 || boot.sector > 4096 || boot.sector&(boot.sector-1) != 0:
		return f.refuse("boot sector, offset 11: %d bytes in a sector, want 512 to 4096", boot.sector)
	case boot.cluster == 0 || boot.cluster&(boot.cluster-1) != 0:
		return f.refuse("boot sector, offset 13: %d sectors in a cluster, want a power of two", boot.cluster)
	case boot.reserved == 0 || boot.copies == 0 || boot.copies > 2 || boot.table == 0:
		return f.refuse("boot sector: %d reserved sectors, %d tables of %d sectors", boot.reserved, boot.copies, boot.table)
	case boot.total*boot.sector > f.reader.Size():
		return f.refuse("boot sector: it has %d bytes, its partition %d", boot.total*boot.sector, f.reader.Size())
	default:
		return nil
	}
}

// count finds how many clusters there are, and with it which kind of file system it is.
func (f *FAT) count(boot bootSector) error {
	clusters := (boot.total*boot.sector - f.data) / f.clusterSize
	if clusters <= 0 || clusters > clusterMask {
		return f.refuse("boot sector: there is no room for data behind the tables")
	}

	width := int64(2)
	if f.wide {
		width = 4
	} else if clusters < minFAT16 || clusters > maxFAT16 {
		return f.refuse("it has %d clusters, so it is neither FAT16 nor FAT32", clusters)
	}

	if (clusters+2)*width > boot.table*boot.sector {
		return f.refuse("boot sector: a table of %d bytes is too small for %d clusters", boot.table*boot.sector, clusters)
	}

	f.clusters = uint32(clusters)

	return nil
}

// Open finds a file by its path, "/flatcar/vmlinuz-a", regardless of case. It returns osimage.ErrNotFound when there is
// none, and ErrTooLarge for one of more than limit bytes.
func (f *FAT) Open(path string, limit int64) (*File, error) {
	directory, name := pathpkg.Split(strings.Trim(path, "/"))

	if name == "" {
		return nil, f.missing("file", path)
	}

	clusters, err := f.directory(directory)
	if err != nil {
		return nil, err
	}

	entry, err := f.find(clusters, name)
	if err != nil {
		return nil, err
	}

	if entry == nil || entry.directory {
		return nil, f.missing("file", path)
	}

	return f.file(path, *entry, limit)
}

// List gives the names of the files in a directory, by its path, regardless of case. It returns osimage.ErrNotFound when
// there is no such directory.
func (f *FAT) List(path string) ([]string, error) {
	clusters, err := f.directory(path)
	if err != nil {
		return nil, err
	}

	var names []string

	err = f.each(clusters, func(short, long string, entry []byte) bool {
		if !f.entry(entry).directory {
			names = append(names, cmp.Or(long, short))
		}

		return true
	})

	return names, err
}

// directory finds a directory by its path.
func (f *FAT) directory(path string) ([]run, error) {
	clusters, err := f.root()
	if err != nil {
		return nil, err
	}

	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if name == "" {
			continue
		}

		entry, err := f.find(clusters, name)
		if err != nil {
			return nil, err
		}

		if entry == nil || !entry.directory {
			return nil, f.missing("directory", path)
		}

		if clusters, err = f.chain(entry.cluster, maxDirectory, path); err != nil {
			return nil, err
		}
	}

	return clusters, nil
}

func (f *FAT) missing(kind, path string) error {
	return &osimage.Error{Kind: osimage.ErrNotFound, Subject: f.name, Detail: "there is no " + kind + " " + path}
}

func (f *FAT) root() ([]run, error) {
	if !f.wide {
		return []run{{offset: f.rootAt, length: f.rootLn}}, nil
	}

	return f.chain(f.rootCluster, maxDirectory, "/")
}

func (f *FAT) file(path string, entry fatEntry, limit int64) (*File, error) {
	if entry.size > limit {
		return nil, &osimage.Error{
			Kind: osimage.ErrTooLarge, Subject: f.name,
			Detail: fmt.Sprintf("%s has %d bytes, at most %d are expected", path, entry.size, limit),
		}
	}

	file := &File{name: path, size: entry.size, reader: f.reader}
	if entry.size == 0 {
		return file, nil
	}

	runs, err := f.chain(entry.cluster, (entry.size+f.clusterSize-1)/f.clusterSize*f.clusterSize, path)
	if err != nil {
		return nil, err
	}

	var length int64
	for _, run := range runs {
		length += run.length
	}

	if length < entry.size {
		return nil, f.refuse("%s has %d bytes, its clusters %d", path, entry.size, length)
	}

	file.runs = runs

	return file, nil
}

// chain follows the allocation table from a cluster. It ends at the limit, so a chain that ends in itself ends, too.
func (f *FAT) chain(cluster uint32, limit int64, path string) ([]run, error) {
	var (
		runs   []run
		length int64
	)

	for length < limit {
		if cluster < 2 || cluster-2 >= f.clusters {
			return nil, f.refuse("%s continues in cluster %d, want 2 to %d", path, cluster, f.clusters+1)
		}

		offset := f.data + int64(cluster-2)*f.clusterSize
		if last := len(runs) - 1; last >= 0 && runs[last].offset+runs[last].length == offset {
			runs[last].length += f.clusterSize
		} else {
			runs = append(runs, run{offset: offset, length: f.clusterSize})
		}

		length += f.clusterSize

		next, end, err := f.next(cluster)
		if err != nil {
			return nil, err
		}

		if end {
			return runs, nil
		}

		cluster = next
	}

	return runs, nil
}

// next looks a cluster's successor up in the allocation table.
func (f *FAT) next(cluster uint32) (next uint32, end bool, err error) {
	width := int64(2)
	if f.wide {
		width = 4
	}

	offset := f.table + int64(cluster)*width

	if start := offset / fatCache * fatCache; start != f.cacheOffset {
		if _, err := f.reader.ReadAt(f.cache, start); err != nil && !errors.Is(err, io.EOF) {
			return 0, false, fmt.Errorf("reading the allocation table of %s: %w", f.name, err)
		}

		f.cacheOffset = start
	}

	entry := f.cache[offset-f.cacheOffset:]
	if f.wide {
		next = binary.LittleEndian.Uint32(entry) & clusterMask

		return next, next >= 0x0ffffff8, nil
	}

	next = uint32(binary.LittleEndian.Uint16(entry))

	return next, next >= 0xfff8, nil
}

func (f *FAT) refuse(format string, values ...any) error {
	return &osimage.Error{
		Kind: osimage.ErrInvalid, Subject: f.name, Detail: fmt.Sprintf(format, values...),
		Fix: "download the image again and compare its checksum",
	}
}

// File is a file of a FAT. It implements io.ReaderAt.
type File struct {
	name   string
	size   int64
	runs   []run
	reader io.ReaderAt
}

// Name is the path that it was opened by.
func (f *File) Name() string { return f.name }

// Size is its length in bytes.
func (f *File) Size() int64 { return f.size }

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(buffer []byte, offset int64) (count int, err error) {
	if offset < 0 {
		return 0, fmt.Errorf("reading %s at %d: %w", f.name, offset, fs.ErrInvalid)
	}

	want := buffer[:min(int64(len(buffer)), max(f.size-offset, 0))]

	for _, run := range f.runs {
		if len(want) == count {
			break
		}

		if offset >= run.length {
			offset -= run.length

			continue
		}

		part := want[count:min(int64(len(want)), int64(count)+run.length-offset)]

		done, err := f.reader.ReadAt(part, run.offset+offset)
		count += done

		if done < len(part) {
			return count, fmt.Errorf("reading %s: %w", f.name, err)
		}

		offset = 0
	}

	if count < len(buffer) {
		return count, io.EOF
	}

	return count, nil
}
