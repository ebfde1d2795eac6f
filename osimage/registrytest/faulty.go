package registrytest

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

// Faulty is a registry in the process of the test that misbehaves on request and remembers what it was asked. It serves
// blobs with ranges. Its name is in the certificate that all of them share, so that one can be a mirror of another.
type Faulty struct {
	// Address is its host and port. Its certificate is for 127.0.0.1 and for "example.com".
	Address string
	// Roots has the authority of its certificate.
	Roots *x509.CertPool

	server, storage *httptest.Server
	inner           http.Handler
	connections     atomic.Int64
	epoch           atomic.Int64
	tokens          bool

	// idle is signalled with each answer that is complete; running counts those that are not.
	idle    sync.Cond
	running int

	mutex    sync.Mutex
	rules    []*rule
	requests []Request
	blobs    map[string][]byte
}

// Request is one that was answered.
type Request struct {
	Method, Host, Path, Query string
	Header                    http.Header
	// Storage tells that the storage behind the registry was asked.
	Storage bool
	Status  int
	// Sent is the number of bytes of the answer's body.
	Sent int64
}

// Fault answers a request in place of the registry, or changes it and hands it on.
type Fault func(w http.ResponseWriter, r *http.Request, next http.Handler)

type rule struct {
	times int
	match func(r *http.Request) bool
	fault Fault
}

// FaultyOption changes how a registry is started.
type FaultyOption func(f *Faulty)

// WithHTTP2 serves HTTP/2 too.
func WithHTTP2() FaultyOption {
	return func(f *Faulty) { f.server.EnableHTTP2 = true }
}

// WithReferrers serves the referrers API of OCI 1.1.
func WithReferrers() FaultyOption {
	return func(f *Faulty) {
		f.inner = registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true))
	}
}

// WithStorage redirects requests for blobs to a storage on another port, with signed addresses.
func WithStorage() FaultyOption {
	return func(f *Faulty) {
		f.storage = httptest.NewUnstartedServer(f.record(true, http.HandlerFunc(f.serveStorage)))
	}
}

// WithTokens wants a token, to be had for User and Password; see Expire.
func WithTokens() FaultyOption {
	return func(f *Faulty) { f.tokens = true }
}

// Password is the one that a registry WithTokens wants.
const Password = password

// StartFaulty starts a registry with TLS that stops with the test.
func StartFaulty(tb testing.TB, options ...FaultyOption) *Faulty {
	tb.Helper()

	f := &Faulty{blobs: map[string][]byte{}, inner: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	f.idle.L = &f.mutex
	f.server = httptest.NewUnstartedServer(f.record(false, http.HandlerFunc(f.serve)))

	for _, option := range options {
		option(f)
	}

	f.start(tb, f.server)

	if f.storage != nil {
		f.start(tb, f.storage)
	}

	f.Address = f.server.Listener.Addr().String()
	f.Roots = x509.NewCertPool()
	f.Roots.AddCert(f.server.Certificate())

	return f
}

func (f *Faulty) start(tb testing.TB, server *httptest.Server) {
	tb.Helper()

	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			f.connections.Add(1)
		}
	}
	server.StartTLS()
	tb.Cleanup(server.Close)
}

// Stop ends it before the test does: nobody answers at its address any more.
func (f *Faulty) Stop() {
	f.server.Close()
}

// Client speaks to it, and trusts its certificate.
func (f *Faulty) Client() *http.Client {
	return f.server.Client()
}

// Certificate is its own, and that of its authority.
func (f *Faulty) Certificate() []byte {
	return f.server.Certificate().Raw
}

// Connections is the number of TCP connections that were made to it and its storage.
func (f *Faulty) Connections() int {
	return int(f.connections.Load())
}

// Expire makes it refuse the tokens and the signed addresses that it has given out.
func (f *Faulty) Expire() {
	f.epoch.Add(1)
}

// Misbehave answers the next requests that match with a fault, so many times.
func (f *Faulty) Misbehave(times int, match func(r *http.Request) bool, fault Fault) {
	f.mutex.Lock()
	defer f.mutex.Unlock()

	f.rules = append(f.rules, &rule{times: times, match: match, fault: fault})
}

// Requests returns what was asked, and answered, since it was called before. It waits for those that are being answered: a
// client can have all of an answer before its server knows.
func (f *Faulty) Requests() []Request {
	f.mutex.Lock()
	defer f.mutex.Unlock()

	for f.running > 0 {
		f.idle.Wait()
	}

	result := f.requests
	f.requests = nil

	return result
}

// Blobs matches requests for the content of blobs, all or one.
func Blobs(digest string) func(r *http.Request) bool {
	return func(r *http.Request) bool {
		return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/sha256:") && strings.HasSuffix(r.URL.Path, digest)
	}
}

// Manifests matches requests for manifests.
func Manifests(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/")
}

// Everything matches every request.
func Everything(*http.Request) bool { return true }

// Status answers with a status and header fields, given as name and value in turn.
func Status(code int, header ...string) Fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		for index := 0; index+1 < len(header); index += 2 {
			w.Header().Set(header[index], header[index+1])
		}

		w.WriteHeader(code)
	}
}

// CutAfter breaks the connection after so many bytes of the answer.
func CutAfter(limit int) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(&limitedWriter{ResponseWriter: w, left: limit, end: func() { panic(http.ErrAbortHandler) }}, r)
	}
}

// SilentAfter sends so many bytes of the answer and then nothing, until the client has gone.
func SilentAfter(limit int) Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(&limitedWriter{ResponseWriter: w, left: limit, end: func() {
			<-r.Context().Done()
			panic(http.ErrAbortHandler)
		}}, r)
	}
}

