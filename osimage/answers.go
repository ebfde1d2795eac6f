package osimage

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

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
	case hasNetwork && isNoSuchHost(network):
		return &Error{
			Kind: ErrTransient, Subject: subject, Err: redact(network), Fix: "check how the host is written, and this machine's DNS",
		}
	case hasNetwork:
		return &Error{Kind: ErrTransient, Subject: subject, Err: redact(network), Fix: fixLater}
	case errors.As(err, &typed):
		return typed
	default:
		return &Error{Kind: ErrTransient, Subject: subject, Err: err, Fix: fixLater}
	}
}

// isNoSuchHost tells whether the DNS knows that there is no host of that name.
func isNoSuchHost(err error) bool {
	lookup, ok := errors.AsType[*net.DNSError](err)

	return ok && lookup.IsNotFound
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
	case status == http.StatusUnauthorized:
		result.Kind = ErrUnauthorized
		result.Fix = "give credentials that may read it with --docker-config or registry.dockerConfig"
	case status == http.StatusForbidden:
		result.Kind = ErrUnauthorized
		result.Fix = "give the credentials the right to it, or give others with --docker-config or registry.dockerConfig"
	case status == http.StatusProxyAuthRequired:
		result.Kind, result.Detail = ErrUnauthorized, "the proxy wants a user and a password, or others"
		result.Fix = "write them into HTTP_PROXY or --proxy, as http://user:password@host:port"
	case status == http.StatusNotFound:
		result.Kind, result.Fix = ErrNotFound, "check the name and the tag or digest, and that it was pushed"
	case status == http.StatusTooManyRequests:
		result.Kind, result.Fix = ErrTransient, "try again later: the registry limits the requests of each client or account"
	case status == http.StatusRequestTimeout || status >= http.StatusInternalServerError:
		result.Kind, result.Fix = ErrTransient, fixLater
	case status == http.StatusRequestedRangeNotSatisfiable:
		result.Kind, result.Fix = ErrNotFound, "push the image again: the registry has not all of this blob"
	case hasCode(cause, transport.DigestInvalidErrorCode):
		result.Kind, result.Fix = ErrWrongDigest, "the image's folder was changed: build the image again"
	default:
		result.Kind, result.Fix = ErrNotAnImage, "check that this is an OCI registry"
	}

	return result
}

// isUnauthenticated tells whether a registry did not accept who we say we are, which a new session can mend: it forgets
// tokens, and credentials can have changed.
func isUnauthenticated(err error) bool {
	if answer, ok := errors.AsType[*transport.Error](err); ok {
		return answer.StatusCode == http.StatusUnauthorized
	}

	return errors.Is(err, errUnauthenticated)
}

// errUnauthenticated is the cause of an error about the status 401.
var errUnauthenticated = errors.New("the credentials were not accepted, or there are none")

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
