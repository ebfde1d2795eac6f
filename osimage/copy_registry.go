package osimage

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/hosts"
	"github.com/stayput-dev/stayput/osimage/trust"
)

// registryStore is a repository of a registry.
type registryStore struct {
	client     *Client
	repository name.Repository
	content    *registryBlobs
	// writer is who is asked when this is the target: mirrors may lag behind.
	writer *endpoint
	// silent tells that a host which may know of more could not be reached.
	silent atomic.Bool
}

var _ store = (*registryStore)(nil)

// openSource opens a source, and tells under which name the artifact is there.
func (c *Client) openSource(ctx context.Context, from Location) (store, string, error) {
	if from.Dir != "" {
		return openFolderSource(ctx, from)
	}

	parsed, err := c.parse(from.Reference)
	if err != nil {
		return nil, "", err
	}

	content, err := c.blobsOf(parsed.Context())
	if err != nil {
		return nil, "", err
	}

	return &registryStore{client: c, repository: parsed.Context(), content: content}, parsed.Identifier(), nil
}

// openTarget opens a target, and tells which tag the copy gets; digest is what is copied.
func (c *Client) openTarget(to Location, digest string, dryRun bool) (store, string, error) {
	if to.Dir != "" {
		return openFolderTarget(to, dryRun)
	}

	parsed, err := c.parse(to.Reference)
	if err != nil {
		return nil, "", err
	}

	tag := parsed.Identifier()

	if isDigest(tag) {
		if tag != digest {
			return nil, "", invalid(to.Reference, "the source has the digest "+digest, "name a tag, or that digest")
		}

		tag = ""
	}

	writer, err := c.pushTarget(parsed.Context().Registry)
	if err != nil {
		return nil, "", err
	}

	return &registryStore{client: c, repository: parsed.Context(), writer: writer}, tag, nil
}

func (r *registryStore) close() error { return nil }

func (r *registryStore) source() blobs { return r.content }

func (r *registryStore) blobName(digest string) string { return r.reference(digest) }

func (r *registryStore) reference(digest string) string {
	return r.repository.Name() + "@" + digest
}

func (r *registryStore) manifest(ctx context.Context, tagOrDigest string) (copiedManifest, error) {
	var (
		reference  = within(r.repository, tagOrDigest)
		descriptor *remote.Descriptor
		err        error
	)

	get := func(ctx context.Context, session http.RoundTripper, local name.Repository) (err error) {
		descriptor, err = getManifest(ctx, session, local, reference)

		return err
	}

	switch {
	case r.writer != nil:
		err = r.write(ctx, nil, get)
	case trust.IsSignatureTag(tagOrDigest):
		err = r.optional(ctx, reference.Name(), get)
	default:
		descriptor, err = r.client.get(ctx, reference)
	}

	if err != nil {
		return copiedManifest{}, err
	}

	return copiedManifest{digest: descriptor.Digest.String(), mediaType: descriptor.MediaType, data: descriptor.Manifest}, nil
}

// referrers asks the hosts until one has some: a mirror that knows of none may not keep them.
func (r *registryStore) referrers(ctx context.Context, digest string) (found []v1.Descriptor, err error) {
	subject := r.reference(digest)

	err = r.optional(ctx, subject, func(ctx context.Context, session http.RoundTripper, local name.Repository) error {
		index, err := remote.Referrers(local.Digest(digest), remote.WithContext(ctx), remote.WithTransport(session))
		if err != nil {
			return err
		}

		manifest, err := index.IndexManifest()
		if err != nil {
			return err
		}

		if found = manifest.Manifests; len(found) == 0 {
			return &Error{Kind: ErrNotFound, Subject: subject, Detail: "it has no referrers"}
		}

		return nil
	})

	return found, ignoreNotFound(err)
}

// optional asks for what need not be there, until a host has it. When a host does not have it, or may be asked for digests
// only, those that cannot be reached do not matter in the end: behind an air gap nobody else is there. Silent tells of that.
func (r *registryStore) optional(
	ctx context.Context, subject string,
	work func(ctx context.Context, session http.RoundTripper, local name.Repository) error,
) error {
	place, tries := r.content.place.Load(), 0

	return r.client.retry.do(ctx, subject, func(ctx context.Context) error {
		absent, unreached, others := place.pullsOnly(), false, false

		err := place.each(ctx, subject, hosts.Resolve, func(host *endpoint) error {
			err := host.reading(ctx, r.client.keychain, r.repository, func(local name.Repository, session http.RoundTripper) error {
				return work(ctx, session, local)
			})

			network, isNetwork := errors.AsType[*net.OpError](err)

			switch {
			case errors.Is(classify(ctx, subject, err), ErrNotFound):
				absent = true
			case isNetwork && network.Op == "dial":
				unreached = true
			default:
				others = true
			}

			return err
		})
		if err == nil || !absent || !unreached || others {
			return err
		}

		if tries++; tries < min(reachTries, r.client.retry.Tries) && !r.silent.Load() {
			return err
		}

		r.silent.Store(true)

		return &Error{Kind: ErrNotFound, Subject: subject, Detail: "no host that can be reached has it"}
	})
}

