package chunk

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"
)

const (
	// MaxSeeds is the greatest number of seeds beside the target itself.
	MaxSeeds = 1 << 12
	// offsetBits are for the offset in a seed: 4 PiB.
	offsetBits = 52
	// bucketBits is how many bits of an id are looked up in a table, before the rest is searched.
	bucketBits = 16
)

// ErrSeed is returned for a seed that is one too many.
var ErrSeed = errors.New("seed cannot be used")

// Seeds collects where chunks of one content can be had without the network. It holds 21 bytes for each chunk of that
// content, however large and however many the seeds are: 11 MiB for 2 GiB in chunks of 4 KiB.
type Seeds struct {
	index *Index
	// order has the numbers of all chunks that are not zero, by id and then number. buckets are where each prefix of ids
	// begins in it.
	order   []uint32
	buckets []uint32
	// elsewhere and here are places plus 1, 0 for none, of what is known about the first chunk with an id: the first place
	// in a seed, with the seed's number in the highest bits, and the last one on the target.
	elsewhere, here []uint64
	// kept has a bit for each chunk that is on the target already, where it shall be.
	kept []uint64
	// added is the number of seeds.
	added int
}

// NewSeeds makes an empty collection for a content.
func NewSeeds(index *Index) *Seeds {
	count := index.Chunks()
	seeds := &Seeds{
		index: index, order: make([]uint32, 0, count), buckets: make([]uint32, 1<<bucketBits+1),
		elsewhere: make([]uint64, count), here: make([]uint64, count), kept: make([]uint64, (count+63)/64),
	}

	for number, id := range index.ids {
		if id != 0 {
			seeds.order = append(seeds.order, uint32(number))
		}
	}

	slices.SortFunc(seeds.order, func(a, b uint32) int {
		return cmp.Or(cmp.Compare(index.ids[a], index.ids[b]), cmp.Compare(a, b))
	})

	for _, number := range seeds.order {
		seeds.buckets[bucketOf(index.ids[number])+1]++
	}

	for bucket := range 1 << bucketBits {
		seeds.buckets[bucket+1] += seeds.buckets[bucket]
	}

	return seeds
}

func bucketOf(id ID) int {
	return int(id >> (64 - bucketBits))
}

// Add notes what of the content a seed has that does not change while the plan is carried out, such as the running slot. It
// returns the seed's number in Step.Seed, or ErrSeed for one too many. A census by other parameters has nothing.
func (s *Seeds) Add(census *Census) (int, error) {
	number := s.added
	if number == MaxSeeds {
		return 0, fmt.Errorf("%w: more than %d seeds", ErrSeed, MaxSeeds)
	}

	s.added++

	s.look(census, func(first int, offset int64) {
		if s.elsewhere[first] == 0 {
			s.elsewhere[first] = uint64(number)<<offsetBits | uint64(offset) + 1 //nolint:gosec // Never negative.
		}
	})

	return number, nil
}

// AddTarget notes what the target holds before it is written: an old content, or the beginning that an interrupted writing
// left and what is old after it. Its byte 0 is where the content shall begin; it may be longer or shorter.
func (s *Seeds) AddTarget(census *Census) {
	s.look(census, func(first int, offset int64) {
		s.here[first] = uint64(offset) + 1 //nolint:gosec // Never negative.

		if chunk, ok := s.at(first, offset); ok {
			s.kept[chunk/64] |= 1 << (chunk % 64)
		}
	})
}

// look calls for each chunk of a census that the content has too, with the number of the content's first such chunk.
func (s *Seeds) look(census *Census, found func(first int, offset int64)) {
	if census.params != s.index.params {
		return
	}

	census.each(func(chunk Chunk) {
		first, ok := s.first(chunk.ID)
		// An id of another length is an accident.
		if ok && s.index.Chunk(first).Length == chunk.Length {
			found(first, chunk.Offset)
		}
	})
}

// first returns the first chunk with an id.
func (s *Seeds) first(id ID) (int, bool) {
	if id == 0 {
		return 0, false
	}

	from := int(s.buckets[bucketOf(id)])
	bucket := s.order[from:s.buckets[bucketOf(id)+1]]

	at, ok := slices.BinarySearchFunc(bucket, id, func(number uint32, id ID) int {
		return cmp.Compare(s.index.ids[number], id)
	})
	if !ok {
		return 0, false
	}

	return int(bucket[at]), true
}

// at returns the chunk that begins at an offset, when it has the same id and length as the given one.
func (s *Seeds) at(like int, offset int64) (int, bool) {
	number := sort.Search(s.index.Chunks(), func(number int) bool { return s.index.starts[number] >= offset })
	if number == s.index.Chunks() {
		return 0, false
	}

	found, want := s.index.Chunk(number), s.index.Chunk(like)

	return number, found.Offset == offset && found.Length == want.Length && found.ID == want.ID
}

// found is what is known about a chunk.
type found struct {
	kept bool
	// Places are -1 for none. first is the content's first chunk with the same bytes.
	seed      int
	elsewhere int64
	here      int64
	first     int
}

func (s *Seeds) find(chunk int) found {
	first, ok := s.first(s.index.ids[chunk])
	if !ok || s.index.Chunk(first).Length != s.index.Chunk(chunk).Length {
		return found{elsewhere: -1, here: -1, first: chunk}
	}

	place := s.elsewhere[first]

	return found{
		kept: s.kept[chunk/64]&(1<<(chunk%64)) != 0, seed: int(place >> offsetBits),
		elsewhere: int64(place&(1<<offsetBits-1)) - 1, here: int64(s.here[first]) - 1, first: first, //nolint:gosec // See scan.
	}
}
