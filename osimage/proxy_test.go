package osimage_test

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
)

// connectProxy is a real proxy: it makes tunnels for whoever has the password, and takes every name for one address.
type connectProxy struct {
	server *httptest.Server
	target string

	mutex   sync.Mutex
	tunnels []string
}

func startProxy(t *testing.T, target string) *connectProxy {
	t.Helper()

	proxy := &connectProxy{target: target}
	proxy.server = httptest.NewServer(http.HandlerFunc(proxy.serve))
	t.Cleanup(proxy.server.Close)

	return proxy
}

func (p *connectProxy) serve(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect || r.Header.Get("Proxy-Authorization") !=
		"Basic "+base64.StdEncoding.EncodeToString([]byte("robot:hunter2")) {
		w.WriteHeader(http.StatusProxyAuthRequired)

		return
	}

	p.mutex.Lock()
	p.tunnels = append(p.tunnels, r.Host)
	p.mutex.Unlock()

	upstream, err := net.Dial("tcp", p.target)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)

		return
	}

	client, buffered, err := w.(http.Hijacker).Hijack() //nolint:forcetypeassert // net/http.
	if err != nil {
		panic(err)
	}

	_, _ = fmt.Fprint(client, "HTTP/1.1 200 Connection established\r\n\r\n")

	go tunnel(upstream, buffered.Reader)
	tunnel(client, bufio.NewReader(upstream))
}

func tunnel(to net.Conn, from io.Reader) {
	// Either side may end it at any time.
	_, _ = io.Copy(to, from)
	_ = to.Close()
}

func TestProxies(t *testing.T) {
	registry := registrytest.StartFaulty(t)
	fill(t, registry)

	proxy := startProxy(t, registry.Address)
	address := strings.TrimPrefix(proxy.server.URL, "http://")
	good, bad := "http://robot:hunter2@"+address, "http://robot:hunter3@"+address

	// The name is in the registry's certificate, and only the proxy knows where it is.
	const reference = "example.com/os/labos:1.1.0"

	// The environment is one for all tests, so that of this one ends before theirs goes on.
	for name, test := range map[string]struct {
		environment map[string]string
		option      string
		want        error
		says        string
	}{
		"the environment's":         {map[string]string{"HTTPS_PROXY": good}, "", nil, ""},
		"the option's":              {map[string]string{"HTTPS_PROXY": "http://127.0.0.1:1"}, good, nil, ""},
		"wrong password":            {map[string]string{"HTTPS_PROXY": bad}, "", osimage.ErrUnauthorized, "proxy"},
		"wrong password, an option": {nil, bad, osimage.ErrUnauthorized, "proxy"},
		"down":                      {nil, "http://robot:hunter2@127.0.0.1:1", osimage.ErrTransient, "refused"},
		"not for this one":          {map[string]string{"HTTPS_PROXY": good, "NO_PROXY": "registry.invalid"}, "", osimage.ErrTransient, "lookup"},
		"unreadable":                {map[string]string{"HTTPS_PROXY": "http://robot:hunter2@%zz"}, "", osimage.ErrInvalid, "HTTPS_PROXY"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, variable := range []string{"HTTPS_PROXY", "NO_PROXY", "https_proxy", "no_proxy"} {
				t.Setenv(variable, test.environment[variable])
			}

			// The name that is not for the proxy is one that no resolver has.
			asked := reference
			if test.environment["NO_PROXY"] != "" {
				asked = strings.Replace(reference, "example.com", test.environment["NO_PROXY"], 1)
			}

			client, err := osimage.NewClient(osimage.WithProxy(test.option), osimage.WithRootCAs(registry.Roots),
				osimage.WithRetry(osimage.Retry{Tries: 2, First: time.Millisecond, Max: time.Millisecond}))
			if err == nil {
				_, err = client.Image(background(t), asked)
			}

			switch {
			case !errors.Is(err, test.want):
				t.Errorf("got %v, want %v", err, test.want)
			case !strings.Contains(fmt.Sprint(err), test.says):
				t.Errorf("got %v, want that it says %q", err, test.says)
			}

			if strings.Contains(fmt.Sprint(err), "hunter") {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}

	if len(proxy.tunnels) == 0 || proxy.tunnels[0] != "example.com:443" {
		t.Errorf("tunnels to %q", proxy.tunnels)
	}

	if _, err := osimage.NewClient(osimage.WithProxy("robot:hunter2@proxy")); !errors.Is(err, osimage.ErrInvalid) ||
		strings.Contains(err.Error(), "hunter2") {
		t.Errorf("an address without a scheme: %v", err)
	}
}
