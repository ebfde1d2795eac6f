package disk_test

import (
	"context"
	"io"

	"github.com/stayput-dev/stayput/osimage"
)

// broken is an image whose UKI cannot be fetched.
type broken struct{ *osimage.Image }

func (b broken) Open(ctx context.Context, role osimage.Role, offset int64) (io.ReadCloser, error) {
	if role == osimage.RoleUKI {
		return nil, &osimage.Error{Kind: osimage.ErrTransient, Subject: "uki"}
	}

	return b.Image.Open(ctx, role, offset)
}
