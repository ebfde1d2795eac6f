package osimage_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/stayput-dev/stayput/osimage"
)

func isKind(err, kind error) bool {
	return errors.Is(err, kind)
}

func openTarget(t *testing.T, size int64) *os.File {
	t.Helper()

	file, err := os.Create(filepath.Join(t.TempDir(), "target"))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = file.Close() })

	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}

	return file
}

// usrAt reads what is where the usr content should be.
func usrAt(t *testing.T, target io.ReaderAt, offset int64) []byte {
	t.Helper()

	data := make([]byte, usrSize)
	if n, err := target.ReadAt(data, offset); n < usrSize && err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}

	return data
}

func TestWrite(t *testing.T) {
	t.Parallel()

	for name, options := range map[string]osimage.WriteOptions{
		"at the start":          {},
		"at a sector":           {Offset: 1 << 20},
		"at an odd place":       {Offset: 777},
		"sparse":                {Sparse: true},
		"with just enough room": {Room: usrSize},
		"resuming nothing":      {Resume: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			parts := someContents()
			copy(parts[osimage.RoleUSR][1<<20:3<<20], make([]byte, 2<<20))
			copy(parts[osimage.RoleUSR][8<<20:], make([]byte, usrSize-8<<20))

			image := newFaults(t).push(t, parts)
			target := openTarget(t, 0)

			var last osimage.Progress

			options.Progress = func(progress osimage.Progress) { last = progress }
			if err := osimage.Write(background(t), image, osimage.RoleUSR, target, options); err != nil {
				t.Fatal(err)
			}

			if !bytes.Equal(usrAt(t, target, options.Offset), parts[osimage.RoleUSR]) {
				t.Error("the target holds other bytes")
			}

			if last.Written != usrSize || last.Verified != usrSize || last.Total != usrSize || last.Stage != osimage.Verifying {
				t.Errorf("the last progress was %+v of %d", last, usrSize)
			}

			if err := osimage.Verify(background(t), image.Config(), osimage.RoleUSR, target, options); err != nil {
				t.Errorf("verifying: %v", err)
			}
		})
	}
}

func TestWriteRefusesWhatDoesNotFit(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	image := registry.push(t, someContents())
	target := openTarget(t, 0)

	registry.set(func(f *faults) { f.requests = 0 })

	err := osimage.Write(background(t), image, osimage.RoleUSR, target, osimage.WriteOptions{Room: usrSize - 1})
	if !isKind(err, osimage.ErrTooLarge) || !strings.Contains(err.Error(), itoa(usrSize)) {
		t.Errorf("got %v, want a refusal that names the size", err)
	}

	if info, err := target.Stat(); err != nil || info.Size() != 0 || registry.requests != 0 {
		t.Errorf("something was written or fetched: %v, %d requests", err, registry.requests)
	}
}

func TestWriteResumes(t *testing.T) {
	t.Parallel()

	parts := someContents()
	want := parts[osimage.RoleUSR]
	registry := newFaults(t)

	var received atomic.Int64

	image := registry.push(t, parts, osimage.WithByteCounter(func(n int64) { received.Add(n) }))
	layer, _ := image.Config().Content(osimage.RoleUSR)

	target := openTarget(t, 0)

	for _, kept := range []int64{0, 1, 4<<20 - 1, 4 << 20, 4<<20 + 1, 7 << 20, 8 << 20, usrSize - 1, usrSize} {
		if err := errors.Join(target.Truncate(0), target.Truncate(usrSize)); err != nil {
			t.Fatal(err)
		}

		if _, err := target.WriteAt(want[:kept], 0); err != nil {
			t.Fatal(err)
		}

		received.Store(0)

		if err := osimage.Write(background(t), image, osimage.RoleUSR, target, osimage.WriteOptions{Resume: true}); err != nil {
			t.Fatal(err)
		}

		if !bytes.Equal(usrAt(t, target, 0), want) {
			t.Errorf("with %d there: the target holds other bytes", kept)
		}

		// At most the chunk that was cut is fetched again, and the chunk index.
		most := layer.Size - layer.Size*kept/usrSize + layer.ChunkIndex.TotalSize() + 16<<10
		if received.Load() > most {
			t.Errorf("received %d bytes with %d of %d there, want at most %d", received.Load(), kept, usrSize, most)
		}
	}
}

func TestWriteTwiceFetchesNothing(t *testing.T) {
	t.Parallel()

	var received atomic.Int64

	image := newFaults(t).push(t, someContents(), osimage.WithByteCounter(func(n int64) { received.Add(n) }))
	layer, _ := image.Config().Content(osimage.RoleUSR)
	target := openTarget(t, 0)

	for range 2 {
		received.Store(0)

		if err := osimage.Write(background(t), image, osimage.RoleUSR, target, osimage.WriteOptions{Resume: true}); err != nil {
			t.Fatal(err)
		}
	}

	if received.Load() != layer.ChunkIndex.Size {
		t.Errorf("the second time received %d bytes, want the head of the chunk index only", received.Load())
	}
}

