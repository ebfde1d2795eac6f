package proxy_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc/fault/endpoint"
	"github.com/stayput-dev/stayput/bmc/fault/proxy"
)

const truth = `{"PowerState":"On","Id":"1"}`

// service counts what reaches it.
type service struct{ requests atomic.Int32 }

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("ETag", `"abc"`)
	w.Header().Set("X-Got", string(body))
	w.Header().Set("Content-Length", strconv.Itoa(len(truth)))
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, truth)
}

func serve(t *testing.T, p *proxy.Proxy) string {
	t.Helper()
	server, err := endpoint.Start(endpoint.Options{Handler: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Close()
		server.Close()
	})

	return server.URL()
}

// reply is an answer whose body has been read.
type reply struct {
	status int
	header http.Header
}

// ask posts and reads the whole answer; the time is bounded.
func ask(t *testing.T, where string, timeout time.Duration) (*reply, string, error) {
	t.Helper()
	client := http.Client{
		Timeout:       timeout,
		Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, where, strings.NewReader("question"))
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth("admin", "secret")
	response, err := client.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))

	return &reply{status: response.StatusCode, header: response.Header}, string(body), err
}

const long = 10 * time.Second

//nolint:gocyclo // a table of checks
func TestEffects(t *testing.T) {
	t.Parallel()
	timedOut := func(err error) bool {
		var wrapped *url.Error

		return errors.As(err, &wrapped) && wrapped.Timeout() || err != nil && strings.Contains(err.Error(), "Client.Timeout")
	}
	cases := map[string]struct {
		rule    proxy.Rule
		timeout time.Duration
		reached int32
		check   func(*reply, string, error) bool
	}{
		"none": {proxy.Rule{Method: "GET"}, long, 1, func(r *reply, body string, err error) bool {
			return err == nil && body == truth && r.status == http.StatusAccepted && r.header.Get("X-Got") == "question"
		}},
		"then the truth": {proxy.Rule{Apply: true}, long, 1, func(r *reply, body string, err error) bool {
			return err == nil && body == truth && r.status == http.StatusAccepted && r.header.Get("X-Got") == "question"
		}},
		"answer": {
			proxy.Rule{Effect: proxy.Answer(http.StatusServiceUnavailable, http.Header{"Retry-After": {"7"}}, "busy")},
			long, 0,
			func(r *reply, body string, err error) bool {
				return err == nil && body == "busy" && r.status == http.StatusServiceUnavailable && r.header.Get("Retry-After") == "7"
			},
		},
		"refuse": {
			proxy.Rule{Effect: proxy.Refuse(http.StatusConflict, "Base.1.12.Conflict", "no")},
			long, 0,
			func(r *reply, body string, _ error) bool {
				return r.status == http.StatusConflict && strings.Contains(body, `"MessageId":"Base.1.12.Conflict"`)
			},
		},
		"answer after applying": {
			proxy.Rule{Apply: true, Effect: proxy.Answer(http.StatusInternalServerError, nil, "")},
			long, 1,
			func(r *reply, _ string, _ error) bool { return r.status == http.StatusInternalServerError },
		},
		"hang": {
			proxy.Rule{Apply: true, Effect: proxy.Hang()},
			200 * time.Millisecond, 1,
			func(_ *reply, _ string, err error) bool { return timedOut(err) },
		},
		"drop": {proxy.Rule{Effect: proxy.Drop()}, long, 0, func(_ *reply, _ string, err error) bool {
			return errors.Is(err, io.EOF)
		}},
		"reset": {
			proxy.Rule{Apply: true, Effect: proxy.Reset()},
			long, 1,
			func(_ *reply, _ string, err error) bool { return errors.Is(err, syscall.ECONNRESET) },
		},
		"truncate": {
			proxy.Rule{Apply: true, Effect: proxy.Truncate()},
			long, 1,
			func(_ *reply, body string, err error) bool { return err == nil && body == truth[:len(truth)/2] },
		},
		"break off": {
			proxy.Rule{Apply: true, Effect: proxy.BreakOff()},
			long, 1,
			func(_ *reply, body string, err error) bool {
				return errors.Is(err, io.ErrUnexpectedEOF) && body == truth[:len(truth)/2]
			},
		},
		"slow headers": {
			proxy.Rule{Effect: proxy.SlowHeaders(10 * time.Millisecond)},
			200 * time.Millisecond, 0,
			func(r *reply, _ string, err error) bool { return r == nil && timedOut(err) },
		},
		"slow body": {
			proxy.Rule{Apply: true, Effect: proxy.SlowBody(30 * time.Millisecond)},
			250 * time.Millisecond, 1,
			func(r *reply, body string, err error) bool {
				return r != nil && timedOut(err) && body != truth && strings.HasPrefix(truth, body)
			},
		},
		"slow body that ends": {
			proxy.Rule{Apply: true, Effect: proxy.SlowBody(time.Millisecond)},
			long, 1,
			func(_ *reply, body string, err error) bool { return err == nil && body == truth },
		},
		"huge": {
			proxy.Rule{Apply: true, Effect: proxy.Huge(1 << 20)},
			long, 1,
			func(_ *reply, body string, err error) bool {
				return err == nil && len(body) > 1<<20 && strings.HasSuffix(body, strings.TrimPrefix(truth, "{"))
			},
		},
		"endless": {
			proxy.Rule{Effect: proxy.Endless()},
			long, 0,
			func(_ *reply, body string, _ error) bool { return len(body) == 4<<20 },
		},
		"gzip": {
			proxy.Rule{Apply: true, Effect: proxy.Gzip()},
			long, 1,
			func(r *reply, body string, _ error) bool {
				unpacked, err := gzip.NewReader(bytes.NewReader([]byte(body)))
				if err != nil {
					return false
				}
				plain, err := io.ReadAll(unpacked)

				return err == nil && string(plain) == truth && r.header.Get("ETag") == `"abc-gzip"`
			},
		},
		"edit": {
			proxy.Rule{Apply: true, Effect: proxy.Edit(func(o map[string]any) { o["PowerState"] = nil })},
			long, 1,
			func(_ *reply, body string, _ error) bool { return body == `{"Id":"1","PowerState":null}` },
		},
		"status": {
			proxy.Rule{Apply: true, Effect: proxy.Status(http.StatusTeapot)},
			long, 1,
			func(r *reply, body string, _ error) bool { return r.status == http.StatusTeapot && body == truth },
		},
		"redirect": {
			proxy.Rule{Effect: proxy.Redirect(307, "http://127.0.0.1:1")},
			long, 0,
			func(r *reply, _ string, _ error) bool {
				return r.header.Get("Location") == "http://127.0.0.1:1/a/b"
			},
		},
		"redirect to itself": {
			proxy.Rule{Effect: proxy.Redirect(307, "")},
			long, 0,
			func(r *reply, _ string, _ error) bool { return r.header.Get("Location") == "/a/b?again" },
		},
		"echo": {
			proxy.Rule{Effect: proxy.Echo(400)},
			long, 0,
			func(_ *reply, body string, _ error) bool {
				return strings.Contains(body, "admin:secret") && strings.Contains(body, "question")
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			behind := &service{}
			p := proxy.New(behind)
			where := serve(t, p) + "/a/b"
			p.Inject(c.rule)
			response, body, err := ask(t, where, c.timeout)
			if !c.check(response, body, err) {
				t.Errorf("got %+v, %.100q, %v", response, body, err)
			}
			if got := behind.requests.Load(); got != c.reached {
				t.Errorf("the service got %d requests, want %d", got, c.reached)
			}
		})
	}
}

