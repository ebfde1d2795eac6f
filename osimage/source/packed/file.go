package packed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/stayput-dev/stayput/osimage"
)

const (
	// holeSize is the least run of zeros that is left out of a temporary file.
	holeSize = 64 << 10
	// magicSize is what detect looks at.
	magicSize = 10

	redownload = "download it again and compare its checksum"
)

// Options say how a file is unpacked.
type Options struct {
	// TempDir is the folder for what it unpacks to; "" is the system's.
	TempDir string
	// Limit is the most that it may unpack to, in bytes.
	Limit int64
	// Progress, when set, is called with how many bytes of the compressed file are read.
	Progress func(done, total int64)
}

// File is what an artifact holds. It may be read from several goroutines.
type File struct {
	io.ReaderAt

	// Name is the artifact's path.
	Name string
	// Size is the number of bytes.
	Size int64
	// Format tells what it was compressed with.
	Format Format

	file *os.File
}

// Close ends reading; what was unpacked is gone.
func (f *File) Close() error { return f.file.Close() }

// Input gives a part of the file as the content of an image.
func (f *File) Input(name string, offset, size int64) osimage.Input {
	return osimage.Input{Name: name, Size: size, Open: func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(f, offset, size)), nil
	}}
}

// Head gives the first bytes of what a file holds, at most size of them.
func Head(path string, size int) (head []byte, format Format, err error) {
	packed, err := openArtifact(path)
	if err != nil {
		return nil, None, err
	}

	defer func() { err = errors.Join(err, packed.file.Close()) }()

	plain, err := packed.format.reader(packed.stream(context.Background(), nil))
	if err != nil {
		return nil, None, packed.broken(err)
	}

	head = make([]byte, size)

	count, err := io.ReadFull(plain, head)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) && count > 0 {
		// A file that was cut off is found out when all of it is read.
		err = nil
	}

	if err != nil {
		return nil, None, errors.Join(packed.broken(err), plain.Close())
	}

	return head[:count], packed.format, plain.Close()
}

// Open gives random access to what a regular file or block device holds.
func Open(ctx context.Context, path string, options Options) (*File, error) {
	packed, err := openArtifact(path)
	if err != nil {
		return nil, err
	}

	if packed.format == None {
		return &File{ReaderAt: packed.file, Name: path, Size: packed.size, file: packed.file}, nil
	}

	temp, size, err := packed.unpack(ctx, options)
	if err := errors.Join(err, packed.file.Close()); err != nil {
		return nil, err
	}

	return &File{ReaderAt: temp, Name: path, Size: size, Format: packed.format, file: temp}, nil
}

// artifact is the file as it is.
type artifact struct {
	name   string
	file   *os.File
	size   int64
	format Format
	// failed is what reading the file itself failed with.
	failed error
}

func openArtifact(path string) (*artifact, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the artifact: %w", err)
	}

	found := &artifact{name: path, file: file}
	if err := found.inspect(); err != nil {
		return nil, errors.Join(err, file.Close())
	}

	return found, nil
}

func (a *artifact) inspect() error {
	info, err := a.file.Stat()
	if err != nil {
		return fmt.Errorf("reading the artifact: %w", err)
	}

	if kind := info.Mode(); !kind.IsRegular() && kind&(os.ModeDevice|os.ModeCharDevice) != os.ModeDevice {
		return &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: a.name, Detail: "it is neither a regular file nor a block device",
			Fix: "give the file that was downloaded",
		}
	}

	if a.size, err = a.file.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("finding the size of %s: %w", a.name, err)
	}

	magic := make([]byte, magicSize)

	count, err := a.file.ReadAt(magic, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading %s: %w", a.name, err)
	}

	a.format = detect(magic[:count])

	return nil
}

// stream reads the file from its start, and tells of it.
func (a *artifact) stream(ctx context.Context, progress func(done, total int64)) io.Reader {
	return &counter{ctx: ctx, artifact: a, reader: io.NewSectionReader(a.file, 0, a.size), progress: progress}
}

type counter struct {
	ctx      context.Context //nolint:containedctx // A reader's context is that of the call that made it.
	artifact *artifact
	reader   io.Reader
	done     int64
	progress func(done, total int64)
}

func (c *counter) Read(buffer []byte) (int, error) {
	if c.ctx.Err() != nil {
		c.artifact.failed = context.Cause(c.ctx)

		return 0, c.artifact.failed
	}

	count, err := c.reader.Read(buffer)
	if err != nil && !errors.Is(err, io.EOF) {
		c.artifact.failed = err
	}

	c.done += int64(count)
	if c.progress != nil {
		c.progress(c.done, c.artifact.size)
	}

	return count, err
}

// unpack writes what the file holds to a temporary file that has no name any more.
func (a *artifact) unpack(ctx context.Context, options Options) (*os.File, int64, error) {
	temp, err := temporary(options)
	if err != nil {
		return nil, 0, err
	}

	size, err := a.unpackTo(ctx, temp, options)
	if err != nil {
		return nil, 0, errors.Join(err, temp.Close())
	}

	return temp, size, nil
}

func (a *artifact) unpackTo(ctx context.Context, temp *os.File, options Options) (int64, error) {
	plain, err := a.format.reader(a.stream(ctx, options.Progress))
	if err != nil {
		return 0, a.broken(err)
	}

	size, err := a.copySparse(temp, plain, options.Limit)

	if err := errors.Join(err, plain.Close()); err != nil {
		return 0, err
	}

	if err := temp.Truncate(size); err != nil {
		return 0, fmt.Errorf("writing a temporary file: %w", err)
	}

	return size, nil
}

func (a *artifact) copySparse(temp io.WriterAt, plain io.Reader, limit int64) (int64, error) {
	var done int64

	buffer, zeros := make([]byte, holeSize), make([]byte, holeSize)

	for {
		count, err := io.ReadFull(plain, buffer)

		if !bytes.Equal(buffer[:count], zeros[:count]) {
			if _, err := temp.WriteAt(buffer[:count], done); err != nil {
				return 0, fmt.Errorf("writing a temporary file: %w", err)
			}
		}

		done += int64(count)

		switch {
		case done > limit:
			return 0, &osimage.Error{
				Kind: osimage.ErrTooLarge, Subject: a.name, Detail: fmt.Sprintf("it unpacks to more than %d bytes", limit),
				Fix: "give the artifact of an operating system",
			}
		case errors.Is(err, io.EOF):
			return done, nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			// From a decoder it means that the input ends too early, from ReadFull that the output ends here.
			if _, err := plain.Read(buffer); errors.Is(err, io.EOF) {
				return done, nil
			} else if err != nil {
				return 0, a.broken(err)
			}

			return 0, a.broken(io.ErrUnexpectedEOF)
		case err != nil:
			return 0, a.broken(err)
		}
	}
}

// broken tells an artifact that cannot be unpacked from a file that cannot be read.
func (a *artifact) broken(cause error) error {
	if a.failed != nil {
		return fmt.Errorf("reading %s: %w", a.name, a.failed)
	}

	if errors.Is(cause, io.EOF) || errors.Is(cause, io.ErrUnexpectedEOF) {
		return &osimage.Error{
			Kind: osimage.ErrTruncated, Subject: a.name, Detail: fmt.Sprintf("the %s data ends in the middle", a.format), Fix: redownload,
		}
	}

	return &osimage.Error{
		Kind: osimage.ErrInvalid, Subject: a.name, Detail: fmt.Sprintf("the %s data cannot be unpacked", a.format), Err: cause, Fix: redownload,
	}
}
