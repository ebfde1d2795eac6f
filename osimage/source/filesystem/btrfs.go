package filesystem

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// The layout is that of the kernel's include/uapi/linux/btrfs_tree.h. All numbers are little-endian.
const (
	btrfsSuperblock = 64 << 10
	btrfsSuperSize  = 4096
	btrfsMagic      = "_BHRfS_M"

	btrfsHeader   = 101
	btrfsItem     = 25
	btrfsPointer  = 33
	btrfsKey      = 17
	btrfsMaxLevel = 8
	// btrfsMaxExtent is the most that one compressed extent unpacks to.
	btrfsMaxExtent = 128 << 10

	btrfsInode     = 1
	btrfsDirItem   = 84
	btrfsExtent    = 108
	btrfsRootItem  = 132
	btrfsChunk     = 228
	btrfsChunkTree = 256
	btrfsFSTree    = 5
	btrfsDuplicate = 1 << 5
	btrfsProfiles  = 0x7f8
	btrfsSysChunks = 2048
	btrfsSector    = 4096

	// The type of an extent, and its compression.
	btrfsInline   = 0
	btrfsPrepared = 2
	btrfsZlib     = 1
	btrfsZstd     = 3
)

// key orders the items of a tree.
type key struct {
	object uint64
	kind   uint8
	offset uint64
}

func parseKey(data []byte) key {
	return key{binary.LittleEndian.Uint64(data), data[8], binary.LittleEndian.Uint64(data[9:])}
}

func (k key) less(other key) bool {
	if k.object != other.object {
		return k.object < other.object
	}

	if k.kind != other.kind {
		return k.kind < other.kind
	}

	return k.offset < other.offset
}

// chunk is where a range of logical addresses lies on the device.
type chunk struct{ logical, length, physical int64 }

type btrfs struct {
	reader   io.ReaderAt
	total    int64
	nodeSize int
	chunks   []chunk

	rootTree  int64
	directory uint64 // of the subvolumes
	tree      int64  // of the default subvolume's files, 0 until it is looked for
	top       uint64
}

// openBtrfs returns nil when it is another file system.
func openBtrfs(reader io.ReaderAt) (volume, error) {
	super := make([]byte, btrfsSuperSize)
	if count, err := reader.ReadAt(super, btrfsSuperblock); count < len(super) {
		if errors.Is(err, io.EOF) {
			return nil, nil //nolint:nilnil // Too small for one.
		}

		return nil, err
	}

	if string(super[0x40:0x48]) != btrfsMagic {
		return nil, nil //nolint:nilnil // It is another one.
	}

	found := &btrfs{
		reader: reader, total: number(super[0x70:]), nodeSize: int(binary.LittleEndian.Uint32(super[0x94:])),
		rootTree: number(super[0x50:]), directory: binary.LittleEndian.Uint64(super[0x80:]),
	}

	switch {
	case found.total <= 0:
		return nil, broken("offset 0x10070: it has %d bytes", found.total)
	case binary.LittleEndian.Uint64(super[0x88:]) != 1:
		return nil, broken("offset 0x10088: it has %d devices, want 1", binary.LittleEndian.Uint64(super[0x88:]))
	case found.nodeSize < 4096 || found.nodeSize > 64<<10:
		return nil, broken("offset 0x10094: nodes of %d bytes, want 4096 to 65536", found.nodeSize)
	}

	if err := found.systemChunks(super); err != nil {
		return nil, err
	}

	// The chunk tree adds the chunks of everything else.
	return found, found.walk(number(super[0x58:]), key{object: btrfsChunkTree, kind: btrfsChunk}, func(k key, data []byte) (bool, error) {
		if k.object != btrfsChunkTree || k.kind != btrfsChunk {
			return false, nil
		}

		_, err := found.addChunk(k, data)

		return true, err
	})
}

// number is a 64-bit number that must not be negative; what is too large is -1 and fails where it is used.
func number(data []byte) int64 {
	value := binary.LittleEndian.Uint64(data)
	if value > 1<<60 {
		return -1
	}

	return int64(value)
}

// systemChunks reads those chunks that the superblock has itself, in which the chunk tree lies.
func (b *btrfs) systemChunks(super []byte) error {
	length := binary.LittleEndian.Uint32(super[0xa0:])
	if length > btrfsSysChunks {
		return broken("offset 0x100a0: %d bytes of chunks, want at most %d", length, btrfsSysChunks)
	}

	for data := super[0x32b : 0x32b+length]; len(data) > 0; {
		if len(data) < btrfsKey {
			return broken("offset 0x1032b: the chunks end within a key")
		}

		used, err := b.addChunk(parseKey(data), data[btrfsKey:])
		if err != nil {
			return err
		}

		data = data[btrfsKey+used:]
	}

	return nil
}