func TestRulesSelect(t *testing.T) {
	t.Parallel()
	behind := &service{}
	p := proxy.New(behind)
	where := serve(t, p)
	status := func(path string) int {
		response, _, err := ask(t, where+path, long)
		if err != nil {
			t.Fatal(err)
		}

		return response.status
	}
	then := 0
	p.Inject(
		proxy.Rule{Name: "later", Path: "/b", Skip: 2, Times: 1, Effect: proxy.Answer(401, nil, ""), Then: func() { then++ }},
		proxy.Rule{Path: "/exact", Exact: true, Except: []string{"/not"}, Effect: proxy.Answer(402, nil, "")},
		proxy.Rule{Method: "GET", Effect: proxy.Answer(403, nil, "")},
		proxy.Rule{Match: func(r *http.Request) bool { return r.URL.RawQuery == "q" }, Effect: proxy.Answer(404, nil, "")},
	)
	for i, c := range []struct {
		path string
		want int
	}{
		{"/b", 202},
		{"/a", 202},
		{"/b/c", 202},
		{"/b", 401},
		{"/b", 202},
		{"/x/exact/", 402},
		{"/exact/x", 202},
		{"/not/exact", 202},
		{"/a?q", 404},
	} {
		if got := status(c.path); got != c.want {
			t.Errorf("request %d, %s: got %d, want %d", i, c.path, got, c.want)
		}
	}
	if p.Fired("later") != 1 || then != 1 {
		t.Errorf("fired %d times, then called %d times; want once", p.Fired("later"), then)
	}
	if requests := p.Requests(); len(requests) != 9 || !slices.Contains(requests, "POST /b/c") {
		t.Errorf("requests: %v", requests)
	}
	p.Heal()
	if got := status("/exact"); got != 202 {
		t.Errorf("after Heal: %d", got)
	}
	p.KeepRequests(false)
	if status("/a"); len(p.Requests()) != 0 {
		t.Error("requests are kept")
	}
}

func TestInFrontOfAURL(t *testing.T) {
	t.Parallel()
	behind := &service{}
	server := httptest.NewTLSServer(behind)
	t.Cleanup(server.Close)
	target, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := proxy.To(target, server.Client().Transport)
	where := serve(t, p)
	response, body, err := ask(t, where+"/a", long)
	if err != nil || body != truth || response.header.Get("X-Got") != "question" {
		t.Fatalf("got %+v, %q, %v", response, body, err)
	}
	p.Inject(proxy.Rule{Apply: true, Effect: proxy.Drop()})
	if _, _, err := ask(t, where+"/a", long); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	if got := behind.requests.Load(); got != 2 {
		t.Errorf("the service got %d requests, want 2", got)
	}
}

func TestOnceAccepted(t *testing.T) {
	t.Parallel()
	refuses := atomic.Bool{}
	refuses.Store(true)
	p := proxy.New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if refuses.Load() {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	p.Inject(proxy.Rule{Apply: true, Effect: proxy.OnceAccepted(proxy.Answer(http.StatusInternalServerError, nil, ""))})
	where := serve(t, p)
	want := func(status int) {
		t.Helper()
		if got, _, err := ask(t, where, time.Minute); err != nil || got.status != status {
			t.Errorf("got %+v, %v, want %d", got, err, status)
		}
	}
	want(http.StatusBadRequest)
	refuses.Store(false)
	want(http.StatusInternalServerError)
	want(http.StatusOK)
}
