package osimage

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"
)

// copyParallel is the number of blobs that are copied at the same time.
const copyParallel = 3

// Location is where an artifact is or shall be: in an OCI layout folder, or in a registry.
type Location struct {
	// Dir is the folder; empty means a registry.
	Dir string
	// Tag is a tag or a digest in the folder. As a source it may be empty when the folder has one artifact, as a target it
	// is the source's when empty.
	Tag string
	// Reference is "registry/repository:tag" or "registry/repository@sha256:…".
	Reference string
}

func (l Location) String() string {
	switch {
	case l.Dir == "":
		return l.Reference
	case l.Tag == "":
		return l.Dir
	case isDigest(l.Tag):
		return l.Dir + "@" + l.Tag
	default:
		return l.Dir + ":" + l.Tag
	}
}

// CopyOptions say what is copied, and how.
type CopyOptions struct {
	// Architecture copies only the manifest of an index that is for this GOARCH; empty copies all. The target's tag then
	// names that manifest, not the index.
	Architecture string
	// DryRun finds out what would be copied, and copies nothing.
	DryRun bool
	// Images refuses what holds no OS image, and images that are not as they should be, before anything is copied.
	Images bool
	// Progress, when set, is called with the bytes of the blobs that are copied. It is called from several goroutines, one
	// at a time.
	Progress func(done, total int64)
}

// Copied is what a copy did, or would do.
type Copied struct {
	// Reference names exactly the copy, and Digest its manifest or index.
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	// Manifests and Blobs were copied, Bytes are those of the blobs. What was there already is in Present.
	Manifests int   `json:"manifests"`
	Blobs     int   `json:"blobs"`
	Bytes     int64 `json:"bytes"`
	// PresentManifests and PresentBytes were there already, and were left alone.
	PresentManifests int   `json:"presentManifests"`
	PresentBytes     int64 `json:"presentBytes"`
	// Attached is the number of manifests that refer to others: signatures, attestations and the like.
	Attached int `json:"attached"`
	// ChosenFrom is the digest of the index that the copied manifest was chosen from, "" when there was none. What is
	// attached to that index was not copied.
	ChosenFrom string `json:"chosenFrom,omitempty"`
	// Unasked tells that the source's registry could not be reached to ask what is attached: only what its mirrors know of
	// was copied.
	Unasked bool `json:"unasked,omitempty"`
}

// store is one side of a copy. What it does not have is ErrNotFound.
type store interface {
	// manifest reads a manifest; one that is asked for by digest has that digest.
	manifest(ctx context.Context, tagOrDigest string) (copiedManifest, error)
	// referrers lists the manifests with this subject.
	referrers(ctx context.Context, digest string) ([]v1.Descriptor, error)
	// source gives the bytes of blobs, unverified, and blobName says where a person finds one.
	source() blobs
	blobName(digest string) string
	// hasManifest tells whether a manifest is there, under the tag when there is one. Listed is for those that nothing else
	// names: a folder lists them in its index.
	hasManifest(ctx context.Context, digest, tag string, listed bool) (bool, error)
	hasBlob(ctx context.Context, blob v1.Descriptor) (bool, error)
	// putBlob takes a blob from another store, and refuses bytes that do not have its digest. Progress is told how many
	// bytes of it are there.
	putBlob(ctx context.Context, blob v1.Descriptor, from store, progress func(done int64)) error
	// putManifest is for a manifest whose blobs, or manifests, are there. Without a tag it is found by its digest.
	putManifest(ctx context.Context, manifest copiedManifest, tag string, listed bool) error
	// reference names a manifest in it.
	reference(digest string) string
	close() error
}

// Copy copies an artifact between registries and OCI layout folders, in any direction, with everything that belongs to
// it: an index with all its manifests, their blobs, and what is attached to each: cosign's signatures and attestations by
// tag, and the referrers of OCI 1.1. It takes any artifact, not only OS images, and keeps every digest bit for bit.
//
// Blobs and manifests that the target has are not copied again, and blobs of another repository of the same registry are
// mounted. Each digest is verified. The tag comes last, so whoever sees it sees all of it, with its signatures. It is
// safe to call again after a failure; blobs in a folder go on at the byte, others at the blob. Memory does not grow with
// the size of blobs.
func (c *Client) Copy(ctx context.Context, from, to Location, options CopyOptions) (Copied, error) {
	source, start, err := c.openSource(ctx, from)
	if err != nil {
		return Copied{}, err
	}

	plan := newCopyPlan(source)

	root, err := plan.root(ctx, start, options.Architecture)
	if err != nil {
		return Copied{}, fmt.Errorf("reading what is to be copied: %w", err)
	}

	if to.Dir != "" && to.Tag == "" && !isDigest(start) {
		to.Tag = start
	}

	return c.copyRoot(ctx, plan, root, to, options)
}

