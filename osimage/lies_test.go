package osimage_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/chunk"
)

// twin gives other bytes with the same XXH64, as whoever chooses the bytes of a package can make them. It changes the number
// at a place, and makes up for that one stripe of 32 bytes later (xxhash's specification, "XXH64 algorithm", step 2).
func twin(data []byte, place int) []byte {
	const stripe = 32

	prime1, prime2 := uint64(0x9E3779B185EBCA87), uint64(0xC2B2AE3D27D4EB4F)

	// Products of odd numbers can be undone: Newton's iteration doubles the bits that are right.
	inverse := prime2
	for range 6 {
		inverse *= 2 - prime2*inverse
	}

	result := bytes.Clone(data)
	change := result[place:]
	binary.LittleEndian.PutUint64(change, ^binary.LittleEndian.Uint64(change))

	lane := func(data []byte) uint64 {
		at := place % stripe
		state := []uint64{prime1 + prime2, prime2, 0, 0 - prime1}[at/8]

		for ; at <= place; at += stripe {
			state = bits.RotateLeft64(state+binary.LittleEndian.Uint64(data[at:])*prime2, 31) * prime1
		}

		return state
	}

	next := result[place+stripe:]
	binary.LittleEndian.PutUint64(next, binary.LittleEndian.Uint64(next)+(lane(data)-lane(result))*inverse)

	return result
}

// erofs gives bytes that look like an erofs, so that each block of 4096 bytes is a chunk.
func erofs(seed uint64, size int) []byte {
	data := randomBytes(seed, size)
	copy(data[1024:], "\xe2\xe1\xf5\xe0")

	return data
}

// text gives words, so that frames have several chunks.
func text(seed uint64, size int) []byte {
	words := randomBytes(seed, 4096)[:2048]
	order := randomBytes(seed+1, size)
	data := make([]byte, 0, size+12)

	for at := 0; len(data) < size; at++ {
		data = append(data, words[int(order[at])*7:][:12]...)
	}

	return data[:size]
}

func block(data []byte, number int) []byte { return data[number*4096:][:4096] }

// An id can be made to fit by whoever chooses the bytes. What is written is right all the same, wherever the twin is.
func TestUpdateWithTwins(t *testing.T) {
	t.Parallel()

	next := erofs(21, 4<<20)
	copy(block(next, 700), twin(block(next, 300), 64))

	if chunk.IDOf(block(next, 700)) != chunk.IDOf(block(next, 300)) || bytes.Equal(block(next, 700), block(next, 300)) {
		t.Fatal("these are no twins")
	}

	old := slices.Clone(next)
	copy(block(old, 10), twin(block(next, 10), 128))
	copy(block(old, 11), randomBytes(22, 4096))

	inside := slices.Clone(old)
	copy(block(inside, 300), randomBytes(23, 4096))
	copy(block(inside, 700), randomBytes(24, 4096))

	for name, test := range map[string]struct {
		seed, there []byte
	}{
		"in the running slot":     {old, nil},
		"in the spare slot":       {nil, old},
		"in both":                 {old, old},
		"within the new content":  {inside, nil},
		"within and in the spare": {inside, inside},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := deltaOf(t, test.seed, next)
			if _, err := d.target.WriteAt(test.there, 0); err != nil {
				t.Fatal(err)
			}

			d.check(t, d.write(t, osimage.WriteOptions{Seeds: []osimage.Seed{d.seed}, Resume: true}))

			content, _ := d.image.Config().Content(osimage.RoleUSR)
			if got := d.received.Load(); got > 2*content.Size {
				t.Errorf("received %d bytes for a layer of %d", got, content.Size)
			}
		})
	}
}

// headOf is the head and the ids of a content's chunk index in a folder.
func headOf(t *testing.T, dir string, content osimage.Content) (head, ids []byte) {
	t.Helper()

	read := func(digest string) []byte {
		data, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:")))
		if err != nil {
			t.Fatal(err)
		}

		return data
	}

	return read(content.ChunkIndex.Digest), read(content.ChunkIndex.IDs.Digest)
}

// putIndexOf gives a content of a folder another chunk index; config and manifest are made to fit.
func putIndexOf(t *testing.T, dir string, role osimage.Role, head, ids []byte) {
	t.Helper()

	tamper(t, dir, func(config *osimage.Config, manifest *v1.Manifest) {
		for number := range config.Contents {
			content := &config.Contents[number]
			if content.Role != role {
				continue
			}

			replace := func(digest *string, size *int64, data []byte) {
				at := slices.IndexFunc(manifest.Layers, func(layer v1.Descriptor) bool { return layer.Digest.String() == *digest })
				manifest.Layers[at].Digest, manifest.Layers[at].Size = putBlob(t, dir, data), int64(len(data))
				*digest, *size = manifest.Layers[at].Digest.String(), int64(len(data))
			}

			replace(&content.ChunkIndex.Digest, &content.ChunkIndex.Size, head)
			replace(&content.ChunkIndex.IDs.Digest, &content.ChunkIndex.IDs.Size, ids)
		}
	})
}

