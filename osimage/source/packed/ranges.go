package packed

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/stayput-dev/stayput/osimage"
)

// Range is a part of what a file holds, in bytes.
type Range struct{ Offset, Size int64 }

// OpenRanges is Open for those that need parts only. Choose is given the first bytes of what a compressed file holds, at
// most size of them, and says which parts are wanted. Unpacking ends with the last of them, so what follows is neither
// waited for nor looked at. Whatever is not wanted reads as zeros, and File.Size is where the last part ends.
func OpenRanges(
	ctx context.Context, path string, size int, choose func(head []byte) ([]Range, error), options Options,
) (*File, error) {
	packed, err := openArtifact(path)
	if err != nil {
		return nil, err
	}

	if packed.format == None {
		return &File{ReaderAt: packed.file, Name: path, Size: packed.size, file: packed.file}, nil
	}

	temp, end, err := packed.unpackRanges(ctx, size, choose, options)
	if err := errors.Join(err, packed.file.Close()); err != nil {
		return nil, err
	}

	return &File{ReaderAt: temp, Name: path, Size: end, Format: packed.format, file: temp}, nil
}

func (a *artifact) unpackRanges(
	ctx context.Context, size int, choose func(head []byte) ([]Range, error), options Options,
) (temp *os.File, end int64, err error) {
	plain, err := a.format.reader(a.stream(ctx, options.Progress))
	if err != nil {
		return nil, 0, a.broken(err)
	}

	defer func() {
		if problem := plain.Close(); problem != nil && err == nil {
			// What was read last was broken, though nothing of it was wanted.
			temp, end, err = nil, 0, errors.Join(a.broken(problem), temp.Close())
		}
	}()

	head := make([]byte, size)

	count, err := fill(plain, head)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, a.broken(err)
	}

	ranges, err := choose(head[:count])
	if err != nil {
		return nil, 0, err
	}

	if temp, err = temporary(options); err != nil {
		return nil, 0, err
	}

	end, err = a.copyRanges(temp, io.MultiReader(bytes.NewReader(head[:count]), plain), ranges, options.Limit)
	if err == nil {
		err = temp.Truncate(end)
	}

	if err != nil {
		return nil, 0, errors.Join(err, temp.Close())
	}

	return temp, end, nil
}

func (a *artifact) copyRanges(temp *os.File, plain io.Reader, ranges []Range, limit int64) (int64, error) {
	var position int64

	for _, part := range slices.SortedFunc(slices.Values(ranges), func(x, y Range) int { return cmp.Compare(x.Offset, y.Offset) }) {
		if part.Offset < position || part.Size < 0 || part.Size > limit-position || part.Offset > limit-part.Size {
			return 0, &osimage.Error{
				Kind: osimage.ErrInvalid, Subject: a.name, Fix: redownload,
				Detail: fmt.Sprintf("%d bytes at offset %d overlap others, or end behind %d", part.Size, part.Offset, limit),
			}
		}

		if skipped, err := io.CopyN(io.Discard, plain, part.Offset-position); errors.Is(err, io.EOF) {
			return 0, a.short(part, position+skipped)
		} else if err != nil {
			return 0, a.broken(err)
		}

		done, err := a.copySparse(io.NewOffsetWriter(temp, part.Offset), io.LimitReader(plain, part.Size), part.Size)
		if err != nil {
			return 0, err
		}

		if done < part.Size {
			return 0, a.short(part, part.Offset+done)
		}

		position = part.Offset + part.Size
	}

	return position, nil
}

// fill reads until the buffer is full. Other than with io.ReadFull, an end is io.EOF also after some bytes, because
// io.ErrUnexpectedEOF is what decoders say of a broken stream.
func fill(from io.Reader, buffer []byte) (count int, err error) {
	for count < len(buffer) && err == nil {
		var read int

		read, err = from.Read(buffer[count:])
		count += read
	}

	return count, err
}

func (a *artifact) short(part Range, have int64) error {
	return &osimage.Error{
		Kind: osimage.ErrTruncated, Subject: a.name, Fix: redownload,
		Detail: fmt.Sprintf("%d bytes at offset %d are wanted, it unpacks to %d", part.Size, part.Offset, have),
	}
}

// temporary makes a file that has no name any more, so that nothing is left behind, not even by a crash.
func temporary(options Options) (*os.File, error) {
	temp, err := os.CreateTemp(options.TempDir, ".stayput-unpacked-*")
	if err != nil {
		return nil, fmt.Errorf("making a temporary file: %w", err)
	}

	if err := os.Remove(temp.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("making a temporary file: %w", err), temp.Close())
	}

	return temp, nil
}
