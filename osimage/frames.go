package osimage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/stayput-dev/stayput/osimage/chunk"
)

// outline reads the head of a content's chunk index, nil when it has none.
func (i *Image) outline(ctx context.Context, content Content) (*chunk.Outline, error) {
	if content.ChunkIndex == nil {
		return nil, nil //nolint:nilnil // "No index" is an answer, not an error.
	}

	source := i.indexBlobOf(content)

	data, err := readBlob(ctx, i.blobs, source)
	if err != nil {
		return nil, fmt.Errorf("reading the chunk index of %s: %w", content.Role, err)
	}

	outline, err := chunk.ParseHead(data, chunk.Sizes{
		Raw: content.RawSize, Layer: content.Size, IDs: content.ChunkIndex.idsSize(),
	})
	if err != nil {
		return nil, unusable(source, err)
	}

	return outline, nil
}

func unusable(source blob, err error) error {
	return notAnImage(source.subject, "it has the right digest, but cannot be used", err)
}

// complete fetches the ids that an outline lacks, and returns how many bytes that took. Ids that are not what the head says
// are no more than a reason to fetch all of them, which are verified.
func (i *Image) complete(ctx context.Context, content Content, outline *chunk.Outline) (*chunk.Index, int64, error) {
	fetched, err := i.fill(ctx, content, outline)
	if err != nil {
		return nil, 0, fmt.Errorf("reading the chunk ids of %s: %w", content.Role, err)
	}

	index, err := outline.Index()
	if err != nil {
		return nil, 0, unusable(i.indexBlobOf(content), err)
	}

	return index, fetched, nil
}

func (i *Image) fill(ctx context.Context, content Content, outline *chunk.Outline) (int64, error) {
	spans := outline.Missing(chunk.DefaultRequestCost)
	if len(spans) == 0 {
		return 0, nil
	}

	source := i.idsBlobOf(content)
	cost := int64(len(spans)) * chunk.DefaultRequestCost

	for _, span := range spans {
		cost += span.To - span.From
	}

	if cost < source.size {
		fetched, err := i.fillSpans(ctx, source, outline, spans)
		if !IsNoRanges(err) && !errors.Is(err, chunk.ErrIndex) {
			return fetched, err
		}
	}

	data, err := readBlob(ctx, i.blobs, source)
	if err != nil {
		return 0, err
	}

	if err := outline.Fill(chunk.Span{To: source.size}, data); err != nil {
		return 0, unusable(source, err)
	}

	return source.size, nil
}

func (i *Image) fillSpans(ctx context.Context, source blob, outline *chunk.Outline, spans []chunk.Span) (fetched int64, err error) {
	ranges := make([]Range, 0, len(spans))
	for _, span := range spans {
		ranges = append(ranges, Range(span))
	}

	body, err := i.ranges(ctx, source, ranges, RangeOptions{Window: rangeWindow})
	if err != nil {
		return 0, err
	}

	defer func() { err = errors.Join(err, body.Close()) }()

	for _, span := range spans {
		data := make([]byte, span.To-span.From)
		if _, err := io.ReadFull(body, data); err != nil {
			return fetched, err
		}

		fetched += int64(len(data))

		if err := outline.Fill(span, data); err != nil {
			return fetched, err
		}
	}

	return fetched, nil
}

// index reads a content's chunk index in full, nil when it has none.
func (i *Image) index(ctx context.Context, content Content) (*chunk.Index, error) {
	outline, err := i.outline(ctx, content)
	if err != nil || outline == nil {
		return nil, err
	}

	index, _, err := i.complete(ctx, content, outline)

	return index, err
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
