package chunk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

var errTest = errors.New("told to fail")

func anywhere() Params {
	return Params{Min: 1 << 10, Avg: 4 << 10, Max: 16 << 10, Align: 1}
}

func aligned() Params {
	return Params{Min: 4096, Avg: 16 << 10, Max: 64 << 10, Align: 4096}
}

func blocks() Params {
	return Params{Min: 4096, Avg: 4096, Max: 4096, Align: 4096}
}

// noise gives bytes that depend on the seed only, whatever the version of Go.
func noise(seed uint64, size int) []byte {
	data := make([]byte, size)
	random := rand.New(rand.NewPCG(seed, 1))

	for i := range data {
		data[i] = byte(random.Uint64() >> 56)
	}

	return data
}

func lengths(t *testing.T, params Params, data []byte) []int {
	t.Helper()

	chunker, err := NewChunker(params)
	if err != nil {
		t.Fatal(err)
	}

	var all []int

	err = chunker.Split(t.Context(), bytes.NewReader(data), func(offset int64, piece []byte) error {
		if !bytes.Equal(piece, data[offset:offset+int64(len(piece))]) {
			t.Fatalf("the chunk at %d does not have the bytes that are there", offset)
		}

		all = append(all, len(piece))

		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	return all
}

// golden is a content with noise, text, zeros and short repetitions.
func golden() []byte {
	data := noise(1, 300<<10)
	for i := range 5000 {
		data = fmt.Appendf(data, "line %d of a text that repeats itself\n", i)
	}

	data = append(data, make([]byte, 100_000)...)
	data = append(data, bytes.Repeat([]byte("abcdefg"), 20_000)...)

	return append(data, noise(2, 100_001)...)
}

// The cuts must never change: nodes of different versions would find nothing in common.
func TestCutsAreThoseOfTheFormat(t *testing.T) {
	t.Parallel()

	tests := []struct {
		params Params
		first  []int
		count  int
		sum    string
	}{
		{anywhere(), []int{6265, 2250, 4335, 4604}, 146, "7640c8b629481dd5"},
		{aligned(), []int{16384, 16384, 16384, 28672}, 43, "44fe3addde2376de"},
		{blocks(), []int{4096, 4096, 4096, 4096}, 207, "c23e3e79c74d1e78"},
		{
			Params{Min: 16 << 10, Avg: 64 << 10, Max: 256 << 10, Align: 1},
			[]int{88217, 81560, 76861, 35705},
			10, "a9f81e62e854917a",
		},
		{Params{Min: 512, Avg: 2048, Max: 8192, Align: 512}, []int{2560, 2048, 512, 2048}, 369, "efbd45d6ed27c9d7"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%+v", tt.params), func(t *testing.T) {
			t.Parallel()

			got := lengths(t, tt.params, golden())
			sum := sha256.Sum256(fmt.Append(nil, got))

			if text := hex.EncodeToString(sum[:8]); !slices.Equal(got[:4], tt.first) || len(got) != tt.count || text != tt.sum {
				t.Errorf("{%#v, %d, %q}, want %v, %d, %q", got[:4], len(got), text, tt.first, tt.count, tt.sum)
			}
		})
	}
}

func TestIDIsOfTheFormat(t *testing.T) {
	t.Parallel()

	// printf abc | xxh64sum
	if got := IDOf([]byte("abc")); got != 0x44bc2cf5ad770999 {
		t.Errorf("IDOf(abc) = %x", got)
	}

	if got := IDOf(make([]byte, 77)); got != 0 {
		t.Errorf("IDOf(zeros) = %x", got)
	}
}

// drawContent draws bytes with what contents have: noise, zeros, repetitions.
func drawContent(t *rapid.T, label string) []byte {
	var data []byte

	for _, piece := range rapid.SliceOfN(rapid.IntRange(0, 3000), 0, 12).Draw(t, label) {
		size := piece % 1000 * 50
		switch piece / 1000 {
		case 0:
			data = append(data, noise(uint64(piece), size)...)
		case 1:
			data = append(data, make([]byte, size)...)
		default:
			data = append(data, bytes.Repeat([]byte{byte(piece), byte(piece >> 3), 3}, size/3)...)
		}
	}

	return data
}

func drawParams(t *rapid.T) Params {
	avg := 1 << rapid.IntRange(9, 14).Draw(t, "avg")
	align := 1 << rapid.SampledFrom([]int{0, 0, 3, 8}).Draw(t, "align")

	return Params{
		Min: max(avg/rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "min"), 256), Avg: avg, Align: align,
		Max: avg * rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "max"),
	}
}

func TestCutsKeepTheLimits(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(r *rapid.T) {
		params := drawParams(r)
		data := drawContent(r, "content")
		left := len(data)

		for i, length := range lengths(t, params, data) {
			left -= length

			if length > params.Max || left > 0 && (length < params.Min || length%params.Align != 0) {
				r.Fatalf("chunk %d has %d bytes with %+v", i, length, params)
			}
		}

		if left != 0 {
			r.Fatalf("%d bytes are in no chunk", left)
		}
	})
}

