package osimage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/hosts"
	"github.com/stayput-dev/stayput/osimage/trust"
)

// ErrUntrusted is returned for an image that no trusted key signed. The cause is one of the errors of the package trust.
var ErrUntrusted = errors.New("signature refused")

// SignatureStore is where an image's signatures are, and where more can be put.
type SignatureStore interface {
	trust.Store
	// Add puts what an update has. It is safe to repeat.
	Add(ctx context.Context, update trust.Update) error
}

// WithTrust has Image, and all that uses it, accept only images that the policy allows. When a reference means an index,
// a signature over the index or over the image chosen from it suffices. What was verified is what is read: nothing is
// looked up a second time.
func WithTrust(policy trust.Policy) Option {
	return func(client *Client) error {
		client.policy = policy

		return nil
	}
}

// Signature tells what was verified of the image's signatures. Without a policy it says that nothing was.
func (i *Image) Signature() trust.Result {
	return i.signature
}

// OpenTrustedLayout is OpenLayout for images that the policy allows. The signatures are in the same folder.
func OpenTrustedLayout(ctx context.Context, dir, tag string, policy trust.Policy) (*Image, error) {
	image, err := OpenLayout(ctx, dir, tag)
	if err != nil {
		return nil, err
	}

	digests := []string{image.digest}
	if image.chosenFrom != "" {
		digests = append(digests, image.chosenFrom)
	}

	image.signature, err = verifySignature(ctx, image.reference, LayoutSignatures(dir), policy, digests...)

	return image, err
}

// verifySignature is trust.Verify with errors of ours.
func verifySignature(
	ctx context.Context, subject string, store trust.Store, policy trust.Policy, digests ...string,
) (trust.Result, error) {
	result, err := trust.Verify(ctx, store, policy, digests...)

	return result, untrusted(subject, err)
}

// untrusted turns an error of the package trust into one of ours.
func untrusted(subject string, err error) error {
	var refused *trust.Error

	switch {
	case err == nil:
		return nil
	case errors.Is(err, trust.ErrUnavailable) && errors.As(err, &refused):
		// The store's own error tells whether to try again.
		return fmt.Errorf("reading the signatures of %s: %w", subject, refused.Err)
	case errors.As(err, &refused):
		return &Error{Kind: ErrUntrusted, Subject: subject, Err: briefError{refused}, Fix: refused.Fix}
	default:
		return err
	}
}

// briefError is an error of the package trust without what is said around it.
type briefError struct {
	refused *trust.Error
}

func (b briefError) Error() string { return b.refused.Brief() }

func (b briefError) Unwrap() error { return b.refused }

// Signatures gives access to the signatures in a reference's repository.
func (c *Client) Signatures(reference string) (SignatureStore, error) {
	parsed, err := c.parse(reference)
	if err != nil {
		return nil, err
	}

	return &registrySignatures{client: c, repository: parsed.Context()}, nil
}

// registrySignatures are the signatures in a repository. Those of a mirror are asked for first, as for any tag.
type registrySignatures struct {
	client     *Client
	repository name.Repository
}

// Manifest reads a manifest.
func (r *registrySignatures) Manifest(ctx context.Context, tagOrDigest string) (trust.Manifest, error) {
	descriptor, err := r.client.get(ctx, within(r.repository, tagOrDigest))
	if err != nil {
		return trust.Manifest{}, orNotFound(err)
	}

	return trust.Manifest{Bytes: descriptor.Manifest, MediaType: descriptor.MediaType}, nil
}

// orNotFound marks the answer that there is no such thing.
func orNotFound(err error) error {
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("%w: %w", trust.ErrNotFound, err)
	}

	return err
}

// Blob reads a blob and verifies it.
func (r *registrySignatures) Blob(ctx context.Context, descriptor v1.Descriptor) ([]byte, error) {
	source, err := r.client.blobsOf(r.repository)
	if err != nil {
		return nil, err
	}

	return readSignatureBlob(ctx, source, r.repository.Name(), descriptor)
}