// Meet keeps requests until so many have come, which makes a client open as many connections.
func Meet(count int) Fault {
	var all sync.WaitGroup

	all.Add(count)

	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		all.Done()
		all.Wait()
		next.ServeHTTP(w, r)
	}
}

// WithoutRanges answers as if no range was asked for.
func WithoutRanges(w http.ResponseWriter, r *http.Request, next http.Handler) {
	r.Header.Del("Range")
	next.ServeHTTP(w, r)
}

// Changed answers with other bytes of the same length.
func Changed(w http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(&changingWriter{w}, r)
}

// record remembers each request, and applies the rules.
func (f *Faulty) record(storage bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		counting := &countingWriter{ResponseWriter: w, status: http.StatusOK}
		request := Request{
			Method: r.Method, Host: r.Host, Path: r.URL.Path, Query: r.URL.RawQuery, Header: r.Header.Clone(), Storage: storage,
		}

		defer func() {
			request.Status, request.Sent = counting.status, counting.sent

			f.mutex.Lock()
			f.requests = append(f.requests, request)
			f.running--
			f.mutex.Unlock()
			f.idle.Broadcast()
		}()

		f.mutex.Lock()
		f.running++
		f.mutex.Unlock()

		if fault := f.fault(r); fault != nil {
			fault(counting, r, next)
		} else {
			next.ServeHTTP(counting, r)
		}
	})
}

func (f *Faulty) fault(r *http.Request) Fault {
	f.mutex.Lock()
	defer f.mutex.Unlock()

	for _, rule := range f.rules {
		if rule.times > 0 && rule.match(r) {
			rule.times--

			return rule.fault
		}
	}

	return nil
}

func (f *Faulty) serve(w http.ResponseWriter, r *http.Request) {
	switch {
	case f.tokens && r.URL.Path == "/token":
		f.serveToken(w, r)
	case f.tokens && r.Header.Get("Authorization") != "Bearer "+f.secret("token"):
		w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q,service=%q", "https://"+r.Host+"/token", "test"))
		w.WriteHeader(http.StatusUnauthorized)
	case Blobs("")(r):
		f.serveBlob(w, r)
	default:
		f.serveRest(w, r)
	}
}

// serveRest gives a request to the registry inside. That one holds a lock while it reads an upload, so with several on one
// HTTP/2 connection those that wait for the lock could use up the window that the reader needs: all is read before.
func (f *Faulty) serveRest(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)

		return
	}

	r.Body = io.NopCloser(bytes.NewReader(body))
	f.inner.ServeHTTP(w, r)
}

func (f *Faulty) serveToken(w http.ResponseWriter, r *http.Request) {
	user, secret, _ := r.BasicAuth()
	if user != User || secret != Password {
		w.WriteHeader(http.StatusUnauthorized)

		return
	}

	_, _ = fmt.Fprintf(w, `{"token":%q}`, f.secret("token"))
}

// secret is what is accepted until Expire is called.
func (f *Faulty) secret(kind string) string {
	return fmt.Sprintf("%s-%d", kind, f.epoch.Load())
}

func (f *Faulty) serveBlob(w http.ResponseWriter, r *http.Request) {
	if f.storage != nil {
		w.Header().Set("Location", f.storage.URL+r.URL.Path+"?signature="+f.secret("signature"))
		w.WriteHeader(http.StatusTemporaryRedirect)

		return
	}

	f.content(w, r)
}

func (f *Faulty) serveStorage(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("signature") != f.secret("signature") {
		w.WriteHeader(http.StatusForbidden)

		return
	}

	f.content(w, r)
}

// content serves a blob with ranges.
func (f *Faulty) content(w http.ResponseWriter, r *http.Request) {
	digest := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]

	f.mutex.Lock()
	data, ok := f.blobs[digest]
	f.mutex.Unlock()

	if !ok {
		whole := r.Clone(r.Context())
		whole.Header.Del("Range")

		recorder := httptest.NewRecorder()
		f.inner.ServeHTTP(recorder, whole)

		if recorder.Code != http.StatusOK {
			w.WriteHeader(recorder.Code)

			return
		}

		data = recorder.Body.Bytes()

		f.mutex.Lock()
		f.blobs[digest] = data
		f.mutex.Unlock()
	}

	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// countingWriter remembers what was answered.
type countingWriter struct {
	http.ResponseWriter

	status int
	sent   int64
}

func (c *countingWriter) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

func (c *countingWriter) Write(data []byte) (int, error) {
	n, err := c.ResponseWriter.Write(data)
	c.sent += int64(n)

	return n, err
}

// Unwrap is for http.ResponseController.
func (c *countingWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// limitedWriter ends an answer after some bytes.
type limitedWriter struct {
	http.ResponseWriter

	left int
	end  func()
}

func (l *limitedWriter) Write(data []byte) (int, error) {
	if len(data) <= l.left {
		l.left -= len(data)

		return l.ResponseWriter.Write(data)
	}

	if l.left > 0 {
		_, _ = l.ResponseWriter.Write(data[:l.left])
	}

	_ = http.NewResponseController(l.ResponseWriter).Flush()

	l.end()

	return 0, io.ErrShortWrite
}

// Unwrap is for http.ResponseController.
func (l *limitedWriter) Unwrap() http.ResponseWriter { return l.ResponseWriter }

// changingWriter flips a bit in each byte.
type changingWriter struct {
	http.ResponseWriter
}

func (c *changingWriter) Write(data []byte) (int, error) {
	changed := bytes.Clone(data)
	for index := range changed {
		changed[index] ^= 1
	}

	return c.ResponseWriter.Write(changed)
}
