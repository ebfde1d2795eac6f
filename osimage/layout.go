package osimage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/stayput-dev/stayput/osimage/trust"
)

// refNameAnnotation is the tag of an entry in a layout's index (OCI image-spec, annotations).
const refNameAnnotation = "org.opencontainers.image.ref.name"

// OpenLayout opens an image in an OCI layout folder. The tag is the image's version, or the digest of its manifest; it
// may be empty when the folder holds one image. From an index the image for this machine's architecture is taken.
func OpenLayout(ctx context.Context, dir, tag string) (*Image, error) {
	return OpenLayoutFor(ctx, dir, tag, "")
}

// OpenLayoutFor is OpenLayout for the image of a GOARCH. It returns ErrWrongArchitecture when there is none.
func OpenLayoutFor(ctx context.Context, dir, tag, architecture string) (*Image, error) {
	descriptor, err := findInLayout(ctx, dir, tag)
	if err != nil {
		return nil, err
	}

	image := &Image{blobs: layoutBlobs{dir}}

	if descriptor.MediaType == types.OCIImageIndex {
		image.chosenFrom, descriptor, err = image.fromIndex(ctx, dir, descriptor, cmp.Or(architecture, runtime.GOARCH))
		if err != nil {
			return nil, err
		}
	}

	image.digest = descriptor.Digest.String()
	image.reference = dir + "@" + image.digest

	image.manifest, err = readEntry(ctx, image.blobs, dir, descriptor)
	if err != nil {
		return nil, err
	}

	if err := image.load(ctx, nil); err != nil {
		return nil, err
	}

	if architecture != "" && image.config.Architecture != architecture {
		return nil, wrongArchitecture(image.reference, image.config.Architecture, architecture)
	}

	return image, nil
}

// fromIndex picks the image of an architecture from an index in the folder. It returns the index's digest, too.
func (i *Image) fromIndex(
	ctx context.Context, dir string, entry v1.Descriptor, architecture string,
) (index string, chosen v1.Descriptor, err error) {
	data, err := readEntry(ctx, i.blobs, dir, entry)
	if err != nil {
		return "", v1.Descriptor{}, err
	}

	subject := dir + "@" + entry.Digest.String()

	var manifest v1.IndexManifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		return "", v1.Descriptor{}, notAnImage(subject, "the index cannot be read", err)
	}

	chosen, err = chooseFromIndex(subject, manifest, architecture)

	return entry.Digest.String(), chosen, err
}

// readEntry reads a manifest or an index, within bounds: an entry of a folder can say any size.
func readEntry(ctx context.Context, from blobs, dir string, entry v1.Descriptor) ([]byte, error) {
	if entry.Size < 0 || entry.Size > maxManifest {
		return nil, notAnImage(dir, fmt.Sprintf("the manifest %s has %d bytes, at most %d are read", entry.Digest, entry.Size,
			maxManifest), nil)
	}

	return readBlob(ctx, from, blob{digest: entry.Digest.String(), size: entry.Size, subject: "manifest of " + dir})
}

// findInLayout finds the entry of a tag or a digest. Without one it is the only entry that is not attached to another, for
// which all manifests are read.
func findInLayout(ctx context.Context, dir, tag string) (v1.Descriptor, error) {
	index, err := readIndex(dir)
	if err != nil {
		return v1.Descriptor{}, err
	}

	var (
		store = &folderStore{dir: dir}
		found []v1.Descriptor
		names []string
	)

	for _, entry := range index.Manifests {
		if ctx.Err() != nil {
			return v1.Descriptor{}, context.Cause(ctx)
		}

		if isSignature(entry) || tag == "" && store.subjectOf(entry) != "" {
			continue
		}

		name := entry.Annotations[refNameAnnotation]
		names = append(names, fmt.Sprintf("%q", name))

		if tag == "" || tag == name || tag == entry.Digest.String() {
			found = append(found, entry)
		}
	}

	if len(index.Manifests) == 0 {
		return v1.Descriptor{}, &Error{
			Kind: ErrNotFound, Subject: dir, Detail: "the folder holds no image: nothing was built or pulled into it to the end",
			Fix: "run `stayput image build` or `stayput image pull` again",
		}
	}

	if len(found) == 0 && isDigest(tag) {
		if inner, ok := inAnIndex(ctx, dir, index.Manifests, tag); ok {
			return inner, nil
		}
	}

	if len(found) != 1 {
		return v1.Descriptor{}, &Error{
			Kind: ErrNotFound, Subject: dir,
			Detail: fmt.Sprintf("%d entries match the tag %q, it has %s", len(found), tag, strings.Join(names, ", ")),
			Fix:    "name one of them, as FOLDER:TAG",
		}
	}

	return found[0], nil
}

