package chunk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	seekable "github.com/SaveTheRbtz/zstd-seekable-format-go/pkg"
	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"
)

type encoded struct {
	Result

	raw, layer []byte
	index      *Index
}

func encode(t rapid.TB, data []byte, options Options) encoded {
	t.Helper()

	var layer bytes.Buffer

	options.Level = zstd.SpeedFastest

	result, err := Encode(context.Background(), bytes.NewReader(data), &layer, options)
	if err != nil {
		t.Fatal(err)
	}

	index, err := Parse(result.Head, result.IDs, Sizes{Raw: result.RawSize, Layer: result.Size, IDs: int64(len(result.IDs))})
	if err != nil {
		t.Fatal(err)
	}

	return encoded{Result: result, raw: data, layer: layer.Bytes(), index: index}
}

// frame decompresses one frame, as a reader does that has fetched it.
func (e encoded) frame(t rapid.TB, number int) []byte {
	t.Helper()

	frame := e.index.Frame(number)

	return unpacked(t, e.layer[frame.Offset:frame.Offset+frame.Length])
}

func unpacked(t rapid.TB, data []byte) []byte {
	t.Helper()

	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer decoder.Close()

	raw, err := decoder.DecodeAll(data, nil)
	if err != nil {
		t.Fatal(err)
	}

	return raw
}

func TestLayersArePlainZstdAndFramesStandAlone(t *testing.T) {
	t.Parallel()

	for _, params := range []Params{anywhere(), aligned(), blocks()} {
		data := golden()
		got := encode(t, data, Options{Params: params})

		if !bytes.Equal(unpacked(t, got.layer), data) {
			t.Fatalf("%+v: the layer is not the content", params)
		}

		if got.Digest != digestOf(got.layer) || got.RawDigest != digestOf(data) || got.Size != int64(len(got.layer)) {
			t.Errorf("%+v: %+v", params, got.Result)
		}

		for number := range got.index.Frames() {
			frame, raw := got.index.Frame(number), got.frame(t, number)
			if !bytes.Equal(raw, data[frame.RawOffset:frame.RawOffset+frame.RawLength]) {
				t.Fatalf("%+v: frame %d has other bytes", params, number)
			}

			for chunk := frame.First; chunk < frame.First+frame.Chunks; chunk++ {
				length := got.index.Chunk(chunk).Length
				if !got.index.Matches(chunk, raw[:length]) || got.index.FrameOf(chunk) != number {
					t.Fatalf("%+v: chunk %d is not in frame %d", params, chunk, number)
				}

				raw = raw[length:]
			}
		}
	}
}

func digestOf(data []byte) string {
	var layer bytes.Buffer

	result, _ := Encode(context.Background(), bytes.NewReader(data), &layer, Options{Params: anywhere()})

	return result.RawDigest
}

func TestDigestIsSHA256(t *testing.T) {
	t.Parallel()

	// printf abc | sha256sum
	if got := digestOf([]byte("abc")); got != "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Error(got)
	}
}

func TestSeekTableDescribesTheFrames(t *testing.T) {
	t.Parallel()

	got := encode(t, golden(), Options{Params: anywhere()})

	decoder, _ := zstd.NewReader(nil)
	defer decoder.Close()

	reader, err := seekable.NewReader(bytes.NewReader(got.layer), decoder)
	if err != nil {
		t.Fatal(err)
	}

	table, err := reader.SeekTable()
	if err != nil || int(table.NumFrames()) != got.index.Frames() {
		t.Fatalf("%d frames in the table, %d in the index, %v", table.NumFrames(), got.index.Frames(), err)
	}

	for number := range got.index.Frames() {
		entry, _ := table.EntryByID(int64(number))
		frame := got.index.Frame(number)

		if int64(entry.CompressedOffset) != frame.Offset || int64(entry.DecompressedOffset) != frame.RawOffset {
			t.Errorf("frame %d: %+v in the table, %+v in the index", number, entry, frame)
		}
	}

	raw := make([]byte, 10)
	if _, err := reader.ReadAt(raw, 400_000); err != nil || !bytes.Equal(raw, golden()[400_000:400_010]) {
		t.Errorf("reading through the table: %q, %v", raw, err)
	}
}

// Two machines must make the same layer, or else a registry stores it twice.
func TestLayersDoNotDependOnConcurrency(t *testing.T) {
	t.Parallel()

	data := slices.Concat(golden(), noise(5, 2<<20), golden(), make([]byte, 9<<20), golden())
	alone := encode(t, data, Options{Params: anywhere(), Concurrency: 1})

	for range 3 {
		many := encode(t, data, Options{Params: anywhere(), Concurrency: 5})
		if many.Digest != alone.Digest || !bytes.Equal(many.Head, alone.Head) || !bytes.Equal(many.IDs, alone.IDs) {
			t.Fatalf("%s and %s", many.Digest, alone.Digest)
		}
	}
}