// lyingDelta is an update of an image whose index for /usr was changed.
func lyingDelta(t *testing.T, old, next []byte, change func(head, ids []byte) ([]byte, []byte)) *delta {
	t.Helper()

	parts := someContents()
	parts[osimage.RoleUSR] = next
	dir := build(t, parts)

	image, err := osimage.OpenLayout(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}

	content, _ := image.Config().Content(osimage.RoleUSR)
	head, ids := headOf(t, dir, content)
	head, ids = change(head, ids)
	putIndexOf(t, dir, osimage.RoleUSR, head, ids)

	d := &delta{registry: newFaults(t), next: next, target: openTarget(t, 0)}
	d.seed = osimage.Seed{Name: "the running slot", Reader: bytes.NewReader(old), Size: int64(len(old))}

	if _, err := d.registry.client(t).Push(background(t), dir, "", d.registry.reference("1.1.0"), nil); err != nil {
		t.Fatal(err)
	}

	if d.image, err = d.registry.client(t).Image(background(t), d.registry.reference("1.1.0")); err != nil {
		t.Fatal(err)
	}

	return d
}

// groupsOf are the ids of each group, by the rule of the format.
func groupsOf(ids []byte) (groups [][]byte) {
	begin := 0

	for end := 8; end <= len(ids); end += 8 {
		if ids[end-1]%32 == 0 || end-begin == 256*8 || end == len(ids) {
			groups = append(groups, ids[begin:end])
			begin = end
		}
	}

	return groups
}

// withID gives a block whose id ends no group, and is not that of the given seed only.
func withID(seed uint64) []byte {
	for ; ; seed++ {
		if data := randomBytes(seed, 4096); chunk.IDOf(data)%32 != 0 {
			return data
		}
	}
}

// Two groups of ids with one sum: a node learns ids that are not those of the content. It finds a frame that does not fit,
// though it is right, and fetches all.
func TestUpdateWithAGroupThatHasATwin(t *testing.T) {
	t.Parallel()

	next := text(31, 4<<20)
	copy(next[1024:], "\xe2\xe1\xf5\xe0")

	old := slices.Clone(next)
	found := false

	d := lyingDelta(t, old, next, func(head, ids []byte) ([]byte, []byte) {
		number, groups := 0, groupsOf(ids)
		sums := head[len(head)-8*len(groups):]

		for at, group := range groups {
			last := number + len(group)/8 - 1 // the chunk that ends the group

			if len(group) > 8 && sameFrame(t, head, ids, next, last-1, last+1) {
				// The one has the old id in a group that seems to be known, the other one is to be fetched.
				copy(block(old, last-1), withID(77))
				copy(block(old, last+1), withID(99))

				lie := bytes.Clone(group)
				binary.BigEndian.PutUint64(lie[len(lie)-16:], uint64(chunk.IDOf(block(old, last-1))))

				sum := sha256.Sum256(lie)
				copy(sums[8*at:], sum[:8])

				found = true

				return head, ids
			}

			number = last + 1
		}

		return head, ids
	})
	if !found {
		t.Fatal("no frame has chunks of two groups")
	}

	d.check(t, d.write(t, osimage.WriteOptions{Seeds: []osimage.Seed{d.seed}}))

	content, _ := d.image.Config().Content(osimage.RoleUSR)
	if first, last := d.planned[0], d.planned[len(d.planned)-1]; first.Fetch == 0 || first.Fetch > 200_000 || last.Fetch != content.Size {
		t.Errorf("planned %+v, want a little and then all", d.planned)
	}
}

// sameFrame tells whether chunks are in one frame.
func sameFrame(t *testing.T, head, ids, raw []byte, first, last int) bool {
	t.Helper()

	index, err := chunk.Parse(head, ids, chunk.Sizes{Raw: int64(len(raw)), Layer: 1 << 40, IDs: int64(len(ids))})
	if err != nil {
		t.Fatal(err)
	}

	return last < index.Chunks() && index.FrameOf(first) == index.FrameOf(last)
}

// Sizes at the borders of chunks, groups and sectors; targets of another size; and a staging that is ended and goes on, with
// another version between.
func TestUpdatesOfAllSizes(t *testing.T) {
	t.Parallel()

	for _, size := range []int{1, 255, 4095, 4096, 4097, 32 * 4096, 256 * 4096, 256*4096 + 1, 1<<20 + 4096} {
		t.Run(itoa(int64(size)), func(t *testing.T) {
			t.Parallel()

			next := noise(41, size)
			if size > 2000 {
				copy(next[1024:], "\xe2\xe1\xf5\xe0")
			}

			old := slices.Concat(noise(42, 4096), next, noise(43, 5000))
			d := deltaOf(t, old, next)

			for _, there := range [][]byte{nil, old, next[:size/2], append(slices.Clone(next), old...)} {
				for _, offset := range []int64{0, 1, 4096, 12345} {
					d.target = openTarget(t, 0)
					if _, err := d.target.WriteAt(there, offset); err != nil {
						t.Fatal(err)
					}

					// It is ended at the first byte, and then goes on.
					ctx, cancel := context.WithCancel(background(t))
					options := osimage.WriteOptions{Offset: offset, Resume: true, Seeds: []osimage.Seed{d.seed}}
					options.Progress = func(now osimage.Progress) {
						if now.Written > 0 {
							cancel()
						}
					}

					_ = osimage.Write(ctx, d.image, osimage.RoleUSR, d.target, options) // whatever it came to

					cancel()

					if err := d.write(t, options); err != nil {
						t.Fatalf("%d bytes there, from %d: %v", len(there), offset, err)
					}

					got := make([]byte, size)
					if _, err := d.target.ReadAt(got, offset); err != nil || !bytes.Equal(got, next) {
						t.Errorf("%d bytes there, from %d: other bytes, %v", len(there), offset, err)
					}
				}
			}
		})
	}
}
