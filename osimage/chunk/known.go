package chunk

import "fmt"

// ScanIndex is Scan for a seed whose index is at hand: what it has is known without reading it. It returns ErrParams when
// that index cuts contents in another way.
func (s *Seeds) ScanIndex(name string, index *Index) (int, error) {
	if index.Params() != s.index.Params() {
		return 0, fmt.Errorf("looking for chunks in %s: %w: %+v, want %+v", name, ErrParams, index.Params(), s.index.Params())
	}

	number := s.scanned
	if number == MaxSeeds {
		return 0, fmt.Errorf("%w: %s: more than %d seeds", ErrSeed, name, MaxSeeds)
	}

	s.scanned++

	for at := range index.Chunks() {
		known := index.Chunk(at)

		first, ok := s.first(known.ID)
		if ok && s.index.Chunk(first).Length == known.Length && s.elsewhere[first] == 0 {
			s.elsewhere[first] = uint64(number)<<offsetBits | uint64(known.Offset) + 1 //nolint:gosec // Never negative.
		}
	}

	return number, nil
}