// write asks, or tells, the host that is written to; local is where it has the repository.
func (r *registryStore) write(
	ctx context.Context, alsoPull *name.Repository,
	work func(ctx context.Context, session http.RoundTripper, local name.Repository) error,
) error {
	repository := r.writer.repository(r.repository)
	scopes := []string{repository.Scope(transport.PushScope)}

	if alsoPull != nil {
		scopes = append(scopes, alsoPull.Scope(transport.PullScope))
	}

	return r.client.retry.do(ctx, r.repository.Name(), func(ctx context.Context) error {
		return r.writer.authorized(ctx, r.client.keychain, repository, scopes, func(session http.RoundTripper) error {
			return work(ctx, session, repository)
		})
	})
}

// writeOptions are the registry library's options. Tries, their pauses and who is told of them are the client's.
func writeOptions(ctx context.Context, session http.RoundTripper) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithTransport(session), remote.WithRetryPredicate(func(error) bool { return false }),
	}
}

// hasManifest reads the manifest: the registry's word alone does not count.
func (r *registryStore) hasManifest(ctx context.Context, digest, tag string, _ bool) (bool, error) {
	found, err := r.manifest(ctx, cmp.Or(tag, digest))

	return err == nil && found.digest == digest, ignoreNotFound(err)
}

func ignoreNotFound(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}

	return err
}

func (r *registryStore) hasBlob(ctx context.Context, blob v1.Descriptor) (has bool, err error) {
	err = r.write(ctx, nil, func(ctx context.Context, session http.RoundTripper, local name.Repository) error {
		layer, err := remote.Layer(local.Digest(blob.Digest.String()), writeOptions(ctx, session)...)
		if err != nil {
			return err
		}

		has, err = partial.Exists(layer)

		return err
	})

	return has, err
}

// putBlob sends a blob. When it is in another repository of the registry, the registry is asked to take it from there.
func (r *registryStore) putBlob(ctx context.Context, descriptor v1.Descriptor, from store, progress func(done int64)) error {
	layer, err := partial.CompressedToLayer(&copiedLayer{
		ctx: ctx, progress: progress,
		uploadedLayer: uploadedLayer{
			blobs: from.source(), descriptor: descriptor, path: from.blobName(descriptor.Digest.String()),
			blob: blob{
				digest: descriptor.Digest.String(), size: descriptor.Size,
				subject: "blob " + descriptor.Digest.String() + " for " + r.repository.Name(),
			},
		},
	})
	if err != nil {
		return fmt.Errorf("preparing a blob: %w", err)
	}

	var alsoPull *name.Repository

	if other, ok := from.(*registryStore); ok && other.repository.RegistryStr() == r.repository.RegistryStr() {
		repository := r.writer.repository(other.repository)
		alsoPull = &repository
		layer = &remote.MountableLayer{Layer: layer, Reference: repository.Digest(descriptor.Digest.String())}
	}

	err = r.write(ctx, alsoPull, func(ctx context.Context, session http.RoundTripper, local name.Repository) error {
		return remote.WriteLayer(local, layer, writeOptions(ctx, session)...)
	})
	if err == nil {
		progress(descriptor.Size)
	}

	return err
}

func (r *registryStore) putManifest(ctx context.Context, manifest copiedManifest, tag string, _ bool) error {
	return r.write(ctx, nil, func(ctx context.Context, session http.RoundTripper, local name.Repository) error {
		// It also adds a referrer to the list of its subject, where the registry does not do so itself.
		return remote.Put(within(local, cmp.Or(tag, manifest.digest)), rawManifest{manifest}, writeOptions(ctx, session)...)
	})
}

// rawManifest is a manifest as the registry library takes it.
type rawManifest struct {
	manifest copiedManifest
}

func (r rawManifest) RawManifest() ([]byte, error)        { return r.manifest.data, nil }
func (r rawManifest) MediaType() (types.MediaType, error) { return r.manifest.mediaType, nil }

// copiedLayer is a blob of a source; what is read of it is verified.
type copiedLayer struct {
	uploadedLayer

	ctx      context.Context //nolint:containedctx // The library has none when it asks for the bytes.
	progress func(done int64)
}

// Compressed gives its bytes, from their start.
func (l *copiedLayer) Compressed() (io.ReadCloser, error) {
	body, err := l.blobs.open(l.ctx, l.blob, 0, l.blob.size)
	if err != nil {
		return nil, err
	}

	var done int64

	counted := &countedReader{ReadCloser: body, count: func(bytes int64) {
		done += bytes
		l.progress(done)
	}}

	return &verifiedFile{ReadCloser: counted, layer: &l.uploadedLayer, sum: &countingHash{hash: sha256.New()}}, nil
}
