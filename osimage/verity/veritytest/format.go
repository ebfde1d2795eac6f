// Package veritytest makes dm-verity hash trees for tests, as `veritysetup format` does. It needs all data in memory.
package veritytest

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
)

const (
	// BlockSize is that of data and hash blocks.
	BlockSize = 4096

	superblockSize, saltAt = 512, 88
)

// Format makes the hash tree of data, which must be at least two whole blocks, and returns it with its superblock and
// the root hash.
func Format(data, salt []byte) (tree []byte, rootHash string) {
	var levels [][]byte

	for below := data; len(below) > BlockSize; {
		var level []byte

		for block := range slices.Chunk(below, BlockSize) {
			sum := sha256.Sum256(append(bytes.Clone(salt), block...))
			level = append(level, sum[:]...)
		}

		level = append(level, make([]byte, (BlockSize-len(level)%BlockSize)%BlockSize)...)
		levels = append(levels, level)
		below = level
	}

	tree = superblock(len(data)/BlockSize, salt)
	for _, level := range slices.Backward(levels) {
		tree = append(tree, level...)
	}

	root := sha256.Sum256(append(bytes.Clone(salt), levels[len(levels)-1]...))

	return tree, hex.EncodeToString(root[:])
}

// superblock is the first hash block (cryptsetup, lib/verity/verity.c, struct verity_sb).
func superblock(dataBlocks int, salt []byte) []byte {
	block := append([]byte("verity\x00\x00"), make([]byte, BlockSize-8)...)
	uuid := sha256.Sum256(salt)

	binary.LittleEndian.PutUint32(block[8:], 1)
	binary.LittleEndian.PutUint32(block[12:], 1)
	copy(block[16:32], uuid[:])
	copy(block[32:], "sha256")
	binary.LittleEndian.PutUint32(block[64:], BlockSize)
	binary.LittleEndian.PutUint32(block[68:], BlockSize)
	binary.LittleEndian.PutUint64(block[72:], uint64(dataBlocks)) //nolint:gosec // A length.
	binary.LittleEndian.PutUint16(block[80:], uint16(len(salt)))  //nolint:gosec // At most 256.
	copy(block[saltAt:superblockSize], salt)

	return block
}
