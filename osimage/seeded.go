package osimage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"golang.org/x/sync/errgroup"
)

// OpenSeeded is Open from byte 0 for what is to be written to a file: chunks that the seeds have are not fetched. All raw
// bytes are verified: the last Read returns ErrWrongDigest when they do not match. Progress is that of WriteOptions; what
// was read counts as written, and nothing as verified.
func (i *Image) OpenSeeded(
	ctx context.Context, role Role, seeds []Seed, progress func(Progress),
) (io.ReadCloser, error) {
	content, err := i.content(role)
	if err != nil {
		return nil, err
	}

	writing := newWriting(i, content, WriteOptions{Seeds: seeds, Progress: progress})

	assembly, err := writing.plan(ctx)
	if err != nil {
		return nil, err
	}

	if assembly == nil {
		writing.meter.planned(Planned{Fetch: content.Size, Requests: 1})

		body, err := writing.source.Open(ctx, role, 0)
		if err != nil {
			return nil, err
		}

		writing.meter.writing(0)

		return &countedReader{ReadCloser: body, count: writing.meter.read}, nil
	}

	writing.meter.writing(0)

	ctx, cancel := context.WithCancel(ctx)
	group, supplying := errgroup.WithContext(ctx)
	feed := newFeed(0, pieceSize)

	group.Go(func() error {
		defer close(feed.full)

		return assembly.supply(supplying, feed)
	})

	return &seededReader{
		image: i, content: content, feed: feed, cancel: cancel, wait: group.Wait, sum: sha256.New(),
		read: writing.meter.read,
		whole: func() (io.ReadCloser, error) {
			writing.meter.planned(Planned{Fetch: content.Size, Requests: 1})

			return writing.openForWriting(ctx, role, 0)
		},
	}, nil
}

// seededReader reads what a supply feeds.
type seededReader struct {
	image   *Image
	content Content
	feed    *feed
	cancel  context.CancelFunc
	wait    func() error
	// whole opens the layer in one stream, for a registry without ranges. Then rest of the content comes from body.
	whole func() (io.ReadCloser, error)
	body  io.ReadCloser
	// read is called with the bytes that were handed out.
	read func(count int64)

	// current is being read, rest is what of its bytes is left.
	current portion
	rest    []byte
	sum     hash.Hash
	done    int64
	err     error
}

// Read gives raw bytes, and io.EOF only when all of them were verified.
func (r *seededReader) Read(buffer []byte) (int, error) {
	for r.err == nil {
		if r.body != nil {
			return r.readBody(buffer)
		}

		if count := r.take(buffer); count > 0 || len(buffer) == 0 {
			r.handedOut(buffer[:count])

			return count, nil
		}

		next, ok := <-r.feed.full
		if !ok {
			r.err = r.end(r.wait())

			continue
		}

		r.current, r.rest = next, next.data
	}

	return 0, r.err
}

// take copies what is left of the current portion, and gives its buffer back when nothing is.
func (r *seededReader) take(buffer []byte) int {
	count := copy(buffer, r.rest)
	r.rest = r.rest[count:]

	if count == 0 && r.current.zeros > 0 {
		count = int(min(int64(len(buffer)), r.current.zeros))
		clear(buffer[:count])
		r.current.zeros -= int64(count)
	}

	if r.current.data != nil && len(r.rest) == 0 {
		r.feed.free <- r.current.data
		r.current.data = nil
	}

	return count
}

// readBody reads what the layer in one stream has.
func (r *seededReader) readBody(buffer []byte) (int, error) {
	count, err := r.body.Read(buffer)
	r.handedOut(buffer[:count])

	if errors.Is(err, io.EOF) {
		err = r.end(nil)
	}

	r.err = err

	return count, err
}

func (r *seededReader) handedOut(data []byte) {
	r.sum.Write(data)
	r.done += int64(len(data))
	r.read(int64(len(data)))
}

// end tells what the end of the supply means. After nil the content goes on in one stream.
func (r *seededReader) end(err error) error {
	if IsNoRanges(err) {
		r.body, err = r.whole()
		if err == nil {
			_, err = io.CopyN(io.Discard, r.body, r.done)
		}

		return err
	}

	if err != nil {
		return err
	}

	subject := r.image.blobOf(r.content).subject

	if r.done != r.content.RawSize {
		return truncated(subject, "content", r.done, r.content.RawSize)
	}

	if got := digestOf(r.sum); got != r.content.RawDigest {
		return wrongDigest(subject, "content", got, r.content.RawDigest)
	}

	return io.EOF
}

// Close ends the transfer.
func (r *seededReader) Close() error {
	r.cancel()

	if r.body != nil {
		return r.body.Close()
	}

	for next := range r.feed.full { // so that the supply sees the end of its context
		if next.data != nil {
			r.feed.free <- next.data
		}
	}

	if err := r.wait(); err != nil && !errors.Is(err, context.Canceled) && r.err == nil {
		return fmt.Errorf("ending the transfer of %s: %w", r.image.blobOf(r.content).subject, err)
	}

	return nil
}
