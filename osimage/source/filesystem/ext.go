package filesystem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
)

// The layout is that of the kernel's Documentation/filesystems/ext4.
const (
	extSuperblock = 1024
	extMagic      = 0xef53
	extRoot       = 2

	// Features that change how files are found. Others, such as checksums, do not matter to a reader.
	extMetaGroups = 0x10
	ext64Bit      = 0x80
	extKnown      = 0x2 | 0x4 | 0x40 | ext64Bit | 0x100 | 0x200 | 0x400 | 0x2000 | 0x4000 | 0x20000

	extUsesExtents = 0x80000
	extInlineData  = 0x10000000
	extNodeMagic   = 0xf30a
	extMaxDepth    = 5
	extMaxWritten  = 1 << 15 // an extent with more blocks has so many less, and is not written yet
	extFastLink    = 60
	extDirect      = 12
)

type ext struct {
	reader                 io.ReaderAt
	blockSize, blocks      int64
	inodes, inodesPerGroup uint32
	inodeSize, groupSize   int64
	groupTable             int64
	perGroup, firstBlock   int64
}

// inode is a file: its mode, size and where its blocks are.
type inode struct {
	stat

	flags uint32
	map60 []byte
}

// openExt returns nil when it is another file system.
func openExt(reader io.ReaderAt) (volume, error) {
	super := make([]byte, 1024)
	if count, err := reader.ReadAt(super, extSuperblock); count < len(super) {
		if errors.Is(err, io.EOF) {
			return nil, nil //nolint:nilnil // Too small for one.
		}

		return nil, err
	}

	if binary.LittleEndian.Uint16(super[0x38:]) != extMagic {
		return nil, nil //nolint:nilnil // It is another one.
	}

	logSize := binary.LittleEndian.Uint32(super[0x18:])
	if logSize > 6 {
		return nil, broken("offset 0x418: blocks of 2^%d KiB, want at most 64 KiB", logSize)
	}

	features := binary.LittleEndian.Uint32(super[0x60:])
	found := &ext{
		reader: reader, blockSize: 1024 << logSize,
		blocks:     int64(binary.LittleEndian.Uint32(super[0x4:])),
		inodes:     binary.LittleEndian.Uint32(super[0x0:]),
		firstBlock: int64(binary.LittleEndian.Uint32(super[0x14:])),
		perGroup:   int64(binary.LittleEndian.Uint32(super[0x20:])), inodesPerGroup: binary.LittleEndian.Uint32(super[0x28:]),
		inodeSize: int64(binary.LittleEndian.Uint16(super[0x58:])), groupSize: 32,
	}

	if binary.LittleEndian.Uint32(super[0x4c:]) == 0 {
		features, found.inodeSize = 0, 128
	}

	if features&ext64Bit != 0 {
		found.blocks |= int64(binary.LittleEndian.Uint32(super[0x150:])) << 32
		found.groupSize = int64(binary.LittleEndian.Uint16(super[0xfe:]))
	}

	if unknown := features &^ extKnown; unknown != 0 {
		return nil, broken("offset 0x460: the features %#x are not known", unknown)
	}

	return found, found.check()
}

func (e *ext) check() error {
	switch {
	case e.blocks <= 0 || e.blocks > 1<<40:
		return broken("offset 0x404: there are %d blocks", e.blocks)
	case e.perGroup == 0 || e.inodesPerGroup == 0:
		return broken("offset 0x420: groups of %d blocks and %d files", e.perGroup, e.inodesPerGroup)
	case e.inodeSize < 128 || e.inodeSize > e.blockSize:
		return broken("offset 0x458: inodes of %d bytes", e.inodeSize)
	case e.groupSize < 32 || e.groupSize > 1024:
		return broken("offset 0x4fe: group descriptors of %d bytes", e.groupSize)
	}

	e.groupTable = (e.firstBlock + 1) * e.blockSize

	return nil
}

