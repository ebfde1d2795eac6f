package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"os"

	"github.com/stayput-dev/stayput/osimage/chunk"
)

const (
	// superEntry is what one group costs in the upper level: a hash of 16 bytes, and how many bytes of the content, of the
	// layer and of the lower level it stands for.
	superEntry = 16 + 8
	// pageHead is what one group costs in the lower level besides its share of an index of one level.
	pageHead = 8
)

// groups hashes the ids of chunks in groups that end where an id says so, about every group chunks.
type groups struct {
	mask   chunk.ID
	sum    hash.Hash
	chunks int
	found  func(name content, chunks int)
}

func (g *groups) add(id chunk.ID, length int64) {
	var entry [16]byte

	binary.BigEndian.PutUint64(entry[:], uint64(id))
	binary.BigEndian.PutUint64(entry[8:], uint64(length)) //nolint:gosec // Never negative.
	g.sum.Write(entry[:])
	g.chunks++

	if id&g.mask == 0 && id != 0 || g.chunks == 8*int(g.mask+1) { //nolint:gosec // Small.
		g.end()
	}
}

func (g *groups) end() {
	if g.chunks > 0 {
		g.found(content(g.sum.Sum(nil)), g.chunks)
	}

	g.sum.Reset()
	g.chunks = 0
}

// twoLevels estimates an index of two levels: a machine fetches the upper one, and of the lower one only the pages of
// groups that it does not have.
func (m *measuring) twoLevels(
	ctx context.Context, index *chunk.Index, size int64, group int,
) (moved, upper int64, requests int, err error) {
	known := map[content]bool{}
	mask := chunk.ID(group - 1) //nolint:gosec // A small power of two.
	old := &groups{mask: mask, sum: sha256.New(), found: func(name content, _ int) { known[name] = true }}

	chunker, err := chunk.NewChunker(index.Params())
	if err != nil {
		return 0, 0, 0, err
	}

	file, err := os.Open(m.old)
	if err != nil {
		return 0, 0, 0, fmt.Errorf("opening the old image: %w", err)
	}

	defer func() { _ = file.Close() }()

	err = chunker.Split(ctx, file, func(_ int64, data []byte) error {
		old.add(chunk.IDOf(data), int64(len(data)))

		return nil
	})
	if err != nil {
		return 0, 0, 0, err
	}

	old.end()

	run := false
	all := &groups{mask: mask, sum: sha256.New(), found: func(name content, chunks int) {
		upper += superEntry

		if known[name] {
			run = false

			return
		}

		moved += pageHead + size*int64(chunks)/int64(index.Chunks())

		if !run {
			requests++
		}

		run = true
	}}

	for number := range index.Chunks() {
		chunk := index.Chunk(number)
		all.add(chunk.ID, chunk.Length)
	}

	all.end()

	return moved + upper, upper, requests, nil
}
