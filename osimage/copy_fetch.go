package osimage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// putBlob goes on at the byte where an earlier call stopped.
func (f *folderStore) putBlob(ctx context.Context, descriptor v1.Descriptor, from store, progress func(done int64)) error {
	if descriptor.Digest.Algorithm != "sha256" {
		return invalid("blob "+descriptor.Digest.String(), "its digest is not a sha256", "only these are copied to folders")
	}

	wanted := blob{digest: descriptor.Digest.String(), size: descriptor.Size}
	wanted.subject = "blob " + from.reference(wanted.digest)
	final := blobPath(f.dir, wanted.digest)
	path := filepath.Join(filepath.Dir(final), ".partial-"+descriptor.Digest.Hex)

	for first := true; ; first = false {
		resumed, err := fetchFile(ctx, from.source(), wanted, path, final, progress)
		if !errors.Is(err, ErrWrongDigest) {
			return err
		}

		if first && resumed {
			continue // What was left there was wrong, and is gone.
		}

		source, ok := from.source().(interface{ distrustMirrors() bool })
		if !ok || !source.distrustMirrors() {
			return err
		}
	}
}

// fetchFile completes a file and gives it its final name when its digest is right. With a wrong one it is removed. It tells
// whether it went on with what was in the file.
func fetchFile(
	ctx context.Context, from blobs, wanted blob, path, final string, progress func(int64),
) (resumed bool, err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, blobMode)
	if err != nil {
		return false, fmt.Errorf("making a blob: %w", err)
	}

	defer func() { err = errors.Join(err, file.Close()) }()

	sum := &countingHash{hash: sha256.New()}

	if _, err := io.Copy(sum, readerOf(ctx, file)); err != nil {
		return false, fmt.Errorf("reading %s: %w", path, err)
	}

	// A crash can leave more than was written; what that is, is wrong from some byte on.
	if sum.count > wanted.size {
		if err := file.Truncate(0); err != nil {
			return false, fmt.Errorf("cutting %s: %w", path, err)
		}

		sum = &countingHash{hash: sha256.New()}
	}

	resumed = sum.count > 0

	if err := fetchRest(ctx, from, wanted, file, sum, progress); err != nil {
		return resumed, err
	}

	if got := digestOf(sum.hash); got != wanted.digest {
		return resumed, errors.Join(wrongDigest(wanted.subject, "blob", got, wanted.digest), os.Remove(path))
	}

	if err := RenameFile(file, final); err != nil {
		return resumed, fmt.Errorf("naming the blob: %w", err)
	}

	return resumed, nil
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

	_, err = io.Copy(io.MultiWriter(io.NewOffsetWriter(file, sum.count), sum, progressWriter(func() { progress(sum.count) })),
		readerOf(ctx, body))
	if err := errors.Join(err, body.Close()); err != nil {
		return fmt.Errorf("copying a blob: %w", err)
	}

	return nil
}

// digestOfFile reads a blob that is there already: its name and size say nothing about its bytes.
func digestOfFile(ctx context.Context, path string) (digest string, err error) {
	file, _, err := openRegular(path)
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

// readerOf reads until the context ends: reading gigabytes of a file takes a while.
func readerOf(ctx context.Context, reader io.Reader) io.Reader {
	return readerFunc(func(buffer []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}

		return reader.Read(buffer)
	})
}

type readerFunc func(buffer []byte) (int, error)

func (f readerFunc) Read(buffer []byte) (int, error) { return f(buffer) }

// progressWriter is called after each write to the writers before it.
type progressWriter func()

func (p progressWriter) Write(data []byte) (int, error) {
	p()

	return len(data), nil
}
