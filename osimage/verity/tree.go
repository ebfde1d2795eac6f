package verity

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/bits"
)

// What can be wrong, to be tested with errors.Is.
var (
	// ErrNoTree is returned where no hash tree of a kind that can be checked begins.
	ErrNoTree = errors.New("no dm-verity hash tree")
	// ErrMismatch is returned when a root hash, a tree and its data do not belong together.
	ErrMismatch = errors.New("dm-verity hashes do not match")
)

// The superblock, all little-endian (cryptsetup, lib/verity/verity.c, struct verity_sb).
const (
	superblockSize = 512
	magic          = "verity\x00\x00"

	atVersion       = 8
	atHashType      = 12
	atAlgorithm     = 32
	atDataBlockSize = 64
	atHashBlockSize = 68
	atDataBlocks    = 72
	atSaltSize      = 80
	atSalt          = 88

	algorithmBytes = 32
	maxSaltBytes   = 256

	// The kernel refuses blocks that are smaller, or larger than a page; pages of 64 KiB exist on arm64.
	minBlockSize = 512
	maxBlockSize = 64 << 10
	// maxDataBytes is more than any slot has, and small enough that no sum of offsets can overflow.
	maxDataBytes = 1 << 50
)

// Tree is a hash tree on a medium.
type Tree struct {
	hashes io.ReaderAt
	// offset is where the superblock begins.
	offset int64

	dataBlocks               int64
	dataBlockSize, blockSize int
	salt                     []byte
	// fanOut is the logarithm of the number of hashes in one block.
	fanOut int
	// levels are the positions of the levels in bytes from the start of hashes. Level 0 has the hashes of the data.
	levels []int64
	size   int64
}

// Open reads the superblock of a hash tree that begins at an offset in a file or partition.
func Open(hashes io.ReaderAt, offset int64) (*Tree, error) {
	header := make([]byte, superblockSize)
	if _, err := hashes.ReadAt(header, offset); err != nil {
		return nil, noTree(offset, "the superblock cannot be read", err)
	}

	if string(header[:len(magic)]) != magic {
		return nil, noTree(offset, fmt.Sprintf("it begins with %q, want %q", header[:len(magic)], magic), nil)
	}

	number := func(at int) int64 { return int64(binary.LittleEndian.Uint32(header[at:])) }
	algorithm, _, _ := bytes.Cut(header[atAlgorithm:atAlgorithm+algorithmBytes], []byte{0})
	saltSize := int(binary.LittleEndian.Uint16(header[atSaltSize:]))
	blocks := binary.LittleEndian.Uint64(header[atDataBlocks:])
	dataBlockSize, blockSize := number(atDataBlockSize), number(atHashBlockSize)

	switch {
	case number(atVersion) != 1 || number(atHashType) != 1:
		return nil, noTree(offset, fmt.Sprintf("superblock version %d and hash type %d are unknown, want 1 and 1",
			number(atVersion), number(atHashType)), nil)
	case string(algorithm) != "sha256":
		return nil, noTree(offset, fmt.Sprintf("the algorithm is %q, want \"sha256\"", algorithm), nil)
	case !isBlockSize(dataBlockSize) || !isBlockSize(blockSize):
		return nil, noTree(offset, fmt.Sprintf("data blocks of %d and hash blocks of %d bytes, want powers of two from %d to %d",
			dataBlockSize, blockSize, minBlockSize, maxBlockSize), nil)
	case blocks < 2 || blocks > uint64(maxDataBytes/dataBlockSize): //nolint:gosec // Both are positive.
		return nil, noTree(offset, fmt.Sprintf("it has %d data blocks, want 2 to %d", blocks, maxDataBytes/dataBlockSize), nil)
	case saltSize > maxSaltBytes:
		return nil, noTree(offset, fmt.Sprintf("the salt has %d bytes, want at most %d", saltSize, maxSaltBytes), nil)
	}

	tree := &Tree{
		hashes: hashes, offset: offset, dataBlockSize: int(dataBlockSize), blockSize: int(blockSize),
		dataBlocks: int64(blocks), //nolint:gosec // Checked above.
		salt:       bytes.Clone(header[atSalt : atSalt+saltSize]),
		fanOut:     bits.Len64(uint64(blockSize/sha256.Size)) - 1, //nolint:gosec // Checked above.
	}
	tree.place()

	return tree, nil
}

// place finds the levels. The highest one, of one block, comes first, in the block after the superblock.
func (t *Tree) place() {
	var counts []int64

	for count := t.dataBlocks; count > 1 || len(counts) == 0; {
		count = (count-1)>>t.fanOut + 1
		counts = append(counts, count)
	}

	// The kernel counts hash blocks from the start of the medium, so the first one is at a multiple of their size.
	size := int64(t.blockSize)
	next := (t.offset + superblockSize + size - 1) / size * size
	t.levels = make([]int64, len(counts))

	for level := len(counts) - 1; level >= 0; level-- {
		t.levels[level] = next
		next += counts[level] * size
	}

	t.size = next - t.offset
}

// DataSize is the number of bytes that the tree covers: the size of the file system, not of its partition.
func (t *Tree) DataSize() int64 { return t.dataBlocks * int64(t.dataBlockSize) }

// Size is the number of bytes of the superblock and the tree.
func (t *Tree) Size() int64 { return t.size }

// CheckRoot compares the tree's highest block with a root hash in hexadecimal digits.
func (t *Tree) CheckRoot(rootHash string) error {
	_, err := t.root(rootHash)

	return err
}

// root reads the highest block and verifies it.
func (t *Tree) root(rootHash string) ([]byte, error) {
	want, err := hex.DecodeString(rootHash)
	if err != nil || len(want) != sha256.Size {
		return nil, fmt.Errorf("%w: the root hash %q has not 64 hexadecimal digits", ErrMismatch, rootHash)
	}

	top := t.levels[len(t.levels)-1]

	block, err := t.block(top)
	if err != nil {
		return nil, err
	}

	if got := t.sum(block); !bytes.Equal(got, want) {
		return nil, fmt.Errorf("%w: the tree at byte %d has the root hash %x, want %s", ErrMismatch, t.offset, got, rootHash)
	}

	return block, nil
}

func (t *Tree) block(at int64) ([]byte, error) {
	block := make([]byte, t.blockSize)
	if _, err := t.hashes.ReadAt(block, at); err != nil {
		return nil, noTree(t.offset, fmt.Sprintf("its block at byte %d cannot be read", at), err)
	}

	return block, nil
}

func (t *Tree) sum(block []byte) []byte {
	sum := sha256.New()
	sum.Write(t.salt)
	sum.Write(block)

	return sum.Sum(nil)
}

func isBlockSize(size int64) bool {
	return size >= minBlockSize && size <= maxBlockSize && size&(size-1) == 0
}

func noTree(offset int64, detail string, cause error) error {
	if errors.Is(cause, io.EOF) {
		cause = io.ErrUnexpectedEOF // nobody may take it for the end of the data
	}

	if cause != nil {
		return fmt.Errorf("%w at byte %d: %s: %w", ErrNoTree, offset, detail, cause)
	}

	return fmt.Errorf("%w at byte %d: %s", ErrNoTree, offset, detail)
}

// CheckRoot compares the hash tree at an offset with a root hash in hexadecimal digits. It reads two blocks.
func CheckRoot(hashes io.ReaderAt, hashOffset int64, rootHash string) error {
	tree, err := Open(hashes, hashOffset)
	if err != nil {
		return err
	}

	return tree.CheckRoot(rootHash)
}
