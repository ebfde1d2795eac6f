package chunk

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// machine is what a plan is carried out on.
type machine struct {
	target []byte
	seeds  [][]byte
}

func (m machine) plan(t rapid.TB, index *Index, options PlanOptions) *Plan {
	t.Helper()

	seeds := NewSeeds(index)

	for want, seed := range m.seeds {
		got, err := seeds.Add(survey(t, index.Params(), 0, seed))
		if err != nil || got != want {
			t.Fatalf("seed %d: %d, %v", want, got, err)
		}
	}

	// A content that was written already ends in the middle of what a larger target holds.
	end := min(int(index.RawSize()), len(m.target))
	seeds.AddTarget(survey(t, index.Params(), 0, m.target[:end]))
	seeds.AddTarget(survey(t, index.Params(), int64(end), m.target[end:]))

	plan, err := NewPlan(index, seeds, options)
	if err != nil {
		t.Fatal(err)
	}

	return plan
}

func survey(t rapid.TB, params Params, start int64, data []byte) *Census {
	t.Helper()

	census, err := Survey(context.Background(), params, start, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}

	return census
}

// carryOut does the first steps of a plan, at most limit of them, as a reader does: it has only the bytes that the plan
// requests, goes upward, and checks each chunk.
func (m machine) carryOut(t rapid.TB, plan *Plan, image encoded, limit int) {
	t.Helper()

	fetched := make([]byte, len(image.layer))
	has := map[int]bool{}

	for _, request := range plan.Requests() {
		copy(fetched[request.Offset:request.Offset+request.Length], image.layer[request.Offset:])

		for frame := request.First; frame < request.First+request.Frames; frame++ {
			has[frame] = true
		}
	}

	for step := range plan.Steps() {
		if limit--; limit < 0 {
			return
		}

		m.write(t, image.index, step, func() []byte {
			if !has[step.Frame] || !plan.Whole && !plan.Needs(step.Frame) {
				t.Fatalf("%+v needs a frame that is not requested", step)
			}

			frame := image.index.Frame(step.Frame)
			raw := unpacked(t, fetched[frame.Offset:frame.Offset+frame.Length])

			return raw[step.Offset-frame.RawOffset:]
		})
	}
}

// write does one step chunk by chunk.
func (m machine) write(t rapid.TB, index *Index, step Step, fetched func() []byte) {
	t.Helper()

	for chunk := step.First; chunk < step.First+step.Chunks; chunk++ {
		place := index.Chunk(chunk)
		done := place.Offset - step.Offset

		var piece []byte

		switch step.Kind {
		case Keep:
			piece = m.target[place.Offset:]
		case Zero:
			piece = make([]byte, place.Length)
		case Seed:
			piece = m.seeds[step.Seed][step.From+done:]
		case Here, Self:
			piece = m.target[step.From+done:]
		case Fetch:
			piece = fetched()[done:]
		}

		piece = slices.Clone(piece[:place.Length])
		if !index.Matches(chunk, piece) {
			t.Fatalf("chunk %d of %+v has other bytes", chunk, step)
		}

		if step.Kind == Here && step.From < step.Offset || step.Kind == Self && step.From >= step.Offset {
			t.Fatalf("%+v reads from the wrong side", step)
		}

		copy(m.target[place.Offset:], piece)
	}
}

// drawPieces draws contents that have much in common, in another order and with other bytes between.
func drawPieces(t *rapid.T, label string) []byte {
	var data []byte

	for _, piece := range rapid.SliceOfN(rapid.IntRange(0, 16), 0, 20).Draw(t, label) {
		switch piece {
		case 0:
			data = append(data, make([]byte, 30_000)...)
		case 1:
			data = append(data, noise(rapid.Uint64Range(100, 1<<40).Draw(t, "new"), 3000)...)
		case 2:
			data = append(data, byte(len(data)))
		default:
			data = append(data, noise(uint64(piece), piece*2500)...)
		}
	}

	return data
}

func drawOptions(t *rapid.T) PlanOptions {
	return PlanOptions{
		RequestCost: rapid.Int64Range(0, 50_000).Draw(t, "cost"), Gap: rapid.Int64Range(-1, 50_000).Draw(t, "gap"),
		MaxRequest: rapid.Int64Range(0, 200_000).Draw(t, "most"),
	}
}

