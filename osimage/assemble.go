package osimage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/stayput-dev/stayput/osimage/chunk"
)

// seedBuffer is how much is read from a seed at once.
const seedBuffer = 1 << 20

// assembly puts a content together from what is at hand and what is fetched.
type assembly struct {
	writing *writing
	image   *Image
	index   *chunk.Index
	plan    *chunk.Plan

	feed    *feed
	fetched *frames
	// open is the buffer that is being filled, count how much of it is; nil when there is none.
	open  []byte
	count int
	// position is where in the content the next byte belongs.
	position int64
	scratch  []byte
}

// plan looks at what is at hand. It returns nil when fetching all of the content costs no more.
func (w *writing) plan(ctx context.Context) (*assembly, error) {
	image, ok := w.source.(*Image)
	resume := w.options.Resume || w.options.Start > 0

	if !ok || !resume && len(w.options.Seeds) == 0 {
		return nil, nil //nolint:nilnil // "No plan" is an answer, not an error.
	}

	outline, err := image.outline(ctx, w.content)
	if err != nil || outline == nil {
		return nil, err
	}

	found, err := w.survey(ctx, outline.Params(), resume)
	if err != nil {
		return nil, err
	}

	for _, census := range slices.Concat(found.seeds, found.target) {
		outline.Learn(census)
	}

	index, fetched, err := image.complete(ctx, w.content, outline)
	if err != nil {
		return nil, err
	}

	seeds, err := found.in(index)
	if err != nil {
		return nil, fmt.Errorf("planning %s: %w", w.content.Role, err)
	}

	plan, err := chunk.NewPlan(index, seeds, chunk.PlanOptions{})
	if err != nil {
		return nil, fmt.Errorf("planning %s: %w", w.content.Role, err)
	}

	if plan.Whole {
		return nil, nil //nolint:nilnil // As above.
	}

	raw := plan.Totals.Raw
	w.meter.planned(Planned{
		Fetch: plan.Totals.Requested, Requests: plan.Totals.Requests, Index: w.content.ChunkIndex.Size + fetched,
		Kept: raw[chunk.Keep], Reused: raw[chunk.Seed] + raw[chunk.Here] + raw[chunk.Self], Zeros: raw[chunk.Zero],
	})

	return &assembly{writing: w, image: image, index: index, plan: plan}, nil
}

// survey finds out what the seeds and the target have. One that cannot be read to its end is used as far as it can be: what
// is missing is fetched, and the medium that has it is not the one that is written.
func (w *writing) survey(ctx context.Context, params chunk.Params, resume bool) (surveyed, error) {
	var found surveyed

	target := w.targetParts(resume)
	w.meter.surveying(w.toSurvey(target))

	take := func(into *[]*chunk.Census, part part) error {
		reader := w.meter.survey(part)
		defer reader.end()

		census, err := chunk.Survey(ctx, params, part.start, reader)
		if err != nil && (census == nil || ctx.Err() != nil) {
			return fmt.Errorf("planning %s: %w", w.content.Role, err)
		}

		*into = append(*into, census)

		return nil
	}

	for _, seed := range w.options.Seeds {
		if err := take(&found.seeds, partOf(seed)); err != nil {
			return found, err
		}
	}

	for _, part := range target {
		if err := take(&found.target, part); err != nil {
			return found, err
		}
	}

	return found, nil
}

// targetParts are what of the target is surveyed. A content that was written already ends in the middle of what a larger
// target holds. An older one may have been larger than this one, but whatever is further away is hardly one.
func (w *writing) targetParts(resume bool) []part {
	if !resume {
		return nil
	}

	size := w.content.RawSize
	room := min(cmp.Or(w.options.Room, math.MaxInt64), 2*size)

	return []part{w.targetPart(0, size), w.targetPart(size, max(room-size, 0))}
}

// surveyed is what is at hand.
type surveyed struct {
	seeds, target []*chunk.Census
}

// in is what of a content is at hand.
func (s surveyed) in(index *chunk.Index) (*chunk.Seeds, error) {
	seeds := chunk.NewSeeds(index)

	for _, census := range s.seeds {
		if _, err := seeds.Add(census); err != nil {
			return nil, err
		}
	}

	for _, census := range s.target {
		seeds.AddTarget(census)
	}

	return seeds, nil
}

