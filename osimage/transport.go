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
	dialTimeout   = 30 * time.Second
	headerTimeout = 60 * time.Second
	idleTimeout   = 90 * time.Second
)

// guard is the only way to the network: it refuses plain HTTP unless asked for, and counts what comes in. It sees
// redirects and token servers too.
type guard struct {
	inner     http.RoundTripper
	plainHTTP bool
	count     func(n int64)
}

func newTransport(roots *x509.CertPool, plainHTTP bool, count func(n int64)) http.RoundTripper {
	return &guard{
		plainHTTP: plainHTTP,
		count:     count,
		inner: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext,
			ForceAttemptHTTP2:     true,
			TLSClientConfig:       &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:   dialTimeout,
			ResponseHeaderTimeout: headerTimeout,
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

	response, err := g.inner.RoundTrip(request)
	if err != nil {
		return nil, err
	}

	response.Body = &countedBody{ReadCloser: response.Body, count: g.count}

	return response, nil
}

type countedBody struct {
	io.ReadCloser

	count func(n int64)
}

func (b *countedBody) Read(buffer []byte) (int, error) {
	n, err := b.ReadCloser.Read(buffer)
	if n > 0 {
		b.count(int64(n))
	}

	return n, err
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
