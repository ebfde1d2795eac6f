package osimage

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/trust"
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

	index, err := result.index()
	if err != nil {
		return nil, "", err
	}

	if from.Tag != "" {
		return result, from.Tag, nil
	}

	// What is attached to others is not meant.
	var names []string

	for _, entry := range index.Manifests {
		if name := entry.Annotations[refNameAnnotation]; !trust.IsSignatureTag(name) && result.subjectOf(ctx, entry) == "" {
			if name == "" {
				name = entry.Digest.String()
			}

			names = append(names, name)
		}
	}

	if len(names) != 1 {
		return nil, "", &Error{
			Kind: ErrNotFound, Subject: from.Dir, Detail: fmt.Sprintf("it has %d artifacts: %q", len(names), names),
			Fix: "name one of them, as FOLDER:TAG",
		}
	}

	return result, names[0], nil
}

// openFolderTarget makes the folder a layout, and keeps others from writing to it. A dry run changes nothing.
func openFolderTarget(to Location, start string, dryRun bool) (store, string, error) {
	tag := to.Tag

	if tag == "" && !isDigest(start) {
		tag = start
	}

	if isDigest(tag) {
		return nil, "", invalid(to.String(), "a digest cannot be chosen for a copy", "name a tag, as FOLDER:TAG")
	}

	result := &folderStore{dir: to.Dir}

	if dryRun {
		return result, tag, nil
	}

	writing, err := openFolder(to.Dir)
	if err != nil {
		return nil, "", err
	}

	result.writing = writing

	return result, tag, nil
}

func (f *folderStore) close() error {
	if f.writing == nil {
		return nil
	}

	return f.writing.close()
}

func (f *folderStore) source() blobs { return layoutBlobs{f.dir} }

func (f *folderStore) reference(digest string) string {
	return f.dir + "@" + digest
}

// index reads index.json, within bounds.
func (f *folderStore) index() (*v1.IndexManifest, error) {
	data, err := readFile((&folder{dir: f.dir}).path(indexFile), maxManifest)
	if err != nil {
		return nil, &Error{
			Kind: ErrNotFound, Subject: f.dir, Detail: "it is not an OCI layout folder", Err: err,
			Fix: "make one with `stayput image copy` or `stayput image build`",
		}
	}

	var index v1.IndexManifest
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, brokenIndex(f.dir, err)
	}

	return &index, nil
}

// readFile reads a small file.
func readFile(path string, limit int64) (data []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, file.Close()) }()

	data, err = io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = &Error{Kind: ErrTooLarge, Subject: path, Detail: fmt.Sprintf("at most %d bytes are read", limit), Fix: fixRebuild}
	}

	return data, err
}

