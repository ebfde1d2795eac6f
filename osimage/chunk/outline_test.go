package chunk

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

// complete fetches the ids that no census has, and returns how many bytes those are.
func complete(t rapid.TB, image encoded, gap int64, known ...*Census) (*Index, int64) {
	t.Helper()

	outline, err := ParseHead(image.Head, Sizes{Raw: image.RawSize, Layer: image.Size, IDs: int64(len(image.IDs))})
	if err != nil {
		t.Fatal(err)
	}

	for _, census := range known {
		outline.Learn(census)
	}

	var fetched int64

	for _, span := range outline.Missing(gap) {
		fetched += span.To - span.From

		if err := outline.Fill(span, image.IDs[span.From:span.To]); err != nil {
			t.Fatal(err)
		}
	}

	index, err := outline.Index()
	if err != nil {
		t.Fatal(err)
	}

	return index, fetched
}

// However much is known, the index is the same in the end.
func TestOutlineIsCompleted(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(r *rapid.T) {
		params := drawParams(r)
		image := encode(r, drawContent(r, "content"), Options{Params: params, Frame: 20_000})
		other := drawContent(r, "other")
		gap := rapid.Int64Range(0, 1000).Draw(r, "gap")

		index, _ := complete(r, image, gap, survey(r, params, 0, other), survey(r, params, 77, nil))
		if !slices.Equal(index.ids, image.index.ids) {
			r.Fatal("other ids than the index has")
		}

		index, fetched := complete(r, image, gap, survey(r, params, 0, image.raw))
		if !slices.Equal(index.ids, image.index.ids) || fetched != 0 {
			r.Fatalf("%d bytes of ids were fetched of a content that is at hand", fetched)
		}

		if _, fetched := complete(r, image, gap, image.index.Census()); fetched != 0 {
			r.Fatalf("%d bytes of ids were fetched of a content whose index is at hand", fetched)
		}
	})
}

// A small change costs few ids, wherever it is.
func TestOutlineLearnsMost(t *testing.T) {
	t.Parallel()

	erofs := append(make([]byte, 1024), "\xe2\xe1\xf5\xe0"...)

	for name, params := range map[string]Params{
		"blocks": blocks(), "anywhere": anywhere(), "blocks of 2 GiB": ParamsFor(erofs, 2<<30),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			raw := noise(3, 16<<20)
			old := slices.Insert(slices.Clone(raw), 5<<20, noise(4, 4096)...)
			image := encode(t, raw, Options{Params: params})

			_, fetched := complete(t, image, 0, survey(t, params, 0, old))
			if most := int64(2 * maxGroup * idSize); fetched == 0 || fetched > most {
				t.Errorf("%d of %d bytes of ids were fetched, want at most %d", fetched, len(image.IDs), most)
			}
		})
	}
}

func TestOutlineRefusesOtherIDs(t *testing.T) {
	t.Parallel()

	image := encode(t, noise(5, 1<<20), Options{Params: blocks()})
	sizes := Sizes{Raw: image.RawSize, Layer: image.Size, IDs: int64(len(image.IDs))}

	for name, change := range map[string]func(ids []byte) []byte{
		"another":  func(ids []byte) []byte { ids[100]++; return ids },
		"too few":  func(ids []byte) []byte { return ids[8:] },
		"too many": func(ids []byte) []byte { return append(ids, 0) },
		"none":     func([]byte) []byte { return nil },
		"zeros":    func(ids []byte) []byte { clear(ids[:8]); return ids },
	} {
		outline, err := ParseHead(image.Head, sizes)
		if err != nil {
			t.Fatal(err)
		}

		if err := outline.Fill(Span{To: sizes.IDs}, change(bytes.Clone(image.IDs))); !errors.Is(err, ErrIndex) {
			t.Errorf("%s: %v", name, err)
		}

		if _, err := outline.Index(); !errors.Is(err, ErrIndex) {
			t.Errorf("%s: an index without all ids: %v", name, err)
		}
	}

	sizes.IDs--
	if _, err := ParseHead(image.Head, sizes); !errors.Is(err, ErrIndex) {
		t.Errorf("another size than the config says: %v", err)
	}
}

// What was found before a seed broke is used; one that was cut in another way has nothing.
func TestSurvey(t *testing.T) {
	t.Parallel()

	raw := noise(6, 4<<20)
	image := encode(t, raw, Options{Params: anywhere()})

	census, err := Survey(t.Context(), anywhere(), 0, io.MultiReader(bytes.NewReader(raw[:2<<20]), iotest.ErrReader(errTest)))
	if !errors.Is(err, errTest) {
		t.Errorf("a seed that cannot be read: %v", err)
	}

	if _, fetched := complete(t, image, 0, census); fetched == 0 || fetched > int64(len(image.IDs))*3/4 {
		t.Errorf("%d of %d bytes of ids were fetched", fetched, len(image.IDs))
	}

	seeds := NewSeeds(image.index)
	if _, err := seeds.Add(survey(t, blocks(), 0, raw)); err != nil {
		t.Fatal(err)
	}

	seeds.AddTarget(survey(t, blocks(), 0, raw))

	if found := seeds.find(0); found.elsewhere >= 0 || found.here >= 0 {
		t.Errorf("chunks that were cut in another way were found: %+v", found)
	}

	if _, fetched := complete(t, image, 0, survey(t, blocks(), 0, raw)); fetched != int64(len(image.IDs)) {
		t.Errorf("%d of %d bytes of ids were fetched though none could be known", fetched, len(image.IDs))
	}

	if _, err := Survey(t.Context(), Params{}, 0, bytes.NewReader(raw)); !errors.Is(err, ErrParams) {
		t.Errorf("parameters of zero: %v", err)
	}
}

