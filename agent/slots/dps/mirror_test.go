package dps_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/agent/slots/dps/faulty"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// lie is what a mirror gives instead of the UKI.
const lie = "wrong"

// mirrored is a source whose mirror lies about the UKI, also about what the running one lacks.
type mirrored struct {
	*faulty.Image

	distrusted int
}

// OpenSeeded tells what osimage tells: of seeds, and of what it fetches, from 0 on.
func (m *mirrored) OpenSeeded(
	ctx context.Context, role osimage.Role, seeds []osimage.Seed, progress func(osimage.Progress),
) (io.ReadCloser, error) {
	body, err := m.Open(ctx, role, 0)
	if err != nil {
		return nil, err
	}

	content, _ := m.Config().Content(role)
	now := osimage.Progress{Total: content.RawSize}

	for _, seed := range seeds {
		now.Stage, now.ToSurvey = osimage.Surveying, now.ToSurvey+seed.Size
		progress(now)
		now.Surveyed += seed.Size
		progress(now)
	}

	now.Stage, now.ToFetch = osimage.Writing, content.RawSize
	progress(now)

	return struct {
		io.Reader
		io.Closer
	}{io.TeeReader(body, written(func(count int) {
		now.Fetched += int64(count)
		now.Written += int64(count)
		progress(now)
	})), body}, nil
}

// written is called with the number of bytes that are written to it.
type written func(count int)

func (w written) Write(data []byte) (int, error) {
	w(len(data))

	return len(data), nil
}

func (m *mirrored) Open(ctx context.Context, role osimage.Role, offset int64) (io.ReadCloser, error) {
	if role == osimage.RoleUKI && m.distrusted == 0 {
		return io.NopCloser(io.MultiReader(strings.NewReader(lie), iotest.ErrReader(osimage.ErrTooLarge))), nil
	}

	return m.Image.Open(ctx, role, offset)
}

func (m *mirrored) DistrustMirrors() bool {
	m.distrusted++

	return m.distrusted == 1
}

// A mirror that lies is no fault of the image either; a registry that does is.
func TestUKIFromAMirrorThatLies(t *testing.T) {
	t.Parallel()

	var last osimage.Progress

	b := newBench(t)
	source := &mirrored{Image: b.next}
	must(t, b.scheme.Stage(t.Context(), source, growing(t, &last)))

	// With the running UKI, without it, and from the registry.
	uki, running := int64(len(b.next.Content(osimage.RoleUKI))), int64(len(b.old.Content(osimage.RoleUKI)))
	fetched := 2*int64(len(lie)) + uki

	if got, want := counts(last), [...]int64{running, running, fetched, fetched}; got != want {
		t.Errorf("in the end %v, want %v", got, want)
	}

	b.arm(t, b.next)
	b.boot(t, "1.1.0")

	b = newBench(t)
	source = &mirrored{Image: b.next}
	source.Content(osimage.RoleUKI)[0] ^= 1

	err := b.scheme.Stage(t.Context(), source, nil)
	if refusal, ok := errors.AsType[*slots.Refusal](err); !ok || refusal.Reason != v1alpha1.ReasonImageInvalid || source.distrusted != 2 {
		t.Errorf("got %v after %d tries, want a refusal of the image", err, source.distrusted)
	}
}

// counts are what was read and is to be, and what was fetched and is to be.
func counts(of osimage.Progress) [4]int64 {
	return [...]int64{of.Surveyed, of.ToSurvey, of.Fetched, of.ToFetch}
}

// growing fails when what was read and fetched, or is to be, becomes less, and keeps the last progress.
func growing(t *testing.T, last *osimage.Progress) slots.Progress {
	t.Helper()

	return func(now osimage.Progress) {
		before := counts(*last)
		for index, count := range counts(now) {
			if count < before[index] {
				t.Errorf("%v came after %v", counts(now), before)
			}
		}

		*last = now
	}
}
