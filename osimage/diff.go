package osimage

import (
	"context"
	"errors"
	"fmt"

	"github.com/stayput-dev/stayput/osimage/chunk"
)

// UpdateDiff says what an update moves.
type UpdateDiff struct {
	// Contents are those that nodes have, without those of first disks only.
	Contents []ContentDiff `json:"contents"`
	Total    DiffTotal     `json:"total"`
}

// DiffTotal is the sum of all contents, in bytes.
type DiffTotal struct {
	LayerSize  int64 `json:"layerSize"`
	IndexFetch int64 `json:"indexFetch"`
	Fetch      int64 `json:"fetch"`
	// FetchWithIndex is all that is fetched: Fetch and IndexFetch.
	FetchWithIndex int64 `json:"fetchWithIndex"`
}

// ContentDiff says what an update moves of one content.
type ContentDiff struct {
	// Role is the content's.
	Role Role `json:"role"`
	// Unchanged is set when both images have the same bytes.
	Unchanged bool `json:"unchanged"`
	// RawSize and LayerSize are those of the new content, and what fetching all of it takes.
	RawSize   int64 `json:"rawSize"`
	LayerSize int64 `json:"layerSize"`
	// IndexFetch is how many bytes of the chunk index are fetched, 0 when there is none.
	IndexFetch int64 `json:"indexFetch"`
	// Fetch is the number of bytes of the layer that are fetched, in so many Requests.
	Fetch    int64 `json:"fetch"`
	Requests int   `json:"requests"`
	// Reused and Zeros are the raw bytes that the old image has, and those that are zero.
	Reused int64 `json:"reused"`
	Zeros  int64 `json:"zeros"`
}

// Diff tells what a node that runs the old image fetches when it updates to the new one, by their chunk indexes. Where an
// old content has none, or one of another kind, all of that content is read.
func Diff(ctx context.Context, old, next *Image) (UpdateDiff, error) {
	var result UpdateDiff

	for _, content := range next.config.Contents {
		if content.Role.FirstDiskOnly() {
			continue
		}

		difference, err := diffContent(ctx, old, next, content)
		if err != nil {
			return UpdateDiff{}, fmt.Errorf("comparing %s: %w", content.Role, err)
		}

		result.Contents = append(result.Contents, difference)
		result.Total.LayerSize += difference.LayerSize
		result.Total.IndexFetch += difference.IndexFetch
		result.Total.Fetch += difference.Fetch
	}

	result.Total.FetchWithIndex = result.Total.Fetch + result.Total.IndexFetch

	return result, nil
}

func diffContent(ctx context.Context, old, next *Image, content Content) (ContentDiff, error) {
	result := ContentDiff{
		Role: content.Role, RawSize: content.RawSize, LayerSize: content.Size, Fetch: content.Size, Requests: 1,
	}

	before, had := old.config.Content(content.Role)
	result.Unchanged = had && before.RawDigest == content.RawDigest

	outline, err := next.outline(ctx, content)
	if err != nil || outline == nil {
		return result, err
	}

	var found surveyed

	if had {
		census, err := old.survey(ctx, before, outline.Params())
		if err != nil {
			return ContentDiff{}, err
		}

		outline.Learn(census)
		found.seeds = append(found.seeds, census)
	}

	index, fetched, err := next.complete(ctx, content, outline)
	if err != nil {
		return ContentDiff{}, err
	}

	result.IndexFetch = content.ChunkIndex.Size + fetched

	seeds, err := found.in(index)
	if err != nil {
		return ContentDiff{}, err
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

// survey finds out what an old content has, without reading it when its index says so.
func (i *Image) survey(ctx context.Context, content Content, params chunk.Params) (*chunk.Census, error) {
	index, err := i.index(ctx, content)
	if err != nil {
		return nil, err
	}

	if index != nil && index.Params() == params {
		return index.Census(), nil
	}

	body, err := i.Open(ctx, content.Role, 0)
	if err != nil {
		return nil, err
	}

	census, err := chunk.Survey(ctx, params, 0, body)

	return census, errors.Join(err, body.Close())
}
