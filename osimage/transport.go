package osimage

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

const (
	dialTimeout = 30 * time.Second
	idleTimeout = 90 * time.Second
	endTimeout  = 2 * time.Second
	// maxIdleConnections is for each host.
	maxIdleConnections = 32
)

// errStalled is the cause of a request that was ended because nothing moved.
var errStalled = errors.New("no byte came or went for too long")

// network is what all connections of a client have in common.
type network struct {
	stallAfter time.Duration
	count      func(n int64)
	proxy      func(*url.URL) (*url.URL, error)
	// in and out bound the bytes a second in each direction, over all connections; nil does not.
	in, out *limiter
}

// connection is what the connections to one host have of their own.
type connection struct {
	roots        *x509.CertPool
	certificates []tls.Certificate
	skipVerify   bool
	plainHTTP    bool
	dialTimeout  time.Duration
}

// guard is the only way to the network: it refuses plain HTTP unless asked for, ends requests that move no byte, counts
// and limits what comes in, and notes when a host asks for a pause. It sees redirects and token servers too.
type guard struct {
	*network

	inner     http.RoundTripper
	plainHTTP bool
}

func (n *network) transport(to connection) *guard {
	return &guard{
		network:   n,
		plainHTTP: to.plainHTTP,
		inner: &http.Transport{
			Proxy:                  func(request *http.Request) (*url.URL, error) { return n.proxy(request.URL) },
			OnProxyConnectResponse: checkProxy,
			DialContext:            (&net.Dialer{Timeout: cmp.Or(to.dialTimeout, dialTimeout), KeepAlive: dialTimeout}).DialContext,
			ForceAttemptHTTP2:      true,
			TLSClientConfig: &tls.Config{
				RootCAs: to.roots, Certificates: to.certificates, MinVersion: tls.VersionTLS12,
				InsecureSkipVerify: to.skipVerify, //nolint:gosec // The operator's hosts.toml asks for it.
			},
			TLSHandshakeTimeout:   dialTimeout,
			ResponseHeaderTimeout: n.stallAfter,
			IdleConnTimeout:       idleTimeout,
			// The default of 2 would close the connections of parallel ranges after each of them.
			MaxIdleConnsPerHost: maxIdleConnections,
			// Layers are compressed already, and a decompressing transport would break ranges.
			DisableCompression: true,
		},
	}
}

// RoundTrip does one request.
func (g *guard) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "https" && !g.plainHTTP {
		return nil, plainHTTPRefused(request.URL.Host)
	}

	ctx, stop := context.WithCancelCause(request.Context())
	stall := newStall(g.stallAfter, stop)
	request = request.WithContext(ctx)

	if request.Body != nil && request.Body != http.NoBody {
		request.Body = &sentBody{ReadCloser: request.Body, ctx: ctx, stall: stall, limit: g.out}
	}

	response, err := g.inner.RoundTrip(request)
	stall.pause()

	if err != nil {
		defer stop(nil)

		return nil, explain(ctx, err)
	}

	notePause(ctx, response)

	response.Body = bounded(request, &receivedBody{
		ReadCloser: response.Body, ctx: ctx, stop: stop, stall: stall, count: g.count, limit: g.in, left: response.ContentLength,
	})

	return response, nil
}

// stall ends a request when its timer is not set anew in time.
type stall struct {
	timer *time.Timer
	after time.Duration
}

func newStall(after time.Duration, stop context.CancelCauseFunc) *stall {
	result := &stall{timer: time.AfterFunc(after, func() { stop(errStalled) }), after: after}
	result.pause()

	return result
}

func (s *stall) moved() { s.timer.Reset(s.after) }

// pause is for the time when others bound the wait, or when it is the caller's turn.
func (s *stall) pause() { s.timer.Stop() }

// explain says why a request was ended. Even io.EOF is no end then: a server that sees the client go may complete its
// answer with what it has sent so far.
func explain(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}

	return err
}

// sentBody is read by the transport whenever it could send what it has read before.
type sentBody struct {
	io.ReadCloser

	ctx   context.Context //nolint:containedctx // A body's context is that of its request.
	stall *stall
	limit *limiter
}

func (b *sentBody) Read(buffer []byte) (int, error) {
	// What is sent may come from elsewhere, and take its time.
	b.stall.pause()

	n, err := b.ReadCloser.Read(b.limit.fit(buffer))
	if waitErr := b.limit.wait(b.ctx, n); err == nil {
		err = waitErr
	}

	b.stall.moved()

	if err != nil {
		b.stall.pause()
	}

	return n, err
}

// receivedBody is an answer. While nobody reads it, nothing needs to come.
type receivedBody struct {
	io.ReadCloser

	ctx   context.Context //nolint:containedctx // A body's context is that of its request.
	stop  context.CancelCauseFunc
	stall *stall
	count func(n int64)
	limit *limiter
	// left is how many bytes are to come, below 0 when the answer does not say.
	left  int64
	ended bool
}

func (b *receivedBody) Read(buffer []byte) (int, error) {
	b.stall.moved()
	n, err := b.ReadCloser.Read(b.limit.fit(buffer))
	b.stall.pause()

	if n > 0 {
		b.count(int64(n))
		b.left -= int64(n)
	}

	b.ended = err != nil

	if waitErr := b.limit.wait(b.ctx, n); err == nil {
		err = waitErr
	}

	return n, explain(b.ctx, err)
}

// Close ends the request. Of an answer that came whole it waits a moment for the end: over HTTP/2 a stream that is left
// before its end is reset, and servers close the connections of clients that reset many streams (their guard against
// CVE-2023-44487).
func (b *receivedBody) Close() error {
	b.stall.pause()

	if b.left == 0 && !b.ended {
		timer := time.AfterFunc(endTimeout, func() { b.stop(nil) })
		_, _ = b.ReadCloser.Read(make([]byte, 1))

		timer.Stop()
	}

	// First, since closing waits for a Read that waits for the network.
	b.stop(nil)

	return b.ReadCloser.Close()
}
