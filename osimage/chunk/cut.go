package chunk

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

// Chunker cuts by FastCDC's rule (Xia et al., USENIX ATC 2016): a gear hash over the last 64 bytes, a strict mask up to
// the average length and a loose one after it, so that lengths gather around the average. Two things differ: the hash
// always sees the 64 bytes before a place, also right after Min bytes, so that two contents find the same cuts again soon;
// and a run of zeros is a chunk of its own.
//
// It may be used by several goroutines.
type Chunker struct {
	params Params
	// strict and loose select the highest bits of the hash, which depend on all 64 bytes.
	strict, loose uint64
	gear          [256]uint64
}

const (
	// gearSeed makes the table of random numbers. It is part of the format.
	gearSeed = "stayput chunk gear 1"
	// Masks have this many bits more and less than the average length asks for.
	normalisation        = 2
	alignedNormalisation = 1
)

// NewChunker makes a chunker, or returns ErrParams.
func NewChunker(params Params) (*Chunker, error) {
	if err := params.Validate(); err != nil {
		return nil, err
	}

	chunker := &Chunker{params: params}

	for i := range chunker.gear {
		sum := sha256.Sum256(append([]byte(gearSeed), byte(i)))
		chunker.gear[i] = binary.BigEndian.Uint64(sum[:])
	}

	width := normalisation
	if params.Align > 1 {
		width = alignedNormalisation
	}

	// One place in Avg/Align is a cut.
	order := bits.TrailingZeros(uint(params.Avg / params.Align))
	chunker.strict = highBits(order + width)
	chunker.loose = highBits(max(order-width, 0))

	return chunker, nil
}

func highBits(count int) uint64 {
	return ^uint64(0) << (64 - count)
}

// Params returns what the chunker was made with.
func (c *Chunker) Params() Params {
	return c.params
}

// Cut returns the length of the first chunk of data, which holds at least Max bytes or all that is left of the content.
// It returns 0 only for no data.
func (c *Chunker) Cut(data []byte) int {
	data = data[:min(len(data), c.params.Max)]

	if len(data) <= c.params.Min {
		return len(data)
	}

	if run := zeroRun(data); run >= c.params.Min {
		if run < len(data) {
			run -= run % c.params.Align
		}

		return run
	}

	if c.params.Align > 1 {
		return c.cutAligned(data)
	}

	return c.cutAnywhere(data)
}

func (c *Chunker) cutAnywhere(data []byte) int {
	least, normal := c.params.Min, min(c.params.Avg, len(data))
	hash, gear := c.hash(data[:least]), &c.gear

	if hash&c.strict == 0 {
		return least
	}

	for i, b := range data[least:normal] {
		hash = hash<<1 + gear[b]
		if hash&c.strict == 0 {
			return least + i + 1
		}
	}

	for i, b := range data[normal:] {
		hash = hash<<1 + gear[b]
		if hash&c.loose == 0 {
			return normal + i + 1
		}
	}

	return len(data)
}

// cutAligned looks only at the 64 bytes before each place where a cut may be.
func (c *Chunker) cutAligned(data []byte) int {
	for at := c.params.Min; at < len(data); at += c.params.Align {
		mask := c.strict
		if at >= c.params.Avg {
			mask = c.loose
		}

		if c.hash(data[:at])&mask == 0 {
			return at
		}
	}

	return len(data)
}

// hash is the gear hash of the last bytes of data.
func (c *Chunker) hash(data []byte) uint64 {
	var hash uint64

	for _, b := range data[len(data)-window:] {
		hash = hash<<1 + c.gear[b]
	}

	return hash
}

// zeroRun is the number of zeros that data begins with.
func zeroRun(data []byte) int {
	run := 0

	for len(data)-run >= 8 && binary.NativeEndian.Uint64(data[run:]) == 0 {
		run += 8
	}

	for run < len(data) && data[run] == 0 {
		run++
	}

	return run
}

// ID names the bytes of a chunk: their XXH64 with the seed 0, and zero for a chunk of zeros only.
//
// Why that is enough, and each bit more is 0.02 % of the image: an id only finds candidates. That two of 2^19 chunks on
// each side share one by accident happens once in 2^26 updates. Somebody who can choose the bytes of a package, or a registry
// that lies, can make two chunks with one id at will. In each case the medium then holds something else than the signed
// SHA-256 of the whole content says, it does not become bootable, and the content is fetched in full. Nothing is won but
// that one full download, which a registry that lies can have for less. A cryptographic hash would not change that, and
// would cost a node that serves several times as much of its processors: it reads its whole slot for each update.
type ID uint64

// IDOf computes the id of a chunk.
func IDOf(data []byte) ID {
	if zeroRun(data) == len(data) {
		return 0
	}

	// Zero is taken.
	return max(ID(xxhash.Sum64(data)), 1)
}

const idSize = 8