// copyRoot copies a manifest with everything that belongs to it.
func (c *Client) copyRoot(
	ctx context.Context, plan *copyPlan, root copiedManifest, to Location, options CopyOptions,
) (result Copied, err error) {
	target, tag, err := c.openTarget(to, root.digest, options.DryRun)
	if err != nil {
		return Copied{}, err
	}

	defer func() { err = errors.Join(err, target.close()) }()

	err = plan.add(ctx, root, "", 0)
	if err == nil && options.Images {
		err = plan.checkImages(ctx, root)
	}

	if err != nil {
		return Copied{}, fmt.Errorf("reading what is to be copied: %w", err)
	}

	run := &copyRun{plan: plan, to: target, options: options}

	if err := run.all(ctx, root, tag); err != nil {
		return Copied{}, fmt.Errorf("copying: %w", err) // the cause names the repository, or a file of the folder
	}

	run.result.Reference, run.result.Digest = target.reference(root.digest), root.digest
	run.result.Attached, run.result.ChosenFrom = plan.attached, plan.chosenFrom

	if registry, ok := plan.from.(*registryStore); ok {
		run.result.Unasked = registry.silent.Load()
	}

	return run.result, nil
}

// copyRun puts a plan into effect.
type copyRun struct {
	plan    *copyPlan
	to      store
	options CopyOptions
	result  Copied

	// mutex is held while Progress is called.
	mutex sync.Mutex
	done  int64
}

func (r *copyRun) all(ctx context.Context, root copiedManifest, tag string) error {
	missing, err := r.missing(ctx)
	if err != nil {
		return err
	}

	if err := r.copyBlobs(ctx, missing); err != nil {
		return err
	}

	// The tag comes last: what it names is there then, and so are the signatures.
	var last copyNode

	for _, node := range r.plan.nodes {
		if node.manifest.digest == root.digest {
			last = node
			last.tag, last.listed = tag, true

			node.tag = ""
		}

		if err := r.copyManifest(ctx, node); err != nil {
			return err
		}
	}

	return r.nameRoot(ctx, last)
}

// nameRoot gives the copy its tag, or its place in the folder's index.
func (r *copyRun) nameRoot(ctx context.Context, root copyNode) error {
	has, err := r.to.hasManifest(ctx, root.manifest.digest, root.tag, root.listed)
	if err != nil || has || r.options.DryRun {
		return err
	}

	return r.to.putManifest(ctx, root.manifest, root.tag, root.listed)
}

// missing asks the target for each blob, so that progress knows how much there is to do.
func (r *copyRun) missing(ctx context.Context) ([]v1.Descriptor, error) {
	var (
		mutex  sync.Mutex
		result []v1.Descriptor
	)

	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(copyParallel)

	for _, node := range r.plan.nodes {
		for _, blob := range node.blobs {
			group.Go(func() error {
				has, err := r.to.hasBlob(ctx, blob)
				if err != nil {
					return err
				}

				mutex.Lock()
				defer mutex.Unlock()

				if has {
					r.result.PresentBytes += blob.Size
				} else {
					result = append(result, blob)
					r.result.Blobs++
					r.result.Bytes += blob.Size
				}

				return nil
			})
		}
	}

	return result, group.Wait()
}

func (r *copyRun) copyBlobs(ctx context.Context, blobs []v1.Descriptor) error {
	if r.options.DryRun {
		return nil
	}

	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(copyParallel)

	for _, blob := range blobs {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx) // another one failed
			}

			var before int64

			// A blob that is begun anew takes its bytes back.
			return r.to.putBlob(ctx, blob, r.plan.from, func(done int64) {
				r.progress(done - before)
				before = done
			})
		})
	}

	return group.Wait()
}

// progress counts bytes, and tells of them in their order.
func (r *copyRun) progress(more int64) {
	r.mutex.Lock()
	defer r.mutex.Unlock()

	if r.done += more; r.options.Progress != nil {
		r.options.Progress(r.done, r.result.Bytes)
	}
}

// copyManifest puts a manifest that is not there, or whose tag means another.
func (r *copyRun) copyManifest(ctx context.Context, node copyNode) error {
	has, err := r.to.hasManifest(ctx, node.manifest.digest, node.tag, node.listed)
	if err != nil {
		return err
	}

	if !has && node.tag != "" {
		node.manifest, has, err = r.withTheirs(ctx, node)
		if err != nil {
			return err
		}
	}

	if has {
		r.result.PresentManifests++

		return nil
	}

	r.result.Manifests++

	if r.options.DryRun {
		return nil
	}

	return r.to.putManifest(ctx, node.manifest, node.tag, node.listed)
}

// withTheirs keeps the signatures that are only at the target: whoever runs a registry can have signed there. It tells
// true when the target has all of the source's.
func (r *copyRun) withTheirs(ctx context.Context, node copyNode) (copiedManifest, bool, error) {
	theirs, err := r.to.manifest(ctx, node.tag)
	if errors.Is(err, ErrNotFound) {
		return node.manifest, false, nil
	}

	if err != nil {
		return copiedManifest{}, false, err
	}

	merged, changed, err := mergeSignatures(theirs, node.manifest)

	return merged, err == nil && !changed, err
}
