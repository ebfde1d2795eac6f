package osimage

import (
	"context"
	"errors"
	"fmt"

	"github.com/stayput-dev/stayput/osimage/chunk"
)

// ContentDiff says what an update moves of one content.
type ContentDiff struct {
	// Role is the content's.
	Role Role `json:"role"`
	// Unchanged is set when both images have the same bytes.
	Unchanged bool `json:"unchanged"`
	// RawSize and LayerSize are those of the new content, and what fetching all of it takes.
	RawSize   int64 `json:"rawSize"`
	LayerSize int64 `json:"layerSize"`
	// IndexSize is what the chunk index takes on the wire, 0 when there is none.
	IndexSize int64 `json:"indexSize"`
	// Fetch is the number of bytes of the layer that are fetched, in so many Requests.
	Fetch    int64 `json:"fetch"`
	Requests int   `json:"requests"`
	// Reused and Zeros are the raw bytes that the old image has, and those that are zero.
	Reused int64 `json:"reused"`
	Zeros  int64 `json:"zeros"`
}

// Diff tells what a node that runs the old image fetches when it updates to the new one, by their chunk indexes. Where an
// old content has none, or one of another kind, all of that content is read.
func Diff(ctx context.Context, old, next *Image) ([]ContentDiff, error) {
	var result []ContentDiff

	for _, content := range next.config.Contents {
		difference, err := diffContent(ctx, old, next, content)
		if err != nil {
			return nil, fmt.Errorf("comparing %s: %w", content.Role, err)
		}

		result = append(result, difference)
	}

	return result, nil
}

func diffContent(ctx context.Context, old, next *Image, content Content) (ContentDiff, error) {
	result := ContentDiff{
		Role: content.Role, RawSize: content.RawSize, LayerSize: content.Size, Fetch: content.Size, Requests: 1,
	}

	before, had := old.config.Content(content.Role)
	result.Unchanged = had && before.RawDigest == content.RawDigest

	index, err := next.index(ctx, content)
	if err != nil || index == nil {
		return result, err
	}

	result.IndexSize = content.ChunkIndex.Size

	seeds, err := chunk.NewSeeds(index)
	if err != nil {
		return ContentDiff{}, err
	}

	if had {
		if err := scanOld(ctx, seeds, old, before); err != nil {
			return ContentDiff{}, err
		}
	}

	plan, err := chunk.NewPlan(index, seeds, chunk.PlanOptions{})
	if err != nil {
		return ContentDiff{}, err
	}

	if plan.Whole {
		return result, nil
	}

	raw := plan.Totals.Raw
	result.Fetch, result.Requests, result.Zeros = plan.Totals.Requested, plan.Totals.Requests, raw[chunk.Zero]
	result.Reused = raw[chunk.Seed] + raw[chunk.Self]

	return result, nil
}

// scanOld finds out what the old content has, without reading it when its index says so.
func scanOld(ctx context.Context, seeds *chunk.Seeds, old *Image, content Content) error {
	index, err := old.index(ctx, content)
	if err != nil {
		return err
	}

	if index != nil {
		if _, err := seeds.ScanIndex(old.reference, index); !errors.Is(err, chunk.ErrParams) {
			return err
		}
	}

	body, err := old.Open(ctx, content.Role, 0)
	if err != nil {
		return err
	}

	_, err = seeds.Scan(ctx, old.reference, body)

	return errors.Join(err, body.Close())
}
