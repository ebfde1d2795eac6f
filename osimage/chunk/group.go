package chunk

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

const (
	// groupMask ends a group after one id in 32. Measured on images of Debian: with groups of half that size the sums cost
	// more than they spare, with larger ones more ids are fetched that are known.
	groupMask = 1<<5 - 1
	// maxGroup is the most ids in a group.
	maxGroup = 8 * (groupMask + 1)
)

// groupSum names the ids of a group: the first 64 bits of the SHA-256 of their bytes. It finds candidates, as an ID does.
type groupSum uint64

const groupSumSize = 8

// idGroup is a run of ids that are not zero. It ends where an id says so: contents that have the same ids somewhere have the
// same groups there.
type idGroup struct {
	sum groupSum
	// first is the number of the first chunk, count how many chunks that are not zero it has.
	first uint32
	count uint16
	// known tells whether the ids are known. Only an Outline uses it.
	known bool
}

// idGrouper makes groups of ids.
type idGrouper struct {
	hash  hash.Hash
	first int
	count int
}

// add takes the next chunk, and returns the group that ends with it.
func (g *idGrouper) add(number int, id ID) (idGroup, bool) {
	if id == 0 {
		return idGroup{}, false
	}

	if g.hash == nil {
		g.hash = sha256.New()
	}

	if g.count == 0 {
		g.first = number
	}

	var data [idSize]byte

	binary.BigEndian.PutUint64(data[:], uint64(id))
	g.hash.Write(data[:])
	g.count++

	if id&groupMask == 0 || g.count == maxGroup {
		return g.end()
	}

	return idGroup{}, false
}

// end returns the last group, if there is one that has not ended.
func (g *idGrouper) end() (idGroup, bool) {
	if g.count == 0 {
		return idGroup{}, false
	}

	result := idGroup{
		sum:   groupSum(binary.BigEndian.Uint64(g.hash.Sum(nil))),
		first: uint32(g.first), count: uint16(g.count), //nolint:gosec // At most MaxChunks and maxGroup.
	}

	g.hash.Reset()
	g.count = 0

	return result, true
}
