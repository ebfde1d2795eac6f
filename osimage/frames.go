package osimage

import (
	"context"
	"fmt"
	"sort"

	"github.com/stayput-dev/stayput/osimage/chunk"
)

// index reads a content's chunk index, nil when it has none.
func (i *Image) index(ctx context.Context, content Content) (*chunk.Index, error) {
	if content.ChunkIndex == nil {
		return nil, nil //nolint:nilnil // "No index" is an answer, not an error.
	}

	source := i.indexBlobOf(content)

	data, err := readBlob(ctx, i.blobs, source)
	if err != nil {
		return nil, fmt.Errorf("reading the chunk index of %s: %w", content.Role, err)
	}

	index, err := chunk.Parse(data, chunk.Sizes{Raw: content.RawSize, Layer: content.Size})
	if err != nil {
		return nil, notAnImage(source.subject, "it has the right digest, but cannot be used", err)
	}

	return index, nil
}

// startOf finds the last frame that begins at or before a raw offset. Layers without a chunk index, and places without
// ranges, are read from their start.
func (i *Image) startOf(ctx context.Context, content Content, offset int64) (position, error) {
	if offset == 0 {
		return position{}, nil
	}

	index, err := i.index(ctx, content)
	if err != nil || index == nil {
		return position{}, err
	}

	after := sort.Search(index.Frames(), func(number int) bool { return index.Frame(number).RawOffset > offset })
	frame := index.Frame(after - 1)

	return position{compressed: frame.Offset, raw: frame.RawOffset}, nil
}