func TestFramesFitTheirContents(t *testing.T) {
	t.Parallel()

	// Noise, two files of words that are their own, and zeros.
	first, second := words(21, 300<<10), words(22, 300<<10)
	data := slices.Concat(noise(6, 400<<10), first, second, make([]byte, 20<<20))
	got := encode(t, data, Options{Params: anywhere(), Frame: 64 << 10})

	const text, zeros = 400 << 10, 1000 << 10

	large := 0

	for number := range got.index.Frames() {
		frame := got.index.Frame(number)
		end := frame.RawOffset + frame.RawLength

		switch {
		case end < text && frame.Chunks != 1:
			t.Errorf("frame %d of noise has %d chunks", number, frame.Chunks)
		case frame.RawLength > 64<<10 && end < zeros:
			t.Errorf("frame %d has %d bytes", number, frame.RawLength)
		case frame.RawLength > MaxFrame:
			t.Errorf("frame %d has %d bytes", number, frame.RawLength)
		}

		if frame.RawLength > 40<<10 && frame.RawOffset > text {
			large++
		}
	}

	if large < 8 {
		t.Errorf("of 600 KiB of words, %d frames are large", large)
	}

	if last := got.index.Frame(got.index.Frames() - 1); last.RawLength < 1<<20 || last.Length > 2000 {
		t.Errorf("20 MiB of zeros end with %+v", last)
	}

	if size := len(got.Head) + len(got.IDs); size > 3500 {
		t.Errorf("the index of 800 KiB and 20 MiB of zeros has %d bytes", size)
	}
}

// What is of two files does not come into one frame.
func TestFramesEndWhereFilesDo(t *testing.T) {
	t.Parallel()

	encoder, err := newEncoder(zstd.SpeedFastest, 1)
	if err != nil {
		t.Fatal(err)
	}

	raw := slices.Concat(words(23, 10*4096), words(24, 5*4096), noise(25, 2*4096))
	left := slices.Repeat([]int{4096}, 17)
	packer := &packer{trial: encoder, size: MaxFrame, gain: DefaultGain}

	for _, want := range []int{10, 5, 1, 1} {
		size, chunks := packer.fill(raw, left)
		if chunks != want || size != want*4096 {
			t.Errorf("a frame of %d bytes has %d chunks, want %d", size, chunks, want)
		}

		raw, left = raw[size:], left[chunks:]
	}
}

// words gives text of words that no other seed gives.
func words(seed uint64, size int) []byte {
	data := make([]byte, 0, size)
	random := noise(seed, size)

	for i := 0; len(data) < size; i++ {
		at := int(random[i]) * 16
		data = append(data, random[at:at+12]...)
	}

	return data[:size]
}

func TestEncodingAnything(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(r *rapid.T) {
		data := drawContent(r, "content")
		got := encode(r, data, Options{
			Params: drawParams(r), Frame: rapid.IntRange(1, 200_000).Draw(r, "frame"),
			Gain: rapid.IntRange(0, 100).Draw(r, "gain"),
		})

		if !bytes.Equal(unpacked(r, got.layer), data) {
			r.Fatal("the layer is not the content")
		}
	})
}

func TestEncodeEndsWithTheFirstError(t *testing.T) {
	t.Parallel()

	data := noise(7, 5<<20)
	options := Options{Params: anywhere(), Level: zstd.SpeedFastest, Concurrency: 2}

	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(errTest)

	if _, err := Encode(canceled, bytes.NewReader(data), io.Discard, options); !errors.Is(err, errTest) {
		t.Errorf("context: %v", err)
	}

	broken := io.MultiReader(bytes.NewReader(data), iotest.ErrReader(errTest))
	if _, err := Encode(t.Context(), broken, io.Discard, options); !errors.Is(err, errTest) {
		t.Errorf("input: %v", err)
	}

	if _, err := Encode(t.Context(), bytes.NewReader(data), failing{}, options); !errors.Is(err, errTest) {
		t.Errorf("output: %v", err)
	}

	for _, options := range []Options{
		{},
		{Params: anywhere(), Frame: MaxFrame + 1},
		{Params: anywhere(), Frame: -1},
		{Params: anywhere(), Gain: 101},
	} {
		if _, err := Encode(t.Context(), bytes.NewReader(data), io.Discard, options); !errors.Is(err, ErrParams) {
			t.Errorf("%+v: %v", options, err)
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errTest }

func TestProgressEndsWithTheSize(t *testing.T) {
	t.Parallel()

	var last int64

	data := noise(8, 3<<20)
	_, err := Encode(t.Context(), bytes.NewReader(data), io.Discard, Options{
		Params: anywhere(), Level: zstd.SpeedFastest, Progress: func(done int64) {
			if done <= last {
				t.Errorf("%d after %d", done, last)
			}
			last = done
		},
	})
	if err != nil || last != int64(len(data)) {
		t.Errorf("%d of %d, %v", last, len(data), err)
	}
}
