package osimage_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/stayput-dev/stayput/osimage"
)

// pushIndex puts an index under a tag: a container image, and images of ours that are in the registry already.
func pushIndex(t *testing.T, f *faults, tag string, architectures map[string]string) {
	t.Helper()

	transport := remote.WithTransport(f.server.Client().Transport)

	container, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}

	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, "application/vnd.oci.image.index.v1+json"),
		mutate.IndexAddendum{Add: container, Descriptor: v1.Descriptor{Platform: &v1.Platform{Architecture: "amd64"}}})

	for from, architecture := range architectures {
		reference, err := name.ParseReference(f.reference(from))
		if err != nil {
			t.Fatal(err)
		}

		image, err := remote.Image(reference, transport)
		if err != nil {
			t.Fatal(err)
		}

		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: architecture}, ArtifactType: osimage.ArtifactType,
		}})
	}

	reference, err := name.ParseReference(f.reference(tag))
	if err != nil {
		t.Fatal(err)
	}

	if err := remote.WriteIndex(reference, index, transport); err != nil {
		t.Fatal(err)
	}
}

func TestIndex(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	digests := map[string]string{}

	for _, architecture := range osimage.Architectures() {
		parts := someContents()
		parts[osimage.RoleUKI] = []byte("uki for " + architecture)

		input := spec(t, parts)
		input.Architecture = architecture

		dir := t.TempDir()
		if _, err := osimage.Build(t.Context(), dir, input); err != nil {
			t.Fatal(err)
		}

		pushed, err := registry.client(t).Push(background(t), dir, "", registry.reference(architecture), nil)
		if err != nil {
			t.Fatal(err)
		}

		digests[architecture] = pushed.Digest
	}

	pushIndex(t, registry, "both", map[string]string{"amd64": "amd64", "arm64": "arm64"})
	pushIndex(t, registry, "one", map[string]string{"amd64": "amd64"})
	pushIndex(t, registry, "mislabelled", map[string]string{"amd64": "arm64"})
	pushIndex(t, registry, "none", nil)

	for _, test := range []struct {
		tag, architecture string
		want              error
		says              string
	}{
		{"both", "amd64", nil, ""},
		{"both", "arm64", nil, ""},
		{"one", "arm64", osimage.ErrWrongArchitecture, "amd64"},
		{"mislabelled", "arm64", osimage.ErrWrongArchitecture, "amd64"},
		{"none", "amd64", osimage.ErrNotAnImage, "index"},
	} {
		t.Run(test.tag+" "+test.architecture, func(t *testing.T) {
			t.Parallel()

			client := registry.client(t, osimage.WithArchitecture(test.architecture))
			resolved, err := client.Resolve(background(t), registry.reference(test.tag))

			switch {
			case test.want == nil && (err != nil || resolved.Digest != digests[test.architecture]):
				t.Errorf("got %+v, %v", resolved, err)
			case test.want != nil && (!errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says)):
				t.Errorf("got %v, want %v that names %q", err, test.want, test.says)
			}
		})
	}
}

func TestContainerImagesAreRefused(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)

	container, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}

	reference, err := name.ParseReference(registry.reference("app"))
	if err != nil {
		t.Fatal(err)
	}

	if err := remote.Write(reference, container, remote.WithTransport(registry.server.Client().Transport)); err != nil {
		t.Fatal(err)
	}

	_, err = registry.client(t).Resolve(background(t), registry.reference("app"))
	if !errors.Is(err, osimage.ErrNotAnImage) || !strings.Contains(err.Error(), registry.reference("app")[:10]) {
		t.Errorf("got %v, want that it is not an OS image", err)
	}
}
