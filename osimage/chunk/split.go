package chunk

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// splitBuffer is how much of a content is held at once. It only matters for speed.
const splitBuffer = 1 << 20

// Split cuts all that the reader has and calls each for every chunk in order. The chunk's bytes are valid only during the
// call. It ends with the first error of the reader or of each, or with the context.
func (c *Chunker) Split(ctx context.Context, reader io.Reader, each func(offset int64, data []byte) error) error {
	buffer := make([]byte, max(splitBuffer, 2*c.params.Max))

	var (
		offset     int64
		start, end int
		ended      bool
	)

	for !ended {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}

		end = copy(buffer, buffer[start:end])
		start = 0

		count, err := fill(reader, buffer[end:])
		end += count
		ended = errors.Is(err, io.EOF)

		if err != nil && !ended {
			return fmt.Errorf("reading at byte %d: %w", offset+int64(end), err)
		}

		for start < end && (ended || end-start >= c.params.Max) {
			length := c.Cut(buffer[start:end])
			if err := each(offset, buffer[start:start+length]); err != nil {
				return err
			}

			start += length
			offset += int64(length)
		}
	}

	return nil
}

// fill is io.ReadFull for a reader whose own io.ErrUnexpectedEOF is an error, not its end.
func fill(reader io.Reader, buffer []byte) (int, error) {
	const patience = 100 // reads that return nothing, as bufio allows

	done, idle := 0, 0

	for done < len(buffer) {
		count, err := reader.Read(buffer[done:])
		done += count

		if err != nil {
			return done, err
		}

		if idle++; count > 0 {
			idle = 0
		}

		if idle > patience {
			return done, io.ErrNoProgress
		}
	}

	return done, nil
}
