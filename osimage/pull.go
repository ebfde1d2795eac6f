package osimage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Pull copies an image from a registry to an OCI layout folder. It goes on where an earlier call stopped, and does
// nothing when the image is there. Progress, when set, is called with the bytes of the layers.
func (c *Client) Pull(
	ctx context.Context, reference, dir string, progress func(done, total int64),
) (image *Image, err error) {
	image, err = c.Image(ctx, reference)
	if err != nil {
		return nil, err
	}

	if image.foreign {
		return nil, refuseForeign(image.reference)
	}

	target, err := openFolder(dir)
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, target.close()) }()

	var done, total int64
	for _, layer := range image.layers() {
		total += layer.blob.size
	}

	for _, layer := range image.layers() {
		before := done

		if err := image.pullLayer(ctx, dir, layer.blob, func(n int64) {
			if progress != nil {
				progress(before+n, total)
			}
		}); err != nil {
			return nil, fmt.Errorf("pulling the image: %w", err) // the cause names the layer, or a file of the folder
		}

		done += layer.blob.size
	}

	manifest, err := parseManifest(image.reference, image.manifest)
	if err != nil {
		return nil, err
	}

	config, err := readBlob(ctx, image.blobs, configBlob(image.reference, manifest))
	if err != nil {
		return nil, err
	}

	if _, err := target.writeBlob(config); err != nil {
		return nil, err
	}

	if _, err := target.name(image.config, image.manifest); err != nil {
		return nil, err
	}

	return OpenLayout(ctx, dir, image.digest)
}

// pullLayer copies one layer to a file beside its final name, and renames it when its digest is right.
func (i *Image) pullLayer(ctx context.Context, dir string, source blob, progress func(int64)) (err error) {
	final := blobPath(dir, source.digest)

	if digest, err := digestOfFile(ctx, final); err == nil && digest == source.digest {
		progress(source.size)

		return nil
	}

	partial := filepath.Join(filepath.Dir(final), ".partial-"+strings.TrimPrefix(source.digest, "sha256:"))

	file, err := os.OpenFile(partial, os.O_RDWR|os.O_CREATE, blobMode)
	if err != nil {
		return fmt.Errorf("making a blob: %w", err)
	}

	defer func() { err = errors.Join(err, file.Close()) }()

	// A crash can leave more than was written.
	if info, err := file.Stat(); err == nil && info.Size() > source.size {
		if err := file.Truncate(source.size); err != nil {
			return fmt.Errorf("cutting %s: %w", partial, err)
		}
	}

	sum := &countingHash{hash: sha256.New()}

	if _, err := io.Copy(sum, readerOf(ctx, file)); err != nil {
		return fmt.Errorf("reading %s: %w", partial, err)
	}

	if err := i.appendLayer(ctx, file, source, sum, progress); err != nil {
		return err
	}

	if got := digestOf(sum.hash); got != source.digest {
		if err := os.Remove(partial); err != nil || !i.DistrustMirrors() {
			return errors.Join(wrongDigest(source.subject, "layer", got, source.digest), err)
		}

		return i.pullLayer(ctx, dir, source, progress)
	}

	if err := RenameFile(file, final); err != nil {
		return fmt.Errorf("naming the blob: %w", err)
	}

	return nil
}

// digestOfFile reads a blob that is there already: its name and size say nothing about its bytes.
func digestOfFile(ctx context.Context, path string) (digest string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}

	defer func() { err = errors.Join(err, file.Close()) }()

	sum := sha256.New()
	if _, err := io.Copy(sum, readerOf(ctx, file)); err != nil {
		return "", err
	}

	return digestOf(sum), nil
}

// readerOf reads a file until the context ends: reading gigabytes takes a while.
func readerOf(ctx context.Context, file *os.File) io.Reader {
	return readerFunc(func(buffer []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}

		return file.Read(buffer)
	})
}

type readerFunc func(buffer []byte) (int, error)

func (f readerFunc) Read(buffer []byte) (int, error) { return f(buffer) }

// appendLayer fetches what is missing at the end of the file. A place without ranges is read from its start.
func (i *Image) appendLayer(
	ctx context.Context, file *os.File, source blob, sum *countingHash, progress func(int64),
) error {
	if sum.count == source.size {
		return nil
	}

	body, err := i.blobs.open(ctx, source, sum.count, source.size)
	if errors.Is(err, errNoRanges) {
		sum.hash.Reset()
		sum.count = 0

		body, err = i.blobs.open(ctx, source, 0, source.size)
	}

	if err != nil {
		return err
	}

	writer := io.MultiWriter(io.NewOffsetWriter(file, sum.count), sum, progressWriter(func() { progress(sum.count) }))

	_, err = io.Copy(writer, body)
	if err := errors.Join(err, body.Close()); err != nil {
		return fmt.Errorf("copying the layer: %w", err)
	}

	return nil
}

// progressWriter is called after each write to the writers before it.
type progressWriter func()

func (p progressWriter) Write(data []byte) (int, error) {
	p()

	return len(data), nil
}