func (e *ext) kind() string          { return "ext" }
func (e *ext) size() int64           { return e.blocks * e.blockSize }
func (e *ext) root() (uint64, error) { return extRoot, nil }

func (e *ext) inode(number uint64) (inode, error) {
	if number == 0 || number > uint64(e.inodes) {
		return inode{}, broken("there is no inode %d of %d", number, e.inodes)
	}

	place := int64(number) - 1 //nolint:gosec // Below 2^32.
	group, index := place/int64(e.inodesPerGroup), place%int64(e.inodesPerGroup)

	descriptor, err := block(e.reader, e.groupTable+group*e.groupSize, int(e.groupSize))
	if err != nil {
		return inode{}, err
	}

	table := int64(binary.LittleEndian.Uint32(descriptor[0x8:]))
	if e.groupSize >= 64 {
		table |= int64(binary.LittleEndian.Uint32(descriptor[0x28:])) << 32
	}

	if table >= e.blocks || table < 0 {
		return inode{}, broken("the inodes of group %d are in block %d of %d", group, table, e.blocks)
	}

	data, err := block(e.reader, table*e.blockSize+index*e.inodeSize, 128)
	if err != nil {
		return inode{}, err
	}

	size := uint64(binary.LittleEndian.Uint32(data[0x4:])) | uint64(binary.LittleEndian.Uint32(data[0x6c:]))<<32
	if size > 1<<50 {
		return inode{}, broken("inode %d has %d bytes", number, size)
	}

	return inode{
		stat:  stat{mode: uint32(binary.LittleEndian.Uint16(data)), size: int64(size)},
		flags: binary.LittleEndian.Uint32(data[0x20:]), map60: data[0x28 : 0x28+60],
	}, nil
}

func (e *ext) stat(file uint64) (stat, error) {
	found, err := e.inode(file)

	return found.stat, err
}

func (e *ext) child(directory uint64, name string) (uint64, error) {
	data, err := e.read(directory, maxDirectory)
	if err != nil {
		return 0, err
	}

	for len(data) >= 8 {
		length, nameLength := int(binary.LittleEndian.Uint16(data[4:])), int(data[6])

		if length < 8 || length > len(data) || 8+nameLength > length {
			return 0, broken("directory %d has an entry of %d bytes with a name of %d", directory, length, nameLength)
		}

		if file := binary.LittleEndian.Uint32(data); file != 0 && string(data[8:8+nameLength]) == name {
			return uint64(file), nil
		}

		data = data[length:]
	}

	return 0, nil
}

func (e *ext) read(file uint64, limit int64) ([]byte, error) {
	found, err := e.inode(file)
	if err != nil {
		return nil, err
	}

	switch {
	case found.size > limit:
		return nil, broken("inode %d has %d bytes, at most %d are expected", file, found.size, limit)
	case found.mode&modeType == modeLink && found.size < extFastLink && found.flags&extUsesExtents == 0:
		return bytes.Clone(found.map60[:found.size]), nil
	case found.flags&extInlineData != 0:
		return nil, broken("inode %d has its data inside", file)
	}

	content := make([]byte, found.size)

	if found.flags&extUsesExtents != 0 {
		err = (&extentWalk{ext: e, content: content}).node(found.map60, extMaxDepth)
	} else {
		err = e.blockMap(content, found.map60)
	}

	return content, err
}

// extentWalk fills content from an extent tree. What comes later in the tree comes later in the file, too, so that a
// broken one does not make more work than there is content.
type extentWalk struct {
	*ext

	content []byte
	next    int64
	nodes   int
}

