package osimage

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

const (
	dialTimeout = 30 * time.Second
	idleTimeout = 90 * time.Second
)

// errStalled is the cause of a request that was ended because nothing moved.
var errStalled = errors.New("no byte came or went for too long")

// guard is the only way to the network: it refuses plain HTTP unless asked for, ends requests that move no byte, and
// counts what comes in. It sees redirects and token servers too.
type guard struct {
	inner      http.RoundTripper
	plainHTTP  bool
	stallAfter time.Duration
	count      func(n int64)
}

func newTransport(
	roots *x509.CertPool, plainHTTP bool, stallAfter time.Duration, count func(n int64),
) http.RoundTripper {
	return &guard{
		plainHTTP:  plainHTTP,
		stallAfter: stallAfter,
		count:      count,
		inner: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext,
			ForceAttemptHTTP2:     true,
			TLSClientConfig:       &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:   dialTimeout,
			ResponseHeaderTimeout: stallAfter,
			IdleConnTimeout:       idleTimeout,
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
		request.Body = &sentBody{ReadCloser: request.Body, stall: stall}
	}

	response, err := g.inner.RoundTrip(request)
	stall.pause()

	if err != nil {
		defer stop(nil)

		return nil, explain(ctx, err)
	}

	response.Body = &receivedBody{ReadCloser: response.Body, ctx: ctx, stop: stop, stall: stall, count: g.count}

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

	stall *stall
}

func (b *sentBody) Read(buffer []byte) (int, error) {
	b.stall.moved()

	n, err := b.ReadCloser.Read(buffer)
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
}

func (b *receivedBody) Read(buffer []byte) (int, error) {
	b.stall.moved()
	n, err := b.ReadCloser.Read(buffer)
	b.stall.pause()

	if n > 0 {
		b.count(int64(n))
	}

	return n, explain(b.ctx, err)
}

func (b *receivedBody) Close() error {
	b.stall.pause()
	// First, since closing waits for a Read that waits for the network.
	b.stop(nil)

	return b.ReadCloser.Close()
}

func plainHTTPRefused(host string) error {
	return &Error{
		Kind: ErrPlainHTTP, Subject: "registry " + host, Detail: "it was not reached over TLS",
		Fix: "give the registry a certificate, or ask for plain HTTP with --plain-http or registry.plainHTTP",
	}
}

// classify turns an error of a request into one of ours. Errors that are ours already stay as they are.
func classify(ctx context.Context, subject string, err error) error {
	if err == nil {
		return nil
	}

	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", subject, context.Cause(ctx))
	}

	var (
		typed   *Error
		answer  *transport.Error
		network *url.Error
	)

	// Registries with loopback or private addresses, and all when plain HTTP is allowed, are asked over TLS and in the
	// clear, and both failures are here; errors.As finds the first. Our own refusal to go in the clear says the least.
	hasNetwork := errors.As(err, &network) && !errors.As(network.Err, &typed)

	if hasNetwork {
		if trust := trustError(subject, network); trust != nil {
			return trust
		}
	}

	switch {
	case errors.As(err, &answer):
		return statusError(subject, answer.StatusCode, answer)
	case hasNetwork && errors.Is(network, http.ErrSchemeMismatch):
		return plainHTTPRefused(redact(network).url)
	case hasNetwork:
		return &Error{Kind: ErrTransient, Subject: subject, Err: redact(network), Fix: fixLater}
	case errors.As(err, &typed):
		return typed
	default:
		return &Error{Kind: ErrTransient, Subject: subject, Err: err, Fix: fixLater}
	}
}

const fixLater = "check the network and the registry, then try again"

// trustError recognises a registry whose certificate does not prove who it is, nil when that is not the matter.
func trustError(subject string, err *url.Error) error {
	var (
		verification *tls.CertificateVerificationError
		host         x509.HostnameError
	)

	switch {
	case errors.As(err, &host):
		return &Error{
			Kind: ErrUnknownCA, Subject: subject, Detail: host.Error(),
			Fix: "use the name that is in the registry's certificate",
		}
	case errors.As(err, &verification):
		return &Error{
			Kind: ErrUnknownCA, Subject: subject, Err: verification.Err,
			Fix: "give the registry's CA with --ca-file or registry.caFile, and check the clock",
		}
	default:
		return nil
	}
}

// statusError classifies an HTTP status; cause may be nil.
func statusError(subject string, status int, cause error) error {
	result := &Error{Subject: subject, Detail: fmt.Sprintf("the registry answered %d", status), Err: cause}

	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		result.Kind = ErrUnauthorized
		result.Fix = "give credentials that may read it with --docker-config or registry.dockerConfig"
	case status == http.StatusNotFound:
		result.Kind, result.Fix = ErrNotFound, "check the name and the tag or digest, and that it was pushed"
	case status == http.StatusRequestTimeout || status == http.StatusTooManyRequests ||
		status >= http.StatusInternalServerError:
		result.Kind, result.Fix = ErrTransient, fixLater
	case hasCode(cause, transport.DigestInvalidErrorCode):
		result.Kind, result.Fix = ErrWrongDigest, "the image's folder was changed: build the image again"
	default:
		result.Kind, result.Fix = ErrNotAnImage, "check that this is an OCI registry"
	}

	return result
}

func hasCode(err error, code transport.ErrorCode) bool {
	var answer *transport.Error
	if !errors.As(err, &answer) {
		return false
	}

	for _, diagnostic := range answer.Errors {
		if diagnostic.Code == code {
			return true
		}
	}

	return false
}

// redactedError is an error of a request without the parts of the address that can hold secrets: the user, and the
// query with its signatures.
type redactedError struct {
	method, url string
	cause       error
}

func redact(err *url.Error) *redactedError {
	address := "(unreadable address)"

	if parsed, parseErr := url.Parse(err.URL); parseErr == nil {
		parsed.RawQuery, parsed.User, parsed.Fragment = "", nil, ""
		address = parsed.String()
	}

	return &redactedError{method: strings.ToUpper(err.Op), url: address, cause: err.Err}
}

func (e *redactedError) Error() string {
	return e.method + " " + e.url + ": " + e.cause.Error()
}

func (e *redactedError) Unwrap() error {
	return e.cause
}
