package osimage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	dirMode  = 0o755
	blobMode = 0o644

	indexFile   = "index.json"
	versionFile = "oci-layout"
	// versionText is the content of versionFile (OCI image-spec, image-layout).
	versionText = `{"imageLayoutVersion":"1.0.0"}`
	emptyIndex  = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`

	// unfinished starts the names of files that are being written: whoever may write to a folder removes those of others.
	unfinished = ".building-"
)

// folder is an OCI layout folder that only this process writes to. Files in it appear whole and under their final names
// or not at all, and the index comes last, so that a crash or a power cut leaves the folder with the images that it had.
type folder struct {
	dir  string
	lock *os.File
}

// openFolder makes the folder a layout when it is not one, and takes away what a crash has left.
func openFolder(dir string) (*folder, error) {
	if err := os.MkdirAll(filepath.Dir(blobPath(dir, "sha256:0")), dirMode); err != nil {
		return nil, fmt.Errorf("making an OCI layout in %s: %w", dir, err)
	}

	lock, err := lockFolder(dir)
	if err != nil {
		return nil, err
	}

	result := &folder{dir: dir, lock: lock}

	if err := result.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("making an OCI layout in %s: %w", dir, err), result.close())
	}

	return result, nil
}

// lockFolder keeps others from writing until the file is closed.
func lockFolder(dir string) (*os.File, error) {
	lock, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("making an OCI layout in %s: %w", dir, err)
	}

	if err := LockFile(lock, dir); err != nil {
		return nil, errors.Join(err, lock.Close())
	}

	return lock, nil
}

func (f *folder) close() error {
	return f.lock.Close()
}

func (f *folder) prepare() error {
	blobs := filepath.Dir(blobPath(f.dir, "sha256:0"))

	entries, err := os.ReadDir(blobs)
	if err != nil {
		return err
	}

	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), unfinished) {
			continue
		}

		if err := os.Remove(filepath.Join(blobs, entry.Name())); err != nil {
			return err
		}
	}

	// The index comes last: it is what makes a folder a layout.
	for _, file := range []struct{ name, text string }{{versionFile, versionText}, {indexFile, emptyIndex}} {
		if _, err := os.Stat(f.path(file.name)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}

		if err := f.write(f.path(file.name), []byte(file.text)); err != nil {
			return err
		}
	}

	return nil
}

func (f *folder) path(names ...string) string {
	return filepath.Join(append([]string{f.dir}, names...)...)
}

// create opens a file for what has no final name yet.
func (f *folder) create() (*os.File, error) {
	return os.CreateTemp(filepath.Dir(blobPath(f.dir, "sha256:0")), unfinished)
}

// keep gives a file of create its final name once it is on the medium. After an error nothing has the name of create.
func (f *folder) keep(file *os.File, final string) error {
	err := file.Chmod(blobMode)
	if err == nil {
		err = RenameFile(file, final)
	}

	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, RemoveFile(file.Name()))
	}

	return nil
}

// write puts a small file in place of an older one.
func (f *folder) write(final string, data []byte) error {
	file, err := f.create()
	if err != nil {
		return err
	}

	if _, err := file.Write(data); err != nil {
		return errors.Join(err, file.Close(), os.Remove(file.Name()))
	}

	return f.keep(file, final)
}

// writeBlob adds a small blob. One of this digest that is there already is written anew, since it may be damaged.
func (f *folder) writeBlob(data []byte) (v1.Hash, error) {
	sum := digestOfBytes(data)

	digest, err := v1.NewHash(sum)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("writing a blob of %s: %w", f.dir, err)
	}

	if err := f.write(blobPath(f.dir, sum), data); err != nil {
		return v1.Hash{}, fmt.Errorf("writing a blob of %s: %w", f.dir, err)
	}

	return digest, nil
}

// name adds a manifest and names it in the index by the image's version, in place of an older one with that name.
func (f *folder) name(config Config, manifest []byte) (v1.Hash, error) {
	digest, err := f.writeBlob(manifest)
	if err != nil {
		return v1.Hash{}, err
	}

	return digest, f.addEntry(v1.Descriptor{
		MediaType: types.OCIManifestSchema1, ArtifactType: ArtifactType, Digest: digest, Size: int64(len(manifest)),
		Platform:    &v1.Platform{OS: "linux", Architecture: config.Architecture},
		Annotations: map[string]string{refNameAnnotation: config.Version},
	})
}

// checkReplaced refuses an image in whose place in a folder there is one that is not just an older build of the same: it
// would be lost. What cannot be read there is replaced.
func checkReplaced(ctx context.Context, dir string, config Config) error {
	found, err := OpenLayout(ctx, dir, config.Version)
	if err != nil {
		return ctx.Err()
	}

	for _, field := range []struct{ name, there, here string }{
		{"name", found.config.Name, config.Name},
		{"variant", found.config.Variant, config.Variant},
		{"architecture", found.config.Architecture, config.Architecture},
	} {
		if field.there != field.here {
			return &Error{
				Kind: ErrInvalid, Subject: dir + ":" + config.Version,
				Detail: fmt.Sprintf("the folder has another image of this version, with the %s %q, not %q", field.name, field.there, field.here),
				Fix:    "use a folder of its own for each; `stayput image publish` puts several architectures under one tag",
			}
		}
	}

	return nil
}

// addEntry puts an entry into the index, in place of one with its tag, or of the same manifest without any.
func (f *folder) addEntry(entry v1.Descriptor) error {
	index, err := readIndex(f.dir)
	if err != nil {
		return err
	}

	tag := entry.Annotations[refNameAnnotation]

	index.Manifests = append(slices.DeleteFunc(index.Manifests, func(other v1.Descriptor) bool {
		name := other.Annotations[refNameAnnotation]

		return name == tag && (tag != "" || other.Digest == entry.Digest)
	}), entry)

	return f.writeIndex(index)
}

// writeIndex puts an index in place of the folder's.
func (f *folder) writeIndex(index *v1.IndexManifest) error {
	data, err := json.MarshalIndent(index, "", "   ")
	if err != nil {
		return fmt.Errorf("changing the index of %s: %w", f.dir, err)
	}

	if err := f.write(f.path(indexFile), data); err != nil {
		return fmt.Errorf("changing the index of %s: %w", f.dir, err)
	}

	return nil
}
