package osimage_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/google/go-containerregistry/pkg/v1/types"

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

// pushFor puts an image under a tag, and returns its digest.
func pushFor(t *testing.T, f *faults, tag, architecture, version string) string {
	t.Helper()

	parts := someContents()
	parts[osimage.RoleUKI] = []byte("uki for " + tag)

	input := spec(t, parts)
	input.Architecture, input.Version = architecture, version

	dir := t.TempDir()
	if _, err := osimage.Build(t.Context(), dir, input); err != nil {
		t.Fatal(err)
	}

	pushed, err := f.client(t).Push(background(t), dir, "", f.reference(tag), nil)
	if err != nil {
		t.Fatal(err)
	}

	return pushed.Digest
}

func TestIndex(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	digests := map[string]string{}

	for _, architecture := range osimage.Architectures() {
		digests[architecture] = pushFor(t, registry, architecture, architecture, "1.1.0")
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

// A release is for machines of all architectures: an index stays one, as long as its images are of one version.
func TestRelease(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	digests := map[string]string{}

	for tag, version := range map[string]string{"amd64": "1.1.0", "arm64": "1.1.0", "newer": "1.2.0"} {
		digests[tag] = pushFor(t, registry, tag, strings.ReplaceAll(tag, "newer", "arm64"), version)
	}

	pushIndex(t, registry, "both", map[string]string{"amd64": "amd64", "arm64": "arm64"})
	pushIndex(t, registry, "another", map[string]string{"arm64": "arm64"})
	pushIndex(t, registry, "torn", map[string]string{"amd64": "amd64", "newer": "arm64"})
	pushIndex(t, registry, "mislabelled", map[string]string{"amd64": "arm64"})
	pushIndex(t, registry, "none", nil)

	for _, test := range []struct {
		tag           string
		architectures []string
		want          error
		says          string
	}{
		{"both", []string{"amd64", "arm64"}, nil, ""},
		{"another", []string{"arm64"}, nil, ""},
		{"arm64", []string{"arm64"}, nil, ""},
		{"torn", nil, osimage.ErrNotAnImage, "labos_1.2.0, that for amd64 is labos_1.1.0"},
		{"mislabelled", nil, osimage.ErrWrongArchitecture, "amd64"},
		{"none", nil, osimage.ErrNotAnImage, "index"},
	} {
		t.Run(test.tag, func(t *testing.T) {
			t.Parallel()

			got, err := registry.client(t).Release(background(t), registry.reference(test.tag))
			if test.want != nil {
				if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("got %v, want %v that says %q", err, test.want, test.says)
				}

				return
			}

			if err != nil || got.Version != "1.1.0" || !slices.Equal(got.Architectures, test.architectures) ||
				!strings.HasSuffix(got.Reference, "@"+got.Digest) || len(got.Architectures) > 1 && got.Digest == digests["amd64"] {
				t.Errorf("got %+v, %v", got, err)
			}

			for _, architecture := range test.architectures {
				image, err := registry.client(t, osimage.WithArchitecture(architecture)).Image(background(t), got.Reference)
				if err != nil || image.Digest() != digests[architecture] {
					t.Errorf("a machine of %s finds %v, %v", architecture, image, err)
				}
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

// A folder with an index, as a copy leaves it, gives the image of an architecture, and says when it has none.
func TestOpenLayoutFromAnIndex(t *testing.T) {
	t.Parallel()

	dir := build(t, someContents())

	alone, err := osimage.OpenLayout(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}

	putIndex(t, dir, func(entry *v1.Descriptor) { entry.Platform = &v1.Platform{OS: "linux", Architecture: "amd64"} })

	for _, architecture := range []string{"", "amd64"} {
		image, err := osimage.OpenLayoutFor(t.Context(), dir, "both", architecture)
		if err != nil || image.Digest() != alone.Digest() {
			t.Errorf("for %q: %v", architecture, err)
		}
	}

	if _, err := osimage.OpenLayoutFor(t.Context(), dir, "both", "arm64"); !errors.Is(err, osimage.ErrWrongArchitecture) {
		t.Errorf("for arm64: %v", err)
	}

	putIndex(t, dir, func(entry *v1.Descriptor) { entry.Size = 1 << 40 })

	if _, err := osimage.OpenLayout(t.Context(), dir, "both"); !errors.Is(err, osimage.ErrNotAnImage) {
		t.Errorf("a manifest of a tebibyte: %v", err)
	}
}

// The reference of an image in an index names it again, though the folder lists the index only.
func TestOpenLayoutByADigestInAnIndex(t *testing.T) {
	t.Parallel()

	dir := build(t, someContents())
	putIndex(t, dir, func(entry *v1.Descriptor) { entry.Platform = &v1.Platform{OS: "linux", Architecture: "amd64"} })
	changeIndex(t, dir, func(index *v1.IndexManifest) { index.Manifests = index.Manifests[1:] })

	image, err := osimage.OpenLayoutFor(t.Context(), dir, "", "amd64")
	if err != nil {
		t.Fatal(err)
	}

	again, err := osimage.OpenLayout(t.Context(), dir, image.Digest())
	if err != nil || again.Reference() != image.Reference() {
		t.Errorf("opening %s: %v", image.Reference(), err)
	}

	signable, err := osimage.LayoutSignable(t.Context(), dir, image.Digest())
	if err != nil || signable.Reference != image.Reference() {
		t.Errorf("%+v, %v", signable, err)
	}

	// A blob that is no manifest of an index is none, although it is there.
	if _, err := osimage.OpenLayout(t.Context(), dir, image.Config().Contents[0].Digest); !errors.Is(err, osimage.ErrNotFound) {
		t.Errorf("a layer: %v", err)
	}
}

// changeIndex changes a folder's index.json.
func changeIndex(t *testing.T, dir string, change func(index *v1.IndexManifest)) {
	t.Helper()

	path := filepath.Join(dir, "index.json")

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	var folder v1.IndexManifest
	if err := json.Unmarshal(data, &folder); err != nil {
		t.Fatal(err)
	}

	change(&folder)

	data, err = json.Marshal(folder)
	if err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// putIndex names an index "both" in a folder, whose entry is that of the folder's first image.
func putIndex(t *testing.T, dir string, change func(entry *v1.Descriptor)) {
	t.Helper()

	changeIndex(t, dir, func(folder *v1.IndexManifest) {
		entry := folder.Manifests[0]
		entry.Annotations = nil
		change(&entry)

		index, err := json.Marshal(v1.IndexManifest{
			SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{entry},
		})
		if err != nil {
			t.Fatal(err)
		}

		folder.Manifests = append(folder.Manifests[:1], v1.Descriptor{
			MediaType: types.OCIImageIndex, Digest: putBlob(t, dir, index), Size: int64(len(index)),
			Annotations: map[string]string{"org.opencontainers.image.ref.name": "both"},
		})
	})
}
