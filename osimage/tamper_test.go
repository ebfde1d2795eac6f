package osimage_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"github.com/stayput-dev/stayput/osimage"
)

// putBlob writes a blob into a layout and returns its descriptor values.
func putBlob(t *testing.T, dir string, data []byte) v1.Hash {
	t.Helper()

	sum := sha256.Sum256(data)
	hash := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}

	if err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", hash.Hex), data, 0o600); err != nil {
		t.Fatal(err)
	}

	return hash
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

func toJSON(t *testing.T, value any) []byte {
	t.Helper()

	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}

	return data
}

// tamper changes config and manifest of the only image in a layout; all digests are made to fit again.
func tamper(t *testing.T, dir string, change func(config *osimage.Config, manifest *v1.Manifest)) {
	t.Helper()

	var (
		index    v1.IndexManifest
		manifest v1.Manifest
		config   osimage.Config
	)

	readJSON(t, filepath.Join(dir, "index.json"), &index)
	readJSON(t, filepath.Join(dir, "blobs", "sha256", index.Manifests[0].Digest.Hex), &manifest)
	readJSON(t, filepath.Join(dir, "blobs", "sha256", manifest.Config.Digest.Hex), &config)

	change(&config, &manifest)

	data := toJSON(t, config)
	manifest.Config.Digest, manifest.Config.Size = putBlob(t, dir, data), int64(len(data))

	data = toJSON(t, manifest)
	index.Manifests[0].Digest, index.Manifests[0].Size = putBlob(t, dir, data), int64(len(data))

	if err := os.WriteFile(filepath.Join(dir, "index.json"), toJSON(t, index), 0o600); err != nil {
		t.Fatal(err)
	}
}

// replaceLayer puts another layer in the place of a content's, as somebody with other tools could.
func replaceLayer(t *testing.T, dir string, role osimage.Role, compress func(raw []byte) []byte) {
	t.Helper()

	image, err := osimage.OpenLayout(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}

	reader, err := image.Open(t.Context(), role, 0)
	if err != nil {
		t.Fatal(err)
	}

	var raw bytes.Buffer
	if _, err := raw.ReadFrom(reader); err != nil {
		t.Fatal(err)
	}

	data := compress(raw.Bytes())

	tamper(t, dir, func(config *osimage.Config, manifest *v1.Manifest) {
		for i := range config.Contents {
			if config.Contents[i].Role == role {
				hash := putBlob(t, dir, data)
				config.Contents[i].Digest, config.Contents[i].Size = hash.String(), int64(len(data))
				manifest.Layers[i].Digest, manifest.Layers[i].Size = hash, int64(len(data))
				dropIndex(&config.Contents[i], manifest)
			}
		}
	})
}

// dropIndex takes a content's chunk index away, as an image has none that other tools made.
func dropIndex(content *osimage.Content, manifest *v1.Manifest) {
	manifest.Layers = slices.DeleteFunc(manifest.Layers, func(layer v1.Descriptor) bool {
		return layer.Digest.String() == content.ChunkIndex.Digest || layer.Digest.String() == content.ChunkIndex.IDs.Digest
	})
	content.ChunkIndex = nil
}

func TestForeignArtifactsAreRefused(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change func(config *osimage.Config, manifest *v1.Manifest)
		says   string
	}{
		"other artifact type": {func(_ *osimage.Config, m *v1.Manifest) { m.ArtifactType = "application/x" }, "artifactType"},
		"no artifact type":    {func(_ *osimage.Config, m *v1.Manifest) { m.ArtifactType = "" }, "artifactType"},
		"a container image": {func(_ *osimage.Config, m *v1.Manifest) {
			m.Config.MediaType = "application/vnd.oci.image.config.v1+json"
		}, "media type"},
		"docker manifest": {func(_ *osimage.Config, m *v1.Manifest) {
			m.MediaType = "application/vnd.docker.distribution.manifest.v2+json"
		}, "media type"},
		"a layer of another kind": {func(_ *osimage.Config, m *v1.Manifest) { m.Layers[1].MediaType = "x/y" }, "layer 1"},
		"a layer too few":         {func(_ *osimage.Config, m *v1.Manifest) { m.Layers = m.Layers[:2] }, "2 layers"},
		"layers swapped": {func(_ *osimage.Config, m *v1.Manifest) {
			m.Layers[0], m.Layers[1] = m.Layers[1], m.Layers[0]
		}, "layer 0"},
		"another digest": {func(c *osimage.Config, _ *v1.Manifest) { c.Contents[0].Digest = digestOfDigit("0") }, "layer 0"},
		"another size":   {func(c *osimage.Config, _ *v1.Manifest) { c.Contents[0].Size++ }, "layer 0"},
		"invalid config": {func(c *osimage.Config, _ *v1.Manifest) { c.Version = "1+1" }, "version"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := build(t, someContents())
			tamper(t, dir, test.change)

			_, err := osimage.OpenLayout(t.Context(), dir, "")
			if err == nil || osimage.IsTransient(err) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want a refusal that names %q", err, test.says)
			}
		})
	}
}