func TestPlansGiveTheNewContent(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(r *rapid.T) {
		data := drawPieces(r, "content")
		image := encode(r, data, Options{Params: drawParams(r), Frame: rapid.IntRange(1, 60_000).Draw(r, "frame")})
		options := drawOptions(r)

		m := machine{target: drawPieces(r, "target")}
		for range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(r, "seeds") {
			m.seeds = append(m.seeds, drawPieces(r, "seed"))
		}

		m.target = append(m.target, make([]byte, max(0, len(data)-len(m.target)))...)

		// Power may fail after any step; what was planned then is forgotten.
		for range rapid.IntRange(0, 2).Draw(r, "cuts") {
			plan := m.plan(r, image.index, options)
			m.carryOut(r, plan, image, rapid.IntRange(0, 30).Draw(r, "steps"))
		}

		plan := m.plan(r, image.index, options)
		m.carryOut(r, plan, image, 1<<30)

		if !bytes.Equal(m.target[:len(data)], data) {
			r.Fatal("the target does not have the content")
		}

		checkRequests(r, plan, image.index, options)

		// Once more, all but zeros is there.
		if again := m.plan(r, image.index, options); again.Totals.Raw[Fetch]+again.Totals.Raw[Seed] > 0 {
			r.Fatalf("after it was carried out, the plan still is %+v", again.Totals)
		}
	})
}

// checkRequests holds that no plan moves more than the whole, and the totals are right.
func checkRequests(t rapid.TB, plan *Plan, index *Index, options PlanOptions) {
	t.Helper()

	options, _ = options.complete()

	var end, sum int64

	for _, request := range plan.Requests() {
		if request.Offset < end || request.Length < 1 {
			t.Fatalf("%+v after byte %d", request, end)
		}

		if request.Length > options.MaxRequest && request.Frames > 1 && !plan.Whole {
			t.Fatalf("%+v is larger than %d", request, options.MaxRequest)
		}

		end = request.Offset + request.Length
		sum += request.Length
	}

	if sum != plan.Totals.Requested || len(plan.Requests()) != plan.Totals.Requests || sum > index.FramesSize() {
		t.Fatalf("%+v for %d bytes in %d requests; all frames have %d", plan.Totals, sum, len(plan.Requests()), index.FramesSize())
	}

	cost := sum + int64(plan.Totals.Requests)*options.RequestCost
	if cost > index.FramesSize()+options.RequestCost {
		t.Fatalf("%+v costs more than the whole of %d", plan.Totals, index.FramesSize())
	}

	var raw int64
	for _, length := range plan.Totals.Raw {
		raw += length
	}

	if raw != index.RawSize() {
		t.Fatalf("%+v, want %d raw bytes in all", plan.Totals, index.RawSize())
	}
}

func TestNothingIsRequestedForTheSameContent(t *testing.T) {
	t.Parallel()

	image := encode(t, golden(), Options{Params: anywhere()})
	m := machine{target: make([]byte, len(golden())), seeds: [][]byte{golden()}}

	plan := m.plan(t, image.index, PlanOptions{})
	if plan.Totals.Requests != 0 || plan.Whole || plan.Totals.Raw[Fetch] != 0 {
		t.Errorf("%+v", plan.Totals)
	}

	m.carryOut(t, plan, image, 1<<30)

	if !bytes.Equal(m.target, golden()) {
		t.Error("other bytes")
	}
}

func TestWithoutSeedsTheWholeIsFetchedAtOnce(t *testing.T) {
	t.Parallel()

	image := encode(t, noise(10, 6<<20), Options{Params: anywhere()})
	plan := machine{target: make([]byte, 6<<20)}.plan(t, image.index, PlanOptions{})

	if !plan.Whole || plan.Totals.Requests != 1 || plan.Totals.Requested != image.index.FramesSize() {
		t.Errorf("whole %t, %+v", plan.Whole, plan.Totals)
	}
}

// An interrupted staging goes on where it was, whatever the old content after it was.
func TestWhatWasStagedIsKept(t *testing.T) {
	t.Parallel()

	data := noise(11, 4<<20)
	image := encode(t, data, Options{Params: anywhere()})
	target := slices.Concat(data[:3_000_000], noise(12, 2<<20))
	plan := machine{target: target}.plan(t, image.index, PlanOptions{})

	want := int64(3_000_000 - anywhere().Max)
	if kept := plan.Totals.Raw[Keep]; kept < want || kept > 3_000_000 {
		t.Errorf("%d bytes are kept, want at least %d", kept, want)
	}
}