func (f *folderStore) manifest(_ context.Context, tagOrDigest string) (copiedManifest, error) {
	digest := tagOrDigest

	index, err := f.index()
	if err != nil {
		// A target of a dry run need not be there.
		return copiedManifest{}, err
	}

	var entry v1.Descriptor

	for _, candidate := range index.Manifests {
		if candidate.Annotations[refNameAnnotation] == tagOrDigest || candidate.Digest.String() == tagOrDigest {
			entry, digest = candidate, candidate.Digest.String()
		}
	}

	if _, err := v1.NewHash(digest); err != nil {
		return copiedManifest{}, f.missing(tagOrDigest)
	}

	data, err := readFile(blobPath(f.dir, digest), maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return copiedManifest{}, f.missing(tagOrDigest)
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

	index, err := f.index()
	if err != nil {
		return nil, err
	}

	f.subjects = map[string][]v1.Descriptor{}

	for _, entry := range index.Manifests {
		if subject := f.subjectOf(ctx, entry); subject != "" {
			f.subjects[subject] = append(f.subjects[subject], entry)
		}
	}

	return f.subjects[digest], nil
}

// subjectOf is what a manifest refers to. One that cannot be read refers to nothing: it may belong to something else.
func (f *folderStore) subjectOf(ctx context.Context, entry v1.Descriptor) string {
	manifest, err := f.manifest(ctx, entry.Digest.String())
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

	index, err := f.index()
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
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() != blob.Size {
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

// putBlob goes on at the byte where an earlier call stopped.
func (f *folderStore) putBlob(ctx context.Context, descriptor v1.Descriptor, from store, progress func(done int64)) error {
	if descriptor.Digest.Algorithm != "sha256" {
		return invalid("blob "+descriptor.Digest.String(), "its digest is not a sha256", "only these are copied to folders")
	}

	wanted := blob{digest: descriptor.Digest.String(), size: descriptor.Size}
	wanted.subject = "blob " + from.reference(wanted.digest)
	final := blobPath(f.dir, wanted.digest)
	// As Pull names it, so that either goes on with what the other has begun.
	path := filepath.Join(filepath.Dir(final), ".partial-"+descriptor.Digest.Hex)

	for {
		err := fetchFile(ctx, from.source(), wanted, path, final, progress)
		if !errors.Is(err, ErrWrongDigest) {
			return err
		}

		source, ok := from.source().(interface{ distrustMirrors() bool })
		if !ok || !source.distrustMirrors() {
			return err
		}
	}
}

// fetchFile completes a file and gives it its final name when its digest is right. With a wrong one it is removed.
func fetchFile(ctx context.Context, from blobs, wanted blob, path, final string, progress func(int64)) (err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, blobMode)
	if err != nil {
		return fmt.Errorf("making a blob: %w", err)
	}

	defer func() { err = errors.Join(err, file.Close()) }()

	sum := &countingHash{hash: sha256.New()}

	if _, err := io.Copy(sum, readerOf(ctx, file)); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}

	// A crash can leave more than was written; what that is, is wrong from some byte on.
	if sum.count > wanted.size {
		if err := file.Truncate(0); err != nil {
			return fmt.Errorf("cutting %s: %w", path, err)
		}

		sum = &countingHash{hash: sha256.New()}
	}

	if err := fetchRest(ctx, from, wanted, file, sum, progress); err != nil {
		return err
	}

	if got := digestOf(sum.hash); got != wanted.digest {
		return errors.Join(wrongDigest(wanted.subject, "blob", got, wanted.digest), os.Remove(path))
	}

	if err := RenameFile(file, final); err != nil {
		return fmt.Errorf("naming the blob: %w", err)
	}

	return nil
}

func fetchRest(
	ctx context.Context, from blobs, wanted blob, file *os.File, sum *countingHash, progress func(int64),
) error {
	if sum.count == wanted.size {
		return nil
	}

	body, err := from.open(ctx, wanted, sum.count, wanted.size)
	if errors.Is(err, errNoRanges) {
		sum.hash.Reset()
		sum.count = 0

		body, err = from.open(ctx, wanted, 0, wanted.size)
	}

	if err != nil {
		return err
	}

	_, err = io.Copy(io.MultiWriter(io.NewOffsetWriter(file, sum.count), sum, progressWriter(func() { progress(sum.count) })), body)
	if err := errors.Join(err, body.Close()); err != nil {
		return fmt.Errorf("copying a blob: %w", err)
	}

	return nil
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

// addEntry puts an entry into the index, in place of one with its tag, or of the same manifest without any.
func (f *folder) addEntry(entry v1.Descriptor) error {
	old, err := layout.Path(f.dir).ImageIndex()
	if err != nil {
		return brokenIndex(f.dir, err)
	}

	index, err := old.IndexManifest()
	if err != nil {
		return brokenIndex(f.dir, err)
	}

	tag := entry.Annotations[refNameAnnotation]

	index.Manifests = append(slices.DeleteFunc(index.Manifests, func(other v1.Descriptor) bool {
		name := other.Annotations[refNameAnnotation]

		return name == tag && (tag != "" || other.Digest == entry.Digest)
	}), entry)

	return f.writeIndex(index)
}
