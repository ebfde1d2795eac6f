package osimage_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
