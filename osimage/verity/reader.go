package verity

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
)

// pieceSize is how much data is read at once.
const pieceSize = 1 << 20

// Reader passes data on once the tree vouches for it. It reads as many bytes as the tree covers, and returns ErrMismatch
// at the first block that is another one. Data is to be read from its start.
func (t *Tree) Reader(data io.Reader, rootHash string) io.Reader {
	return &reader{
		tree: t, rootHash: rootHash,
		data: bufio.NewReaderSize(io.LimitReader(data, t.DataSize()), pieceSize),
		path: make([]pathBlock, len(t.levels)), block: make([]byte, t.dataBlockSize),
	}
}

// Check reads data from its start and compares all of it with the hash tree at an offset. Memory does not depend on the
// size.
func Check(ctx context.Context, data io.Reader, hashes io.ReaderAt, hashOffset int64, rootHash string) error {
	tree, err := Open(hashes, hashOffset)
	if err != nil {
		return err
	}

	checked := tree.Reader(data, rootHash)
	piece := make([]byte, pieceSize)

	for ctx.Err() == nil {
		if _, err := checked.Read(piece); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}

	return context.Cause(ctx)
}

// pathBlock is the verified block of a level that the present data block hangs from.
type pathBlock struct {
	index   int64
	content []byte
}

type reader struct {
	tree     *Tree
	data     io.Reader
	rootHash string

	// path has a block for each level, empty until it is needed.
	path []pathBlock
	// block is the data block whose rest was not handed out yet.
	block, rest []byte
	next        int64
	err         error
}

func (r *reader) Read(buffer []byte) (int, error) {
	count := 0

	for count < len(buffer) {
		if len(r.rest) == 0 {
			if r.err = r.fill(); r.err != nil {
				break
			}
		}

		copied := copy(buffer[count:], r.rest)
		r.rest = r.rest[copied:]
		count += copied
	}

	if count > 0 {
		return count, nil
	}

	return 0, r.err
}

// fill reads and verifies the next block.
func (r *reader) fill() error {
	switch {
	case r.err != nil:
		return r.err
	case r.next == r.tree.dataBlocks:
		return io.EOF
	}

	position := r.next * int64(r.tree.dataBlockSize)

	if _, err := io.ReadFull(r.data, r.block); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: the data ends in the block at byte %d, the tree covers %d bytes", ErrMismatch, position, r.tree.DataSize())
	} else if err != nil {
		return fmt.Errorf("reading the data at byte %d: %w", position, err)
	}

	want, err := r.hashOf(0, r.next)
	if err != nil {
		return err
	}

	if got := r.tree.sum(r.block); !bytes.Equal(got, want) {
		return fmt.Errorf("%w: the data block at byte %d has %x, want %x", ErrMismatch, position, got, want)
	}

	r.rest = r.block
	r.next++

	return nil
}

// hashOf is the verified hash of a block: of a data block on level 0, else of a block of the level below.
func (r *reader) hashOf(level int, block int64) ([]byte, error) {
	index := block >> r.tree.fanOut

	if current := r.path[level]; current.content == nil || current.index != index {
		content, err := r.load(level, index)
		if err != nil {
			return nil, err
		}

		r.path[level] = pathBlock{index: index, content: content}
	}

	at := (block & (1<<r.tree.fanOut - 1)) * sha256.Size

	return r.path[level].content[at : at+sha256.Size], nil
}

func (r *reader) load(level int, index int64) ([]byte, error) {
	if level == len(r.path)-1 {
		return r.tree.root(r.rootHash)
	}

	position := r.tree.levels[level] + index*int64(r.tree.blockSize)

	content, err := r.tree.block(position)
	if err != nil {
		return nil, err
	}

	want, err := r.hashOf(level+1, index)
	if err != nil {
		return nil, err
	}

	if got := r.tree.sum(content); !bytes.Equal(got, want) {
		return nil, fmt.Errorf("%w: the tree's block at byte %d has %x, want %x", ErrMismatch, position, got, want)
	}

	return content, nil
}