// addChunk reads a chunk and returns how many bytes it took.
func (b *btrfs) addChunk(k key, data []byte) (int, error) {
	if len(data) < 48 || k.offset > 1<<60 {
		return 0, broken("the chunk at %d has %d bytes", k.offset, len(data))
	}

	length, kind, stripes := number(data), binary.LittleEndian.Uint64(data[24:]), int(binary.LittleEndian.Uint16(data[44:]))
	size := 48 + 32*stripes

	switch {
	case kind&btrfsProfiles != 0 && kind&btrfsProfiles != btrfsDuplicate:
		return 0, broken("the chunk at %d has the profile %#x, want single or DUP", k.offset, kind&btrfsProfiles)
	case stripes == 0 || size > len(data) || length <= 0:
		return 0, broken("the chunk at %d has %d stripes, %d bytes", k.offset, stripes, length)
	case len(b.chunks) == maxNodes:
		return 0, broken("there are more than %d chunks", maxNodes)
	}

	physical := number(data[56:])
	if physical < 0 {
		return 0, broken("the chunk at %d begins nowhere", k.offset)
	}

	b.chunks = append(b.chunks, chunk{logical: int64(k.offset), length: length, physical: physical})

	return size, nil
}

// at reads from a logical address.
func (b *btrfs) at(logical int64, length int) ([]byte, error) {
	for _, chunk := range b.chunks {
		if logical >= chunk.logical && logical-chunk.logical <= chunk.length-int64(length) {
			return block(b.reader, chunk.physical+logical-chunk.logical, length)
		}
	}

	return nil, broken("no chunk has the address %d", logical)
}

func (b *btrfs) kind() string { return "btrfs" }
func (b *btrfs) size() int64  { return b.total }

// walk visits the items of a tree from a key on, in order, until visit says that it is enough.
func (b *btrfs) walk(tree int64, from key, visit func(key, []byte) (more bool, err error)) error {
	nodes := 0

	_, err := b.node(tree, btrfsMaxLevel, &nodes, from, visit)

	return err
}

func (b *btrfs) node(
	address int64, level int, nodes *int, from key, visit func(key, []byte) (bool, error),
) (more bool, err error) {
	if *nodes++; *nodes > maxNodes {
		return false, broken("a search reads more than %d nodes", maxNodes)
	}

	node, err := b.at(address, b.nodeSize)
	if err != nil {
		return false, err
	}

	count, own := int(binary.LittleEndian.Uint32(node[0x60:])), int(node[0x64])
	itemSize := btrfsPointer

	if own == 0 {
		itemSize = btrfsItem
	}

	if number(node[0x30:]) != address || own >= level || count < 0 || count > (b.nodeSize-btrfsHeader)/itemSize {
		return false, broken("the node at %d has level %d and %d items", address, own, count)
	}

	for index := range count {
		item := node[btrfsHeader+index*itemSize:]

		if own > 0 {
			// A child whose successor begins at or before the key has nothing of interest.
			if index+1 < count && !from.less(parseKey(item[itemSize:])) {
				continue
			}

			more, err = b.node(number(item[btrfsKey:]), own, nodes, from, visit)
		} else {
			more, err = b.item(node, item, from, visit)
		}

		if err != nil || !more {
			return false, err
		}
	}

	return true, nil
}

func (b *btrfs) item(node, item []byte, from key, visit func(key, []byte) (bool, error)) (bool, error) {
	k := parseKey(item)
	if k.less(from) {
		return true, nil
	}

	offset, length := int64(binary.LittleEndian.Uint32(item[btrfsKey:])), int64(binary.LittleEndian.Uint32(item[btrfsKey+4:]))
	if btrfsHeader+offset+length > int64(len(node)) {
		return false, broken("an item has %d bytes at %d of a node", length, offset)
	}

	return visit(k, node[btrfsHeader+offset:btrfsHeader+offset+length])
}

// find gives the first item of an object and a kind.
func (b *btrfs) find(tree int64, object uint64, kind uint8) (data []byte, err error) {
	err = b.walk(tree, key{object: object, kind: kind}, func(k key, found []byte) (bool, error) {
		if k.object == object && k.kind == kind {
			data = bytes.Clone(found)
		}

		return false, nil
	})
	if err == nil && data == nil {
		err = broken("object %d has no item of the kind %d", object, kind)
	}

	return data, err
}

// entry finds a name in a directory.
func (b *btrfs) entry(tree int64, directory uint64, name string) (found key, err error) {
	err = b.walk(tree, key{object: directory, kind: btrfsDirItem}, func(k key, data []byte) (bool, error) {
		if k.object != directory || k.kind != btrfsDirItem {
			return false, nil
		}

		// Names with the same hash share an item.
		for len(data) >= 30 {
			extra, length := int(binary.LittleEndian.Uint16(data[25:])), int(binary.LittleEndian.Uint16(data[27:]))
			if 30+length+extra > len(data) {
				return false, broken("directory %d has a name of %d bytes in an item of %d", directory, length, len(data))
			}

			if string(data[30:30+length]) == name {
				found = parseKey(data)

				return false, nil
			}

			data = data[30+length+extra:]
		}

		return true, nil
	})

	return found, err
}

