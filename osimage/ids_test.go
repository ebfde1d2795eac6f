package osimage_test

import (
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
)

// Of the ids of a large content in blocks, a node fetches those of what changed.
func TestUpdateFetchesFewIDs(t *testing.T) {
	t.Parallel()

	old := randomBytes(11, 16<<20)
	copy(old[1024:], "\xe2\xe1\xf5\xe0") // an erofs, in blocks of 4096 bytes

	next := slices.Concat(old[:5<<20], randomBytes(12, 8192), old[5<<20:9<<20], old[10<<20:])

	// all tells whether the ids are fetched in full, in the end.
	for name, test := range map[string]struct {
		faults func(f *faults, ids string)
		all    bool
		want   error
	}{
		"from a good registry":           {func(*faults, string) {}, false, nil},
		"a registry that ignores ranges": {func(f *faults, _ string) { f.noRanges = true }, true, nil},
		"a registry that refuses ranges": {func(f *faults, _ string) { f.statusForRange = http.StatusNotImplemented }, true, nil},
		"other bytes once":               {func(f *faults, ids string) { f.mutate = changed(ids, 1) }, true, nil},
		"other bytes always":             {func(f *faults, ids string) { f.mutate = changed(ids, 99) }, true, osimage.ErrWrongDigest},
		"a bad line":                     {func(f *faults, _ string) { f.breakAfter, f.breaks = 100, 2 }, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := deltaOf(t, old, next)
			content, _ := d.image.Config().Content(osimage.RoleUSR)
			ids := content.ChunkIndex.IDs

			d.registry.set(func(f *faults) { test.faults(f, ids.Digest) })

			err := d.write(t, osimage.WriteOptions{Seeds: []osimage.Seed{d.seed}})
			if test.want != nil {
				if !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}

				return
			}

			d.check(t, err)

			got := d.planned[0].Index - content.ChunkIndex.Size
			if test.all != (got == ids.Size) || !test.all && (got == 0 || got > ids.Size/5) {
				t.Errorf("%d of %d bytes of ids were fetched", got, ids.Size)
			}
		})
	}
}

// changed gives other bytes of a blob, so many times.
func changed(blob string, times int) func(digest string, data []byte) []byte {
	return func(digest string, data []byte) []byte {
		if digest == blob && times > 0 {
			times--

			for at := range data {
				data[at] ^= 1
			}
		}

		return data
	}
}
