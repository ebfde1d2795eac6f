package osimage_test

import (
	"bytes"
	"errors"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
)

func newClient(t *testing.T, options ...osimage.Option) *osimage.Client {
	t.Helper()

	client, err := osimage.NewClient(append([]osimage.Option{
		osimage.WithRetry(osimage.Retry{Tries: 2, First: time.Millisecond, Max: time.Millisecond}),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}

	return client
}

func TestRealRegistry(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	parts := someContents()
	dir := build(t, parts)
	reference := server.Address + "/os/labos:1.1.0"
	client := newClient(t, osimage.WithCAFile(server.CAFile), osimage.WithDockerConfig(server.DockerConfig))

	var sent int64

	pushed, err := client.Push(background(t), dir, "1.1.0", reference, func(done, _ int64) { sent = done })
	if err != nil {
		t.Fatal(err)
	}

	if sent == 0 {
		t.Error("the push showed no progress")
	}

	again, err := client.Push(background(t), dir, "", reference, nil)
	if err != nil || again.Reference != pushed.Reference {
		t.Errorf("pushing again: %v, %v", again, err)
	}

	for _, ref := range []string{reference, pushed.Reference} {
		resolved, err := client.Resolve(background(t), ref)
		if err != nil || resolved.Digest != pushed.Digest || resolved.Reference != pushed.Reference {
			t.Errorf("resolving %s: %+v, %v", ref, resolved, err)
		}
	}

	image, err := client.Image(background(t), pushed.Reference)
	if err != nil {
		t.Fatal(err)
	}

	for _, offset := range []int64{0, 1000, 4 << 20, 8<<20 + 1} {
		got, err := readFrom(t, image, osimage.RoleUSR, offset)
		if err != nil || !bytes.Equal(got, parts[osimage.RoleUSR][offset:]) {
			t.Errorf("from %d: %d bytes, %v", offset, len(got), err)
		}
	}

	if log := server.Log(); !strings.Contains(log, " 206 ") {
		t.Errorf("the registry served no range:\n%s", log)
	}

	pulled := filepath.Join(t.TempDir(), "pulled")

	for range 2 {
		copied, err := client.Pull(background(t), reference, pulled, nil)
		if err != nil || copied.Digest != pushed.Digest {
			t.Fatalf("pulling: %v", err)
		}
	}
}

func TestTrust(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	reference := server.Address + "/os/labos:1.1.0"
	good := []osimage.Option{osimage.WithCAFile(server.CAFile), osimage.WithDockerConfig(server.DockerConfig)}

	for name, test := range map[string]struct {
		options []osimage.Option
		want    error
		fix     string
	}{
		"no CA":           {good[1:], osimage.ErrUnknownCA, "--ca-file"},
		"no credentials":  {good[:1], osimage.ErrUnauthorized, "--docker-config"},
		"wrong password":  {[]osimage.Option{good[0], osimage.WithDockerConfig(server.WrongConfig)}, osimage.ErrUnauthorized, "--docker-config"},
		"nothing with it": {good, osimage.ErrNotFound, "pushed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, err := newClient(t, test.options...).Resolve(background(t), reference)

			switch {
			case !errors.Is(err, test.want) || osimage.IsTransient(err):
				t.Errorf("got %v, want %v", err, test.want)
			case !strings.Contains(err.Error(), server.Address) || !strings.Contains(err.Error(), test.fix):
				t.Errorf("the error names not both the registry and %q: %v", test.fix, err)
			case strings.Contains(err.Error(), server.Password):
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}

func TestPlainHTTP(t *testing.T) {
	t.Parallel()

	server := httptest.NewServer(registry.New(registry.Logger(discardLogger())))
	t.Cleanup(server.Close)

	reference := strings.TrimPrefix(server.URL, "http://") + "/os/labos:1.1.0"
	dir := build(t, someContents())

	_, err := newClient(t).Push(background(t), dir, "", reference, nil)
	if !errors.Is(err, osimage.ErrPlainHTTP) || !strings.Contains(err.Error(), "--plain-http") {
		t.Errorf("got %v, want a refusal of plain HTTP", err)
	}

	allowed := newClient(t, osimage.WithPlainHTTP(true))
	if _, err := allowed.Push(background(t), dir, "", reference, nil); err != nil {
		t.Error(err)
	}

	if _, err := allowed.Resolve(background(t), reference); err != nil {
		t.Error(err)
	}
}

func TestRegistryThatIsDown(t *testing.T) {
	t.Parallel()

	server := httptest.NewTLSServer(nil)
	reference := strings.TrimPrefix(server.URL, "https://") + "/os/labos:1.1.0"

	server.Close()

	if _, err := newClient(t).Resolve(background(t), reference); !osimage.IsTransient(err) {
		t.Errorf("got %v, want a transient error", err)
	}
}

func TestArchitecture(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	registry.push(t, someContents(), osimage.WithArchitecture("amd64"))

	_, err := registry.client(t, osimage.WithArchitecture("arm64")).Resolve(background(t), registry.reference("1.1.0"))
	if !errors.Is(err, osimage.ErrWrongArchitecture) || !strings.Contains(err.Error(), "amd64") {
		t.Errorf("got %v, want a refusal of the architecture", err)
	}
}

func TestReferences(t *testing.T) {
	t.Parallel()

	for _, reference := range []string{"", "os/labos", "registry.example/os/labos", "registry.example/OS/labos:1", "x y"} {
		if _, err := newClient(t).Resolve(background(t), reference); err == nil || osimage.IsTransient(err) {
			t.Errorf("%q: got %v, want a refusal", reference, err)
		}
	}
}

func TestOptionsThatCannotWork(t *testing.T) {
	t.Parallel()

	missing := filepath.Join(t.TempDir(), "missing")

	for name, option := range map[string]osimage.Option{
		"missing docker config": osimage.WithDockerConfig(missing),
		"missing CA file":       osimage.WithCAFile(missing),
		"bad docker config":     osimage.WithDockerConfigJSON([]byte(`{"auths": {"x": {"password": "hunter2"`)),
		"architecture":          osimage.WithArchitecture("x86_64"),
		"tries":                 osimage.WithRetry(osimage.Retry{}),
		"stall timeout":         osimage.WithStallTimeout(0),
	} {
		if _, err := osimage.NewClient(option); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
