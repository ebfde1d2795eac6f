package osimage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/trust"
)

// Bounds of what is copied: a registry need not take larger manifests (OCI distribution-spec), and the largest indexes
// that are known, with all flavors of an operating system, have some hundreds of manifests.
const (
	maxManifest  = 4 << 20
	maxManifests = 4096
	// maxManifestBytes bounds the memory that all manifests together take.
	maxManifestBytes = 64 << 20
	// maxNesting is that of indexes in indexes, and of what is attached to what is attached.
	maxNesting = 4
)

// copiedManifest is a manifest of any kind as it is in a store.
type copiedManifest struct {
	digest    string
	mediaType types.MediaType
	data      []byte
	// platform is what an index says of it.
	platform *v1.Platform
}

// contents are the fields of all kinds of manifests and indexes that name other things.
type manifestContents struct {
	MediaType    types.MediaType `json:"mediaType"`
	ArtifactType string          `json:"artifactType"`
	Config       *v1.Descriptor  `json:"config"`
	Layers       []v1.Descriptor `json:"layers"`
	// Blobs is that of the artifact manifest of OCI 1.1's release candidates.
	Blobs     []v1.Descriptor `json:"blobs"`
	Manifests []v1.Descriptor `json:"manifests"`
	Subject   *v1.Descriptor  `json:"subject"`
}

// copyNode is a manifest to be put after those before it.
type copyNode struct {
	manifest copiedManifest
	// blobs are those that no node before it names.
	blobs []v1.Descriptor
	// tag is that of something attached by tag. What is listed has no other that names it.
	tag    string
	listed bool
	// image tells that it is an OS image.
	image bool
}

// copyPlan collects what belongs to an artifact.
type copyPlan struct {
	from  store
	nodes []copyNode
	// seen are the manifests, and blobs the blobs, that are in nodes already.
	seen, blobs map[string]bool
	bytes       int64
	attached    int
	// chosenFrom is the digest of the index that the root was chosen from.
	chosenFrom string
}

func newCopyPlan(from store) *copyPlan {
	return &copyPlan{from: from, seen: map[string]bool{}, blobs: map[string]bool{}}
}

// root finds what is copied: what the source names, or the manifest of an index that is for an architecture.
func (p *copyPlan) root(ctx context.Context, tagOrDigest, architecture string) (copiedManifest, error) {
	root, err := p.from.manifest(ctx, tagOrDigest)
	if err != nil || architecture == "" {
		return root, err
	}

	contents, err := readManifest(root)
	if err != nil {
		return copiedManifest{}, err
	}

	if !isIndex(root.mediaType, contents) {
		return root, p.checkArchitecture(ctx, root, contents, architecture)
	}

	var found []v1.Descriptor

	for _, entry := range contents.Manifests {
		if entry.Platform != nil && entry.Platform.Architecture == architecture {
			found = append(found, entry)
		}
	}

	subject := p.from.reference(root.digest)

	switch len(found) {
	case 1:
		child, err := p.from.manifest(ctx, found[0].Digest.String())
		child.platform, p.chosenFrom = found[0].Platform, root.digest

		return child, err
	case 0:
		return copiedManifest{}, wrongArchitecture(subject, architecturesOf(contents.Manifests), architecture)
	default:
		return copiedManifest{}, invalid(subject, fmt.Sprintf("the index has %d manifests for %s", len(found), architecture),
			"copy all of it without --arch, or name the one by its digest")
	}
}

// checkArchitecture refuses a single image for others. What a manifest is made for is known only of our own.
func (p *copyPlan) checkArchitecture(
	ctx context.Context, root copiedManifest, contents manifestContents, architecture string,
) error {
	if contents.ArtifactType != ArtifactType {
		return nil
	}

	image := &Image{reference: p.from.reference(root.digest), manifest: root.data, blobs: p.from.source()}
	if err := image.load(ctx, nil); err != nil {
		return err
	}

	if image.config.Architecture != architecture {
		return wrongArchitecture(image.reference, image.config.Architecture, architecture)
	}

	return nil
}

// add puts a manifest into the plan, after what it names and before what is attached to it.
func (p *copyPlan) add(ctx context.Context, manifest copiedManifest, tag string, depth int) error {
	if p.seen[manifest.digest] {
		return nil
	}

	subject := p.from.reference(manifest.digest)

	switch p.bytes += int64(len(manifest.data)); {
	case depth > maxNesting:
		return notAnArtifact(subject, fmt.Sprintf("it is nested more than %d deep", maxNesting))
	case len(p.seen) == maxManifests || p.bytes > maxManifestBytes:
		return notAnArtifact(subject, fmt.Sprintf("it has more than %d manifests or %d bytes of them", maxManifests, maxManifestBytes))
	}

	p.seen[manifest.digest] = true

	contents, err := readManifest(manifest)
	if err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}

	for _, child := range contents.Manifests {
		if child.Digest.Hex == "" {
			return notAnArtifact(subject, "it names a manifest without a digest")
		}

		found, err := p.from.manifest(ctx, child.Digest.String())
		if err != nil {
			return err
		}

		if err := p.add(ctx, found, "", depth+1); err != nil {
			return err
		}
	}

	node, err := p.node(manifest, contents)
	if err != nil {
		return err
	}

	node.tag = tag

	// Before what is attached to it: a registry may refuse a referrer of what it does not have.
	p.nodes = append(p.nodes, node)

	return p.addAttached(ctx, manifest.digest, depth)
}

