package chunk

import (
	"errors"
	"fmt"
	"iter"
)

// ErrPlan is returned for options that make no sense.
var ErrPlan = errors.New("planning options cannot be used")

const (
	// DefaultRequestCost is what one more request is worth in bytes. On the wire it is about 1 KiB of headers, twice that
	// where a registry redirects; the rest is for the registry's work. The time that requests take is no reason for more: a
	// node still serves while it stages, and some requests are under way at once. On images of Debian, 16 KiB saves a third
	// of the requests and moves up to a quarter more.
	DefaultRequestCost = 4 << 10
	// DefaultMaxRequest bounds what a broken transfer fetches again.
	DefaultMaxRequest = 4 << 20
)

// PlanOptions weigh bytes against requests.
type PlanOptions struct {
	// RequestCost is what a request costs besides the bytes it asks for, in bytes. 0 means DefaultRequestCost.
	RequestCost int64
	// Gap is how many bytes that are not needed may be fetched to save a request. 0 means RequestCost, which makes the
	// cheapest plan; -1 none.
	Gap int64
	// MaxRequest is the most bytes that one request asks for, but for a frame that is larger. 0 means DefaultMaxRequest.
	MaxRequest int64
}

func (o PlanOptions) complete() (PlanOptions, error) {
	if o.RequestCost == 0 {
		o.RequestCost = DefaultRequestCost
	}

	switch o.Gap {
	case 0:
		o.Gap = o.RequestCost
	case -1:
		o.Gap = 0
	}

	if o.MaxRequest == 0 {
		o.MaxRequest = DefaultMaxRequest
	}

	if o.RequestCost < 0 || o.Gap < 0 || o.MaxRequest < 0 {
		return o, fmt.Errorf("%w: %+v", ErrPlan, o)
	}

	return o, nil
}

// Kind says where a piece of the content comes from.
type Kind uint8

const (
	// Keep means that the target has the piece where it shall be.
	Keep Kind = iota
	// Zero means that the piece is zeros: write, or discard, them.
	Zero
	// Seed means that the piece is in the seed Step.Seed at byte Step.From.
	Seed
	// Here means that the piece is on the target at byte Step.From, which is not before Step.Offset: it is old content.
	Here
	// Self means that the piece is on the target at byte Step.From, which is before Step.Offset: it is new content.
	Self
	// Fetch means that the piece is in the layer's frame Step.Frame.
	Fetch
)

// String names the kind.
func (k Kind) String() string {
	return [...]string{"keep", "zero", "seed", "here", "self", "fetch"}[k]
}

// Step says where a piece of the content comes from. A piece is one or more whole chunks.
type Step struct {
	Kind Kind
	// Offset and Length are in raw bytes of the content.
	Offset, Length int64
	// First is the number of the first chunk, Chunks how many there are.
	First, Chunks int
	// Seed is the number that Seeds.Scan returned, From a byte offset: see Kind.
	Seed int
	From int64
	// Frame is the number of the frame for Fetch.
	Frame int
}

// Request is one closed range of the layer, some whole frames.
type Request struct {
	// Offset and Length are in bytes of the layer.
	Offset, Length int64
	// First is the number of the first frame, Frames how many there are. Not all of them are needed.
	First, Frames int
}

// Totals are the figures of a plan.
type Totals struct {
	// Requested is the number of bytes of the layer that are asked for, Requests in how many requests.
	Requested int64
	Requests  int
	// Raw has the raw bytes of each kind of step.
	Raw map[Kind]int64
}

// Plan says for each byte of a content where it comes from. It is valid as long as nothing else writes to the target.
//
// Whoever carries it out takes the steps in their order and finishes writing one before it reads for the next Here or
// Self: that is what makes it right to overwrite old content that later steps do not need. A step of many chunks may be
// done in pieces, upward. Each piece that is not kept is checked with Index.Matches before it is written; when that fails,
// the frame of the chunk (Index.FrameOf) has the right bytes.
type Plan struct {
	index *Index
	seeds *Seeds
	// needed has a bit for each frame that must be fetched.
	needed   []uint64
	requests []Request
	// Whole is set when fetching everything, in one stream that is verified by the layer's digest, costs no more. Then all
	// steps are Fetch.
	Whole  bool
	Totals Totals
}

