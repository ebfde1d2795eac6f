package chunk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"
)

func TestIndexKeepsAll(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(r *rapid.T) {
		got := encode(r, drawContent(r, "content"), Options{Params: drawParams(r), Frame: 20_000})

		head, ids, err := got.index.marshal()
		if err != nil || !bytes.Equal(head, got.Head) || !bytes.Equal(ids, got.IDs) {
			r.Fatalf("what was parsed gives other bytes: %v", err)
		}
	})
}

// made is an index as it can be written by hand: each part can be wrong.
type made struct {
	head  []uint64
	table []uint64
	// sums are those of groups, size replaces the table's size.
	sums []uint64
	size int
	ids  []uint64
	tail string
}

func right() made {
	// Two chunks of 4096 and 1000 bytes, and one of 4096 zeros between them; two frames, one group.
	return made{
		head:  []uint64{1, 4096, 4096, 8192, 9192, 2000, 3, 2, 2, 1},
		table: []uint64{2 * 4096, 2*4096 + 1, 2 * 1000, 2, 1, zigzag(1500 - 8192), zigzag(500 - 1000), 2},
		ids:   []uint64{7, 8}, sums: []uint64{sumOf(7, 8)}, size: -1,
	}
}

func sumOf(ids ...uint64) uint64 {
	var data []byte
	for _, id := range ids {
		data = binary.BigEndian.AppendUint64(data, id)
	}

	sum := sha256.Sum256(data)

	return binary.BigEndian.Uint64(sum[:])
}

func zigzag(value int64) uint64 {
	return uint64(value<<1 ^ value>>63)
}

// parse reads both parts.
func (m made) parse() (*Index, error) {
	var ids []byte
	for _, id := range m.ids {
		ids = binary.BigEndian.AppendUint64(ids, id)
	}

	return Parse(m.bytes(), ids, Sizes{Raw: 9192, Layer: 2100, IDs: int64(len(ids))})
}

func (m made) bytes() []byte {
	var table []byte
	for _, number := range m.table {
		table = binary.AppendUvarint(table, number)
	}

	encoder, _ := zstd.NewWriter(nil)
	packed := encoder.EncodeAll(table, nil)

	if m.size < 0 {
		m.size = len(table)
	}

	data := []byte(magic)
	for _, number := range append(m.head, uint64(m.size), uint64(len(packed))) {
		data = binary.AppendUvarint(data, number)
	}

	data = append(data, packed...)
	for _, sum := range m.sums {
		data = binary.BigEndian.AppendUint64(data, sum)
	}

	return append(data, m.tail...)
}

func TestParseReadsWhatTheFormatSays(t *testing.T) {
	t.Parallel()

	index, err := right().parse()
	if err != nil {
		t.Fatal(err)
	}

	wantChunks := []Chunk{{0, 4096, 7}, {4096, 4096, 0}, {8192, 1000, 8}}
	wantFrames := []Frame{{0, 1500, 0, 8192, 0, 2}, {1500, 500, 8192, 1000, 2, 1}}

	for number, want := range wantChunks {
		if got := index.Chunk(number); got != want {
			t.Errorf("chunk %d: %+v, want %+v", number, got, want)
		}
	}

	for number, want := range wantFrames {
		if got := index.Frame(number); got != want {
			t.Errorf("frame %d: %+v, want %+v", number, got, want)
		}
	}

	if index.Chunks() != 3 || index.Frames() != 2 || index.RawSize() != 9192 || index.FramesSize() != 2000 {
		t.Errorf("%d chunks, %d frames, %d, %d", index.Chunks(), index.Frames(), index.RawSize(), index.FramesSize())
	}
}

func TestParseRefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()

	head := func(at int, value uint64) func(*made) { return func(m *made) { m.head[at] = value } }
	table := func(at int, value uint64) func(*made) { return func(m *made) { m.table[at] = value } }

	for name, tt := range map[string]struct {
		change func(*made)
		want   string
	}{
		"align not a power of two":    {head(0, 3), "parameters"},
		"align 0":                     {head(0, 0), "parameters"},
		"least of 0":                  {head(1, 0), "parameters"},
		"other raw size":              {head(4, 9193), "raw-size"},
		"frames larger than layer":    {head(5, 2101), "frames-size"},
		"frames shorter than they":    {head(5, 1999), "overhead"},
		"frames longer than they":     {head(5, 2001), "overhead"},
		"too many chunks":             {head(6, 4), "chunks"},
		"far too many chunks":         {head(6, 1<<60), "chunks"},
		"no chunks":                   {head(6, 0), "chunks"},
		"too few chunks":              {head(6, 2), "length"},
		"more frames than chunks":     {head(7, 4), "frames"},
		"no frames":                   {head(7, 0), "frames"},
		"ids of more than all":        {head(8, 4), "ids"},
		"an id less":                  {head(8, 1), "ids"},
		"no groups":                   {head(9, 0), "groups"},
		"more groups than ids":        {head(9, 3), "groups"},
		"a group of nothing":          {table(7, 0), "group"},
		"a group of too many":         {table(7, 3), "group"},
		"ids in no group":             {table(7, 1), "group"},
		"another sum":                 {func(m *made) { m.sums[0]++ }, "ids"},
		"another id":                  {func(m *made) { m.ids[1]++ }, "ids"},
		"a sum too few":               {func(m *made) { m.sums = nil }, "size"},
		"a group that ends too late":  {func(m *made) { m.ids[0], m.sums[0] = 32, sumOf(32, 8) }, "ids"},
		"a short chunk":               {table(0, 2*4000), "length"},
		"a long chunk":                {table(0, 2*8193), "length"},
		"a chunk of nothing":          {table(0, 0), "length"},
		"chunks beyond the end":       {table(0, 2*8192), "length"},
		"a last chunk too short":      {table(2, 2*999), "length"},
		"a last chunk too long":       {table(2, 2*1001), "length"},
		"an empty frame":              {table(3, 0), "count"},
		"a frame of too many":         {table(3, 4), "count"},
		"chunks in no frame":          {func(m *made) { m.table[3], m.table[4] = 1, 1 }, "count"},
		"a frame of nothing":          {table(5, zigzag(-8192)), "overhead"},
		"a frame beyond the layer":    {table(5, zigzag(1)), "overhead"},
		"a frame of a huge size":      {table(5, 1<<62), "overhead"},
		"an id of zero":               {func(m *made) { m.ids[1] = 0 }, "ids"},
		"that with its sum":           {func(m *made) { m.ids[1], m.sums[0] = 0, sumOf(7) }, "ids"},
		"an id for zeros":             {func(m *made) { m.ids, m.head[8] = append(m.ids, 9), 3 }, "ids"},
		"no id for a chunk":           {func(m *made) { m.table[1]-- }, "ids"},
		"bytes at the end":            {func(m *made) { m.tail = "x" }, "size"},
		"a table shorter than told":   {func(m *made) { m.size = 15 }, "table"},
		"a table longer than told":    {func(m *made) { m.size = 3 }, "table"},
		"a table of more than needed": {func(m *made) { m.size = 1000 }, "table-size"},
		"a number too many":           {func(m *made) { m.table = append(m.table, 1) }, "table"},
		"a number too few":            {func(m *made) { m.table = m.table[:7] }, "group"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			index := right()
			tt.change(&index)

			_, err := index.parse()
			if !errors.Is(err, ErrIndex) || !strings.Contains(err.Error(), "index: "+tt.want+": ") {
				t.Errorf("error %v, want one about %q", err, tt.want)
			}
		})
	}
}