func TestRawBytesOtherThanTheConfigSays(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		change func(content *osimage.Content)
		want   error
	}{
		"digest":    {func(c *osimage.Content) { c.RawDigest = digestOfDigit("0") }, osimage.ErrWrongDigest},
		"less":      {func(c *osimage.Content) { c.RawSize++ }, osimage.ErrTruncated},
		"more":      {func(c *osimage.Content) { c.RawSize-- }, osimage.ErrTooLarge},
		"much more": {func(c *osimage.Content) { c.RawSize = 5 }, osimage.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := build(t, someContents())
			tamper(t, dir, func(config *osimage.Config, _ *v1.Manifest) { test.change(&config.Contents[0]) })

			image, err := osimage.OpenLayout(t.Context(), dir, "")
			if err != nil {
				t.Fatal(err)
			}

			data, err := readFrom(t, image, osimage.RoleUSR, 0)
			content, _ := image.Config().Content(osimage.RoleUSR)

			if !isKind(err, test.want) || int64(len(data)) > content.RawSize {
				t.Errorf("got %d bytes and %v, want %v", len(data), err, test.want)
			}
		})
	}
}

// The digest in the reference stands for the manifest, and that for the config: neither may be another one.
func TestOtherBytesThanTheDigestSays(t *testing.T) {
	t.Parallel()

	for _, name := range []string{"manifest", "config"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := build(t, someContents())

			var (
				index    v1.IndexManifest
				manifest v1.Manifest
			)

			readJSON(t, filepath.Join(dir, "index.json"), &index)
			readJSON(t, filepath.Join(dir, "blobs", "sha256", index.Manifests[0].Digest.Hex), &manifest)

			digest := map[string]v1.Hash{"manifest": index.Manifests[0].Digest, "config": manifest.Config.Digest}[name]
			path := filepath.Join(dir, "blobs", "sha256", digest.Hex)

			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}

			// Still valid, and as long as before.
			if err := os.WriteFile(path, bytes.ReplaceAll(data, []byte("1.1.0"), []byte("1.1.9")), 0o600); err != nil {
				t.Fatal(err)
			}

			if _, err := osimage.OpenLayout(t.Context(), dir, ""); !errors.Is(err, osimage.ErrWrongDigest) {
				t.Errorf("got %v, want a wrong digest", err)
			}
		})
	}
}

// Nobody needs that much memory for a config.
func TestConfigsAreBounded(t *testing.T) {
	t.Parallel()

	dir := build(t, someContents())

	var (
		index    v1.IndexManifest
		manifest v1.Manifest
		config   osimage.Config
	)

	readJSON(t, filepath.Join(dir, "index.json"), &index)
	readJSON(t, filepath.Join(dir, "blobs", "sha256", index.Manifests[0].Digest.Hex), &manifest)
	readJSON(t, filepath.Join(dir, "blobs", "sha256", manifest.Config.Digest.Hex), &config)

	data := append(toJSON(t, config), bytes.Repeat([]byte(" "), 1<<20)...)
	manifest.Config.Digest, manifest.Config.Size = putBlob(t, dir, data), int64(len(data))
	data = toJSON(t, manifest)
	index.Manifests[0].Digest, index.Manifests[0].Size = putBlob(t, dir, data), int64(len(data))

	if err := os.WriteFile(filepath.Join(dir, "index.json"), toJSON(t, index), 0o600); err != nil {
		t.Fatal(err)
	}

	if _, err := osimage.OpenLayout(t.Context(), dir, ""); !errors.Is(err, osimage.ErrNotAnImage) {
		t.Errorf("got %v, want a refusal", err)
	}
}

// The window is what a decoder must remember.
func TestWindowsAreBounded(t *testing.T) {
	t.Parallel()

	dir := build(t, someContents())

	replaceLayer(t, dir, osimage.RoleUSR, func(raw []byte) []byte {
		var layer bytes.Buffer

		encoder, err := zstd.NewWriter(&layer, zstd.WithWindowSize(16<<20))
		if err != nil {
			t.Fatal(err)
		}

		_, err = encoder.Write(raw)
		if err := errors.Join(err, encoder.Close()); err != nil {
			t.Fatal(err)
		}

		return layer.Bytes()
	})

	image, err := osimage.OpenLayout(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}

	if _, err := readFrom(t, image, osimage.RoleUSR, 0); !errors.Is(err, osimage.ErrTooLarge) {
		t.Errorf("got %v, want that the window is too large", err)
	}
}
