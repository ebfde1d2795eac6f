package redfish

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stayput-dev/stayput/bmc"
)

const (
	// maxBody bounds an answer; a ComputerSystem is some tens of KiB.
	maxBody = 4 << 20
	// maxRedirects: sushy-tools answers a system's name with one redirect to its UUID.
	maxRedirects = 3
)

// call is one Machine call: its context, and what was seen of its newest request.
type call struct {
	ctx        context.Context //nolint:containedctx // gofish fixes a context at connect; this is the caller's
	mayBeSent  atomic.Bool
	retryAfter time.Duration
	// renewed tells that the session was renewed in this call.
	renewed bool
}

// transport adds to gofish what it lacks: the context of each call, a deadline for each request that covers the body,
// authentication without handing gofish the password, bounded answers, and Retry-After. It is used by one call at a
// time, as the Machine's mutex ensures.
type transport struct {
	base           *http.Transport
	requestTimeout time.Duration
	credentials    bmc.Credentials
	token          string
	authenticate   bool
	current        *call
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	now := t.current
	now.mayBeSent.Store(false)
	ctx, cancel := context.WithTimeout(now.ctx, t.requestTimeout)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		// From here on bytes of the request may be on their way.
		GotConn: func(httptrace.GotConnInfo) { now.mayBeSent.Store(true) },
	})
	request = request.Clone(ctx)
	t.setHeaders(request)
	response, err := t.base.RoundTrip(request)
	if err != nil {
		cancel()

		return nil, err
	}
	now.retryAfter = parseRetryAfter(response.Header.Get("Retry-After"), time.Now())
	response.Body = &boundedBody{body: response.Body, left: maxBody, cancel: cancel}

	return response, nil
}

func (t *transport) setHeaders(request *http.Request) {
	// gzip makes ETags weak at some BMCs.
	request.Header.Set("Accept-Encoding", "identity")
	switch {
	case !t.authenticate:
	case t.token != "":
		request.Header.Set("X-Auth-Token", t.token)
	default:
		request.SetBasicAuth(t.credentials.Username, t.credentials.Password)
	}
}

// boundedBody ends the request's deadline with the body, and refuses one that is too long.
type boundedBody struct {
	body   io.ReadCloser
	left   int
	cancel context.CancelFunc
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.body.Read(p[:min(len(p), b.left)])
	b.left -= n

	return n, err
}

func (b *boundedBody) Close() error {
	defer b.cancel()

	return b.body.Close()
}

// newBase makes the HTTP transport of one BMC. Connections are not kept: some BMCs choke on keep-alive (sushy does the
// same). TLS sessions are, where the BMC gives tickets: a full handshake for each reading would be most of what the
// reading costs a BMC's slow processor. No proxy: a BMC network is reached directly.
func newBase(options bmc.Options) (*http.Transport, error) {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: options.SkipVerify, //nolint:gosec // the host's disableCertificateVerification asks for it
		ClientSessionCache: tls.NewLRUClientSessionCache(1),
	}
	if host, _, zoned := strings.Cut(options.Address.Host, "%"); zoned {
		// A certificate names no zone.
		config.ServerName = strings.Trim(host, "[]")
	}
	if options.LegacyTLS {
		config.CipherSuites = withRSAKeyExchange()
	}
	if len(options.CA) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(options.CA) {
			return nil, &bmc.Error{
				Kind: bmc.Untrusted, Op: "reading the CA of the BMC", BMC: options.Address.HostPort(),
				Detail: "it holds no PEM certificate; put the CA's certificate there",
			}
		}
	}

	return &http.Transport{
		DialContext:            (&net.Dialer{Timeout: options.ConnectTimeout}).DialContext,
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    options.ConnectTimeout,
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: maxBody,
	}, nil
}

// withRSAKeyExchange are the cipher suites of TLS 1.2 with those that Go leaves out since 1.22, as they give no forward
// secrecy, and that old BMCs have only. RC4 and 3DES stay out.
func withRSAKeyExchange() []uint16 {
	var suites []uint16
	for _, suite := range tls.CipherSuites() {
		suites = append(suites, suite.ID)
	}

	return append(suites,
		tls.TLS_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_RSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_AES_256_CBC_SHA)
}

var (
	errTooLong          = fmt.Errorf("the BMC's answer is longer than %d bytes", maxBody)
	errTooManyRedirects = errors.New("the BMC redirects too often")
	errToHTTPS          = errors.New("the BMC redirects from HTTP to HTTPS; use redfish:// in the address")
	errForeignRedirect  = errors.New("the BMC redirects to another host, which would get the credentials")
)

// checkRedirect keeps credentials at the BMC and actions where they were sent.
func checkRedirect(request *http.Request, via []*http.Request) error {
	first := via[0]
	switch {
	case len(via) > maxRedirects:
		return errTooManyRedirects
	case first.Method != http.MethodGet:
		return http.ErrUseLastResponse
	case first.URL.Scheme == "http" && request.URL.Scheme == "https" && request.URL.Hostname() == first.URL.Hostname():
		return errToHTTPS
	case request.URL.Scheme != first.URL.Scheme || request.URL.Host != first.URL.Host:
		return errForeignRedirect
	default:
		return nil
	}
}

// parseRetryAfter reads both forms of the header; 0 when it says nothing.
func parseRetryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(value); err == nil && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil && at.After(now) {
		return at.Sub(now)
	}

	return 0
}