// A head says which sums its groups have, and how many ids. It must not make a census be looked through again and again, nor
// give a group the ids of one that is longer or shorter.
func TestOutlineLearnsWithinBounds(t *testing.T) {
	t.Parallel()

	const many, hole = 200, 1 << 20

	// A group of two ids that are far from each other, and one of a single id.
	census := newCensus(blocks(), 0)
	census.add(4096, 1)

	for range hole {
		census.add(4096, 0)
	}

	census.add(4096, 32)
	census.add(4096, 64)
	census.end()

	index := newIndex(blocks(), 2*many, 1)
	for range 2 * many {
		index.add(4096, unknown)
	}

	index.endFrame(1)

	groups := make([]idGroup, many)
	for number := range groups {
		groups[number] = idGroup{sum: groupSum(sumOf(1, 32)), first: uint32(2 * number), count: 2}
	}

	outline := &Outline{index: index, groups: groups}
	outline.Learn(census)

	known := 0
	for _, group := range outline.groups {
		if group.known {
			known++
		}
	}

	if want := learnEffort/hole + 1; known == 0 || known > want {
		t.Errorf("%d of %d groups are known, want at most %d", known, many, want)
	}

	outline = &Outline{index: index, groups: []idGroup{
		{sum: groupSum(sumOf(64)), count: 2}, {sum: groupSum(sumOf(1, 32)), first: 2, count: 1},
	}}
	outline.Learn(census)

	if outline.groups[0].known || outline.groups[1].known {
		t.Error("the ids of a group of another length were taken")
	}
}

// FuzzOutline updates by an index, and from an older content, that are anything.
func FuzzOutline(f *testing.F) {
	got := encode(f, golden(), Options{Params: blocks()})
	old := slices.Concat(golden()[:100<<10], noise(9, 10_000), golden()[120<<10:])
	f.Add(got.Head, got.IDs, old, got.RawSize, got.Size, int64(64))

	got = encode(f, golden(), Options{Params: anywhere()})
	f.Add(got.Head, got.IDs, old, got.RawSize, got.Size, int64(0))
	f.Add(right().bytes(), make([]byte, 16), []byte("old"), int64(9192), int64(2100), int64(1))

	f.Fuzz(func(t *testing.T, head, ids, old []byte, raw, layer, gap int64) {
		outline, err := ParseHead(head, Sizes{Raw: raw, Layer: layer, IDs: int64(len(ids))})
		if err != nil {
			if !errors.Is(err, ErrIndex) {
				t.Fatal(err)
			}

			return
		}

		census := survey(t, outline.Params(), 0, old)
		outline.Learn(census)

		var end int64

		for _, span := range outline.Missing(gap) {
			if span.From < end || span.To <= span.From || span.To > int64(len(ids)) {
				t.Fatalf("the span %+v after byte %d of %d", span, end, len(ids))
			}

			end = span.To

			if err := outline.Fill(span, ids[span.From:span.To]); err != nil && !errors.Is(err, ErrIndex) {
				t.Fatal(err)
			}
		}

		index, err := outline.Index()
		if err != nil {
			if !errors.Is(err, ErrIndex) {
				t.Fatal(err)
			}

			return
		}

		checkSteps(t, index, census, int64(len(old)))
	})
}

// checkSteps holds that no step of a plan leaves the content or the seed, and that each reads on the side where it may.
func checkSteps(t *testing.T, index *Index, census *Census, size int64) {
	t.Helper()

	for _, target := range []bool{false, true} {
		seeds := NewSeeds(index)

		if target {
			seeds.AddTarget(census)
		} else if _, err := seeds.Add(census); err != nil {
			t.Fatal(err)
		}

		plan, err := NewPlan(index, seeds, PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}

		var end int64

		for step := range plan.Steps() {
			fits := true

			switch step.Kind {
			case Seed:
				fits = !target && step.From >= 0 && step.From+step.Length <= size
			case Here:
				fits = target && step.From >= step.Offset && step.From+step.Length <= size
			case Self:
				fits = step.From < step.Offset && step.From+index.Chunk(step.First).Length <= step.Offset
			case Keep:
				fits = target && step.Offset+step.Length <= size
			case Fetch:
				frame := index.Frame(step.Frame)
				fits = step.Offset >= frame.RawOffset && step.Offset+step.Length <= frame.RawOffset+frame.RawLength
			case Zero:
			}

			if !fits || step.Offset != end {
				t.Fatalf("%+v after byte %d, with %d bytes at hand", step, end, size)
			}

			end += step.Length
		}

		if end != index.RawSize() {
			t.Fatalf("the plan ends at %d of %d", end, index.RawSize())
		}
	}
}
