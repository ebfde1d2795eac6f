package osimage_test

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
)

// The files of hosts.toml are used: a CA, a header, another path; and each host has its own credentials.
func TestHostSettings(t *testing.T) {
	t.Parallel()

	upstream, mirror := mirrored(t, registrytest.WithTokens())

	// What is below the path is the mirror, and nothing is above it.
	var (
		mutex sync.Mutex
		// contents are the headers of all requests but those that ask whether it is a registry.
		contents []string
	)

	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest, ok := strings.CutPrefix(r.URL.Path, "/cache/os")

		if rest != "/" {
			mutex.Lock()
			defer mutex.Unlock()

			contents = append(contents, r.Header.Get("X-Site")+" "+r.Header.Get("Authorization"))
		}

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

	mutex.Lock()
	defer mutex.Unlock()

	if len(contents) < 4 || slices.ContainsFunc(contents, func(got string) bool { return got != want }) {
		t.Errorf("the mirror got %q, want %q only", contents, want)
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
