package osimage_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
)

// update is an old content, and a new one that has most of its bytes: one piece is gone, one moved, one is new.
func update() (old, next []byte) {
	old = randomBytes(1, usrSize)
	next = slices.Concat(
		old[3<<20:5<<20], randomBytes(7, 100_000), old[:1<<20], old[5<<20+77777:], old[:1<<20], make([]byte, 700_000),
	)

	return old, next
}

// fetchedBytes is the most that an update from update may fetch: what is new, and a chunk at each of its ends.
const fetchedBytes = 100_000 + 4*16<<10

type delta struct {
	registry *faults
	image    *osimage.Image
	received *atomic.Int64
	next     []byte
	seed     osimage.Seed
	target   *os.File
	planned  []osimage.Planned
}

func newDelta(t *testing.T) *delta {
	t.Helper()

	old, next := update()

	return deltaOf(t, old, next)
}

func deltaOf(t *testing.T, old, next []byte) *delta {
	t.Helper()

	parts := someContents()
	parts[osimage.RoleUSR] = next

	d := &delta{registry: newFaults(t), received: &atomic.Int64{}, next: next, target: openTarget(t, 0)}
	d.image = d.registry.push(t, parts, osimage.WithByteCounter(func(n int64) { d.received.Add(n) }))
	d.seed = osimage.Seed{Name: "the running slot", Reader: bytes.NewReader(old), Size: int64(len(old))}
	d.received.Store(0)

	return d
}

func (d *delta) write(t *testing.T, options osimage.WriteOptions) error {
	t.Helper()

	options.Progress = func(progress osimage.Progress) { d.planned = appendPlan(d.planned, progress) }

	return osimage.Write(background(t), d.image, osimage.RoleUSR, d.target, options)
}

// appendPlan appends a plan that is new.
func appendPlan(plans []osimage.Planned, progress osimage.Progress) []osimage.Planned {
	if plan := progress.Plan; plan != nil && (len(plans) == 0 || plans[len(plans)-1] != *plan) {
		plans = append(plans, *plan)
	}

	return plans
}

func (d *delta) check(t *testing.T, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}

	got := make([]byte, len(d.next))
	if _, err := d.target.ReadAt(got, 0); err != nil || !bytes.Equal(got, d.next) {
		t.Errorf("the target holds other bytes, %v", err)
	}
}

func TestUpdateFetchesWhatIsNew(t *testing.T) {
	t.Parallel()

	old, _ := update()

	for name, test := range map[string]struct {
		// there is what the target has, seeds whether the running slot helps.
		there []byte
		seeds bool
		sync  int64
	}{
		"from the running slot":          {nil, true, 0},
		"from the spare slot":            {old, false, 0},
		"from both, with small flushes":  {old, true, 128 << 10},
		"spare slot of a larger content": {append(slices.Clone(old), randomBytes(9, 3<<20)...), false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := newDelta(t)
			if _, err := d.target.WriteAt(test.there, 0); err != nil {
				t.Fatal(err)
			}

			options := osimage.WriteOptions{Resume: true, SyncEvery: test.sync}
			if test.seeds {
				options.Seeds = []osimage.Seed{d.seed}
			}

			d.check(t, d.write(t, options))

			if got := d.received.Load(); len(d.planned) != 1 || got != d.planned[0].Fetch+d.planned[0].Index {
				t.Errorf("received %d bytes, planned %+v", got, d.planned)
			}

			// What the spare slot had of the beginning is overwritten before it is needed for the second time.
			most := int64(fetchedBytes)
			if !test.seeds {
				most += 3 << 20
			}

			if got := d.planned[0].Fetch; got > most {
				t.Errorf("fetched %d bytes, want at most %d", got, most)
			}
		})
	}
}

func TestUpdateWithoutUse(t *testing.T) {
	t.Parallel()

	old, next := update()

	for name, test := range map[string]struct {
		next   []byte
		faults func(f *faults)
	}{
		"nothing in common":              {randomBytes(99, usrSize), func(*faults) {}},
		"a registry that ignores ranges": {next, func(f *faults) { f.noRanges = true }},
		"a registry that refuses ranges": {next, func(f *faults) {
			f.statusForRange = http.StatusRequestedRangeNotSatisfiable
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := deltaOf(t, old, test.next)
			d.registry.set(test.faults)
			d.check(t, d.write(t, osimage.WriteOptions{Seeds: []osimage.Seed{d.seed}}))

			content, _ := d.image.Config().Content(osimage.RoleUSR)
			if last := d.planned[len(d.planned)-1]; last.Fetch != content.Size {
				t.Errorf("planned %+v, want the whole layer", d.planned)
			}
		})
	}
}

// brokenSeed fails, or gives other bytes, once it has been read to its end.
type brokenSeed struct {
	*bytes.Reader

	scanned atomic.Bool
	broken  func(buffer []byte) (int, error)
}

func (s *brokenSeed) ReadAt(buffer []byte, offset int64) (int, error) {
	if s.scanned.Load() && offset < 2<<20 {
		return s.broken(buffer)
	}

	if offset+int64(len(buffer)) >= s.Size() {
		s.scanned.Store(true)
	}

	return s.Reader.ReadAt(buffer, offset)
}

