package osimage_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
)

const simpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json"

// site is a registry with the means to put anything into it.
type site struct {
	*registrytest.Faulty

	client *osimage.Client
	remote []remote.Option
}

func newSite(t *testing.T, options ...registrytest.FaultyOption) *site {
	t.Helper()

	registry := registrytest.StartFaulty(t, options...)

	return &site{Faulty: registry, client: clientOf(t, registry), remote: []remote.Option{remote.WithTransport(registry.Client().Transport)}}
}

func (s *site) at(t *testing.T, reference string) name.Reference {
	t.Helper()

	parsed, err := name.ParseReference(s.Address + "/" + reference)
	if err != nil {
		t.Fatal(err)
	}

	return parsed
}

// manifest puts blobs and a manifest that names them, and returns its descriptor.
func (s *site) manifest(t *testing.T, reference, artifactType string, subject *v1.Descriptor, layers ...v1.Descriptor) v1.Descriptor {
	t.Helper()

	repository := s.at(t, reference).Context()
	config := s.blob(t, repository, "application/vnd.oci.empty.v1+json", []byte("{}"), nil)

	return s.raw(t, reference, types.OCIManifestSchema1, v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: artifactType, Config: config, Layers: layers, Subject: subject,
	})
}

// raw puts a manifest of any kind. Without a tag it is named by its digest.
func (s *site) raw(t *testing.T, reference string, mediaType types.MediaType, manifest any) v1.Descriptor {
	t.Helper()

	data, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}

	digest, size, err := v1.SHA256(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}

	if !strings.Contains(reference, ":") {
		reference += "@" + digest.String()
	}

	if err := remote.Put(s.at(t, reference), taggable{data, mediaType}, s.remote...); err != nil {
		t.Fatal(err)
	}

	return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: size}
}

type taggable struct {
	data      []byte
	mediaType types.MediaType
}

func (r taggable) RawManifest() ([]byte, error)        { return r.data, nil }
func (r taggable) MediaType() (types.MediaType, error) { return r.mediaType, nil }

func (s *site) blob(
	t *testing.T, repository name.Repository, mediaType types.MediaType, data []byte, annotations map[string]string,
) v1.Descriptor {
	t.Helper()

	layer := static.NewLayer(data, mediaType)
	if err := remote.WriteLayer(repository, layer, s.remote...); err != nil {
		t.Fatal(err)
	}

	digest, err := layer.Digest()
	if err != nil {
		t.Fatal(err)
	}

	return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: int64(len(data)), Annotations: annotations}
}

// sign puts a cosign-like signature of a digest at its tag.
func (s *site) sign(t *testing.T, repository string, of v1.Descriptor, signatures ...string) v1.Descriptor {
	t.Helper()

	tag := repository + ":" + strings.Replace(of.Digest.String(), ":", "-", 1) + ".sig"

	layers := make([]v1.Descriptor, 0, len(signatures))

	for _, signature := range signatures {
		// The payload is the same for all.
		layers = append(layers, s.blob(t, s.at(t, tag).Context(), simpleSigning, []byte("payload of "+of.Digest.String()),
			map[string]string{"dev.cosignproject.cosign/signature": signature}))
	}

	return s.manifest(t, tag, "", nil, layers...)
}

// release fills a repository with an index of two images, signatures by tag of the index and an image, a referrer of an
// image, and a referrer of that. It returns the index, and all manifests.
func (s *site) release(t *testing.T, repository string) (index v1.Descriptor, all []v1.Descriptor) {
	t.Helper()

	entries := make([]v1.Descriptor, 0, len(osimage.Architectures()))

	for _, architecture := range osimage.Architectures() {
		parts := someContents()
		parts[osimage.RoleUKI] = []byte("uki for " + architecture)

		input := spec(t, parts)
		input.Architecture = architecture

		dir := t.TempDir()
		if _, err := osimage.Build(t.Context(), dir, input); err != nil {
			t.Fatal(err)
		}

		pushed, err := s.client.Push(background(t), dir, "", s.Address+"/"+repository+":of-"+architecture, nil)
		if err != nil {
			t.Fatal(err)
		}

		descriptor, err := remote.Head(s.at(t, repository+"@"+pushed.Digest), s.remote...)
		if err != nil {
			t.Fatal(err)
		}

		descriptor.Platform = &v1.Platform{OS: "linux", Architecture: architecture}
		descriptor.ArtifactType = osimage.ArtifactType
		entries = append(entries, *descriptor)
	}

	index = s.raw(t, repository+":1.1.0", types.OCIImageIndex, v1.IndexManifest{
		SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: entries,
	})

	bundle := s.manifest(t, repository, "application/vnd.dev.sigstore.bundle.v0.3+json", &entries[0],
		s.blob(t, s.at(t, repository).Context(), "application/vnd.dev.sigstore.bundle.v0.3+json", []byte("bundle"), nil))
	about := s.manifest(t, repository, "text/spdx", &bundle, s.blob(t, s.at(t, repository).Context(), "text/spdx", []byte("about"), nil))

	return index, append([]v1.Descriptor{
		index, bundle, about, s.sign(t, repository, index, "one"), s.sign(t, repository, entries[1], "two", "three"),
	}, entries...)
}

func (s *site) location(reference string) osimage.Location {
	return osimage.Location{Reference: s.Address + "/" + reference}
}

func copyTo(t *testing.T, client *osimage.Client, from, to osimage.Location, options osimage.CopyOptions) osimage.Copied {
	t.Helper()

	copied, err := client.Copy(background(t), from, to, options)
	if err != nil {
		t.Fatalf("%s to %s: %v", from, to, err)
	}

	return copied
}
