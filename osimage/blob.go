package osimage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// progressForNewTries is the number of bytes after which a transfer counts as healthy again.
const progressForNewTries = 256 << 10

// registryBlobs reads blobs from a registry.
type registryBlobs struct {
	client     *Client
	repository name.Repository
}

var _ blobs = (*registryBlobs)(nil)

func (r *registryBlobs) open(ctx context.Context, source blob, from, to int64) (io.ReadCloser, error) {
	transfer := &transfer{ctx: ctx, from: r, blob: source, pos: from, end: to, reached: from}

	for {
		err := transfer.connect(from == 0)
		if err == nil {
			return transfer, nil
		}

		if err := transfer.failed(err); err != nil {
			return nil, err
		}
	}
}

// transfer reads a part of a blob, and asks for the rest when a connection breaks.
type transfer struct {
	ctx  context.Context //nolint:containedctx // A reader's context is that of the call that opened it.
	from *registryBlobs
	blob blob

	pos, end int64
	// reached is the furthest pos so far: what was skipped through again is no progress.
	reached int64
	body    io.ReadCloser
	// opened tells whether bytes came before, so that 401 and 403 mean an expired address, not a refusal.
	opened   bool
	failures int
	// healthy counts the new bytes since the last failure.
	healthy int64
}

// Read gives the next bytes; it blocks while a broken transfer is taken up again.
func (t *transfer) Read(buffer []byte) (int, error) {
	if t.pos == t.end {
		return 0, io.EOF
	}

	for {
		if t.body == nil {
			if err := t.connect(true); err != nil {
				if err := t.failed(err); err != nil {
					return 0, err
				}

				continue
			}
		}

		n, err := t.readBody(buffer[:min(int64(len(buffer)), t.end-t.pos)])
		if n > 0 || err == nil {
			return n, nil
		}

		if err := t.failed(classify(t.ctx, t.blob.subject, err)); err != nil {
			return 0, err
		}
	}
}

// readBody reads from the connection. When that breaks it is closed, and the error is returned if nothing came.
func (t *transfer) readBody(buffer []byte) (int, error) {
	n, err := t.body.Read(buffer)

	t.pos += int64(n)
	t.healthy += max(0, t.pos-t.reached)
	t.reached = max(t.pos, t.reached)
	t.opened = t.opened || n > 0

	if t.healthy >= progressForNewTries {
		t.failures = 0
	}

	if err != nil && t.pos < t.end {
		t.disconnect()

		if errors.Is(err, io.EOF) {
			// The answer was complete, the blob is not: nobody may take this for the end.
			err = io.ErrUnexpectedEOF
		}

		if n == 0 {
			return 0, fmt.Errorf("the transfer broke at byte %d of %d: %w", t.pos, t.blob.size, err)
		}
	}

	return n, nil
}

// failed decides about an error: nil after a pause means that another try is due.
func (t *transfer) failed(err error) error {
	var typed *Error

	refusedLater := t.opened && errors.Is(err, ErrUnauthorized) && errors.As(err, &typed)
	if !IsTransient(err) && !refusedLater {
		return err
	}

	t.failures++
	t.healthy = 0

	return t.from.client.retry.pause(t.ctx, t.failures, err)
}

// Close ends the transfer. It is safe to call twice.
func (t *transfer) Close() error {
	t.disconnect()

	t.pos = t.end

	return nil
}

func (t *transfer) disconnect() {
	if t.body == nil {
		return
	}

	// The connection is of no use any more, so neither is the error of closing it.
	_ = t.body.Close()
	t.body = nil
}

