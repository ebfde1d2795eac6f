package chunk

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// Census says of which chunks something at hand is made, such as a slot. It is taken before the ids of the content that is
// wanted are known: it tells most of them. It holds 8 bytes a chunk where all are as long, 12 elsewhere.
type Census struct {
	params Params
	// start is where the first chunk is, size how long all are together.
	start, size int64
	ids         []ID
	// lengths is nil when all chunks but the last are as long as the parameters say.
	lengths []uint32
	// groups has the groups, by their sums.
	groups  map[groupSum]knownGroup
	grouper idGrouper
}

// knownGroup is where a census has a group, and how many ids it has there.
type knownGroup struct {
	first uint32
	count uint16
}

// Survey takes the census of what a reader has, which begins at an offset of the seed or of the target. It takes note of
// the first MaxChunks chunks. What was found until an error of the reader, or the end of the context, is returned with it
// and stays usable. The reader should end where the content of a seed does, if that is known: what follows it hides the
// last chunk.
func Survey(ctx context.Context, params Params, start int64, reader io.Reader) (*Census, error) {
	chunker, err := NewChunker(params)
	if err != nil {
		return nil, err
	}

	census := newCensus(params, start)

	err = chunker.Split(ctx, reader, func(_ int64, data []byte) error {
		if len(census.ids) == MaxChunks {
			return errEnough
		}

		census.add(len(data), IDOf(data))

		return nil
	})
	census.end()

	if err != nil && !errors.Is(err, errEnough) {
		return census, fmt.Errorf("looking for chunks: %w", err)
	}

	return census, nil
}

// errEnough ends a survey.
var errEnough = errors.New("the census is full")

// Census is that of the content itself.
func (x *Index) Census() *Census {
	census := newCensus(x.params, 0)

	for number := range x.Chunks() {
		chunk := x.Chunk(number)
		census.add(int(chunk.Length), chunk.ID)
	}

	census.end()

	return census
}

func newCensus(params Params, start int64) *Census {
	census := &Census{params: params, start: start, groups: map[groupSum]knownGroup{}}

	if params.Min < params.Max {
		census.lengths = []uint32{}
	}

	return census
}

func (c *Census) add(length int, id ID) {
	number := len(c.ids)
	c.ids = append(c.ids, id)
	c.size += int64(length)

	if c.lengths != nil {
		c.lengths = append(c.lengths, uint32(length)) //nolint:gosec // At most greatestChunk.
	}

	if group, ended := c.grouper.add(number, id); ended {
		c.note(group)
	}
}

func (c *Census) end() {
	if group, ended := c.grouper.end(); ended {
		c.note(group)
	}
}

// maxGroups is the most groups that a census takes note of, four times as many as the ids of anything usual make. Whoever
// chooses the bytes can end a group with each.
const maxGroups = MaxChunks / 8

func (c *Census) note(group idGroup) {
	if _, known := c.groups[group.sum]; !known && len(c.groups) < maxGroups {
		c.groups[group.sum] = knownGroup{first: group.first, count: group.count}
	}
}

// each calls for each chunk in order, with its offset in the seed or on the target.
func (c *Census) each(call func(chunk Chunk)) {
	var at int64

	for number, id := range c.ids {
		length := min(int64(c.params.Max), c.size-at)
		if c.lengths != nil {
			length = int64(c.lengths[number])
		}

		call(Chunk{Offset: c.start + at, Length: length, ID: id})

		at += length
	}
}
