package osimage_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/osimage"
)

// Registries on loopback addresses are asked over TLS and in the clear. What the registry answered counts, not that the
// other way was closed.
func TestWhatTheRegistryAnsweredCounts(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		tls, trusted, plainHTTP bool
		status                  int
		want                    error
	}{
		"plain, forbidden":         {plainHTTP: true, status: http.StatusForbidden, want: osimage.ErrUnauthorized},
		"plain, not found":         {plainHTTP: true, status: http.StatusNotFound, want: osimage.ErrNotFound},
		"plain, broken":            {plainHTTP: true, status: http.StatusInternalServerError, want: osimage.ErrTransient},
		"plain, busy":              {plainHTTP: true, status: http.StatusTooManyRequests, want: osimage.ErrTransient},
		"plain, not allowed":       {status: http.StatusForbidden, want: osimage.ErrPlainHTTP},
		"TLS, not found":           {tls: true, trusted: true, status: http.StatusNotFound, want: osimage.ErrNotFound},
		"TLS, not found, or plain": {tls: true, trusted: true, plainHTTP: true, status: http.StatusNotFound, want: osimage.ErrNotFound},
		"TLS, unknown, or plain":   {tls: true, plainHTTP: true, status: http.StatusOK, want: osimage.ErrUnknownCA},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.status)
			}))
			server.Config.ErrorLog = discardLogger()

			options := []osimage.Option{
				osimage.WithPlainHTTP(test.plainHTTP),
				osimage.WithRetry(osimage.Retry{Tries: 2, First: time.Millisecond, Max: time.Millisecond}),
			}

			if test.tls {
				server.StartTLS()
			} else {
				server.Start()
			}

			t.Cleanup(server.Close)

			if test.trusted {
				roots := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs //nolint:forcetypeassert // httptest.
				options = append(options, osimage.WithRootCAs(roots))
			}

			client, err := osimage.NewClient(options...)
			if err != nil {
				t.Fatal(err)
			}

			_, address, _ := strings.Cut(server.URL, "://")
			if _, err := client.Image(t.Context(), address+"/os/labos:1"); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

// A docker config that cannot be used is not the network's fault, and is not tried again.
func TestMissingCredentialHelper(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	address, _, _ := strings.Cut(registry.reference("1"), "/")
	tries := 0
	client := registry.client(t,
		osimage.WithDockerConfigJSON([]byte(`{"credHelpers":{"`+address+`":"none-of-this-name"}}`)),
		osimage.WithRetryNotice(func(error, time.Duration) { tries++ }))

	_, err := client.Image(t.Context(), registry.reference("1"))
	if !errors.Is(err, osimage.ErrUnauthorized) || !strings.Contains(err.Error(), "docker config") || tries > 0 {
		t.Errorf("tried again %d times: %v", tries, err)
	}
}

func TestRetriesAreTold(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	image := registry.push(t, someContents())

	var told []error

	client := registry.client(t, osimage.WithRetryNotice(func(cause error, _ time.Duration) { told = append(told, cause) }))
	registry.set(func(f *faults) { f.status, f.statuses = http.StatusServiceUnavailable, 2 })

	if _, err := client.Image(t.Context(), image.Reference()); err != nil {
		t.Fatal(err)
	}

	if len(told) != 2 || !osimage.IsTransient(told[0]) {
		t.Errorf("told %v", told)
	}
}

func TestReferencesThatCannotBeRead(t *testing.T) {
	t.Parallel()

	client, err := osimage.NewClient()
	if err != nil {
		t.Fatal(err)
	}

	for reference, reason := range map[string]string{
		"registry.example/os/Node:1":          "only contain",
		"registry.example/os/node":            "tag",
		"registry.example/os/node@sha256:abc": "digest",
		"node:1":                              "registry",

		"https://robot:hunter2@registry.example/os/node:1":                              "docker config",
		"robot:hunter2@registry.example/os/node":                                        "docker config",
		"robot:hunt@hunter2@registry.example/os/node@sha256:" + strings.Repeat("0", 64): "registry.example/os/node@sha256:0",
	} {
		_, err := client.Image(t.Context(), reference)
		if !errors.Is(err, osimage.ErrInvalid) || !strings.Contains(err.Error(), reason) || strings.Contains(err.Error(), "hunt") {
			t.Errorf("%s: got %v, want an error that says %q", reference, err, reason)
		}
	}
}

// An error names what was asked for, once.
func TestErrorsNameTheReferenceOnce(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	image := registry.push(t, someContents())
	known, _, _ := strings.Cut(image.Reference(), "@")
	client := registry.client(t)

	_, unknown := client.Image(background(t), registry.reference("none"))

	registry.set(func(f *faults) { f.breakAfter, f.breaks = 1000, 1000 })

	_, broken := client.Pull(background(t), image.Reference(), filepath.Join(t.TempDir(), "pulled"), nil)

	registry.set(func(f *faults) { f.breaks, f.status, f.statuses = 0, http.StatusNotFound, 1 })

	_, missing := client.Image(background(t), image.Reference())

	registry.server.Close()

	_, down := client.Image(background(t), image.Reference())
	_, push := client.Push(background(t), build(t, someContents()), "", registry.reference("none"), nil)

	for name, err := range map[string]error{
		"no such tag": unknown, "layers break": broken, "no config": missing, "the registry is down": down, "pushing to it": push,
	} {
		if err == nil || strings.Count(err.Error(), known) != 1 {
			t.Errorf("%s: got %v, want an error that names %s once", name, err, known)
		}
	}
}
