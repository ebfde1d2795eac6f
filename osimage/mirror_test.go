package osimage_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
)

// hostsDir writes a hosts.toml for a registry.
func hostsDir(t *testing.T, registry, text string) string {
	t.Helper()

	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, registry), 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(dir, registry, "hosts.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	return dir
}

// mirrored is an upstream with an image and a mirror with the same one.
func mirrored(t *testing.T, options ...registrytest.FaultyOption) (upstream, mirror *registrytest.Faulty) {
	t.Helper()

	upstream, mirror = registrytest.StartFaulty(t, options...), registrytest.StartFaulty(t)
	dir := build(t, someContents())

	for _, registry := range []*registrytest.Faulty{upstream, mirror} {
		if _, err := clientOf(t, registry).Push(background(t), dir, "", registry.Address+wireTag, nil); err != nil {
			t.Fatal(err)
		}

		registry.Requests()
	}

	return upstream, mirror
}

func pullAll(t *testing.T, client *osimage.Client, reference string) error {
	t.Helper()

	_, err := client.Pull(background(t), reference, filepath.Join(t.TempDir(), "pulled"), nil)

	return err
}

func TestMirrors(t *testing.T) {
	t.Parallel()

	const both, pullOnly = `["pull", "resolve"]`, `["pull"]`

	for name, test := range map[string]struct {
		capabilities string
		prepare      func(upstream, mirror *registrytest.Faulty)
		// fromUpstream and fromMirror are what each is asked for: m(anifest by tag), d(igest), b(lobs).
		fromUpstream, fromMirror string
	}{
		"has all":     {both, func(_, _ *registrytest.Faulty) {}, "", "mb"},
		"blobs only":  {pullOnly, func(_, _ *registrytest.Faulty) {}, "m", "b"},
		"is down":     {both, func(_, mirror *registrytest.Faulty) { mirror.Stop() }, "mb", ""},
		"upstream is": {both, func(upstream, _ *registrytest.Faulty) { upstream.Stop() }, "", "mb"},
		"lacks the blobs": {both, func(_, mirror *registrytest.Faulty) {
			mirror.Misbehave(99, registrytest.Blobs(""), registrytest.Status(404))
		}, "b", "mb"},
		"is sick": {both, func(_, mirror *registrytest.Faulty) {
			mirror.Misbehave(99, registrytest.Everything, registrytest.Status(500))
		}, "mb", "?"},
		"refuses us": {both, func(_, mirror *registrytest.Faulty) {
			mirror.Misbehave(99, registrytest.Manifests, registrytest.Status(403))
		}, "mb", "m"},
		"cuts all": {both, func(_, mirror *registrytest.Faulty) {
			mirror.Misbehave(99, registrytest.Blobs(""), registrytest.CutAfter(10))
		}, "b", "mb"},
		"other bytes": {pullOnly, func(_, mirror *registrytest.Faulty) {
			mirror.Misbehave(99, func(r *http.Request) bool {
				return registrytest.Blobs("")(r) && r.Header.Get("Range") == ""
			}, registrytest.Changed)
		}, "mb", "b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			upstream, mirror := mirrored(t)
			client := clientOf(t, upstream, osimage.WithHostsDir(hostsDir(t, upstream.Address,
				fmt.Sprintf("[host.%q]\ncapabilities = %s\n", "https://"+mirror.Address, test.capabilities))))

			test.prepare(upstream, mirror)

			if err := pullAll(t, client, upstream.Address+wireTag); err != nil {
				t.Fatal(err)
			}

			if got := kinds(t, upstream.Requests(), false); got != test.fromUpstream {
				t.Errorf("the upstream was asked for %q, want %q", got, test.fromUpstream)
			}

			if got := kinds(t, mirror.Requests(), true); got != test.fromMirror {
				t.Errorf("the mirror was asked for %q, want %q", got, test.fromMirror)
			}
		})
	}
}

