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

// mirrored is a source whose mirror lies about the UKI, also about what the running one lacks.
type mirrored struct {
	*faulty.Image

	distrusted int
}

func (m *mirrored) OpenSeeded(
	ctx context.Context, role osimage.Role, _ []osimage.Seed, _ func(osimage.Progress),
) (io.ReadCloser, error) {
	return m.Open(ctx, role, 0)
}

func (m *mirrored) Open(ctx context.Context, role osimage.Role, offset int64) (io.ReadCloser, error) {
	if role == osimage.RoleUKI && m.distrusted == 0 {
		return io.NopCloser(io.MultiReader(strings.NewReader("wrong"), iotest.ErrReader(osimage.ErrTooLarge))), nil
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

	b := newBench(t)
	source := &mirrored{Image: b.next}
	must(t, b.scheme.Stage(t.Context(), source, nil))
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