// root finds the default subvolume: what is mounted when nothing else is said.
func (b *btrfs) root() (uint64, error) {
	if b.tree != 0 {
		return b.top, nil
	}

	subvolume := uint64(btrfsFSTree)

	if standard, err := b.entry(b.rootTree, b.directory, "default"); err != nil {
		return 0, err
	} else if standard.object != 0 {
		subvolume = standard.object
	}

	item, err := b.find(b.rootTree, subvolume, btrfsRootItem)
	if err != nil {
		return 0, err
	}

	if len(item) < 184 {
		return 0, broken("the subvolume %d has an item of %d bytes", subvolume, len(item))
	}

	b.top, b.tree = binary.LittleEndian.Uint64(item[168:]), number(item[176:])

	return b.top, nil
}

func (b *btrfs) child(directory uint64, name string) (uint64, error) {
	found, err := b.entry(b.tree, directory, name)
	if err == nil && found.kind == btrfsRootItem {
		return 0, broken("%s is a subvolume of its own", name)
	}

	return found.object, err
}

func (b *btrfs) stat(file uint64) (stat, error) {
	item, err := b.find(b.tree, file, btrfsInode)
	if err != nil {
		return stat{}, err
	}

	if len(item) < 56 || number(item[16:]) < 0 {
		return stat{}, broken("the inode %d has %d bytes", file, len(item))
	}

	return stat{mode: binary.LittleEndian.Uint32(item[52:]), size: number(item[16:])}, nil
}

func (b *btrfs) read(file uint64, limit int64) ([]byte, error) {
	info, err := b.stat(file)
	if err != nil {
		return nil, err
	}

	if info.size > limit {
		return nil, broken("the inode %d has %d bytes, at most %d are expected", file, info.size, limit)
	}

	content := make([]byte, info.size)
	next := uint64(0)

	return content, b.walk(b.tree, key{object: file, kind: btrfsExtent}, func(k key, data []byte) (bool, error) {
		if k.object != file || k.kind != btrfsExtent || k.offset >= uint64(len(content)) {
			return false, nil
		}

		// In order and aligned, so that a broken file does not make more work than there is content.
		if k.offset < next || k.offset%btrfsSector != 0 {
			return false, broken("the inode %d has an extent at byte %d, after byte %d", file, k.offset, next)
		}

		next = k.offset + btrfsSector

		return true, b.extent(content[k.offset:], data)
	})
}

// extent fills the beginning of content from one extent of a file.
func (b *btrfs) extent(content, data []byte) error {
	if len(data) < 21 {
		return broken("an extent has %d bytes", len(data))
	}

	memory, compression, kind := number(data[8:]), data[16], data[20]

	if encoding := data[17:20]; !bytes.Equal(encoding, make([]byte, 3)) {
		return broken("an extent is encrypted or encoded")
	}

	if kind == btrfsInline {
		return unpack(content, data[21:], compression, memory, 0)
	}

	if len(data) < 53 {
		return broken("an extent has %d bytes", len(data))
	}

	address, length, from, count := number(data[21:]), number(data[29:]), number(data[37:]), number(data[45:])

	if kind == btrfsPrepared || address == 0 {
		return nil // Allocated, but not written; or a hole.
	}

	if min(from, count, address) < 0 {
		return broken("an extent at %d, of it %d bytes from %d", address, count, from)
	}

	content = content[:min(int64(len(content)), count)]

	if compression == 0 {
		plain, err := b.at(address+from, len(content))
		copy(content, plain)

		return err
	}

	if length <= 0 || length > btrfsMaxExtent {
		return broken("a compressed extent has %d bytes, want 1 to %d", length, btrfsMaxExtent)
	}

	packed, err := b.at(address, int(length))
	if err != nil {
		return err
	}

	return unpack(content, packed, compression, memory, from)
}

// unpack undoes an extent's compression, from some byte on. What lies behind the stream is padding, and what it is too
// short for is zeros, as for the kernel.
func unpack(content, data []byte, compression uint8, size, from int64) error {
	if compression == 0 {
		copy(content, data)

		return nil
	}

	if size <= 0 || size > btrfsMaxExtent || from > size {
		return broken("a compressed extent unpacks to %d bytes, want at most %d, and more than %d", size, btrfsMaxExtent, from)
	}

	plain := make([]byte, size)

	var (
		count int
		err   error
	)

	switch compression {
	case btrfsZlib:
		count, err = unpackZlib(plain, data)
	case btrfsZstd:
		count, err = unpackZstd(plain, data)
	default:
		return broken("an extent has the compression %d, want none, zlib or zstd", compression)
	}

	if err != nil && (count == 0 || !errors.Is(err, io.ErrUnexpectedEOF)) {
		return fmt.Errorf("%w: unpacking an extent: %w", ErrBroken, err)
	}

	copy(content, plain[from:])

	return nil
}

func unpackZlib(plain, data []byte) (int, error) {
	reader, err := zlib.NewReader(bytes.NewReader(data))
	if err != nil {
		return 0, err
	}

	return io.ReadFull(reader, plain)
}

func unpackZstd(plain, data []byte) (int, error) {
	reader, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return 0, err
	}

	defer reader.Close()

	return io.ReadFull(reader, plain)
}
