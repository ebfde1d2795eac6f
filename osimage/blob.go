package osimage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/stayput-dev/stayput/osimage/hosts"
)

// progressForNewTries is the number of bytes after which a transfer counts as healthy again.
const progressForNewTries = 256 << 10

// maxVerified is the size up to which a blob from a mirror is verified before any of it is used.
const maxVerified = 4 << 20

// registryBlobs reads blobs from a registry, or its mirrors.
type registryBlobs struct {
	client     *Client
	repository name.Repository
	locations  *locations
	// place changes when mirrors turn out to be wrong.
	place atomic.Pointer[place]
}

var (
	_ blobs       = (*registryBlobs)(nil)
	_ rangedBlobs = (*registryBlobs)(nil)
)

func (r *registryBlobs) open(ctx context.Context, source blob, from, to int64) (io.ReadCloser, error) {
	if from == 0 && to == source.size && source.size <= maxVerified && len(r.place.Load().endpoints) > 1 {
		return r.openVerified(ctx, source)
	}

	return r.start(&transfer{ctx: withAskedPause(ctx), from: r, blob: source, pos: from, end: to, reached: from, whole: from == 0})
}

func (r *registryBlobs) openRange(ctx context.Context, source blob, from, to int64) (io.ReadCloser, error) {
	return r.start(&transfer{ctx: withAskedPause(ctx), from: r, blob: source, pos: from, end: to, reached: from, ranged: true})
}

// openVerified reads a small blob from the first host that has it with the right digest.
func (r *registryBlobs) openVerified(ctx context.Context, source blob) (io.ReadCloser, error) {
	data := make([]byte, source.size)

	err := r.client.retry.do(ctx, source.subject, func(ctx context.Context) error {
		return r.place.Load().each(ctx, source.subject, hosts.Pull, func(host *endpoint) error {
			transfer := &transfer{ctx: ctx, from: r, blob: source, end: source.size, whole: true}
			defer transfer.disconnect()

			if err := transfer.connectTo(host); err != nil {
				return err
			}

			for transfer.pos < transfer.end {
				if _, err := transfer.readBody(data[transfer.pos:]); err != nil {
					return err
				}

				if transfer.body == nil && transfer.pos < transfer.end {
					return io.ErrUnexpectedEOF
				}
			}

			if got := digestOfBytes(data); got != source.digest {
				return wrongDigest(source.subject, "blob", got, source.digest)
			}

			return nil
		})
	})
	if err != nil {
		return nil, err
	}

	return io.NopCloser(bytes.NewReader(data)), nil
}

// distrustMirrors makes the registry itself the only place, after a mirror had other bytes than it should. It returns
// false when that was so before: then they are the registry's.
func (r *registryBlobs) distrustMirrors() bool {
	place := r.place.Load()
	if len(place.endpoints) < 2 {
		return false
	}

	r.place.Store(place.withoutMirrors())

	return true
}

func (r *registryBlobs) start(transfer *transfer) (io.ReadCloser, error) {
	for {
		err := transfer.connect()
		if err == nil {
			// From now on what is before pos was read, so it can be skipped through when there are no ranges.
			transfer.whole = true

			return transfer, nil
		}

		if err := transfer.failed(err); err != nil {
			return nil, err
		}
	}
}

// locations are where hosts have said that blobs are: the addresses of storage that they redirect to. Asking there
// directly spares each further range the way through the registry. Such addresses are signed and expire, so a refusal
// there means no more than that the registry is to be asked again.
type locations struct {
	mutex sync.Mutex
	known map[location]*url.URL
}

type location struct {
	host   *endpoint
	digest string
}

func (l *locations) get(host *endpoint, digest string) *url.URL {
	l.mutex.Lock()
	defer l.mutex.Unlock()

	return l.known[location{host, digest}]
}

