package flatcar

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/stayput-dev/stayput/osimage"
)

const (
	// maxUnpacked bounds what a compressed update may unpack to: a payload is smaller than the slot that it fills.
	maxUnpacked = 2 << 30
	// holeSize is the least run of zeros that is left out of a temporary file.
	holeSize = 64 << 10
)

// unpacked gives what a file holds, and whether it is compressed. Formats are told apart by their first bytes, because
// Flatcar's names lie: its .gz is not gzip. Flatcar's build writes bzip2 by default and gzip on demand.
func unpacked(file io.ReaderAt, stream io.Reader) (io.Reader, bool, error) {
	magic := make([]byte, 3)
	if count, err := file.ReadAt(magic, 0); count < len(magic) {
		return stream, false, notEOF(err)
	}

	buffered := bufio.NewReaderSize(stream, pieceSize)

	switch {
	case bytes.Equal(magic, []byte("BZh")):
		return bzip2.NewReader(buffered), true, nil
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		plain, err := gzip.NewReader(buffered)

		return plain, true, err
	default:
		return stream, false, nil
	}
}

// artifact is a file, or what it unpacks to.
type artifact struct {
	name  string
	file  *os.File
	size  int64
	plain io.Reader // nil when the file is what it holds
}

func openArtifact(ctx context.Context, path string, options Options) (*artifact, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the artifact: %w", err)
	}

	found := &artifact{name: path, file: file}

	if err := found.inspect(ctx, options); err != nil {
		return nil, errors.Join(err, file.Close())
	}

	return found, nil
}

func (a *artifact) inspect(ctx context.Context, options Options) error {
	info, err := a.file.Stat()
	if err != nil {
		return fmt.Errorf("reading the artifact: %w", err)
	}

	if !info.Mode().IsRegular() && info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 {
		return refuse(a.name, "it is neither a regular file nor a block device", "give the file that was downloaded")
	}

	if a.size, err = a.file.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("finding the size of %s: %w", a.name, err)
	}

	// A section, so that nothing depends on the file's own position.
	counted := &counter{ctx: ctx, reader: io.NewSectionReader(a.file, 0, a.size), total: a.size, call: options.progress}

	plain, compressed, err := unpacked(a.file, counted)
	if err != nil {
		return refuse(a.name, "it cannot be unpacked: "+err.Error(), redownload)
	}

	if compressed {
		a.plain = plain
	}

	return nil
}

// replace puts a temporary file in the place of the packed one.
func (a *artifact) replace(temp *os.File, size int64) error {
	packed := a.file
	a.file, a.size, a.plain = temp, size, nil

	return packed.Close()
}

// temporary makes a file that has no name any more, so that nothing can be left behind.
func temporary(options Options) (*os.File, error) {
	temp, err := os.CreateTemp(options.TempDir, ".stayput-flatcar-*")
	if err != nil {
		return nil, fmt.Errorf("making a temporary file: %w", err)
	}

	if err := os.Remove(temp.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("making a temporary file: %w", err), temp.Close())
	}

	return temp, nil
}

// unpackAll unpacks everything, when there is something to unpack.
func (a *artifact) unpackAll(options Options) error {
	if a.plain == nil {
		return nil
	}

	temp, err := temporary(options)
	if err != nil {
		return err
	}

	size, err := copySparse(temp, 0, io.LimitReader(a.plain, maxUnpacked+1))
	if err == nil && size > maxUnpacked {
		err = &osimage.Error{
			Kind: osimage.ErrTooLarge, Subject: a.name, Detail: fmt.Sprintf("it unpacks to more than %d bytes", int64(maxUnpacked)),
			Fix: "give a Flatcar update",
		}
	}

	if err == nil {
		err = temp.Truncate(size)
	}

	if err != nil {
		return errors.Join(a.broken(err), temp.Close())
	}

	return a.replace(temp, size)
}

// broken tells an unreadable artifact from a failure of ours.
func (a *artifact) broken(err error) error {
	var structural bzip2.StructuralError

	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return &osimage.Error{Kind: osimage.ErrTruncated, Subject: a.name, Detail: "it ends in the middle", Fix: redownload}
	case errors.As(err, &structural), errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader):
		return refuse(a.name, "it cannot be unpacked: "+err.Error(), redownload)
	default:
		return fmt.Errorf("unpacking %s: %w", a.name, err)
	}
}

// copySparse copies to an offset of a file that reads as zeros, and leaves zeros out.
func copySparse(file io.WriterAt, offset int64, from io.Reader) (int64, error) {
	var (
		done   int64
		buffer = make([]byte, holeSize)
		zeros  = make([]byte, holeSize)
	)

	for {
		count, err := fill(from, buffer)

		if !bytes.Equal(buffer[:count], zeros[:count]) {
			if _, err := file.WriteAt(buffer[:count], offset+done); err != nil {
				return done, fmt.Errorf("writing a temporary file: %w", err)
			}
		}

		done += int64(count)

		if errors.Is(err, io.EOF) {
			return done, nil
		}

		if err != nil {
			return done, err
		}
	}
}

// fill reads until the buffer is full. Other than with io.ReadFull, an end is io.EOF also after some bytes, because
// io.ErrUnexpectedEOF is what the decompressors say of a broken stream.
func fill(from io.Reader, buffer []byte) (count int, err error) {
	for count < len(buffer) && err == nil {
		var read int

		read, err = from.Read(buffer[count:])
		count += read
	}

	return count, err
}

// counter passes data on, tells how much it was, and ends with the context.
type counter struct {
	ctx         context.Context //nolint:containedctx // A reader cannot be given one.
	reader      io.Reader
	done, total int64
	call        func(done, total int64)
}

func (c *counter) Read(buffer []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}

	count, err := c.reader.Read(buffer)
	c.done += int64(count)
	c.call(c.done, c.total)

	return count, err
}

// notEOF keeps an end that is no success from being taken for one.
func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}

	return err
}
