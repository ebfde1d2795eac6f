package osimage

import (
	"context"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// progressBacklog is the number of progress reports that may wait, so that reporting does not slow the transfer.
const progressBacklog = 64

// Push copies an image from an OCI layout folder to "registry/repository:tag". Blobs that the registry has already are
// not sent again, so a push that failed goes on with the blobs that are missing. Progress, when set, is called with
// the bytes of the layers.
//
// What is sent is verified: when a file of the folder does not have its digest, the error is ErrWrongDigest and names it,
// and neither that layer nor the manifest is in the registry. Layers that the registry has are not read.
func (c *Client) Push(
	ctx context.Context, dir, tag, reference string, progress func(done, total int64),
) (Resolved, error) {
	image, err := OpenLayout(ctx, dir, tag)
	if err != nil {
		return Resolved{}, err
	}

	parsed, err := c.parse(reference)
	if err != nil {
		return Resolved{}, err
	}

	if _, ok := parsed.(name.Tag); !ok {
		return Resolved{}, invalid(reference, "a digest cannot be chosen for a push",
			"name a tag, as registry/repository:"+image.config.Version)
	}

	source, err := newUpload(ctx, image, dir)
	if err != nil {
		return Resolved{}, fmt.Errorf("preparing the push: %w", err)
	}

	if err := c.pushAll(ctx, parsed, source, progress); err != nil {
		return Resolved{}, fmt.Errorf("pushing the image: %w", err) // the cause names the reference, or a file of the folder
	}

	return Resolved{
		Reference: parsed.Context().Name() + "@" + image.digest, Digest: image.digest, Config: image.config,
	}, nil
}

// pushAll sends an image, or an index with all that it names, and tries again what fails for now.
func (c *Client) pushAll(
	ctx context.Context, reference name.Reference, what remote.Taggable, progress func(done, total int64),
) error {
	host, err := c.pushTarget(reference.Context().Registry)
	if err != nil {
		return err
	}

	return c.retry.do(ctx, reference.Name(), func(ctx context.Context) error {
		return host.authorized(ctx, c.keychain, host.repository(reference.Context()),
			[]string{reference.Scope(transport.PushScope)}, func(session http.RoundTripper) error {
				return c.push(ctx, session, host.reference(reference), what, progress)
			})
	})
}

func (c *Client) push(
	ctx context.Context, session http.RoundTripper, reference name.Reference, what remote.Taggable,
	progress func(done, total int64),
) error {
	// remote.Push closes the channel.
	updates := make(chan v1.Update, progressBacklog)
	drained := make(chan struct{})

	go func() {
		defer close(drained)

		for update := range updates {
			if update.Error == nil && progress != nil {
				progress(update.Complete, update.Total)
			}
		}
	}()

	err := remote.Push(reference, what,
		remote.WithContext(ctx), remote.WithTransport(session), remote.WithProgress(updates))

	<-drained

	return err
}
