package osimage

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/trust"
)

// Release is what a reference means at this moment for machines of any architecture.
type Release struct {
	// Reference names exactly this image, or this index of images: "repository@sha256:…". Digest is its digest.
	Reference, Digest string
	// Name and Version are those of the image, or of each in the index.
	Name, Version string
	// Architectures have an image, as GOARCH, in lexical order.
	Architectures []string
	// Signature tells what was verified of its signatures, of the first architecture for an index; see WithTrust.
	Signature trust.Result
}

// Release resolves a reference for machines of any architecture, whatever WithArchitecture says. An index of images of ours
// stays an index, from which each machine takes its own image. All of them must have the same name and version, and be
// allowed by the policy; a signature over the index is one over each.
func (c *Client) Release(ctx context.Context, reference string) (Release, error) {
	parsed, err := c.parse(reference)
	if err != nil {
		return Release{}, err
	}

	descriptor, err := c.get(ctx, parsed)
	if err != nil {
		return Release{}, err
	}

	result := Release{Digest: descriptor.Digest.String()}
	// What the tag means is not asked again.
	result.Reference = parsed.Context().Name() + "@" + result.Digest

	result.Architectures, err = architecturesIn(reference, descriptor)
	if err != nil {
		return Release{}, err
	}

	if len(result.Architectures) == 0 {
		return c.releaseOf(ctx, result.Reference)
	}

	for number, architecture := range result.Architectures {
		image, err := c.image(ctx, result.Reference, architecture)
		if err != nil {
			return Release{}, err
		}

		config := image.config
		if number == 0 {
			result.Name, result.Version, result.Signature = config.Name, config.Version, image.signature
		}

		if config.Name != result.Name || config.Version != result.Version {
			return Release{}, &Error{
				Kind: ErrNotAnImage, Subject: reference,
				Detail: fmt.Sprintf("its image for %s is %s, that for %s is %s_%s", architecture, config.Label(),
					result.Architectures[0], result.Name, result.Version),
				Fix: "publish images of one name and version under one tag",
			}
		}
	}

	return result, nil
}

// releaseOf is a release of one image: no index, or one of others.
func (c *Client) releaseOf(ctx context.Context, reference string) (Release, error) {
	image, err := c.image(ctx, reference, c.architecture)
	if err != nil {
		return Release{}, err
	}

	return Release{
		Reference: image.reference, Digest: image.digest, Name: image.config.Name, Version: image.config.Version,
		Architectures: []string{image.config.Architecture}, Signature: image.signature,
	}, nil
}

// architecturesIn are those of our images in an index, none when it is no index or has none of ours.
func architecturesIn(subject string, descriptor *remote.Descriptor) ([]string, error) {
	if descriptor.MediaType != types.OCIImageIndex {
		return nil, nil
	}

	var index v1.IndexManifest
	if err := json.Unmarshal(descriptor.Manifest, &index); err != nil {
		return nil, notAnImage(subject, "the index cannot be read", err)
	}

	var result []string

	for _, entry := range index.Manifests {
		if entry.ArtifactType == ArtifactType && entry.Platform != nil {
			result = append(result, entry.Platform.Architecture)
		}
	}

	slices.Sort(result)

	return slices.Compact(result), nil
}
