package osimage

import (
	"bytes"
	"io"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/stayput-dev/stayput/osimage/chunk"
)

// A frame that decompresses to far more than frames have costs no more memory than the largest one.
func TestFramesAreNoBombs(t *testing.T) {
	t.Parallel()

	raw := bytes.Repeat([]byte("frame"), 2000)
	made, err := chunk.Encode(t.Context(), bytes.NewReader(raw), io.Discard, chunk.Options{Params: chunk.ParamsFor(raw, 10_000)})
	if err != nil {
		t.Fatal(err)
	}

	index, err := chunk.Parse(made.Head, made.IDs, chunk.Sizes{Raw: made.RawSize, Layer: made.Size, IDs: int64(len(made.IDs))})
	if err != nil {
		t.Fatal(err)
	}

	seeds := chunk.NewSeeds(index)
	if _, err := seeds.Add(index.Census()); err != nil {
		t.Fatal(err)
	}

	plan, err := chunk.NewPlan(index, seeds, chunk.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}

	frames, err := (&Image{}).frames(t.Context(), Content{}, index, plan)
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = frames.close() }()

	for _, known := range []bool{true, false} {
		var bomb bytes.Buffer

		encoder, err := zstd.NewWriter(&bomb)
		if err != nil {
			t.Fatal(err)
		}

		zeros := make([]byte, 64<<20)
		if known {
			bomb.Write(encoder.EncodeAll(zeros, nil)) // its size is in the frame's header
		} else if _, err := encoder.Write(zeros); err != nil {
			t.Fatal(err)
		}

		if err := encoder.Close(); err != nil {
			t.Fatal(err)
		}

		frames.packed = bomb.Bytes()
		if frames.decode(index.Frame(0)) {
			t.Error("a bomb was taken for a frame")
		}

		if got := cap(frames.raw); got > 2*chunk.MaxFrame {
			t.Errorf("refusing a bomb took %d bytes", got)
		}
	}
}