func TestUpdateFromASeedThatBreaks(t *testing.T) {
	t.Parallel()

	old, _ := update()

	for name, broken := range map[string]func(buffer []byte) (int, error){
		"cannot be read any more": func([]byte) (int, error) { return 0, errBrokenInput },
		"has other bytes":         func(buffer []byte) (int, error) { return copy(buffer, randomBytes(55, len(buffer))), nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := newDelta(t)
			d.seed.Reader = &brokenSeed{Reader: bytes.NewReader(old), broken: broken}
			d.check(t, d.write(t, osimage.WriteOptions{Seeds: []osimage.Seed{d.seed}}))

			if got := d.received.Load(); got < 1<<20 || got > 3<<20 {
				t.Errorf("received %d bytes, want about what the seed did not give", got)
			}
		})
	}
}

// A seed that cannot be read to its end is of use as far as it goes.
func TestUpdateFromHalfASeed(t *testing.T) {
	t.Parallel()

	d := newDelta(t)
	d.seed.Size += 1 << 20 // behind the reader's end
	d.check(t, d.write(t, osimage.WriteOptions{Seeds: []osimage.Seed{d.seed}}))

	if d.planned[0].Reused < 6<<20 {
		t.Errorf("planned %+v", d.planned)
	}
}

// Whoever has other frames than the index says is asked for all of the layer, whose digest decides.
func TestUpdateOfTamperedBytes(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		times int
		want  error
	}{
		"always":        {99, osimage.ErrWrongDigest},
		"only in parts": {1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := newDelta(t)
			d.registry.set(func(f *faults) { f.mutate = changed(layerDigest(t, d.image, osimage.RoleUSR), test.times) })

			err := d.write(t, osimage.WriteOptions{Seeds: []osimage.Seed{d.seed}})
			if test.want == nil {
				d.check(t, err)
			} else if !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}

			content, _ := d.image.Config().Content(osimage.RoleUSR)
			if len(d.planned) != 2 || d.planned[1].Fetch != content.Size {
				t.Errorf("planned %+v, want all of the layer in the end", d.planned)
			}
		})
	}
}

func TestUpdateWithATamperedIndex(t *testing.T) {
	t.Parallel()

	d := newDelta(t)
	content, _ := d.image.Config().Content(osimage.RoleUSR)

	d.registry.set(func(f *faults) {
		f.mutate = func(digest string, data []byte) []byte {
			if digest == content.ChunkIndex.Digest {
				data[len(data)-1] ^= 1
			}

			return data
		}
	})

	if err := d.write(t, osimage.WriteOptions{Seeds: []osimage.Seed{d.seed}}); !errors.Is(err, osimage.ErrWrongDigest) {
		t.Errorf("got %v, want a wrong digest", err)
	}
}

// A transfer that breaks in the middle of an update is taken up at the byte.
func TestUpdateOverABadLine(t *testing.T) {
	t.Parallel()

	d := newDelta(t)
	d.registry.set(func(f *faults) { f.breakAfter, f.breaks = 30_000, 2 })
	d.check(t, d.write(t, osimage.WriteOptions{Seeds: []osimage.Seed{d.seed}}))

	if got := d.received.Load(); got > d.planned[0].Index+fetchedBytes+60_000 {
		t.Errorf("received %d bytes", got)
	}
}

func TestOpenSeeded(t *testing.T) {
	t.Parallel()

	old, next := update()
	elsewhere := randomBytes(99, usrSize)

	for name, test := range map[string]struct {
		next     []byte
		fetch    int64
		noRanges bool
	}{
		"most of it is there":           {next, fetchedBytes + 1<<20 + 64<<10, false},
		"nothing of it is there":        {elsewhere, 2 * usrSize, false},
		"a registry that has no ranges": {next, fetchedBytes + 1<<20 + 64<<10, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := deltaOf(t, old, test.next)
			d.registry.set(func(f *faults) { f.noRanges = test.noRanges })

			var planned []osimage.Planned

			reader, err := d.image.OpenSeeded(background(t), osimage.RoleUSR, []osimage.Seed{d.seed},
				func(progress osimage.Progress) { planned = appendPlan(planned, progress) })
			if err != nil {
				t.Fatal(err)
			}

			got, err := io.ReadAll(reader)
			if err := errors.Join(err, reader.Close()); err != nil || !bytes.Equal(got, test.next) {
				t.Errorf("%d bytes, %v", len(got), err)
			}

			if planned[0].Fetch == 0 || planned[0].Fetch > test.fetch {
				t.Errorf("planned %+v", planned)
			}
		})
	}
}

// Closing in the middle ends the transfer, and what is wrong is told at the end, not taken for the content.
func TestOpenSeededEnds(t *testing.T) {
	t.Parallel()

	d := newDelta(t)

	reader, err := d.image.OpenSeeded(background(t), osimage.RoleUSR, []osimage.Seed{d.seed}, nil)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := io.ReadFull(reader, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}

	if err := reader.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}

	layer := layerDigest(t, d.image, osimage.RoleUSR)

	d.registry.set(func(f *faults) {
		f.mutate = func(digest string, data []byte) []byte {
			if digest == layer {
				return make([]byte, len(data))
			}

			return data
		}
	})

	reader, err = d.image.OpenSeeded(background(t), osimage.RoleUSR, []osimage.Seed{d.seed}, nil)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := io.ReadAll(reader); !errors.Is(err, osimage.ErrWrongDigest) {
		t.Errorf("got %v, want a wrong digest", err)
	}

	if err := reader.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}
