package rawdisk

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf16"
)

// unitsPerEntry is how many UTF-16 units of a long name a directory entry holds, and longEntries how many entries a
// name of 255 units needs.
const (
	unitsPerEntry = 13
	longEntries   = 20
)

type fatEntry struct {
	directory bool
	cluster   uint32
	size      int64
}

// longName gathers a long name from the entries that precede a file's own.
type longName struct {
	units    [longEntries * unitsPerEntry]uint16
	count    int  // entries of the name
	next     int  // the number of the entry that must follow, 0 when the name is complete
	checksum byte // of the short name that must follow
}

// find looks for a name in a directory. It returns nil when there is none.
func (f *FAT) find(directory []run, name string) (found *fatEntry, err error) {
	err = f.each(directory, func(short, long string, entry []byte) bool {
		if !strings.EqualFold(short, name) && !strings.EqualFold(long, name) {
			return true
		}

		found = f.entry(entry)

		return false
	})

	return found, err
}

// each calls visit for every file and directory in a directory until it says that there need be no more.
func (f *FAT) each(directory []run, visit func(short, long string, entry []byte) (more bool)) error {
	var long longName

	for _, run := range directory {
		data := make([]byte, run.length)
		if _, err := f.reader.ReadAt(data, run.offset); err != nil {
			return fmt.Errorf("reading a directory of %s: %w", f.name, err)
		}

		for ; len(data) >= dirEntrySize; data = data[dirEntrySize:] {
			entry := data[:dirEntrySize]

			switch attributes := entry[11]; {
			case entry[0] == 0:
				return nil // the end of the directory
			case entry[0] == 0xe5:
				long = longName{}
			case attributes&attributeLong == attributeLong:
				long.add(entry)
			case attributes&attributeVolume != 0:
				long = longName{}
			default:
				if !visit(shortName(entry), long.of(entry), entry) {
					return nil
				}

				long = longName{}
			}
		}
	}

	return nil
}

func (f *FAT) entry(data []byte) *fatEntry {
	cluster := uint32(binary.LittleEndian.Uint16(data[26:]))
	if f.wide {
		cluster |= uint32(binary.LittleEndian.Uint16(data[20:])) << 16
	}

	return &fatEntry{
		directory: data[11]&attributeDir != 0, cluster: cluster & clusterMask,
		size: int64(binary.LittleEndian.Uint32(data[28:])),
	}
}

// add takes one entry of a long name. They come last part first.
func (l *longName) add(entry []byte) {
	number := int(entry[0] & 0x3f)

	if entry[0]&0x40 != 0 {
		*l = longName{count: number, next: number, checksum: entry[13]}
	}

	if number == 0 || number > longEntries || number != l.next || entry[13] != l.checksum {
		*l = longName{}

		return
	}

	units := l.units[(number-1)*unitsPerEntry : number*unitsPerEntry]

	for index, offset := range [unitsPerEntry]int{1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30} {
		units[index] = binary.LittleEndian.Uint16(entry[offset:])
	}

	l.next--
}

// of returns the long name of a file's own entry, "" when it has none.
func (l *longName) of(entry []byte) string {
	if l.count == 0 || l.next != 0 {
		return ""
	}

	var sum byte
	for _, char := range entry[:11] {
		sum = sum>>1 | sum<<7
		sum += char
	}

	if sum != l.checksum {
		return ""
	}

	units := l.units[:l.count*unitsPerEntry]

	for index, unit := range units {
		if unit == 0 {
			units = units[:index]

			break
		}
	}

	return string(utf16.Decode(units))
}

// shortName is "NAME.EXT" of an entry.
func shortName(entry []byte) string {
	name := strings.TrimRight(string(entry[:8]), " ")
	if extension := strings.TrimRight(string(entry[8:11]), " "); extension != "" {
		name += "." + extension
	}

	return name
}
