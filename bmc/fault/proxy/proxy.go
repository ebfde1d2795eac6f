package proxy

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// maxRequest bounds a request's body; a Redfish client sends some hundred bytes.
const maxRequest = 1 << 20

// Rule changes the answer to some requests.
type Rule struct {
	// Name is for the reader of Fired.
	Name string
	// Method and Path select requests; empty matches all. Path matches a part of the URL's path.
	Method, Path string
	// Exact makes Path match the end of the path only.
	Exact bool
	// Except are parts of paths that the rule leaves alone.
	Except []string
	// Match selects further; nil matches all.
	Match func(*http.Request) bool
	// Skip is how many matching requests pass before the rule begins.
	Skip int
	// Times is how many requests it changes; 0 means all.
	Times int
	// Apply gives the request to the service before Effect is played; else the service never sees it.
	Apply bool
	// Then is called after the service had the request, and before Effect.
	Then func()
	// Effect is what the client gets. Nil gives it the service's answer.
	Effect Effect
}

// Exchange is what an Effect has to work with.
type Exchange struct {
	// Request is the client's; its body has been read.
	Request *http.Request
	// Body is the request's body.
	Body []byte
	// Answer is the service's answer; nil when the rule does not Apply.
	Answer *httptest.ResponseRecorder
	// Closing ends when the Proxy is closed.
	Closing <-chan struct{}
}

// Effect answers a request.
type Effect func(http.ResponseWriter, *Exchange)

// Proxy is the http.Handler.
type Proxy struct {
	next    http.Handler
	closing chan struct{}
	once    sync.Once

	mu       sync.Mutex
	rules    []*Rule
	fired    map[string]int
	requests []string
	keep     bool
}

// New puts a proxy in front of a handler.
func New(next http.Handler) *Proxy {
	return &Proxy{next: next, closing: make(chan struct{}), fired: map[string]int{}, keep: true}
}

// To puts a proxy in front of the service at target. The transport, which is to verify the service's certificate, may
// be nil for Go's default. Links in answers must be without a host, as those of Redfish are.
func To(target *url.URL, transport http.RoundTripper) *Proxy {
	return New(&httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			// The client's own wish decides about compression, not that of Go's transport.
			if r.In.Header.Get("Accept-Encoding") == "" {
				r.Out.Header.Set("Accept-Encoding", "identity")
			}
		},
		ErrorLog: log.New(io.Discard, "", 0),
	})
}

// Inject adds rules.
func (p *Proxy) Inject(rules ...Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, rule := range rules {
		p.rules = append(p.rules, &rule)
	}
}

// Heal removes all rules.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
}

// KeepRequests switches the list of Requests on or off. It is on at first; a long run has no use for it.
func (p *Proxy) KeepRequests(keep bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep, p.requests = keep, nil
}

// Requests are "METHOD path" of all requests, oldest first.
func (p *Proxy) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()

	return slices.Clone(p.requests)
}

// Fired is how many requests the rules of a name changed.
func (p *Proxy) Fired(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.fired[name]
}

// Close breaks off requests that are held. It is safe to call twice.
func (p *Proxy) Close() { p.once.Do(func() { close(p.closing) }) }

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rule := p.take(r)
	if rule == nil {
		p.next.ServeHTTP(w, r)

		return
	}
	// The body must be read in any case: the server notices that the client has gone only after that.
	body, err := io.ReadAll(io.LimitReader(r.Body, maxRequest))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	exchange := &Exchange{Request: r, Body: body, Closing: p.closing}
	if rule.Apply || rule.Effect == nil {
		exchange.Answer = httptest.NewRecorder()
		inner := r.Clone(r.Context())
		inner.Body = io.NopCloser(bytes.NewReader(body))
		p.next.ServeHTTP(exchange.Answer, inner)
	}
	if rule.Then != nil {
		rule.Then()
	}
	if rule.Effect == nil {
		replay(w, exchange.Answer, exchange.Answer.Body.Bytes())

		return
	}
	rule.Effect(w, exchange)
}

func (p *Proxy) take(r *http.Request) *Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.keep {
		p.requests = append(p.requests, r.Method+" "+r.URL.Path)
	}
	for i, rule := range p.rules {
		if !rule.matches(r) {
			continue
		}
		if rule.Skip > 0 {
			rule.Skip--

			continue
		}
		p.fired[rule.Name]++
		if rule.Times > 0 {
			rule.Times--
			if rule.Times == 0 {
				p.rules = slices.Delete(p.rules, i, i+1)
			}
		}

		return rule
	}

	return nil
}

func (r *Rule) matches(request *http.Request) bool {
	path := strings.TrimRight(request.URL.Path, "/")
	for _, except := range r.Except {
		if strings.Contains(path, except) {
			return false
		}
	}
	if r.Exact && !strings.HasSuffix(path, r.Path) || !r.Exact && !strings.Contains(path, r.Path) {
		return false
	}

	return (r.Method == "" || r.Method == request.Method) && (r.Match == nil || r.Match(request))
}
