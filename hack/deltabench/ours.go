package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/stayput-dev/stayput/osimage/chunk"
)

// ours encodes the new image at each setting and plans with the old one as the only seed: a running slot beside an empty
// spare one.
func ours(ctx context.Context, m *measuring) ([]row, error) {
	program, level, err := encoderOf(m.level)
	if err != nil {
		return nil, err
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
					Params: params, Frame: frame, Gain: gain, Level: level, Program: program, Concurrency: runtime.GOMAXPROCS(0),
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

// encoderOf takes the name of a level of the built-in encoder, or the number of one of the program zstd.
func encoderOf(text string) (*chunk.Program, zstd.EncoderLevel, error) {
	if number, err := strconv.Atoi(text); err == nil {
		program, err := chunk.FindProgram(number)

		return program, 0, err
	}

	ok, level := zstd.EncoderLevelFromString(text)
	if !ok {
		return nil, 0, fmt.Errorf("%w: level %s", errUnknown, text)
	}

	return nil, level, nil
}

func (m *measuring) ours(ctx context.Context, options chunk.Options) ([]row, error) {
	began := time.Now()

	result, err := encode(ctx, m.new, options)
	if err != nil {
		return nil, err
	}

	encoding := time.Since(began)

	outline, err := chunk.ParseHead(result.Head, chunk.Sizes{
		Raw: result.RawSize, Layer: result.Size, IDs: int64(len(result.IDs)),
	})
	if err != nil {
		return nil, err
	}

	began = time.Now()

	census, err := survey(ctx, options.Params, m.old)
	if err != nil {
		return nil, err
	}

	scanning := time.Since(began)

	// What a machine fetches of the index: the head, and the ids that the old image does not have.
	outline.Learn(census)

	fetched, spans := int64(len(result.Head)), outline.Missing(chunk.DefaultRequestCost)
	for _, span := range spans {
		fetched += span.To - span.From
	}

	if err := outline.Fill(chunk.Span{To: int64(len(result.IDs))}, result.IDs); err != nil {
		return nil, err
	}

	index, err := outline.Index()
	if err != nil {
		return nil, err
	}

	seeds := chunk.NewSeeds(index)
	if _, err := seeds.Add(census); err != nil {
		return nil, err
	}

	var rows []row

	for _, gap := range m.gaps {
		plan, err := chunk.NewPlan(index, seeds, chunk.PlanOptions{Gap: gap})
		if err != nil {
			return nil, err
		}

		p := options.Params
		rows = append(rows, row{
			method: fmt.Sprintf("ours %d/%d/%d/%d frame %d gain %d gap %d", p.Min, p.Avg, p.Max, p.Align, options.Frame, options.Gain, gap),
			full:   result.Size, index: int64(len(result.Head) + len(result.IDs)),
			moved:    fetched + plan.Totals.Requested,
			requests: plan.Totals.Requests + len(spans),
			note: fmt.Sprintf("%d chunks, %d frames, %s of the index fetched, encoded in %.1f s, scanned in %.1f s, whole %t",
				index.Chunks(), index.Frames(), megabytes(fetched), encoding.Seconds(), scanning.Seconds(), plan.Whole),
		})
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

func survey(ctx context.Context, params chunk.Params, image string) (*chunk.Census, error) {
	file, err := os.Open(image)
	if err != nil {
		return nil, fmt.Errorf("opening the old image: %w", err)
	}

	defer func() { _ = file.Close() }()

	return chunk.Survey(ctx, params, 0, file)
}
