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
