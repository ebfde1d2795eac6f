package registry_test

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/stayput-dev/stayput/test/lab/pki"
	"github.com/stayput-dev/stayput/test/lab/registry"
)

const layerSize = 100_000

func TestPushPullAndTheRequestsThatTheyMade(t *testing.T) {
	t.Parallel()

	ctx := t.Context()
	r := start(t)
	image := randomImage(t)

	reference, err := r.Push(ctx, "os/node", "1.0.0", image)
	if err != nil {
		t.Fatal(err)
	}

	transport := trusting(t, r)
	pulledAt := time.Now()

	pulled, err := remote.Image(reference, remote.WithContext(ctx), remote.WithTransport(transport),
		remote.WithAuth(r.Authenticator()))
	if err != nil {
		t.Fatal(err)
	}

	layers, err := pulled.Layers()
	if err != nil {
		t.Fatal(err)
	}

	blob, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}

	digest, size, err := v1.SHA256(blob)
	if err != nil {
		t.Fatal(err)
	}

	if err := blob.Close(); err != nil {
		t.Fatal(err)
	}

	again, err := registry.Open(dirOf(r)) // as another command reads the log
	if err != nil {
		t.Fatal(err)
	}

	requests, err := again.Requests(pulledAt)
	if err != nil {
		t.Fatal(err)
	}

	var blobs int

	for _, request := range requests {
		if request.Blob() {
			blobs++

			if !strings.HasSuffix(request.Path, digest.String()) || request.Bytes != size ||
				request.Start.Before(pulledAt.Add(-time.Second)) || request.End.Before(request.Start) {
				t.Errorf("blob request %+v, want %d bytes of %s", request, size, digest)
			}
		}
	}

	if blobs != 1 {
		t.Errorf("%d blob requests in %+v, want 1", blobs, requests)
	}

	later, err := again.Requests(time.Now())
	if err != nil || len(later) != 0 {
		t.Errorf("requests from now on: %v, %v, want none", later, err)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()

	ctx := t.Context()
	r := start(t)

	reference, err := r.Push(ctx, "os/node", "1.0.0", randomImage(t))
	if err != nil {
		t.Fatal(err)
	}

	_, err = remote.Head(reference, remote.WithContext(ctx), remote.WithTransport(trusting(t, r)),
		remote.WithAuth(&authn.Basic{Username: "lab", Password: "wrong"}))
	if !hasStatus(err, http.StatusUnauthorized) {
		t.Errorf("a wrong password gets %v, want 401", err)
	}

	if _, err := remote.Head(reference, remote.WithContext(ctx), remote.WithAuth(r.Authenticator())); err == nil {
		t.Error("a client that does not know the CA got an answer")
	}
}

func start(t *testing.T) *registry.Registry {
	t.Helper()

	ca, err := pki.NewAuthority("lab")
	if err != nil {
		t.Fatal(err)
	}

	r, err := registry.Start(t.Context(), registry.Options{Dir: filepath.Join(t.TempDir(), "registry"), CA: ca})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := r.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})

	return r
}

func dirOf(r *registry.Registry) string { return filepath.Dir(r.CAFile()) }

func trusting(t *testing.T, r *registry.Registry) *http.Transport {
	t.Helper()

	transport, err := r.Transport()
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(transport.CloseIdleConnections)

	return transport
}

func randomImage(t *testing.T) v1.Image {
	t.Helper()

	image, err := random.Image(layerSize, 1)
	if err != nil {
		t.Fatal(err)
	}

	return image
}

func hasStatus(err error, status int) bool {
	response, ok := err.(*transport.Error) //nolint:errorlint // remote returns it bare

	return ok && response.StatusCode == status
}
