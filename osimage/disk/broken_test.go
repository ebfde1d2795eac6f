package disk_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/disk"
)

// broken is an image whose UKI cannot be fetched.
type broken struct{ *osimage.Image }

func (b broken) Open(ctx context.Context, role osimage.Role, offset int64) (io.ReadCloser, error) {
	if role == osimage.RoleUKI {
		return nil, &osimage.Error{Kind: osimage.ErrTransient, Subject: "uki"}
	}

	return b.Image.Open(ctx, role, offset)
}

// garbled gives other bytes of the UKI than the image has, and does not notice.
type garbled struct{ *osimage.Image }

func (g garbled) Open(ctx context.Context, role osimage.Role, offset int64) (io.ReadCloser, error) {
	if role != osimage.RoleUKI {
		return g.Image.Open(ctx, role, offset)
	}

	content, _ := g.Config().Content(role)

	return io.NopCloser(bytes.NewReader(make([]byte, content.RawSize))), nil
}

func TestCreateComparesTheESPWithTheImage(t *testing.T) {
	t.Parallel()

	image := build(t, "amd64", usrContents())
	file := filepath.Join(t.TempDir(), "disk.raw")

	_, err := disk.Create(t.Context(), garbled{image}, file, disk.Options{Sizes: small()})
	if !errors.Is(err, osimage.ErrWrongDigest) {
		t.Errorf("got %v, want a wrong digest", err)
	}
}