// node reads a node that may have so many levels below it.
func (w *extentWalk) node(node []byte, depth int) error {
	count, level := int(binary.LittleEndian.Uint16(node[2:])), int(binary.LittleEndian.Uint16(node[6:]))

	if magic := binary.LittleEndian.Uint16(node); magic != extNodeMagic || 12+12*count > len(node) || level > depth {
		return broken("an extent node with magic %#x, %d entries and depth %d", magic, count, level)
	}

	if w.nodes++; w.nodes > maxNodes {
		return broken("a file has more than %d extent nodes", maxNodes)
	}

	for index := range count {
		entry := node[12+12*index : 24+12*index]

		if level == 0 {
			if err := w.extent(entry); err != nil {
				return err
			}

			continue
		}

		start := int64(binary.LittleEndian.Uint16(entry[8:]))<<32 | int64(binary.LittleEndian.Uint32(entry[4:]))
		if start >= w.blocks {
			return broken("an extent node is in block %d of %d", start, w.blocks)
		}

		below, err := block(w.reader, start*w.blockSize, int(w.blockSize))
		if err != nil {
			return err
		}

		if err := w.node(below, level-1); err != nil {
			return err
		}
	}

	return nil
}

func (w *extentWalk) extent(entry []byte) error {
	first := int64(binary.LittleEndian.Uint32(entry)) * w.blockSize
	length, written := int64(binary.LittleEndian.Uint16(entry[4:])), true

	if length > extMaxWritten {
		length, written = length-extMaxWritten, false
	}

	if first < w.next || length == 0 {
		return broken("an extent of %d blocks at byte %d of a file, after byte %d", length, first, w.next)
	}

	if first >= int64(len(w.content)) {
		return nil
	}

	w.next = min(int64(len(w.content)), first+length*w.blockSize)

	if !written {
		return nil
	}

	start := int64(binary.LittleEndian.Uint16(entry[6:]))<<32 | int64(binary.LittleEndian.Uint32(entry[8:]))

	return w.copy(w.content[first:w.next], start)
}

// copy reads blocks that follow one another.
func (e *ext) copy(content []byte, start int64) error {
	if start == 0 {
		return nil // a hole
	}

	if start+int64(len(content))/e.blockSize > e.blocks {
		return broken("a file continues in block %d of %d", start, e.blocks)
	}

	data, err := block(e.reader, start*e.blockSize, len(content))
	copy(content, data)

	return err
}

// blockMap fills content from the direct and indirect blocks of ext2 and ext3. Files here need no third level.
func (e *ext) blockMap(content, blocks []byte) error {
	rest, err := e.direct(content, blocks[:4*extDirect])
	if err != nil || len(rest) == 0 {
		return err
	}

	indirect, err := e.pointers(blocks[4*extDirect:])
	if err != nil {
		return err
	}

	if rest, err = e.direct(rest, indirect); err != nil || len(rest) == 0 {
		return err
	}

	double, err := e.pointers(blocks[4*extDirect+4:])
	if err != nil {
		return err
	}

	for ; len(double) >= 4 && len(rest) > 0; double = double[4:] {
		if indirect, err = e.pointers(double); err != nil {
			return err
		}

		if rest, err = e.direct(rest, indirect); err != nil {
			return err
		}
	}

	if len(rest) > 0 {
		return broken("a file has a third level of blocks")
	}

	return nil
}

// direct fills content from a list of block numbers, and returns what is still empty.
func (e *ext) direct(content, numbers []byte) ([]byte, error) {
	for ; len(numbers) >= 4 && len(content) > 0; numbers = numbers[4:] {
		part := content[:min(int64(len(content)), e.blockSize)]

		if err := e.copy(part, int64(binary.LittleEndian.Uint32(numbers))); err != nil {
			return nil, err
		}

		content = content[len(part):]
	}

	return content, nil
}

// pointers reads a block of block numbers; none at all is a hole.
func (e *ext) pointers(number []byte) ([]byte, error) {
	start := int64(binary.LittleEndian.Uint32(number))

	switch {
	case start == 0:
		return make([]byte, e.blockSize), nil
	case start >= e.blocks:
		return nil, broken("a list of blocks is in block %d of %d", start, e.blocks)
	default:
		return block(e.reader, start*e.blockSize, int(e.blockSize))
	}
}
