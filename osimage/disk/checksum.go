package disk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/stayput-dev/stayput/osimage"
)

// ChecksumSuffix is appended to a disk's name for the file with its checksum.
const ChecksumSuffix = ".sha256"

// checksumOf reads a file from its start.
func checksumOf(ctx context.Context, file *os.File) (string, error) {
	info, err := file.Stat()
	if err != nil {
		return "", err
	}

	return sumOfSection(ctx, io.NewSectionReader(file, 0, info.Size()))
}

func sumOfSection(ctx context.Context, section io.Reader) (string, error) {
	sum := sha256.New()

	if _, err := io.CopyBuffer(sum, struct{ io.Reader }{untilDone{ctx, section}}, make([]byte, copySize)); err != nil {
		return "", err
	}

	return hex.EncodeToString(sum.Sum(nil)), nil
}

// writeChecksum writes one line as sha256sum does, which is also what Ironic reads when a checksum is a URL.
func writeChecksum(file, sum string) error {
	final := file + ChecksumSuffix

	out, err := os.OpenFile(final+".partial", os.O_RDWR|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return fmt.Errorf("writing the checksum: %w", err)
	}

	_, err = fmt.Fprintf(out, "%s  %s\n", sum, filepath.Base(file))
	if err == nil {
		err = osimage.RenameFile(out, final)
	}

	if err != nil {
		err = errors.Join(err, osimage.RemoveFile(out.Name()))
	}

	if err := errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("writing the checksum, which the disk in %s has not: %w", file, err)
	}

	return nil
}

// untilDone reads until its context ends: reading gigabytes takes a while.
type untilDone struct {
	ctx    context.Context //nolint:containedctx // It lives as long as one call that has the context.
	reader io.Reader
}

func (u untilDone) Read(buffer []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}

	return u.reader.Read(buffer)
}