func (l *locations) set(host *endpoint, digest string, address *url.URL) {
	l.mutex.Lock()
	defer l.mutex.Unlock()

	if l.known == nil {
		l.known = map[location]*url.URL{}
	}

	if address == nil {
		delete(l.known, location{host, digest})
	} else {
		l.known[location{host, digest}] = address
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
	// whole allows an answer with the whole blob, which is skipped through up to pos; ranged allows none.
	whole, ranged bool
	// host is the one that was asked last.
	host *endpoint
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
			if err := t.connect(); err != nil {
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

	// A mirror that cuts each transfer is worse than none.
	if t.failures > 1 && t.host != nil {
		t.host.rest(t.from.client.now())
	}

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

// connect asks the hosts in turn for the bytes from pos on. It returns errNoRanges when all that is to be had is the
// whole blob, and that is not allowed.
func (t *transfer) connect() error {
	return t.from.place.Load().each(t.ctx, t.blob.subject, hosts.Pull, func(host *endpoint) error {
		err := t.connectTo(host)
		if err != nil {
			t.disconnect()
		}

		return err
	})
}

// connectTo asks one host. Its errors are classified by its caller.
func (t *transfer) connectTo(host *endpoint) error {
	t.host = host

	if address := t.from.locations.get(host, t.blob.digest); address != nil {
		if t.ask(host, host.network, address) == nil {
			return nil
		}

		t.disconnect()
		t.from.locations.set(host, t.blob.digest, nil)
	}

	repository := host.repository(t.from.repository)
	address := &url.URL{
		Scheme: repository.Scheme(), Host: repository.RegistryStr(),
		Path: apiPath + repository.RepositoryStr() + "/blobs/" + t.blob.digest,
	}

	return host.authorized(t.ctx, t.from.client.keychain, repository, []string{repository.Scope(transport.PullScope)},
		func(session http.RoundTripper) error { return t.ask(host, session, address) })
}

// ask sends a request and looks at the answer, whose body becomes the transfer's.
func (t *transfer) ask(host *endpoint, session http.RoundTripper, address *url.URL) error {
	response, err := t.request(session, address, t.pos > 0 || t.end < t.blob.size) //nolint:bodyclose // See disconnect.
	if err != nil {
		return err
	}

	switch response.StatusCode {
	case http.StatusPartialContent:
		err = t.checkRange(response)
	case http.StatusOK:
		err = t.acceptWhole(response)
	case http.StatusRequestedRangeNotSatisfiable, http.StatusNotImplemented:
		err = t.withoutRange(session, address, response)
	case http.StatusUnauthorized:
		err = statusError(t.blob.subject, response.StatusCode, errUnauthenticated)
	default:
		err = statusError(t.blob.subject, response.StatusCode, nil)
	}

	if err == nil && response.Request.URL.Host != host.registry.RegistryStr() {
		t.from.locations.set(host, t.blob.digest, response.Request.URL)
	}

	return err
}

// request sends one GET; the answer's body becomes the transfer's.
func (t *transfer) request(session http.RoundTripper, address *url.URL, ranged bool) (*http.Response, error) {
	t.disconnect()

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

// checkRange makes sure that a 206 starts where it was asked to, in a blob of the right size. A host that goes on to answer
// otherwise, such as with several ranges at once (multipart/byteranges), is as good as one without ranges.
func (t *transfer) checkRange(response *http.Response) error {
	header := response.Header.Get("Content-Range")

	got, ok := parseContentRange(header)
	if !ok || got.first != t.pos {
		return &Error{
			Kind: ErrTransient, Subject: t.blob.subject, Fix: fixLater, Err: errNoRanges,
			Detail: fmt.Sprintf("the registry answered with the range %q, want one from %d", header, t.pos),
		}
	}

	if got.size < 0 {
		return nil
	}

	return t.checkSize(got.size)
}

// contentRange is what an answer says that it has: the bytes from first to last, both included, of so many, -1 for a number
// that the server does not know.
type contentRange struct {
	first, last, size int64
}

// parseContentRange reads the header field of a 206 (RFC 9110, section 14.4). It refuses what cannot be.
func parseContentRange(header string) (contentRange, bool) {
	part, size, _ := strings.Cut(strings.TrimPrefix(header, "bytes "), "/")
	first, last, _ := strings.Cut(part, "-")

	var (
		result contentRange
		errs   [3]error
	)

	result.first, errs[0] = strconv.ParseInt(first, 10, 64)
	result.last, errs[1] = strconv.ParseInt(last, 10, 64)

	if size == "*" {
		result.size = -1
	} else {
		result.size, errs[2] = strconv.ParseInt(size, 10, 64)
	}

	known := errors.Join(errs[:]...) == nil && strings.HasPrefix(header, "bytes ")

	return result, known && result.first >= 0 && result.first <= result.last && (size == "*" || result.last < result.size)
}

// acceptWhole takes an answer with the whole blob.
func (t *transfer) acceptWhole(response *http.Response) error {
	if response.ContentLength >= 0 {
		if err := t.checkSize(response.ContentLength); err != nil {
			return err
		}
	}

	asked := t.pos > 0 || t.end < t.blob.size

	switch {
	case t.ranged && asked, !t.whole && t.pos > 0:
		return errNoRanges
	case t.pos == 0:
		return nil
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

// withoutRange asks for the whole blob after a range was refused with 416 or 501.
func (t *transfer) withoutRange(session http.RoundTripper, address *url.URL, refused *http.Response) error {
	// A registry that has less than it should have says so in the refusal (RFC 9110, section 14.4).
	var size int64
	if _, err := fmt.Sscanf(refused.Header.Get("Content-Range"), "bytes */%d", &size); err == nil && size < t.end {
		return t.checkSize(size)
	}

	if t.ranged {
		return errNoRanges
	}

	response, err := t.request(session, address, false) //nolint:bodyclose // See disconnect.
	if err != nil {
		return err
	}

	if response.StatusCode != http.StatusOK {
		return statusError(t.blob.subject, response.StatusCode, nil)
	}

	return t.acceptWhole(response)
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