// The spare slot's old content is a seed where it is not overwritten yet: content that moved down is found, content that
// moved up is not.
func TestOldContentOfTheTargetIsUsedUpward(t *testing.T) {
	t.Parallel()

	data := noise(13, 1<<20)
	image := encode(t, data, Options{Params: anywhere()})

	down := machine{target: append(noise(14, 100_000), data...)}
	if plan := down.plan(t, image.index, PlanOptions{}); plan.Totals.Raw[Here] < 1<<20-2*int64(anywhere().Max) {
		t.Errorf("moved down: %+v", plan.Totals)
	}

	up := machine{target: append(slices.Clone(data[100_000:]), make([]byte, 100_000)...)}
	if plan := up.plan(t, image.index, PlanOptions{}); plan.Totals.Raw[Here] != 0 || !plan.Whole {
		t.Errorf("moved up: %+v", plan.Totals)
	}
}

func TestGapsAreWeighed(t *testing.T) {
	t.Parallel()

	data := noise(15, 1<<20)
	image := encode(t, data, Options{Params: anywhere()})
	old := slices.Clone(data)

	// Three places differ, 20 KB and 500 KB from each other.
	for _, at := range []int{100_000, 120_000, 620_000} {
		copy(old[at:], "xxxxxxxxxxxxxxxx")
	}

	m := machine{target: make([]byte, 1<<20), seeds: [][]byte{old}}

	for _, tt := range []struct {
		options PlanOptions
		want    int
	}{
		{PlanOptions{Gap: -1}, 3},
		{PlanOptions{RequestCost: 30_000}, 2},
		{PlanOptions{Gap: 30_000}, 2},
		{PlanOptions{Gap: 600_000}, 1},
		{PlanOptions{Gap: 600_000, MaxRequest: 100_000}, 2},
		{PlanOptions{RequestCost: 10 << 20}, 1},
	} {
		if got := m.plan(t, image.index, tt.options).Totals; got.Requests != tt.want {
			t.Errorf("%+v: %+v, want %d requests", tt.options, got, tt.want)
		}
	}

	seeds := NewSeeds(image.index)
	if _, err := NewPlan(image.index, seeds, PlanOptions{Gap: -2}); !errors.Is(err, ErrPlan) {
		t.Errorf("a gap of -2: %v", err)
	}
}

func TestSeedsRefuseWhatTheyCannotHold(t *testing.T) {
	t.Parallel()

	image := encode(t, golden(), Options{Params: anywhere()})

	seeds := NewSeeds(image.index)
	empty := survey(t, anywhere(), 0, nil)

	for range MaxSeeds {
		if _, err := seeds.Add(empty); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := seeds.Add(empty); !errors.Is(err, ErrSeed) {
		t.Errorf("one seed too many: %v", err)
	}
}

// Two chunks with one id and different lengths are not taken for each other.
func TestIDsOfOtherLengthsAreAccidents(t *testing.T) {
	t.Parallel()

	index := newIndex(anywhere(), 0, 0)
	index.add(2000, IDOf(noise(16, 1000)))
	index.add(1000, IDOf(noise(16, 1000)))
	index.endFrame(3000)

	seeds := NewSeeds(index)
	if _, err := seeds.Add(survey(t, anywhere(), 0, noise(16, 1000))); err != nil {
		t.Fatal(err)
	}

	for number := range 2 {
		if got := seeds.find(number); got.elsewhere >= 0 || got.first != number {
			t.Errorf("chunk %d: %+v", number, got)
		}
	}
}

func TestKindsHaveNames(t *testing.T) {
	t.Parallel()

	want := []string{"keep", "zero", "seed", "here", "self", "fetch"}
	for i, kind := range []Kind{Keep, Zero, Seed, Here, Self, Fetch} {
		if kind.String() != want[i] {
			t.Errorf("%d is %s, want %s", i, kind, want[i])
		}
	}
}

// large is an index of 2 GiB, made without encoding anything.
func large() *Index {
	const chunks = 2 << 30 / 4096

	index := newIndex(blocks(), chunks, chunks)
	ids := noise(17, 8*chunks)

	for number := range chunks {
		index.add(4096, ID(number)<<40|ID(ids[number])|1)
		index.endFrame(4000)
	}

	return index
}

// What staging 2 GiB may cost is fixed: see Seeds.
func TestSeedsOfTwoGiBAreSmall(t *testing.T) {
	index := large()

	var before, after runtime.MemStats

	runtime.GC()
	runtime.ReadMemStats(&before)

	seeds := NewSeeds(index)

	runtime.GC()
	runtime.ReadMemStats(&after)

	used := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	runtime.KeepAlive(seeds)
	runtime.KeepAlive(index)

	if used > 12<<20 {
		t.Errorf("%d bytes", used)
	}
}

func BenchmarkPlan(b *testing.B) {
	index := large()
	seeds := NewSeeds(index)

	b.ReportAllocs()

	for b.Loop() {
		if _, err := NewPlan(index, seeds, PlanOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