// kinds are the kinds of what was asked, without what may be attached to it, and checks what is the same for all of a mirror's requests.
func kinds(t *testing.T, requests []registrytest.Request, isMirror bool) string {
	t.Helper()

	var text []string

	for _, request := range requests {
		kind := ""

		switch {
		case strings.Contains(request.Path, "/manifests/sha256-"):
		case strings.Contains(request.Path, "/manifests/"):
			kind = "m"
		case strings.Contains(request.Path, "/blobs/"):
			kind = "b"
		case request.Path == "/v2/" && request.Status >= 500:
			kind = "?"
		}

		if !slices.Contains(text, kind) {
			text = append(text, kind)
		}

		if isMirror && (!strings.HasPrefix(request.Query, "ns=127.0.0.1") || request.Header.Get("Authorization") != "") {
			t.Errorf("%s was asked with %q and %v", request.Path, request.Query, request.Header)
		}
	}

	return strings.Join(text, "")
}

// The error says of each host why it could not help, and which kind it is comes from the last.
func TestAllHostsFail(t *testing.T) {
	t.Parallel()

	upstream, mirror := mirrored(t)
	down := registrytest.StartFaulty(t)
	down.Stop()

	client := clientOf(t, upstream, osimage.WithHostsDir(hostsDir(t, upstream.Address, fmt.Sprintf(
		"[host.%q]\n[host.%q]\n", "https://"+down.Address, "https://"+mirror.Address))))

	mirror.Misbehave(99, registrytest.Manifests, registrytest.Status(403))
	upstream.Misbehave(99, registrytest.Manifests, registrytest.Status(404))

	_, err := client.Image(background(t), upstream.Address+wireTag)
	if !errors.Is(err, osimage.ErrNotFound) {
		t.Errorf("got %v, want that it is not there", err)
	}

	text := fmt.Sprint(err)
	for _, part := range []string{down.Address + ": ", "refused", mirror.Address + ": ", "403", upstream.Address + ": ", "404"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in %q", part, text)
		}
	}
}

// A mirror that failed is not asked again for a while, one that lacks something is.
func TestMirrorsRest(t *testing.T) {
	t.Parallel()

	upstream, mirror := mirrored(t)
	client := clientOf(t, upstream, osimage.WithHostsDir(hostsDir(t, upstream.Address, fmt.Sprintf("[host.%q]\n", "https://"+mirror.Address))))

	mirror.Misbehave(1, registrytest.Manifests, registrytest.Status(500))

	for range 3 {
		if _, err := client.Image(background(t), upstream.Address+wireTag); err != nil {
			t.Fatal(err)
		}
	}

	if asked := mirror.Requests(); len(asked) != 2 {
		t.Errorf("a mirror that is broken was asked %d times: %+v", len(asked), asked)
	}

	// When there is nobody else, it is better than nothing.
	upstream.Stop()

	if _, err := client.Image(background(t), upstream.Address+wireTag); err != nil || len(mirror.Requests()) == 0 {
		t.Errorf("without the upstream: %v", err)
	}
}

// The files of hosts.toml are used: a CA, a header, another path; and each host has its own credentials.
func TestHostSettings(t *testing.T) {
	t.Parallel()

	upstream, mirror := mirrored(t, registrytest.WithTokens())

	// What is below the path is the mirror, and nothing is above it.
	var headers []string

	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers = append(headers, r.Header.Get("X-Site")+" "+r.Header.Get("Authorization"))

		rest, ok := strings.CutPrefix(r.URL.Path, "/cache/os")
		if !ok {
			w.WriteHeader(http.StatusNotFound)

			return
		}

		http.Redirect(w, r, "https://"+mirror.Address+"/v2"+rest+"?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(front.Close)

	dir := hostsDir(t, upstream.Address, fmt.Sprintf(`
server = %q
ca = "ca.pem"
[host.%q]
override_path = true
ca = "ca.pem"
header = {X-Site = "berlin"}
`, "https://"+upstream.Address, front.URL+"/cache/os"))

	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: upstream.Certificate()})
	if err := os.WriteFile(filepath.Join(dir, upstream.Address, "ca.pem"), certificate, 0o600); err != nil {
		t.Fatal(err)
	}

	frontAddress := strings.TrimPrefix(front.URL, "http://")

	client, err := osimage.NewClient(osimage.WithHostsDir(dir),
		osimage.WithRetry(osimage.Retry{Tries: 2, First: time.Millisecond, Max: time.Millisecond}),
		osimage.WithDockerConfigJSON(fmt.Appendf(nil, `{"auths":{%q:{"username":%q,"password":%q},%q:{"username":"m","password":"m"}}}`,
			upstream.Address, registrytest.User, registrytest.Password, frontAddress)))
	if err != nil {
		t.Fatal(err)
	}

	if err := pullAll(t, client, upstream.Address+wireTag); err != nil {
		t.Fatal(err)
	}

	if asked := kinds(t, upstream.Requests(), false); asked != "" {
		t.Errorf("the upstream was asked for %q", asked)
	}

	want := "berlin Basic " + base64.StdEncoding.EncodeToString([]byte("m:m"))
	if len(headers) < 4 || headers[1] != want {
		t.Errorf("the mirror got %q, want %q", headers, want)
	}

	for _, request := range mirror.Requests() {
		if request.Header.Get("X-Site") != "" || request.Header.Get("Authorization") != "" {
			t.Errorf("who the mirror redirects to got %v", request.Header)
		}
	}

	// The upstream with its own credentials, through the server entry.
	front.Close()

	if err := pullAll(t, client, upstream.Address+wireTag); err != nil {
		t.Error(err)
	}
}

