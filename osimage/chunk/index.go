package chunk

import (
	"sort"
)

// Index says of which chunks a content is made, and which frame of the layer has which of them. It is what Parse returns:
// its parts fit together and add up to the sizes that Parse was given. It must not be changed.
type Index struct {
	params Params
	// ids has one entry a chunk, starts one more: the raw size.
	ids    []ID
	starts []int64
	// firsts is each frame's first chunk and one more: the number of chunks. places is where each frame begins in the
	// layer and one more: where the last one ends.
	firsts []uint32
	places []int64
}

// Chunk is a piece of the raw content.
type Chunk struct {
	// Offset and Length are in raw bytes.
	Offset, Length int64
	// ID is zero for a chunk of zeros.
	ID ID
}

// Frame is a piece of the layer that can be decompressed by itself. It holds whole chunks.
type Frame struct {
	// Offset and Length are in bytes of the layer.
	Offset, Length int64
	// RawOffset and RawLength are in raw bytes. RawLength is at most MaxFrame.
	RawOffset, RawLength int64
	// First is the frame's first chunk, Chunks how many it has: at least one.
	First, Chunks int
}

// Params returns how the content was cut.
func (x *Index) Params() Params {
	return x.params
}

// RawSize is the size of the content in bytes.
func (x *Index) RawSize() int64 {
	return x.starts[len(x.ids)]
}

// FramesSize is how many bytes of the layer are frames. The seek table follows them.
func (x *Index) FramesSize() int64 {
	return x.places[x.Frames()]
}

// Chunks is the number of chunks.
func (x *Index) Chunks() int {
	return len(x.ids)
}

// Chunk returns a chunk by its number, from 0.
func (x *Index) Chunk(number int) Chunk {
	return Chunk{
		Offset: x.starts[number], Length: x.starts[number+1] - x.starts[number], ID: x.ids[number],
	}
}

// Frames is the number of frames.
func (x *Index) Frames() int {
	return len(x.firsts) - 1
}

// Frame returns a frame by its number, from 0.
func (x *Index) Frame(number int) Frame {
	first, next := x.firsts[number], x.firsts[number+1]

	return Frame{
		Offset: x.places[number], Length: x.places[number+1] - x.places[number],
		RawOffset: x.starts[first], RawLength: x.starts[next] - x.starts[first],
		First: int(first), Chunks: int(next - first),
	}
}

// FrameOf returns the number of the frame that has a chunk.
func (x *Index) FrameOf(chunk int) int {
	return sort.Search(x.Frames(), func(frame int) bool { return int(x.firsts[frame+1]) > chunk })
}

// Matches tells whether data is what the index says about a chunk, as far as an id can tell. Whoever takes a chunk from a
// frame or from a seed asks this before writing it.
func (x *Index) Matches(chunk int, data []byte) bool {
	return int64(len(data)) == x.starts[chunk+1]-x.starts[chunk] && IDOf(data) == x.ids[chunk]
}

// newIndex makes an index of nothing, with room for chunks and frames.
func newIndex(params Params, chunks, frames int) *Index {
	return &Index{
		params: params, ids: make([]ID, 0, chunks), starts: make([]int64, 1, chunks+1),
		firsts: make([]uint32, 1, frames+1), places: make([]int64, 1, frames+1),
	}
}

// add appends a chunk.
func (x *Index) add(length int, id ID) {
	x.starts = append(x.starts, x.starts[len(x.ids)]+int64(length))
	x.ids = append(x.ids, id)
}

// endFrame makes a frame of the chunks that were added since the last one.
func (x *Index) endFrame(length int) {
	x.places = append(x.places, x.places[len(x.firsts)-1]+int64(length))
	x.firsts = append(x.firsts, uint32(len(x.ids))) //nolint:gosec // At most MaxChunks.
}
