package chunk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// Limits of the parameters, so that a reader knows what the worst index costs it.
const (
	// window is the number of bytes that decide about a cut: a gear hash of 64 bits has forgotten all older ones.
	window = 64
	// leastChunk keeps the number of chunks of any content bounded.
	leastChunk = 256
	// greatestChunk keeps a chunk well below MaxFrame.
	greatestChunk = 1 << 20
	greatestAlign = 64 << 10
)

// ErrParams is returned for chunking parameters outside of the limits.
var ErrParams = errors.New("chunking parameters cannot be used")

// Params say how a content is cut. They are stored in the index.
type Params struct {
	// Min, Avg and Max are the lengths of chunks in bytes: the least (but for a content's last chunk), the one aimed at (a
	// power of two), and the greatest.
	Min, Avg, Max int
	// Align is a power of two: cuts are only at multiples of it. 1 means anywhere. With 4096 a file system whose blocks
	// have that size is cut at block borders only, and with Min, Avg and Max of 4096 too every block is a chunk.
	Align int
}

// Validate tells whether contents can be cut with the parameters.
func (p Params) Validate() error {
	switch {
	case p.Align < 1 || p.Align > greatestAlign || bits.OnesCount(uint(p.Align)) != 1:
		return fmt.Errorf("%w: align %d, want a power of two up to %d", ErrParams, p.Align, greatestAlign)
	case p.Min < leastChunk || p.Max > greatestChunk:
		return fmt.Errorf("%w: chunks of %d to %d bytes, want %d to %d", ErrParams, p.Min, p.Max, leastChunk, greatestChunk)
	case p.Min > p.Avg || p.Avg > p.Max || bits.OnesCount(uint(p.Avg)) != 1:
		return fmt.Errorf("%w: average %d, want a power of two from %d to %d", ErrParams, p.Avg, p.Min, p.Max)
	case p.Min%p.Align != 0 || p.Max%p.Align != 0 || p.Avg%p.Align != 0:
		return fmt.Errorf("%w: chunks of %d, %d and %d bytes, want multiples of %d", ErrParams, p.Min, p.Avg, p.Max, p.Align)
	}

	return nil
}

const (
	// wantedChunks bounds what index, seeds and censuses cost: about 20 MiB of memory, whatever the size of the content.
	wantedChunks = 1 << 18
	blockSize    = 4096
)

// ParamsFor chooses parameters for a content by its first bytes (HeadSize of them, or all) and its size. A file system
// that keeps its data in blocks of 4096 bytes is cut at their borders, so that no chunk holds parts of two files. All
// else, compressed file systems and kernel images too, is cut where the bytes say.
func ParamsFor(head []byte, size int64) Params {
	params := Params{Min: 1 << 10, Avg: 4 << 10, Max: 16 << 10, Align: 1}
	if inBlocks(head) {
		params = Params{Min: blockSize, Avg: blockSize, Max: blockSize, Align: blockSize}
	}

	// Blocks stay cut at any of their borders: at every second one, all behind a file that has grown by one is new.
	for size/int64(params.Avg) > wantedChunks && params.Max < greatestChunk {
		params.Avg, params.Max = 2*params.Avg, 2*params.Max

		if params.Align == 1 {
			params.Min *= 2
		}
	}

	return params
}

// HeadSize is how many bytes ParamsFor looks at.
const HeadSize = 2048

// inBlocks knows the file systems whose data begins at multiples of 4096 bytes.
func inBlocks(head []byte) bool {
	const (
		superblock = 1024            // of erofs and ext4
		extMagic   = superblock + 56 // s_magic
	)

	head = head[:min(len(head), HeadSize)]
	erofs := binary.LittleEndian.AppendUint32(nil, 0xe0f5e1e2) // EROFS_SUPER_MAGIC_V1
	ext := binary.LittleEndian.AppendUint16(nil, 0xef53)       // EXT4_SUPER_MAGIC

	return len(head) > superblock && bytes.HasPrefix(head[superblock:], erofs) ||
		len(head) > extMagic && bytes.HasPrefix(head[extMagic:], ext)
}
