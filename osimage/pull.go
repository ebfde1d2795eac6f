package osimage

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Pull copies an image of ours from a registry to an OCI layout folder, under its version as the tag, with what is
// attached to it; see Copy. Of an index it takes the image that Image takes, which need not have the signatures that the
// index has; see Copied.ChosenFrom. Progress, when set, is called with the bytes of the layers.
func (c *Client) Pull(ctx context.Context, reference, dir string, progress func(done, total int64)) (Copied, error) {
	image, err := c.Image(ctx, reference)
	if err != nil {
		return Copied{}, err
	}

	if image.foreign {
		return Copied{}, refuseForeign(image.reference)
	}

	if err := checkReplaced(ctx, dir, image.config); err != nil {
		return Copied{}, err
	}

	// What the tag means is not asked again.
	source, _, err := c.openSource(ctx, Location{Reference: image.reference})
	if err != nil {
		return Copied{}, err
	}

	plan := newCopyPlan(source)
	plan.chosenFrom = image.chosenFrom

	return c.copyRoot(ctx, plan, copiedManifest{
		digest: image.digest, mediaType: types.OCIManifestSchema1, data: image.manifest,
		platform: &v1.Platform{OS: "linux", Architecture: image.config.Architecture},
	}, Location{Dir: dir, Tag: image.config.Version}, CopyOptions{Progress: progress})
}