// inAnIndex finds a digest in the indexes that a folder lists: OpenLayout names the images in them by it.
func inAnIndex(ctx context.Context, dir string, listed []v1.Descriptor, digest string) (v1.Descriptor, bool) {
	for _, entry := range listed {
		if entry.MediaType != types.OCIImageIndex || ctx.Err() != nil {
			continue
		}

		data, err := readEntry(ctx, layoutBlobs{dir}, dir, entry)
		if err != nil {
			continue // Another may have it.
		}

		var inner v1.IndexManifest
		if err := json.Unmarshal(data, &inner); err != nil {
			continue
		}

		for _, image := range inner.Manifests {
			if image.Digest.String() == digest {
				return image, true
			}
		}
	}

	return v1.Descriptor{}, false
}

// readIndex reads index.json, within bounds.
func readIndex(dir string) (*v1.IndexManifest, error) {
	data, err := readFile(filepath.Join(dir, indexFile), maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{
			Kind: ErrNotFound, Subject: dir, Detail: "it is not an OCI layout folder", Err: err,
			Fix: "make one with `stayput image build`, `stayput image pull` or `stayput image copy`",
		}
	}

	if err != nil {
		return nil, brokenIndex(dir, err)
	}

	var index v1.IndexManifest
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, brokenIndex(dir, err)
	}

	if count := len(index.Manifests); count > maxManifests {
		return nil, brokenIndex(dir, fmt.Errorf("%w: it names %d manifests, at most %d are read", ErrTooLarge, count, maxManifests))
	}

	return &index, nil
}

// openRegular opens a file of a folder, which may come from anywhere: a pipe would be waited for, for ever.
func openRegular(path string) (*os.File, int64, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}

	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &Error{Kind: ErrInvalid, Subject: path, Detail: "it is a " + info.Mode().Type().String() + ", want a file", Fix: fixRebuild}
	}

	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}

	return file, info.Size(), nil
}

// readFile reads a small file.
func readFile(path string, limit int64) (data []byte, err error) {
	file, _, err := openRegular(path)
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

// entryOf finds the entry of a tag or a digest in a folder's index. In a folder of `cosign save`, which has no tags, the
// signatures are those of the image that it was made for.
func entryOf(index *v1.IndexManifest, tagOrDigest string) (v1.Descriptor, bool) {
	var (
		saved v1.Descriptor
		known bool
	)

	for _, entry := range index.Manifests {
		if entry.Annotations[refNameAnnotation] == tagOrDigest || entry.Digest.String() == tagOrDigest {
			return entry, true
		}

		known = known || tagOrDigest == trust.SignatureTag(entry.Digest.String())

		if entry.Annotations[kindAnnotation] == kindSignatures {
			saved = entry
		}
	}

	return saved, known && saved.Digest.Hex != ""
}

func brokenIndex(dir string, cause error) error {
	return &Error{
		Kind: ErrNotAnImage, Subject: dir, Detail: "index.json cannot be read", Err: cause,
		Fix: "remove that file, then build or pull again: layers that are whole are kept",
	}
}

// layoutBlobs reads blobs from an OCI layout folder.
type layoutBlobs struct {
	dir string
}

var _ blobs = layoutBlobs{}

func (l layoutBlobs) open(_ context.Context, source blob, from, to int64) (io.ReadCloser, error) {
	path := blobPath(l.dir, source.digest)

	file, size, err := openRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{
			Kind: ErrNotFound, Subject: source.subject, Detail: "the folder has no blob " + source.digest, Fix: fixRebuild,
		}
	}

	if err != nil {
		return nil, fmt.Errorf("opening the %s: %w", source.subject, err)
	}

	if size != source.size {
		return nil, errors.Join(truncated(source.subject, "file "+path, size, source.size), file.Close())
	}

	return &section{Reader: io.NewSectionReader(file, from, to-from), Closer: file}, nil
}

type section struct {
	io.Reader
	io.Closer
}

// blobPath is where a layout keeps a blob (OCI image-spec, image-layout).
func blobPath(dir, digest string) string {
	algorithm, hex, _ := strings.Cut(digest, ":")

	return filepath.Join(dir, "blobs", algorithm, hex)
}
