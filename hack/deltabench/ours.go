package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/stayput-dev/stayput/osimage/chunk"
)

// ours encodes the new image at each setting and plans with the old one as the only seed: a running slot beside an empty
// spare one.
func ours(ctx context.Context, m *measuring) ([]row, error) {
	ok, level := zstd.EncoderLevelFromString(m.level)
	if !ok {
		return nil, fmt.Errorf("%w: level %s", errUnknown, m.level)
	}

	var rows []row

	for _, text := range m.params {
		params, err := parseParams(text, m.new)
		if err != nil {
			return nil, err
		}

		for _, frame := range m.frames {
			for _, gain := range m.gains {
				some, err := m.ours(ctx, chunk.Options{
					Params: params, Frame: frame, Gain: gain, Level: level, Concurrency: runtime.GOMAXPROCS(0),
				})
				if err != nil {
					return nil, err
				}

				rows = append(rows, some...)
			}
		}
	}

	return rows, nil
}

func (m *measuring) ours(ctx context.Context, options chunk.Options) ([]row, error) {
	began := time.Now()

	result, err := encode(ctx, m.new, options)
	if err != nil {
		return nil, err
	}

	encoding := time.Since(began)

	index, err := chunk.Parse(result.Index, chunk.Sizes{Raw: result.RawSize, Layer: result.Size})
	if err != nil {
		return nil, err
	}

	seeds, err := chunk.NewSeeds(index)
	if err != nil {
		return nil, err
	}

	began = time.Now()
	if err := scan(ctx, seeds, m.old); err != nil {
		return nil, err
	}

	scanning := time.Since(began)

	var rows []row

	for _, gap := range m.gaps {
		plan, err := chunk.NewPlan(index, seeds, chunk.PlanOptions{Gap: gap})
		if err != nil {
			return nil, err
		}

		p := options.Params
		rows = append(rows, row{
			method: fmt.Sprintf("ours %d/%d/%d/%d frame %d gain %d gap %d", p.Min, p.Avg, p.Max, p.Align, options.Frame, options.Gain, gap),
			full:   result.Size, index: int64(len(result.Index)),
			moved:    int64(len(result.Index)) + plan.Totals.Requested,
			requests: plan.Totals.Requests,
			note: fmt.Sprintf("%d chunks, %d frames, encoded in %.1f s, scanned in %.1f s, whole %t",
				index.Chunks(), index.Frames(), encoding.Seconds(), scanning.Seconds(), plan.Whole),
		})

		for _, group := range m.groups {
			moved, upper, requests, err := m.twoLevels(ctx, index, int64(len(result.Index)), group)
			if err != nil {
				return nil, err
			}

			rows = append(rows, row{
				method: fmt.Sprintf("  the same, two levels, groups of %d (estimate)", group),
				full:   result.Size, index: upper, moved: moved + plan.Totals.Requested,
				requests: requests + plan.Totals.Requests,
				note:     fmt.Sprintf("%d bytes of both levels", moved),
			})
		}
	}

	return rows, nil
}

func encode(ctx context.Context, image string, options chunk.Options) (result chunk.Result, err error) {
	file, err := os.Open(image)
	if err != nil {
		return result, fmt.Errorf("opening the new image: %w", err)
	}

	defer func() { _ = file.Close() }()

	return chunk.Encode(ctx, file, discard{}, options)
}

type discard struct{}

func (discard) Write(data []byte) (int, error) {
	return len(data), nil
}

func scan(ctx context.Context, seeds *chunk.Seeds, image string) error {
	file, err := os.Open(image)
	if err != nil {
		return fmt.Errorf("opening the old image: %w", err)
	}

	defer func() { _ = file.Close() }()

	_, err = seeds.Scan(ctx, image, file)

	return err
}