func TestParseRefusesOtherBytes(t *testing.T) {
	t.Parallel()

	data := right().bytes()
	sizes := Sizes{Raw: 9192, Layer: 2100, IDs: 16}

	for length := range data {
		if _, err := ParseHead(data[:length], sizes); !errors.Is(err, ErrIndex) {
			t.Errorf("cut after %d bytes: %v", length, err)
		}
	}

	newer := slices.Clone(data)
	newer[7] = 3

	for name, other := range map[string][]byte{
		"newer": newer, "nothing": nil, "large": make([]byte, MaxHead+1), "another file": []byte("PK\x03\x04 and so on"),
	} {
		if _, err := ParseHead(other, sizes); !errors.Is(err, ErrIndex) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A frame must never need more memory than a reader has.
func TestParseRefusesLargeFrames(t *testing.T) {
	t.Parallel()

	index := made{head: []uint64{1, 1 << 20, 1 << 20, 1 << 20, 5 << 20, 10, 5, 1, 0, 0}, size: -1}
	for range 5 {
		index.table = append(index.table, 2<<20+1)
	}

	index.table = append(index.table, 5, zigzag(10-5<<20))

	_, err := ParseHead(index.bytes(), Sizes{Raw: 5 << 20, Layer: 10})
	if !errors.Is(err, ErrIndex) || !strings.Contains(err.Error(), "count: frame 0") {
		t.Errorf("error %v", err)
	}
}

// A table that decompresses to far more than it says costs no more than it says.
func TestParseDoesNotUnpackBombs(t *testing.T) {
	encoder, _ := zstd.NewWriter(nil)
	bomb := encoder.EncodeAll(make([]byte, 64<<20), nil)

	data := []byte(magic)
	for _, number := range []uint64{1, 4096, 4096, 8192, 9192, 2000, 3, 2, 2, 1, 10, uint64(len(bomb))} {
		data = binary.AppendUvarint(data, number)
	}

	data = append(append(data, bomb...), make([]byte, 8)...)

	var before, after runtime.MemStats

	runtime.ReadMemStats(&before)

	if _, err := ParseHead(data, Sizes{Raw: 9192, Layer: 2100, IDs: 16}); !errors.Is(err, ErrIndex) {
		t.Error(err)
	}

	runtime.ReadMemStats(&after)

	if cost := after.TotalAlloc - before.TotalAlloc; cost > 4<<20 {
		t.Errorf("refusing a bomb cost %d bytes", cost)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(right().bytes(), make([]byte, 16), int64(9192), int64(2100))
	f.Add([]byte(magic), []byte{}, int64(0), int64(0))

	got := encode(f, golden(), Options{Params: blocks()})
	f.Add(got.Head, got.IDs, got.RawSize, got.Size)

	f.Fuzz(func(t *testing.T, head, ids []byte, raw, layer int64) {
		index, err := Parse(head, ids, Sizes{Raw: raw, Layer: layer, IDs: int64(len(ids))})
		if err != nil {
			if !errors.Is(err, ErrIndex) {
				t.Fatal(err)
			}

			return
		}

		if index.RawSize() != raw || index.FramesSize() > layer {
			t.Fatalf("%d raw bytes of %d, %d of the layer's %d", index.RawSize(), raw, index.FramesSize(), layer)
		}

		if _, _, err := index.marshal(); err != nil {
			t.Fatal(err)
		}

		plan, err := NewPlan(index, NewSeeds(index), PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}

		var end int64
		for step := range plan.Steps() {
			if step.Offset != end {
				t.Fatalf("%+v after byte %d", step, end)
			}

			end += step.Length
		}

		if end != raw {
			t.Fatalf("the plan ends at %d of %d", end, raw)
		}
	})
}