// lyingMedium loses a write.
type lyingMedium struct {
	*bytes.Reader

	data   []byte
	synced bool
	// dropped tells whether its cache was dropped after that.
	dropped bool
}

func newLyingMedium() *lyingMedium {
	data := make([]byte, usrSize)

	return &lyingMedium{data: data, Reader: bytes.NewReader(data)}
}

func (l *lyingMedium) WriteAt(data []byte, offset int64) (int, error) {
	n := copy(l.data[offset:], data)
	if offset <= 5<<20 && 5<<20 < offset+int64(n) {
		l.data[5<<20] ^= 1
	}

	return n, nil
}

func (l *lyingMedium) Sync() error {
	l.synced = true

	return nil
}

func (l *lyingMedium) DropCache() error {
	l.dropped = l.synced

	return nil
}

func (l *lyingMedium) Name() string {
	return "the lying medium"
}

func TestWriteReadsBack(t *testing.T) {
	t.Parallel()

	image := newFaults(t).push(t, someContents())
	medium := newLyingMedium()

	err := osimage.Write(background(t), image, osimage.RoleUSR, medium, osimage.WriteOptions{})
	if !isKind(err, osimage.ErrBrokenMedium) || !strings.Contains(err.Error(), "the lying medium") {
		t.Errorf("got %v, want a broken medium that is named", err)
	}

	if !medium.synced || !medium.dropped {
		t.Error("it was read back before it was flushed, or from the cache")
	}
}

// flatteringMedium shows what is wanted until something is written, and what it has from then on.
type flatteringMedium struct {
	*lyingMedium

	wanted []byte
}

func (f *flatteringMedium) ReadAt(buffer []byte, offset int64) (int, error) {
	if f.wanted != nil {
		return bytes.NewReader(f.wanted).ReadAt(buffer, offset)
	}

	return f.Reader.ReadAt(buffer, offset)
}

func (f *flatteringMedium) WriteAt(data []byte, offset int64) (int, error) {
	f.wanted = nil

	return copy(f.data[offset:], data), nil
}

func (f *flatteringMedium) Sync() error {
	f.wanted = nil

	return nil
}

// What seemed to be there already may not be. The digest finds it, and all is written anew.
func TestWriteOntoWhatOnlySeemedRight(t *testing.T) {
	t.Parallel()

	parts := someContents()
	image := newFaults(t).push(t, parts)
	medium := &flatteringMedium{newLyingMedium(), parts[osimage.RoleUSR]}

	if err := osimage.Write(background(t), image, osimage.RoleUSR, medium, osimage.WriteOptions{Resume: true}); err != nil {
		t.Fatal(err)
	}

	if !bytes.Equal(medium.data, parts[osimage.RoleUSR]) {
		t.Error("other bytes than were put in")
	}
}

// fullMedium has no room left at some point.
type fullMedium struct{ *lyingMedium }

func (f fullMedium) WriteAt(data []byte, offset int64) (int, error) {
	if offset >= 2<<20 {
		return 0, io.ErrShortWrite
	}

	return f.lyingMedium.WriteAt(data, offset)
}

func TestWriteStopsAtAnError(t *testing.T) {
	t.Parallel()

	image := newFaults(t).push(t, someContents())

	err := osimage.Write(background(t), image, osimage.RoleUSR, fullMedium{newLyingMedium()}, osimage.WriteOptions{})
	if !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("got %v, want the medium's error", err)
	}
}

func TestWriteStopsWithItsContext(t *testing.T) {
	t.Parallel()

	image := newFaults(t).push(t, someContents())
	ctx, cancel := context.WithCancel(background(t))

	err := osimage.Write(ctx, image, osimage.RoleUSR, openTarget(t, 0), osimage.WriteOptions{
		Progress: func(osimage.Progress) { cancel() },
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the context was cancelled", err)
	}
}

// A content that does not match its digest is an error of Write, whatever it wrote.
func TestWriteOfATamperedImage(t *testing.T) {
	t.Parallel()

	dir := build(t, someContents())
	tamper(t, dir, func(config *osimage.Config, _ *v1.Manifest) {
		config.Contents[0].RawDigest = digestOfDigit("0")
	})

	image, err := osimage.OpenLayout(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}

	for _, resume := range []bool{false, true} {
		target := openTarget(t, 0)

		if resume {
			if _, err := target.WriteAt(someContents()[osimage.RoleUSR], 0); err != nil {
				t.Fatal(err)
			}
		}

		err := osimage.Write(background(t), image, osimage.RoleUSR, target, osimage.WriteOptions{Resume: resume})
		if !isKind(err, osimage.ErrWrongDigest) {
			t.Errorf("resume %t: got %v, want a wrong digest", resume, err)
		}
	}
}

// slowlyDyingSource ends with an error after all bytes of the content, or in the middle of it.
type slowlyDyingSource struct {
	*osimage.Image

	bytes int64
}

func (s slowlyDyingSource) Open(ctx context.Context, role osimage.Role, offset int64) (io.ReadCloser, error) {
	body, err := s.Image.Open(ctx, role, offset)
	if err != nil {
		return nil, err
	}

	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(body, s.bytes-offset), iotest.ErrReader(errBrokenInput)), body}, nil
}

