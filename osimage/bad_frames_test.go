package osimage_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/chunk"
)

// framed is a zstd frame of some bytes, and one behind it that is skipped, so that both have a size.
func framed(t *testing.T, raw []byte, size int) []byte {
	t.Helper()

	const (
		skippable = 0x184D2A50 // RFC 8878, section 3.1.2
		header    = 8
	)

	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}

	data := encoder.EncodeAll(raw, nil)
	if len(data)+header > size {
		t.Fatalf("%d bytes for a frame of %d", len(data), size)
	}

	data = binary.LittleEndian.AppendUint32(data, skippable)
	data = binary.LittleEndian.AppendUint32(data, uint32(size-len(data)-header/2))

	return append(data, make([]byte, size-len(data))...)
}

// Frames that decompress to another number of bytes than the index says are refused, and those to far more without the memory.
func TestUpdatesWithFramesOfOtherSizes(t *testing.T) {
	t.Parallel()

	// What the frame decompresses to, of what it should.
	for name, raw := range map[string]func(right []byte) []byte{
		"nothing": func([]byte) []byte { return nil },
		"half":    func(right []byte) []byte { return right[:len(right)/2] },
		"more":    func(right []byte) []byte { return make([]byte, len(right)+1) },
		"a bomb":  func(right []byte) []byte { return make([]byte, len(right)+32<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			next := text(51, 2<<20)
			d := deltaOf(t, next[:1<<20], next)
			content, _ := d.image.Config().Content(osimage.RoleUSR)
			dir := build(t, contents{osimage.RoleUSR: next, osimage.RoleUSRVerity: {1}, osimage.RoleUKI: {2}})

			layout, err := osimage.OpenLayout(t.Context(), dir, "")
			if err != nil {
				t.Fatal(err)
			}

			same, _ := layout.Config().Content(osimage.RoleUSR)
			head, ids := headOf(t, dir, same)

			index, err := chunk.Parse(head, ids, chunk.Sizes{Raw: content.RawSize, Layer: content.Size, IDs: int64(len(ids))})
			if err != nil || same.Digest != content.Digest {
				t.Fatal(same.Digest, err)
			}

			// The first that is fetched whole: nothing has been decompressed before.
			number := 0
			for frame := index.Frame(number); frame.RawOffset+frame.RawLength <= 1<<20; frame = index.Frame(number) {
				number++
			}

			frame := index.Frame(number)
			wrong := framed(t, raw(next[frame.RawOffset:][:frame.RawLength]), int(frame.Length))

			d.registry.set(func(f *faults) {
				f.mutate = func(digest string, data []byte) []byte {
					if digest == content.Digest {
						data = bytes.Clone(data)
						copy(data[frame.Offset:], wrong)
					}

					return data
				}
			})

			err = d.write(t, osimage.WriteOptions{Seeds: []osimage.Seed{d.seed}})
			if !errors.Is(err, osimage.ErrWrongDigest) && !errors.Is(err, osimage.ErrTruncated) && !errors.Is(err, osimage.ErrTooLarge) {
				t.Errorf("got %v, want that the bytes are wrong", err)
			}

			if len(d.planned) != 2 {
				t.Errorf("planned %+v, want pieces, and then all", d.planned)
			}
		})
	}
}

// The index of another content of the same size fits nothing, and all is fetched.
func TestUpdateWithTheIndexOfAnotherContent(t *testing.T) {
	t.Parallel()

	next, other := noise(52, 4<<20), randomBytes(53, 4<<20)

	d := lyingDelta(t, other[:2<<20], next, func([]byte, []byte) ([]byte, []byte) {
		var layer bytes.Buffer

		made, err := chunk.Encode(t.Context(), bytes.NewReader(other), &layer, chunk.Options{Params: chunk.ParamsFor(other, 4<<20)})
		if err != nil {
			t.Fatal(err)
		}

		return made.Head, made.IDs
	})

	d.check(t, d.write(t, osimage.WriteOptions{Seeds: []osimage.Seed{d.seed}, Resume: true}))
}
