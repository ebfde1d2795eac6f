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

// Upload is the image as an index of the registry library takes it; see PushIndex. What is read of it is verified, like
// what Push sends.
func (i *Image) Upload(ctx context.Context) (v1.Image, error) {
	dir := ""
	if folder, ok := i.blobs.(layoutBlobs); ok {
		dir = folder.dir
	}

	return newUpload(ctx, i, dir)
}

// CopyBeside copies an image, with what is attached to it, to the repository of a tag, without that tag: an index that will
// have the tag names the image, but not its signatures. See Copy.
func (c *Client) CopyBeside(ctx context.Context, image *Image, reference string, progress func(done, total int64)) error {
	parsed, err := c.parseTag(reference)
	if err != nil {
		return err
	}

	from := Location{Reference: image.reference}
	if folder, ok := image.blobs.(layoutBlobs); ok {
		from = Location{Dir: folder.dir, Tag: image.digest}
	}

	copied, err := c.Copy(ctx, from, Location{Reference: within(parsed.Context(), image.digest).Name()}, CopyOptions{Progress: progress})
	if err == nil && copied.Unasked {
		err = &Error{
			Kind: ErrTransient, Subject: image.reference, Detail: "its registry cannot be reached to ask for its signatures", Fix: fixLater,
		}
	}

	return err
}

// parseTag parses what an index shall have as its name.
func (c *Client) parseTag(reference string) (name.Reference, error) {
	parsed, err := c.parse(reference)
	if err != nil {
		return nil, err
	}

	if _, ok := parsed.(name.Tag); !ok {
		return nil, invalid(reference, "a digest cannot be chosen for an index", "name a tag, as registry/repository:1.1.0")
	}

	return parsed, nil
}

// PushIndex puts an index under "registry/repository:tag", with those images of it that the registry has not, and
// returns the reference that names exactly this index, and the digest that the tag named before, "" when it was not there
// or named the same. The images come first and get no tag, so the tag never names a
// part of it. It is safe to call again: what arrived is not sent again, and an index that is there already is left
// alone. Progress, when set, is called with the bytes of the layers.
func (c *Client) PushIndex(
	ctx context.Context, reference string, index v1.ImageIndex, progress func(done, total int64),
) (pushed, replaced string, err error) {
	parsed, err := c.parseTag(reference)
	if err != nil {
		return "", "", err
	}

	digest, err := index.Digest()
	if err != nil {
		return "", "", fmt.Errorf("preparing the index: %w", err)
	}

	replaced, err = c.pushAll(ctx, parsed, index, progress)
	if err != nil {
		return "", "", fmt.Errorf("pushing the index: %w", err) // the cause names the reference, or a file
	}

	if replaced == digest.String() {
		replaced = ""
	}

	return parsed.Context().Name() + "@" + digest.String(), replaced, nil
}

// pushAll sends an index with all that it names, and tries again what fails for now. It returns the digest that the reference
// named when it was called, "" for none.
func (c *Client) pushAll(
	ctx context.Context, reference name.Reference, what remote.Taggable, progress func(done, total int64),
) (before string, err error) {
	host, err := c.pushTarget(reference.Context().Registry)
	if err != nil {
		return "", err
	}

	there := within(host.repository(reference.Context()), reference.Identifier())
	try := func(work func(ctx context.Context, session http.RoundTripper) error) error {
		return c.retry.do(ctx, reference.Name(), func(ctx context.Context) error {
			return host.authorized(ctx, c.keychain, there.Context(), []string{reference.Scope(transport.PushScope)},
				func(session http.RoundTripper) error { return work(ctx, session) })
		})
	}

	err = try(func(ctx context.Context, session http.RoundTripper) error {
		found, err := remote.Head(there, writeOptions(ctx, session)...)
		if err == nil {
			before = found.Digest.String()
		}

		return err
	})
	if ignoreNotFound(err) != nil {
		return "", err
	}

	return before, try(func(ctx context.Context, session http.RoundTripper) error {
		return c.push(ctx, session, there, what, progress)
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