// A source that breaks is gone on with from where it broke; all bytes are no content while it says that there is an error.
func TestWriteEndsWithItsSourcesError(t *testing.T) {
	t.Parallel()

	image := newFaults(t).push(t, someContents())

	for _, size := range []int64{0, 1 << 20, 1<<20 + 1, usrSize} {
		var synced int64

		err := osimage.Write(background(t), slowlyDyingSource{image, size}, osimage.RoleUSR, openTarget(t, 0),
			osimage.WriteOptions{SyncEvery: 1 << 20, Synced: func(done int64) error {
				synced = done

				return nil
			}})
		if !errors.Is(err, errBrokenInput) || synced != size {
			t.Errorf("after %d bytes: synced %d, %v", size, synced, err)
		}
	}
}

// A source of other bytes than its config says never gets to write past its room.
func TestWriteOfAnotherLength(t *testing.T) {
	t.Parallel()

	image := newFaults(t).push(t, someContents())

	for name, test := range map[string]struct {
		change func(io.Reader) io.Reader
		want   error
	}{
		"longer":  {func(r io.Reader) io.Reader { return io.MultiReader(r, strings.NewReader("x")) }, osimage.ErrTooLarge},
		"shorter": {func(r io.Reader) io.Reader { return io.LimitReader(r, usrSize-1) }, osimage.ErrTruncated},
	} {
		target := openTarget(t, 0)

		err := osimage.Write(background(t), changedSource{image, test.change}, osimage.RoleUSR, target, osimage.WriteOptions{})
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}

		if info, err := target.Stat(); err != nil || info.Size() > usrSize {
			t.Errorf("%s: %d bytes were written, %v", name, info.Size(), err)
		}
	}
}

type changedSource struct {
	*osimage.Image

	change func(io.Reader) io.Reader
}

func (s changedSource) Open(ctx context.Context, role osimage.Role, offset int64) (io.ReadCloser, error) {
	body, err := s.Image.Open(ctx, role, offset)
	if err != nil {
		return nil, err
	}

	return struct {
		io.Reader
		io.Closer
	}{s.change(body), body}, nil
}

// What an earlier call has synced is neither fetched nor written again, but read back; a byte of it that is wrong costs
// one more try, from the start.
func TestWriteGoesOn(t *testing.T) {
	t.Parallel()

	parts := someContents()
	want := parts[osimage.RoleUSR]

	for name, test := range map[string]struct {
		start  int64
		spoil  bool
		synced []int64
	}{
		"from the start":    {0, false, []int64{4 << 20, 8 << 20, usrSize}},
		"from an odd place": {3<<20 + 1, false, []int64{7<<20 + 1, usrSize}},
		"from the end":      {usrSize, false, []int64{usrSize}},
		"with a wrong byte": {8 << 20, true, []int64{usrSize, 0, 4 << 20, 8 << 20, usrSize}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			image := newFaults(t).push(t, parts)
			target := openTarget(t, usrSize)
			there := bytes.Clone(want[:test.start])

			if test.spoil {
				there[12345] ^= 1
			}

			if _, err := target.WriteAt(there, 0); err != nil {
				t.Fatal(err)
			}

			var synced []int64

			// A source without a chunk index.
			source := changedSource{image, func(r io.Reader) io.Reader { return r }}

			err := osimage.Write(background(t), source, osimage.RoleUSR, target, osimage.WriteOptions{
				Start: test.start, SyncEvery: 4 << 20, Synced: func(done int64) error {
					synced = append(synced, done)

					return nil
				},
			})
			if err != nil || !bytes.Equal(usrAt(t, target, 0), want) || !slices.Equal(synced, test.synced) {
				t.Errorf("synced %v, want %v; error %v", synced, test.synced, err)
			}
		})
	}

	err := osimage.Write(background(t), newFaults(t).push(t, parts), osimage.RoleUSR, openTarget(t, 0),
		osimage.WriteOptions{Start: usrSize + 1})
	if !errors.Is(err, osimage.ErrInvalid) {
		t.Errorf("a start behind the end: %v", err)
	}
}