// supply carries the plan out.
func (a *assembly) supply(ctx context.Context, feed *feed) (err error) {
	a.feed = feed
	a.scratch = make([]byte, seedBuffer)

	a.fetched, err = a.image.frames(ctx, a.writing.content, a.index, a.plan)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, a.fetched.close()) }()

	for step := range a.plan.Steps() {
		if err := a.take(ctx, step); err != nil {
			return err
		}
	}

	return a.flush(ctx)
}

func (a *assembly) take(ctx context.Context, step chunk.Step) error {
	switch step.Kind {
	case chunk.Keep:
		return a.pass(ctx, portion{kept: step.Length})
	case chunk.Zero:
		return a.pass(ctx, portion{zeros: step.Length})
	case chunk.Fetch:
		return a.fetch(ctx, step)
	case chunk.Seed:
		return a.copy(ctx, step, a.writing.options.Seeds[step.Seed].Reader, 0)
	case chunk.Self, chunk.Here:
		if a.writing.target == nil { // nothing can be read again
			return a.check(ctx, step.First, step.Chunks, nil)
		}

		return a.copy(ctx, step, a.writing.target, a.writing.options.Offset)
	default:
		return fmt.Errorf("%w: a step of the kind %s", chunk.ErrPlan, step.Kind)
	}
}

// pass hands on what needs no bytes.
func (a *assembly) pass(ctx context.Context, next portion) error {
	if err := a.flush(ctx); err != nil {
		return err
	}

	a.position += next.size()

	return a.feed.put(ctx, next)
}

// emit hands on bytes.
func (a *assembly) emit(ctx context.Context, data []byte) (err error) {
	for len(data) > 0 {
		if a.open == nil {
			if a.open, err = a.feed.buffer(ctx); err != nil {
				return err
			}
		}

		count := copy(a.open[a.count:], data)
		data = data[count:]
		a.count += count
		a.position += int64(count)

		if a.count == len(a.open) {
			if err := a.flush(ctx); err != nil {
				return err
			}
		}
	}

	return nil
}

// flush hands on what was emitted so far.
func (a *assembly) flush(ctx context.Context) error {
	if a.count == 0 {
		return nil
	}

	next := portion{data: a.open[:a.count]}
	a.open, a.count = nil, 0

	return a.feed.put(ctx, next)
}

// copy takes chunks from a seed, or from the target, where the content begins at byte start.
func (a *assembly) copy(ctx context.Context, step chunk.Step, from io.ReaderAt, start int64) error {
	for first, source := step.First, step.From; first < step.First+step.Chunks; {
		size, chunks := a.run(first, step.First+step.Chunks-first)

		if step.Kind == chunk.Self {
			// One at a time: the next one may be a copy of this one.
			size, chunks = a.run(first, 1)
			if err := a.settled(ctx, source+size); err != nil {
				return err
			}
		}

		data := a.scratch[:size]
		if n, _ := from.ReadAt(data, start+source); n < len(data) {
			data = data[:0] // What cannot be read is fetched, like what is not what it was.
		}

		if err := a.check(ctx, first, chunks, data); err != nil {
			return err
		}

		first += chunks
		source += size
	}

	return nil
}

// run is how many bytes the next chunks have that fit into the scratch buffer, at most so many chunks.
func (a *assembly) run(first, most int) (size int64, chunks int) {
	for chunks < most {
		length := a.index.Chunk(first + chunks).Length
		if size+length > seedBuffer {
			break
		}

		size += length
		chunks++
	}

	return size, chunks
}

// settled waits until the content's bytes up to an end can be read from the target.
func (a *assembly) settled(ctx context.Context, end int64) error {
	if a.position-int64(a.count) < end {
		if err := a.flush(ctx); err != nil {
			return err
		}
	}

	return a.feed.written.wait(ctx, end)
}

// check hands chunks on that are what the index says, and fetches the others.
func (a *assembly) check(ctx context.Context, first, chunks int, data []byte) error {
	for number := first; number < first+chunks; number++ {
		length := int(a.index.Chunk(number).Length)
		piece := data[:min(length, len(data))]
		data = data[len(piece):]

		if !a.index.Matches(number, piece) {
			var err error
			if piece, err = a.fetched.chunkAlone(ctx, number); err != nil {
				return err
			}
		}

		if err := a.emit(ctx, piece); err != nil {
			return err
		}
	}

	return nil
}

// fetch takes chunks from a frame.
func (a *assembly) fetch(ctx context.Context, step chunk.Step) error {
	raw, err := a.fetched.frame(ctx, step.Frame)
	if err != nil {
		return err
	}

	begin := step.Offset - a.index.Frame(step.Frame).RawOffset

	return a.emit(ctx, raw[begin:begin+step.Length])
}