func readSignatureBlob(ctx context.Context, source blobs, subject string, descriptor v1.Descriptor) ([]byte, error) {
	if descriptor.Size < 0 || descriptor.Size > trust.MaxBlob {
		return nil, &Error{
			Kind: ErrTooLarge, Subject: "signature in " + subject, Fix: fixRebuild,
			Detail: fmt.Sprintf("it has %d bytes, at most %d are read", descriptor.Size, trust.MaxBlob),
		}
	}

	data, err := readBlob(ctx, source, blob{
		digest: descriptor.Digest.String(), size: descriptor.Size, subject: "signature in " + subject,
	})

	return data, orNotFound(err)
}

// Referrers asks the registry's own list.
func (r *registrySignatures) Referrers(ctx context.Context, digest string) ([]v1.Descriptor, error) {
	place, err := r.client.placeOf(r.repository.Registry)
	if err != nil {
		return nil, err
	}

	var (
		found   []v1.Descriptor
		subject = "referrers of " + r.repository.Name() + "@" + digest
	)

	err = r.client.retry.do(ctx, subject, func(ctx context.Context) error {
		return place.each(ctx, subject, hosts.Resolve, func(host *endpoint) error {
			return host.reading(ctx, r.client.keychain, r.repository,
				func(local name.Repository, session http.RoundTripper) (err error) {
					found, err = askReferrers(ctx, session, local, digest)

					return err
				})
		})
	})

	return found, orNotFound(err)
}

// askReferrers asks one host (OCI distribution-spec, listing referrers). Later pages of a list are not asked for: no
// registry makes pages below the number of signatures that is looked at.
func askReferrers(
	ctx context.Context, session http.RoundTripper, repository name.Repository, digest string,
) ([]v1.Descriptor, error) {
	address := url.URL{
		Scheme: repository.Scheme(), Host: repository.RegistryStr(),
		Path: "/v2/" + repository.RepositoryStr() + "/referrers/" + digest,
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("asking for the referrers: %w", err)
	}

	request.Header.Set("Accept", string(types.OCIImageIndex))

	response, err := (&http.Client{Transport: session}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()

	// What registries say that do not know of referrers.
	unknown := []int{
		http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusNotImplemented,
	}
	mediaType, _, _ := strings.Cut(response.Header.Get("Content-Type"), ";")

	if slices.Contains(unknown, response.StatusCode) ||
		response.StatusCode == http.StatusOK && mediaType != string(types.OCIImageIndex) {
		return nil, &Error{Kind: ErrNotFound, Subject: address.Path, Detail: "the registry lists no referrers"}
	}

	if err := transport.CheckError(response, http.StatusOK); err != nil {
		return nil, err
	}

	index, err := v1.ParseIndexManifest(response.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the referrers: %w", err)
	}

	return index.Manifests, nil
}

// Add pushes an update. Where the registry lists no referrers, the fallback tag's list is changed instead.
func (r *registrySignatures) Add(ctx context.Context, update trust.Update) error {
	host, err := r.client.pushTarget(r.repository.Registry)
	if err != nil {
		return err
	}

	local := host.repository(r.repository)

	return r.client.retry.do(ctx, "signatures in "+r.repository.Name(), func(ctx context.Context) error {
		return host.authorized(ctx, r.client.keychain, local, []string{local.Scope(transport.PushScope)},
			func(session http.RoundTripper) error { return pushUpdate(ctx, session, local, update) })
	})
}

func pushUpdate(ctx context.Context, session http.RoundTripper, repository name.Repository, update trust.Update) error {
	options := []remote.Option{remote.WithContext(ctx), remote.WithTransport(session)}

	for _, blob := range update.Blobs {
		if err := remote.WriteLayer(repository, static.NewLayer(blob.Bytes, blob.Descriptor.MediaType), options...); err != nil {
			return err
		}
	}

	for _, manifest := range update.Manifests {
		var reference name.Reference = repository.Digest(manifest.Descriptor.Digest.String())
		if manifest.Tag != "" {
			reference = repository.Tag(manifest.Tag)
		}

		if err := remote.Put(reference, updatedManifest{manifest}, options...); err != nil {
			return err
		}
	}

	return nil
}

// updatedManifest is a manifest as the registry library pushes it.
type updatedManifest struct {
	manifest trust.NewManifest
}

func (r updatedManifest) RawManifest() ([]byte, error) { return r.manifest.Bytes, nil }

// MediaType makes the library send it.
func (r updatedManifest) MediaType() (types.MediaType, error) {
	return r.manifest.Descriptor.MediaType, nil
}
