package osimage

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/hosts"
	"github.com/stayput-dev/stayput/osimage/trust"
)

// Client speaks to registries. It is safe for concurrent use.
type Client struct {
	keychain     authn.Keychain
	roots        *x509.CertPool
	plainHTTP    bool
	architecture string
	retry        Retry
	stallAfter   time.Duration
	count        func(n int64)
	notice       func(cause error, pause time.Duration)
	proxy        func(*url.URL) (*url.URL, error)
	limit        int64
	hostsDir     string
	hostsWarning func(text string)
	now          func() time.Time
	network      *network
	foreign      []Foreign
	policy       trust.Policy

	mutex sync.Mutex
	// places are the hosts of each registry that was asked.
	places map[string]*place
}

// Resolved is what a reference means at this moment.
type Resolved struct {
	// Reference names exactly this image: "repository@sha256:…".
	Reference string
	// Digest is the digest of its manifest.
	Digest string
	// Config is its validated config.
	Config Config
	// Signature tells what was verified of its signatures; see WithTrust.
	Signature trust.Result
}

// NewClient makes a client. Without options it trusts the system's certificate authorities, has no credentials,
// refuses plain HTTP, and tries a broken transfer 8 times in about two minutes.
func NewClient(options ...Option) (*Client, error) {
	client := &Client{
		keychain:   anonymous{},
		retry:      defaultRetry(),
		stallAfter: defaultStallAfter,
		count:      func(int64) {},
		now:        time.Now,
		places:     map[string]*place{},
	}

	for _, option := range options {
		if err := option(client); err != nil {
			return nil, err
		}
	}

	client.retry.notice = client.notice
	client.network = &network{stallAfter: client.stallAfter, count: client.count, proxy: client.proxy}

	if client.proxy == nil {
		var err error

		client.network.proxy, err = proxyFromEnvironment()
		if err != nil {
			return nil, err
		}
	}

	if client.limit > 0 {
		client.network.in, client.network.out = newLimiter(client.limit), newLimiter(client.limit)
	}

	return client, nil
}

// Resolve finds the digest and the config of a reference, "repository:tag" or "repository@sha256:…". A reference to an
// index is resolved to its image of the client's architecture.
func (c *Client) Resolve(ctx context.Context, reference string) (Resolved, error) {
	image, err := c.Image(ctx, reference)
	if err != nil {
		return Resolved{}, err
	}

	return Resolved{
		Reference: image.reference, Digest: image.digest, Config: image.config, Signature: image.signature,
	}, nil
}

// Image resolves a reference like Resolve and gives access to the image's contents.
func (c *Client) Image(ctx context.Context, reference string) (*Image, error) {
	return c.image(ctx, reference, c.architecture)
}

// image is that of an architecture, "" for what this machine is in an index, and for any elsewhere.
func (c *Client) image(ctx context.Context, reference, architecture string) (*Image, error) {
	parsed, err := c.parse(reference)
	if err != nil {
		return nil, err
	}

	descriptor, err := c.get(ctx, parsed)
	if err != nil {
		return nil, err
	}

	digests, chosenFrom := []string{descriptor.Digest.String()}, ""

	if descriptor.MediaType == types.OCIImageIndex {
		parsed, descriptor, err = c.fromIndex(ctx, parsed, descriptor, cmp.Or(architecture, runtime.GOARCH))
		if err != nil {
			return nil, err
		}

		chosenFrom = digests[0]
		digests = append(digests, descriptor.Digest.String())
	}

	signature, err := verifySignature(ctx, reference, &registrySignatures{c, parsed.Context()}, c.policy, digests...)
	if err != nil {
		return nil, err
	}

	source, err := c.blobsOf(parsed.Context())
	if err != nil {
		return nil, err
	}

	image := &Image{
		reference: parsed.Context().Name() + "@" + descriptor.Digest.String(),
		digest:    descriptor.Digest.String(), chosenFrom: chosenFrom, manifest: descriptor.Manifest, blobs: source,
		signature: signature,
	}

	if err := image.load(ctx, c.foreign); err != nil {
		return nil, err
	}

	if architecture != "" && image.config.Architecture != architecture {
		return nil, wrongArchitecture(reference, image.config.Architecture, architecture)
	}

	return image, nil
}

// parse reads a reference. Without a tag or digest it is refused: "latest" is not a version to put on machines.
func (c *Client) parse(reference string) (name.Reference, error) {
	options := []name.Option{name.StrictValidation}
	if c.plainHTTP {
		options = append(options, name.Insecure)
	}

	// As name.ParseReference does, but its errors do not say what is wrong.
	var (
		parsed name.Reference
		err    error
	)

	if strings.Contains(reference, "@") {
		parsed, err = name.NewDigest(reference, options...)
	} else {
		parsed, err = name.NewTag(reference, options...)
	}

	if err == nil {
		return parsed, nil
	}

	shown, secret := withoutUserInfo(reference)
	result := &Error{
		Kind: ErrInvalid, Subject: fmt.Sprintf("image reference %q", shown), Err: err,
		Fix: "write it as registry/repository:tag or registry/repository@sha256:…",
	}

	if secret {
		// The cause may have it, too.
		result.Err = nil
		result.Detail = "it has a name or a password in it"
		result.Fix = "leave out what is before the @: credentials belong into the docker config; " + result.Fix
	}

	return nil, result
}

