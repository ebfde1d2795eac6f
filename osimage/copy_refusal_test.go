package osimage_test

import (
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
)

// What is damaged on the way, or at the source, is not named at the target.
func TestCopyRefusesWrongBytes(t *testing.T) {
	t.Parallel()

	source := newSite(t)
	_, all := source.release(t, "os/labos")

	image, err := clientOf(t, source.Faulty, osimage.WithArchitecture("amd64")).Image(background(t), source.Address+wireTag)
	if err != nil {
		t.Fatal(err)
	}

	digest := layerDigest(t, image, osimage.RoleUSR)

	source.Misbehave(99, registrytest.Blobs(digest), registrytest.Changed)

	target, dir := newSite(t), filepath.Join(t.TempDir(), "folder")

	for _, to := range []osimage.Location{{Dir: dir}, target.location("os/labos:1")} {
		_, err := source.client.Copy(background(t), source.location("os/labos:1.1.0"), to, osimage.CopyOptions{})
		if !errors.Is(err, osimage.ErrWrongDigest) {
			t.Errorf("%s: got %v, want that the digest is wrong", to, err)
		}
	}

	for _, manifest := range all {
		if _, err := remote.Get(target.at(t, "os/labos@"+manifest.Digest.String()), target.remote...); err == nil {
			t.Errorf("the target has %s", manifest.Digest)
		}
	}

	_, err = source.client.Copy(background(t), osimage.Location{Dir: dir}, target.location("os/labos:1"), osimage.CopyOptions{})
	if !errors.Is(err, osimage.ErrNotFound) {
		t.Errorf("the folder has an artifact: %v", err)
	}
}

// Whatever a registry says it has, reading it ends with one clear error.
func TestCopyRefusesHostileArtifacts(t *testing.T) {
	t.Parallel()

	source := newSite(t)
	repository := source.at(t, "evil/os").Context()
	layer := source.blob(t, repository, "text/plain", []byte("x"), nil)
	nested := source.manifest(t, "evil/os", "", nil, layer)

	for range 6 {
		nested = source.raw(t, "evil/os", types.OCIImageIndex, v1.IndexManifest{
			SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{nested},
		})
	}

	negative := layer
	negative.Size = -1

	for name, test := range map[string]struct {
		reference v1.Descriptor
		says      string
	}{
		"nested":        {nested, "nested"},
		"negative size": {source.manifest(t, "evil/os", "", nil, negative), "-1 bytes"},
		"no digest":     {source.raw(t, "evil/os", types.OCIManifestSchema1, map[string]any{"layers": []any{map[string]any{}}}), "digest"},
		"no digest of a manifest": {source.raw(t, "evil/os", types.OCIImageIndex,
			map[string]any{"mediaType": types.OCIImageIndex, "manifests": []any{map[string]any{}}}), "without a digest"},
		"nothing":    {source.raw(t, "evil/os", types.OCIManifestSchema1, map[string]any{"schemaVersion": 2}), "neither"},
		"wrong type": {source.raw(t, "evil/os", types.OCIManifestSchema1, map[string]any{"layers": 5}), "cannot be read"},
		"strange digest": {source.raw(t, "evil/os", types.OCIManifestSchema1,
			map[string]any{"layers": []any{map[string]any{"digest": "sha256:../../../etc/passwd", "size": 1}}}), "cannot be read"},
	} {
		_, err := source.client.Copy(background(t), source.location("evil/os@"+test.reference.Digest.String()),
			osimage.Location{Dir: t.TempDir()}, osimage.CopyOptions{})
		if !errors.Is(err, osimage.ErrNotAnImage) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: got %v, want an error that says %q", name, err, test.says)
		}
	}
}

// A location is shown as it can be given back.
func TestLocationsAsText(t *testing.T) {
	t.Parallel()

	digest := "sha256:" + strings.Repeat("0", 64)

	for want, location := range map[string]osimage.Location{
		"os": {Dir: "os"}, "os:1.1.0": {Dir: "os", Tag: "1.1.0"}, "os@" + digest: {Dir: "os", Tag: digest},
		"r.example/os:1": {Reference: "r.example/os:1"},
	} {
		if got := location.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestCopyLocationsThatCannotBe(t *testing.T) {
	t.Parallel()

	source := newSite(t)
	source.release(t, "os/labos")

	other := "sha256:" + strings.Repeat("0", 64)

	for _, test := range []struct {
		from, to osimage.Location
		want     error
	}{
		{source.location("os/labos"), osimage.Location{Dir: t.TempDir()}, osimage.ErrInvalid},
		{source.location("os/labos:none"), osimage.Location{Dir: t.TempDir()}, osimage.ErrNotFound},
		{source.location("os/labos:1.1.0"), source.location("os/labos@" + other), osimage.ErrInvalid},
		{source.location("os/labos:1.1.0"), osimage.Location{Dir: t.TempDir(), Tag: other}, osimage.ErrInvalid},
		{osimage.Location{Dir: t.TempDir()}, source.location("os/labos:2"), osimage.ErrNotFound},
	} {
		if _, err := source.client.Copy(background(t), test.from, test.to, osimage.CopyOptions{}); !errors.Is(err, test.want) {
			t.Errorf("%s to %s: got %v, want %v", test.from, test.to, err, test.want)
		}
	}
}

// A target that is asked what it has may say anything. It is not believed: the copy fails, or the target has all of it.
func TestCopyToARegistryThatLies(t *testing.T) {
	t.Parallel()

	source := newSite(t)
	image := fill(t, source.Faulty)
	of := v1.Descriptor{Digest: digestOf(t, image.Digest())}
	signature := source.sign(t, "os/labos", of, "one")
	tag := strings.Replace(image.Digest(), ":", "-", 1) + ".sig"

	for _, target := range []struct{ name, digest string }{
		{"1", image.Digest()}, {image.Digest(), image.Digest()}, {tag, signature.Digest.String()},
	} {
		for name, answer := range lies(image.Manifest(), []byte(`{"schemaVersion":2}`), target.digest) {
			t.Run(target.name+" is "+name, func(t *testing.T) {
				t.Parallel()

				site := newSite(t)
				site.Misbehave(99, func(r *http.Request) bool {
					return registrytest.Manifests(r) && strings.HasSuffix(r.URL.Path, "/"+target.name)
				}, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { answer(w) })

				_, err := source.client.Copy(background(t), source.location("os/labos:1.1.0"), site.location("os/labos:1"), osimage.CopyOptions{})
				if err != nil {
					return
				}

				put := map[string]bool{}

				for _, request := range site.Requests() {
					if request.Method == http.MethodPut {
						put[request.Path[strings.LastIndex(request.Path, "/")+1:]] = true
					}
				}

				if !put["1"] || !put[image.Digest()] || !put[tag] {
					t.Errorf("no error, and only these manifests came: %v", put)
				}
			})
		}
	}
}

func digestOf(t *testing.T, text string) v1.Hash {
	t.Helper()

	digest, err := v1.NewHash(text)
	if err != nil {
		t.Fatal(err)
	}

	return digest
}
