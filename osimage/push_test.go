package osimage_test

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/osimage"
)

// A registry may believe whatever it is sent. The folder's files are verified here, and nothing names them there.
func TestPushOfADamagedFolder(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		damage func(data []byte) []byte
		want   error
	}{
		"the first byte": {func(data []byte) []byte { data[0] ^= 1; return data }, osimage.ErrWrongDigest},
		"the last byte":  {func(data []byte) []byte { data[len(data)-1] ^= 1; return data }, osimage.ErrWrongDigest},
		"cut off":        {func(data []byte) []byte { return data[:len(data)-1] }, osimage.ErrTruncated},
		"too long":       {func(data []byte) []byte { return append(data, 0) }, osimage.ErrTruncated},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := build(t, someContents())

			image, err := osimage.OpenLayout(t.Context(), dir, "")
			if err != nil {
				t.Fatal(err)
			}

			digest := layerDigest(t, image, osimage.RoleUSR)
			path := filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))

			data, err := os.ReadFile(path)
			if err := errors.Join(err, os.WriteFile(path, test.damage(bytes.Clone(data)), 0o600)); err != nil {
				t.Fatal(err)
			}

			registry := newFaults(t)
			inner := registry.server.Config.Handler

			var commits, manifests, retries atomic.Int64

			registry.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPut && r.URL.Query().Get("digest") == digest {
					commits.Add(1)
				}

				if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") {
					manifests.Add(1)
				}

				inner.ServeHTTP(w, r)
			})

			client := registry.client(t, osimage.WithRetryNotice(func(error, time.Duration) { retries.Add(1) }))

			_, err = client.Push(background(t), dir, "", registry.reference("1.1.0"), nil)
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want that it is %v and names %s", err, test.want, path)
			}

			if errors.Is(test.want, osimage.ErrWrongDigest) && strings.Count(err.Error(), "sha256:") != 2 {
				t.Errorf("got %v, want the digest that was found and the one that was wanted", err)
			}

			if commits.Load()+manifests.Load()+retries.Load() > 0 {
				t.Errorf("the layer was kept %d times, a manifest %d times, after %d retries", commits.Load(), manifests.Load(), retries.Load())
			}
		})
	}
}