// connect asks for the bytes from pos on. With discard, an answer that starts at 0 is skipped through; without, it is
// errNoRanges.
func (t *transfer) connect(discard bool) error {
	session, err := t.from.client.session(t.ctx, t.from.repository, transport.PullScope)
	if err != nil {
		return classify(t.ctx, t.blob.subject, err)
	}

	response, err := t.request(session, t.pos > 0 || t.end < t.blob.size) //nolint:bodyclose // It is t.body, closed by disconnect.
	if err != nil {
		return classify(t.ctx, t.blob.subject, err)
	}

	switch response.StatusCode {
	case http.StatusPartialContent:
		err = t.checkRange(response)
	case http.StatusOK:
		err = t.acceptWhole(response, discard)
	case http.StatusRequestedRangeNotSatisfiable, http.StatusNotImplemented:
		err = t.withoutRange(session, discard)
	default:
		err = statusError(t.blob.subject, response.StatusCode, nil)
	}

	if err != nil {
		t.disconnect()
	}

	return err
}

// request sends one GET; the answer's body becomes the transfer's.
func (t *transfer) request(session http.RoundTripper, ranged bool) (*http.Response, error) {
	t.disconnect()

	address := url.URL{
		Scheme: t.from.repository.Scheme(), Host: t.from.repository.RegistryStr(),
		Path: "/v2/" + t.from.repository.RepositoryStr() + "/blobs/" + t.blob.digest,
	}

	request, err := http.NewRequestWithContext(t.ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", t.blob.subject, err)
	}

	if ranged {
		// A closed single range is what every registry that has ranges understands.
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", t.pos, t.end-1))
	}

	response, err := (&http.Client{Transport: session}).Do(request)
	if err != nil {
		return nil, err
	}

	t.body = response.Body

	return response, nil
}

// checkRange makes sure that a 206 starts where it was asked to, in a blob of the right size.
func (t *transfer) checkRange(response *http.Response) error {
	var first, last, total int64

	header := response.Header.Get("Content-Range")
	if _, err := fmt.Sscanf(header, "bytes %d-%d/%d", &first, &last, &total); err != nil || first != t.pos {
		return &Error{
			Kind: ErrTransient, Subject: t.blob.subject, Fix: fixLater,
			Detail: fmt.Sprintf("the registry answered with the range %q, want one from %d", header, t.pos),
		}
	}

	return t.checkSize(total)
}

// acceptWhole takes an answer with the whole blob.
func (t *transfer) acceptWhole(response *http.Response, discard bool) error {
	if response.ContentLength >= 0 {
		if err := t.checkSize(response.ContentLength); err != nil {
			return err
		}
	}

	if t.pos == 0 {
		return nil
	}

	if !discard {
		return errNoRanges
	}

	target := t.pos
	t.pos = 0

	for t.pos < target {
		if _, err := t.readBody(make([]byte, min(32<<10, target-t.pos))); err != nil {
			t.pos = target

			return classify(t.ctx, t.blob.subject, err)
		}

		if t.body == nil {
			t.pos = target

			return &Error{Kind: ErrTransient, Subject: t.blob.subject, Err: io.ErrUnexpectedEOF, Fix: fixLater}
		}
	}

	return nil
}

func (t *transfer) withoutRange(session http.RoundTripper, discard bool) error {
	response, err := t.request(session, false) //nolint:bodyclose // It is t.body, closed by disconnect.
	if err != nil {
		return classify(t.ctx, t.blob.subject, err)
	}

	if response.StatusCode != http.StatusOK {
		return statusError(t.blob.subject, response.StatusCode, nil)
	}

	return t.acceptWhole(response, discard)
}

// checkSize refuses a blob that the registry has in another size than the manifest says.
func (t *transfer) checkSize(size int64) error {
	switch {
	case size < t.blob.size:
		return truncated(t.blob.subject, "layer in the registry", size, t.blob.size)
	case size > t.blob.size:
		return &Error{
			Kind: ErrTooLarge, Subject: t.blob.subject, Fix: fixRebuild,
			Detail: fmt.Sprintf("the layer in the registry has %d bytes, want %d", size, t.blob.size),
		}
	default:
		return nil
	}
}