// What was inserted is forgotten soon: after it, the cuts are the old ones.
func TestCutsAreFoundAgain(t *testing.T) {
	t.Parallel()

	old := noise(3, 1<<20)
	changed := slices.Concat(old[:400_000], []byte("something new"), old[400_000:])

	known := map[ID]bool{}

	each := func(data []byte, f func([]byte)) {
		for _, length := range lengths(t, anywhere(), data) {
			f(data[:length])
			data = data[length:]
		}
	}
	each(old, func(piece []byte) { known[IDOf(piece)] = true })

	unknown := 0

	each(changed, func(piece []byte) {
		if !known[IDOf(piece)] {
			unknown += len(piece)
		}
	})

	if unknown > 2*anywhere().Max {
		t.Errorf("%d bytes are unknown after 13 were inserted", unknown)
	}
}

func TestAverageIsNearWhatWasAskedFor(t *testing.T) {
	t.Parallel()

	for _, params := range []Params{anywhere(), aligned()} {
		got := (4 << 20) / len(lengths(t, params, noise(4, 4<<20)))
		if got < params.Avg*3/4 || got > params.Avg*3/2 {
			t.Errorf("the average with %+v is %d", params, got)
		}
	}
}

func TestSplitDoesNotDependOnHowTheReaderReads(t *testing.T) {
	t.Parallel()

	data := golden()
	chunker, _ := NewChunker(anywhere())

	for name, reader := range map[string]io.Reader{
		"halves":        iotest.HalfReader(bytes.NewReader(data)),
		"one byte":      iotest.OneByteReader(bytes.NewReader(data)),
		"data with EOF": iotest.DataErrReader(bytes.NewReader(data)),
	} {
		var got []int

		err := chunker.Split(t.Context(), reader, func(_ int64, piece []byte) error {
			got = append(got, len(piece))

			return nil
		})
		if err != nil || !slices.Equal(got, lengths(t, anywhere(), data)) {
			t.Errorf("%s: other chunks, error %v", name, err)
		}
	}
}

func TestSplitEndsWithTheFirstError(t *testing.T) {
	t.Parallel()

	chunker, _ := NewChunker(anywhere())
	none := func(int64, []byte) error { return nil }

	if err := chunker.Split(t.Context(), iotest.ErrReader(io.ErrUnexpectedEOF), none); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a truncated input: %v", err)
	}

	if err := chunker.Split(t.Context(), stuck{}, none); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a reader that returns nothing: %v", err)
	}

	failing := func(int64, []byte) error { return errTest }
	if err := chunker.Split(t.Context(), bytes.NewReader(golden()), failing); !errors.Is(err, errTest) {
		t.Errorf("a callback that fails: %v", err)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errTest)

	if err := chunker.Split(ctx, bytes.NewReader(golden()), none); !errors.Is(err, errTest) {
		t.Errorf("a canceled context: %v", err)
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

func TestParamsAreLimited(t *testing.T) {
	t.Parallel()

	for _, params := range []Params{
		{},
		{Min: 1024, Avg: 4096, Max: 16384},
		{Min: 1024, Avg: 4096, Max: 16384, Align: 3},
		{Min: 1024, Avg: 4096, Max: 16384, Align: 1 << 17},
		{Min: 64, Avg: 4096, Max: 16384, Align: 1},
		{Min: 1024, Avg: 4096, Max: 2 << 20, Align: 1},
		{Min: 8192, Avg: 4096, Max: 16384, Align: 1},
		{Min: 1024, Avg: 32768, Max: 16384, Align: 1},
		{Min: 1024, Avg: 5000, Max: 16384, Align: 1},
		{Min: 1024, Avg: 4096, Max: 16384, Align: 4096},
		{Min: 4096, Avg: 4096, Max: 10000, Align: 4096},
	} {
		if _, err := NewChunker(params); !errors.Is(err, ErrParams) {
			t.Errorf("NewChunker(%+v): %v", params, err)
		}
	}
}

func TestParamsFollowTheContent(t *testing.T) {
	t.Parallel()

	erofs, ext4 := make([]byte, HeadSize), make([]byte, HeadSize)
	copy(erofs[1024:], "\xe2\xe1\xf5\xe0")
	copy(ext4[1080:], "\x53\xef")

	for name, tt := range map[string]struct {
		head  []byte
		size  int64
		align int
	}{
		"erofs":    {erofs, 500 << 20, 4096},
		"ext4":     {ext4, 500 << 20, 4096},
		"squashfs": {append([]byte("hsqs"), make([]byte, HeadSize)...), 500 << 20, 1},
		"short":    {[]byte("MZ"), 2, 1},
		"empty":    {nil, 0, 1},
		"huge":     {erofs, 1 << 40, 4096},
	} {
		params := ParamsFor(tt.head, tt.size)
		if err := params.Validate(); err != nil || params.Align != tt.align {
			t.Errorf("%s: %+v, %v", name, params, err)
		}

		if least := tt.size / int64(params.Avg); least > MaxChunks && name != "huge" {
			t.Errorf("%s: %d chunks", name, least)
		}
	}
}

func BenchmarkCut(b *testing.B) {
	data := noise(9, 64<<20)

	for name, params := range map[string]Params{"anywhere": anywhere(), "aligned": aligned(), "blocks": blocks()} {
		chunker, _ := NewChunker(params)

		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))

			for b.Loop() {
				for rest := data; len(rest) > 0; {
					rest = rest[chunker.Cut(rest):]
				}
			}
		})
		b.Run(name+"/hashed", func(b *testing.B) {
			b.SetBytes(int64(len(data)))

			for b.Loop() {
				for rest := data; len(rest) > 0; {
					length := chunker.Cut(rest)
					IDOf(rest[:length])
					rest = rest[length:]
				}
			}
		})
	}
}