// NewPlan makes the plan that costs the least in requested bytes and requests.
func NewPlan(index *Index, seeds *Seeds, options PlanOptions) (*Plan, error) {
	options, err := options.complete()
	if err != nil {
		return nil, err
	}

	plan := &Plan{index: index, seeds: seeds, needed: make([]uint64, (index.Frames()+63)/64)}

	for number := range index.Frames() {
		if plan.lacks(index.Frame(number)) {
			plan.needed[number/64] |= 1 << (number % 64)
		}
	}

	plan.coalesce(options)

	requested := plan.sum()
	// One request more for what comes after the frames would not change the comparison.
	if requested > 0 && requested+int64(len(plan.requests))*options.RequestCost >= index.FramesSize()+options.RequestCost {
		plan.Whole = true
		plan.requests = []Request{{Length: index.FramesSize(), Frames: index.Frames()}}

		for number := range plan.needed {
			plan.needed[number] = ^uint64(0)
		}
	}

	plan.Totals = Totals{Requested: plan.sum(), Requests: len(plan.requests), Raw: map[Kind]int64{}}
	for step := range plan.Steps() {
		plan.Totals.Raw[step.Kind] += step.Length
	}

	return plan, nil
}

func (p *Plan) sum() int64 {
	var sum int64
	for _, request := range p.requests {
		sum += request.Length
	}

	return sum
}

// lacks tells whether a chunk of the frame is nowhere at hand.
func (p *Plan) lacks(frame Frame) bool {
	for number := frame.First; number < frame.First+frame.Chunks; number++ {
		if p.local(number).Kind == Fetch {
			return true
		}
	}

	return false
}

// local is the step for a chunk when its frame is not fetched, of kind Fetch when that is not possible.
func (p *Plan) local(number int) Step {
	chunk := p.index.Chunk(number)
	step := Step{Offset: chunk.Offset, Length: chunk.Length, First: number, Chunks: 1}

	if chunk.ID == 0 {
		step.Kind = Zero

		return step
	}

	found := p.seeds.find(number)

	switch {
	case found.kept:
		step.Kind = Keep
	case found.elsewhere >= 0:
		step.Kind, step.Seed, step.From = Seed, found.seed, found.elsewhere
	case found.first < number:
		step.Kind, step.From = Self, p.index.Chunk(found.first).Offset
	case found.here >= chunk.Offset:
		// All before this chunk is overwritten by now, nothing from it on.
		step.Kind, step.From = Here, found.here
	default:
		step.Kind = Fetch
	}

	return step
}

// coalesce makes requests of the frames that are needed.
func (p *Plan) coalesce(options PlanOptions) {
	var open Request

	for number := range p.index.Frames() {
		if !p.fetches(number) {
			continue
		}

		frame := p.index.Frame(number)
		end := frame.Offset + frame.Length
		gap := frame.Offset - open.Offset - open.Length

		if open.Frames > 0 && gap <= options.Gap && end-open.Offset <= options.MaxRequest {
			open.Length = end - open.Offset
			open.Frames = number + 1 - open.First

			continue
		}

		if open.Frames > 0 {
			p.requests = append(p.requests, open)
		}

		open = Request{Offset: frame.Offset, Length: frame.Length, First: number, Frames: 1}
	}

	if open.Frames > 0 {
		p.requests = append(p.requests, open)
	}
}

func (p *Plan) fetches(frame int) bool {
	return p.needed[frame/64]&(1<<(frame%64)) != 0
}

// Requests are what must be fetched, in the order of the layer, which is the order in which the steps need it.
func (p *Plan) Requests() []Request {
	return p.requests
}

// Needs tells whether a frame within a request is needed by a step.
func (p *Plan) Needs(frame int) bool {
	return p.fetches(frame)
}

// Steps yields the steps in the order of the content, without a gap. Neighbours that can be done at once are one step.
func (p *Plan) Steps() iter.Seq[Step] {
	return func(yield func(Step) bool) {
		var open Step

		for number := range p.index.Frames() {
			frame := p.index.Frame(number)

			for chunk := frame.First; chunk < frame.First+frame.Chunks; chunk++ {
				step := p.step(chunk, number)
				if open.join(step) {
					continue
				}

				if open.Chunks > 0 && !yield(open) {
					return
				}

				open = step
			}
		}

		if open.Chunks > 0 {
			yield(open)
		}
	}
}

// step is the step for one chunk.
func (p *Plan) step(chunk, frame int) Step {
	step := p.local(chunk)

	if p.Whole || p.fetches(frame) && step.Kind != Keep && step.Kind != Zero {
		return Step{
			Kind: Fetch, Offset: step.Offset, Length: step.Length, First: step.First, Chunks: step.Chunks, Frame: frame,
		}
	}

	return step
}

// join adds the next step to one that it continues.
func (s *Step) join(next Step) bool {
	if s.Chunks == 0 || s.Kind != next.Kind || s.Seed != next.Seed || s.Frame != next.Frame {
		return false
	}

	copies := s.Kind == Seed || s.Kind == Here || s.Kind == Self
	if copies && s.From+s.Length != next.From {
		return false
	}

	s.Length += next.Length
	s.Chunks += next.Chunks

	return true
}