func TestHostsThatCannotBeUsed(t *testing.T) {
	t.Parallel()

	upstream, _ := mirrored(t)

	for text, reason := range map[string]string{
		"server = 5":        "line 1",
		"ca = \"none.pem\"": "none.pem",
		"client = [[\"none.pem\", \"none.key\"]]": "none.pem",
		"capabilities = [\"pull\"]":               "resolve",
	} {
		_, err := clientOf(t, upstream, osimage.WithHostsDir(hostsDir(t, upstream.Address, text))).
			Image(background(t), upstream.Address+wireTag)
		if err == nil || osimage.IsTransient(err) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: got %v, want an error that names %q", text, err, reason)
		}
	}

	var warned []string

	client := clientOf(t, upstream, osimage.WithHostsDir(hostsDir(t, upstream.Address, "brand_new = 1")),
		osimage.WithHostsWarning(func(text string) { warned = append(warned, text) }))

	for range 2 {
		if _, err := client.Image(background(t), upstream.Address+wireTag); err != nil {
			t.Fatal(err)
		}
	}

	if len(warned) != 1 || !strings.Contains(warned[0], "brand_new") {
		t.Errorf("warned of %q", warned)
	}
}

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

// A mirror can be anybody: what it gives of a content is found out while it is written, and asked for at the registry.
func TestWritesFromAMirrorThatLies(t *testing.T) {
	t.Parallel()

	bomb := func(size int) []byte {
		encoder, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}

		return append(encoder.EncodeAll(make([]byte, 64<<20), nil), make([]byte, size)...)[:size]
	}

	for name, test := range map[string]struct {
		fault  registrytest.Fault
		seeded bool
	}{
		"other bytes, in one stream": {registrytest.Changed, false},
		"other bytes, in pieces":     {registrytest.Changed, true},
		"far too many bytes": {func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(bomb(layerSize(t))))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			upstream, mirror := mirrored(t)
			client := clientOf(t, upstream, osimage.WithHostsDir(hostsDir(t, upstream.Address,
				fmt.Sprintf("[host.%q]\ncapabilities = [\"pull\"]\n", "https://"+mirror.Address))))

			image, err := client.Image(background(t), upstream.Address+wireTag)
			if err != nil {
				t.Fatal(err)
			}

			digest := layerDigest(t, image, osimage.RoleUSR)
			mirror.Misbehave(99, registrytest.Blobs(digest), test.fault)

			var options osimage.WriteOptions

			if test.seeded {
				half := someContents()[osimage.RoleUSR][:usrSize/2]
				options.Seeds = []osimage.Seed{{Reader: bytes.NewReader(half), Size: int64(len(half))}}
			}

			target := openTarget(t, 0)
			if err := osimage.Write(background(t), image, osimage.RoleUSR, target, options); err != nil {
				t.Fatal(err)
			}

			if _, asked := sentOf(mirror.Requests(), digest); asked == 0 {
				t.Error("the mirror was not asked")
			}
		})
	}
}

func layerSize(t *testing.T) int {
	t.Helper()

	image, err := osimage.OpenLayout(t.Context(), build(t, someContents()), "")
	if err != nil {
		t.Fatal(err)
	}

	content, _ := image.Config().Content(osimage.RoleUSR)

	return int(content.Size)
}