// node is a manifest with those of its blobs that are not in the plan yet.
func (p *copyPlan) node(manifest copiedManifest, contents manifestContents) (copyNode, error) {
	result := copyNode{manifest: manifest, listed: contents.Subject != nil, image: contents.ArtifactType == ArtifactType}

	if manifest.mediaType == "" {
		result.manifest.mediaType = contents.MediaType
	}

	all := slices.Concat(contents.Layers, contents.Blobs)
	if contents.Config != nil {
		all = append(all, *contents.Config)
	}

	for _, blob := range all {
		if blob.Size < 0 || blob.Digest.Hex == "" {
			return copyNode{}, notAnArtifact(p.from.reference(manifest.digest),
				fmt.Sprintf("the blob %q has %d bytes, want a digest and 0 or more bytes", blob.Digest, blob.Size))
		}

		// What may not be distributed has an address of its own, and is not in the registry.
		if digest := blob.Digest.String(); !p.blobs[digest] && len(blob.URLs) == 0 {
			p.blobs[digest] = true
			result.blobs = append(result.blobs, blob)
		}
	}

	return result, nil
}

// checkImages makes sure that there is an image, and that each is one of ours with all that its config says.
func (p *copyPlan) checkImages(ctx context.Context, root copiedManifest) error {
	found := false

	for _, node := range p.nodes {
		if !node.image {
			continue
		}

		image := &Image{
			reference: p.from.reference(node.manifest.digest), manifest: node.manifest.data, blobs: p.from.source(),
		}
		if err := image.load(ctx, nil); err != nil {
			return err
		}

		found = true
	}

	if !found {
		return notAnImage(p.from.reference(root.digest), "nothing in it has the artifactType "+ArtifactType, nil)
	}

	return nil
}

// addAttached adds what refers to a manifest, by tag or as its subject.
func (p *copyPlan) addAttached(ctx context.Context, digest string, depth int) error {
	for _, suffix := range []string{".sig", ".att", ".sbom"} {
		tag := trust.ReferrersTag(digest) + suffix

		found, err := p.from.manifest(ctx, tag)
		if errors.Is(err, ErrNotFound) {
			continue
		}

		if err != nil {
			return err
		}

		p.attached++

		if err := p.add(ctx, found, tag, depth+1); err != nil {
			return err
		}
	}

	referrers, err := p.from.referrers(ctx, digest)
	if err != nil {
		return err
	}

	for _, referrer := range referrers {
		if p.seen[referrer.Digest.String()] || referrer.Digest.Hex == "" {
			continue
		}

		found, err := p.from.manifest(ctx, referrer.Digest.String())
		if err != nil {
			return err
		}

		p.attached++

		if err := p.add(ctx, found, "", depth+1); err != nil {
			return err
		}
	}

	return nil
}

// readManifest reads what a manifest names. A v1.Hash that was read has only hexadecimal digits.
func readManifest(manifest copiedManifest) (manifestContents, error) {
	var contents manifestContents

	if err := json.Unmarshal(manifest.data, &contents); err != nil {
		return manifestContents{}, &Error{
			Kind: ErrNotAnImage, Subject: manifest.digest, Detail: "the manifest cannot be read", Err: err,
			Fix: "check that this is an OCI artifact",
		}
	}

	if manifest.mediaType.IsSchema1() || contents.Config == nil && contents.Layers == nil && contents.Blobs == nil &&
		contents.Manifests == nil {
		return manifestContents{}, notAnArtifact(manifest.digest, "it names neither blobs nor manifests")
	}

	return contents, nil
}

// mergeSignatures adds those layers of one signature manifest that another one lacks to it. Signatures of the same payload
// are layers with the same digest and other annotations. It tells false when there are none.
func mergeSignatures(theirs, ours copiedManifest) (copiedManifest, bool, error) {
	base, err := v1.ParseManifest(bytes.NewReader(theirs.data))
	if err != nil {
		return copiedManifest{}, false, notAnArtifact(theirs.digest, "the target's signatures cannot be read")
	}

	added, err := v1.ParseManifest(bytes.NewReader(ours.data))
	if err != nil {
		return copiedManifest{}, false, notAnArtifact(ours.digest, "the signatures cannot be read")
	}

	onlyTheirs := lacking(base.Layers, added.Layers)
	missing := lacking(added.Layers, base.Layers)

	switch {
	case len(onlyTheirs) == 0 && len(missing) > 0:
		return ours, true, nil
	case len(missing) == 0:
		return theirs, false, nil
	}

	base.Layers = append(base.Layers, missing...)

	data, err := json.Marshal(base)
	if err != nil {
		return copiedManifest{}, false, fmt.Errorf("merging signatures: %w", err)
	}

	return copiedManifest{digest: digestOfBytes(data), mediaType: theirs.mediaType, data: data}, true, nil
}

// lacking are the layers that others do not have.
func lacking(layers, others []v1.Descriptor) []v1.Descriptor {
	var result []v1.Descriptor

	for _, layer := range layers {
		if !slices.ContainsFunc(others, func(other v1.Descriptor) bool {
			return other.Digest == layer.Digest && maps.Equal(other.Annotations, layer.Annotations)
		}) {
			result = append(result, layer)
		}
	}

	return result
}

func isIndex(mediaType types.MediaType, contents manifestContents) bool {
	return mediaType.IsIndex() || contents.MediaType.IsIndex() || len(contents.Manifests) > 0
}

func notAnArtifact(subject, detail string) error {
	return &Error{Kind: ErrNotAnImage, Subject: subject, Detail: detail, Fix: "check that this is an OCI artifact"}
}

// isDigest tells a digest from a tag, which cannot have a ':'.
func isDigest(tagOrDigest string) bool {
	return strings.Contains(tagOrDigest, ":")
}
