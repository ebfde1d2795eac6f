package osimage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// folderStore is an OCI layout folder.
type folderStore struct {
	dir string
	// writing is nil for a source and for a dry run.
	writing *folder

	mutex sync.Mutex
	// subjects are the referrers by their subject, read once.
	subjects map[string][]v1.Descriptor
}

var _ store = (*folderStore)(nil)

func openFolderSource(ctx context.Context, from Location) (store, string, error) {
	result := &folderStore{dir: from.Dir}

	if from.Tag != "" {
		return result, from.Tag, nil
	}

	entry, err := findInLayout(ctx, from.Dir, "")
	if err != nil {
		return nil, "", err
	}

	return result, cmp.Or(entry.Annotations[refNameAnnotation], entry.Digest.String()), nil
}

// openFolderTarget makes the folder a layout, and keeps others from writing to it. A dry run changes nothing.
func openFolderTarget(to Location, dryRun bool) (store, string, error) {
	if isDigest(to.Tag) {
		return nil, "", invalid(to.String(), "a digest cannot be chosen for a copy", "name a tag, as FOLDER:TAG")
	}

	result := &folderStore{dir: to.Dir}

	if dryRun {
		return result, to.Tag, nil
	}

	writing, err := openFolder(to.Dir)
	if err != nil {
		return nil, "", err
	}

	result.writing = writing

	return result, to.Tag, nil
}

func (f *folderStore) close() error {
	if f.writing == nil {
		return nil
	}

	return f.writing.close()
}

func (f *folderStore) source() blobs { return layoutBlobs{f.dir} }

func (f *folderStore) blobName(digest string) string { return blobPath(f.dir, digest) }

func (f *folderStore) reference(digest string) string {
	return f.dir + "@" + digest
}

func (f *folderStore) manifest(_ context.Context, tagOrDigest string) (copiedManifest, error) {
	index, err := readIndex(f.dir)
	if err != nil {
		// A target of a dry run need not be there.
		return copiedManifest{}, err
	}

	entry, listed := entryOf(index, tagOrDigest)
	if listed {
		return f.listed(entry)
	}

	entry.Digest, err = v1.NewHash(tagOrDigest)
	if err != nil {
		return copiedManifest{}, f.missing(tagOrDigest)
	}

	return f.listed(entry)
}

// listed reads the manifest of an entry.
func (f *folderStore) listed(entry v1.Descriptor) (copiedManifest, error) {
	digest := entry.Digest.String()
	if entry.Digest.Hex == "" {
		return copiedManifest{}, f.missing(digest)
	}

	data, err := readFile(blobPath(f.dir, digest), maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return copiedManifest{}, f.missing(digest)
	}

	if err != nil {
		return copiedManifest{}, fmt.Errorf("reading a manifest: %w", err)
	}

	if got := digestOfBytes(data); got != digest {
		return copiedManifest{}, wrongDigest(blobPath(f.dir, digest), "file", got, digest)
	}

	return copiedManifest{digest: digest, mediaType: mediaTypeOf(data, entry), data: data, platform: entry.Platform}, nil
}

func (f *folderStore) missing(tagOrDigest string) error {
	return &Error{
		Kind: ErrNotFound, Subject: f.dir, Detail: fmt.Sprintf("it has no %q", tagOrDigest),
		Fix: "name what is in it, as FOLDER:TAG",
	}
}

// mediaTypeOf is what the manifest says of itself, or else the index of it, or else what a manifest is most often.
func mediaTypeOf(data []byte, entry v1.Descriptor) types.MediaType {
	var contents struct {
		MediaType types.MediaType `json:"mediaType"`
		Manifests []any           `json:"manifests"`
	}

	// What cannot be read is refused by whoever reads it for more than its type.
	_ = json.Unmarshal(data, &contents)

	switch {
	case contents.MediaType != "":
		return contents.MediaType
	case entry.MediaType != "":
		return entry.MediaType
	case contents.Manifests != nil:
		return types.OCIImageIndex
	default:
		return types.OCIManifestSchema1
	}
}

// referrers are the entries of the index whose manifests have the digest as their subject.
func (f *folderStore) referrers(ctx context.Context, digest string) ([]v1.Descriptor, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()

	if f.subjects != nil {
		return f.subjects[digest], nil
	}

	index, err := readIndex(f.dir)
	if err != nil {
		return nil, err
	}

	subjects := map[string][]v1.Descriptor{}

	for _, entry := range index.Manifests {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}

		if subject := f.subjectOf(entry); subject != "" {
			subjects[subject] = append(subjects[subject], entry)
		}
	}

	f.subjects = subjects

	return f.subjects[digest], nil
}

// subjectOf is what a manifest refers to. One that cannot be read refers to nothing: it may belong to something else.
func (f *folderStore) subjectOf(entry v1.Descriptor) string {
	manifest, err := f.listed(entry)
	if err != nil {
		return ""
	}

	contents, err := readManifest(manifest)
	if err != nil || contents.Subject == nil {
		return ""
	}

	return contents.Subject.Digest.String()
}

func (f *folderStore) hasManifest(ctx context.Context, digest, tag string, listed bool) (bool, error) {
	_, err := f.manifest(ctx, digest)

	switch {
	case errors.Is(err, ErrNotFound) || errors.Is(err, ErrWrongDigest):
		// A damaged one is written anew.
		return false, nil
	case err != nil || tag == "" && !listed:
		return err == nil, err
	}

	index, err := readIndex(f.dir)
	if err != nil {
		return false, err
	}

	return slices.ContainsFunc(index.Manifests, func(entry v1.Descriptor) bool {
		return entry.Digest.String() == digest && entry.Annotations[refNameAnnotation] == tag
	}), nil
}

// hasBlob reads the blob: its name and size say nothing about its bytes.
func (f *folderStore) hasBlob(ctx context.Context, blob v1.Descriptor) (bool, error) {
	path := blobPath(f.dir, blob.Digest.String())

	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (info.Size() != blob.Size || !info.Mode().IsRegular()) {
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("looking at a blob: %w", err)
	}

	digest, err := digestOfFile(ctx, path)
	if err != nil {
		return false, fmt.Errorf("reading a blob: %w", err)
	}

	return digest == blob.Digest.String(), nil
}

func (f *folderStore) putManifest(_ context.Context, manifest copiedManifest, tag string, listed bool) error {
	digest, err := f.writing.writeBlob(manifest.data)
	if err != nil {
		return err
	}

	// Others are found through what names them.
	if tag == "" && !listed {
		return nil
	}

	contents, err := readManifest(manifest)
	if err != nil {
		return err
	}

	entry := v1.Descriptor{
		MediaType: manifest.mediaType, ArtifactType: contents.ArtifactType, Digest: digest, Size: int64(len(manifest.data)),
		Platform: manifest.platform,
	}

	if tag != "" {
		entry.Annotations = map[string]string{refNameAnnotation: tag}
	}

	return f.writing.addEntry(entry)
}