// withoutUserInfo takes out what a person may have written before an @ that begins no digest, as in a URL.
func withoutUserInfo(reference string) (shown string, had bool) {
	rest, digest, _ := strings.Cut(reference, "@sha256:")
	if digest != "" {
		digest = "@sha256:" + digest
	}

	at := strings.LastIndex(rest, "@")
	if at < 0 {
		return reference, false
	}

	return "…" + rest[at:] + digest, true
}

// get fetches the manifest of a reference from the first host that has it.
func (c *Client) get(ctx context.Context, reference name.Reference) (*remote.Descriptor, error) {
	place, err := c.placeOf(reference.Context().Registry)
	if err != nil {
		return nil, err
	}

	// Whoever is asked for a tag decides what it means; what a digest means is checked.
	need := hosts.Resolve
	if _, ok := reference.(name.Digest); ok {
		need = hosts.Pull
	}

	var descriptor *remote.Descriptor

	err = c.retry.do(ctx, reference.Name(), func(ctx context.Context) error {
		return place.each(ctx, reference.Name(), need, func(host *endpoint) error {
			return host.reading(ctx, c.keychain, reference.Context(),
				func(local name.Repository, session http.RoundTripper) (err error) {
					descriptor, err = getManifest(ctx, session, local, reference)

					return err
				})
		})
	})

	return descriptor, err
}

// getManifest fetches the manifest of a reference from where a host has its repository.
func getManifest(
	ctx context.Context, session http.RoundTripper, local name.Repository, reference name.Reference,
) (*remote.Descriptor, error) {
	descriptor, err := remote.Get(within(local, reference.Identifier()), remote.WithContext(ctx), remote.WithTransport(session))
	if err != nil {
		return nil, err
	}

	return descriptor, checkManifest(reference.Name(), descriptor)
}

// within names a tag or a digest of a repository.
func within(repository name.Repository, tagOrDigest string) name.Reference {
	if isDigest(tagOrDigest) {
		return repository.Digest(tagOrDigest)
	}

	return repository.Tag(tagOrDigest)
}

// fromIndex picks the image of the wanted architecture.
func (c *Client) fromIndex(
	ctx context.Context, reference name.Reference, index *remote.Descriptor, wanted string,
) (name.Reference, *remote.Descriptor, error) {
	var manifest v1.IndexManifest

	if err := json.Unmarshal(index.Manifest, &manifest); err != nil {
		return nil, nil, notAnImage(reference.Name(), "the index cannot be read", err)
	}

	chosen, found, err := c.chooseForeign(reference.Name(), &manifest, wanted)
	if !found && err == nil {
		chosen, err = chooseFromIndex(reference.Name(), manifest, wanted)
	}

	if err != nil {
		return nil, nil, err
	}

	digest := reference.Context().Digest(chosen.Digest.String())

	descriptor, err := c.get(ctx, digest)
	if err != nil {
		return nil, nil, err
	}

	return digest, descriptor, nil
}

// chooseFromIndex finds the only image of ours in an index that has the wanted architecture.
func chooseFromIndex(subject string, index v1.IndexManifest, wanted string) (v1.Descriptor, error) {
	var found, others []v1.Descriptor

	for _, entry := range index.Manifests {
		switch {
		case entry.ArtifactType != ArtifactType:
		case entry.Platform != nil && entry.Platform.Architecture == wanted:
			found = append(found, entry)
		default:
			others = append(others, entry)
		}
	}

	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return v1.Descriptor{}, notAnImage(subject, fmt.Sprintf("the index has %d images for %s", len(found), wanted), nil)
	case len(others) > 0:
		return v1.Descriptor{}, wrongArchitecture(subject, architecturesOf(others), wanted)
	default:
		return v1.Descriptor{}, notAnImage(subject, "the index has no entry with artifactType "+ArtifactType, nil)
	}
}

func architecturesOf(entries []v1.Descriptor) string {
	text := ""

	for _, entry := range entries {
		if text != "" {
			text += ", "
		}

		if entry.Platform == nil {
			text += "(no platform)"
		} else {
			text += entry.Platform.Architecture
		}
	}

	return text
}

func wrongArchitecture(subject, got, want string) error {
	return &Error{
		Kind: ErrWrongArchitecture, Subject: subject,
		Detail: fmt.Sprintf("it is made for %s, want %s", got, want),
		Fix:    "use an image built for " + want,
	}
}

func notAnImage(subject, detail string, cause error) error {
	return &Error{
		Kind: ErrNotAnImage, Subject: subject, Detail: detail, Err: cause,
		Fix: "images are made with `stayput image build`",
	}
}
