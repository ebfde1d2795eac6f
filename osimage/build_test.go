package osimage_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/stayput-dev/stayput/osimage"
)

func TestBuildIsReproducible(t *testing.T) {
	t.Parallel()

	first, err := osimage.OpenLayout(t.Context(), build(t, someContents()), "")
	if err != nil {
		t.Fatal(err)
	}

	second, err := osimage.OpenLayout(t.Context(), build(t, someContents()), "")
	if err != nil {
		t.Fatal(err)
	}

	if first.Digest() != second.Digest() {
		t.Errorf("the same files gave %s and %s", first.Digest(), second.Digest())
	}
}

func TestBuildAgainReplaces(t *testing.T) {
	t.Parallel()

	parts := someContents()
	dir := build(t, parts)

	if _, err := osimage.Build(t.Context(), dir, spec(t, parts)); err != nil {
		t.Fatal(err)
	}

	parts[osimage.RoleUKI] = randomBytes(7, 1000)

	changed, err := osimage.Build(t.Context(), dir, spec(t, parts))
	if err != nil {
		t.Fatal(err)
	}

	found, err := osimage.OpenLayout(t.Context(), dir, "")
	if err != nil {
		t.Fatalf("the folder should hold one image: %v", err)
	}

	if found.Digest() != changed.Digest() {
		t.Error("the folder holds the old image")
	}

	other := spec(t, parts)
	other.Version = "1.2.0"

	if _, err := osimage.Build(t.Context(), dir, other); err != nil {
		t.Fatal(err)
	}

	if _, err := osimage.OpenLayout(t.Context(), dir, "1.1.0"); err != nil {
		t.Errorf("the older version is gone: %v", err)
	}

	if _, err := osimage.OpenLayout(t.Context(), dir, ""); !errors.Is(err, osimage.ErrNotFound) {
		t.Errorf("two images and no tag: %v", err)
	}

	entries, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", ".*"))
	if err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v %v", entries, err)
	}
}

func TestBuildRefuses(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(spec *osimage.BuildSpec){
		"a file that is gone": func(s *osimage.BuildSpec) { remove(t, s.Inputs[osimage.RoleUKI].Name) },
		"a file that shrank":  func(s *osimage.BuildSpec) { truncate(t, s.Inputs[osimage.RoleUKI].Name) },
		"no UKI":              func(s *osimage.BuildSpec) { delete(s.Inputs, osimage.RoleUKI) },
		"a bad root hash":     func(s *osimage.BuildSpec) { s.RootHash = "abc" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			input := spec(t, someContents())
			change(&input)

			dir := filepath.Join(t.TempDir(), "image")
			if _, err := osimage.Build(t.Context(), dir, input); err == nil {
				t.Error("it was built")
			}

			if _, err := osimage.OpenLayout(t.Context(), dir, ""); err == nil {
				t.Error("an image is there")
			}
		})
	}
}

func TestInputsRefuse(t *testing.T) {
	t.Parallel()

	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	for _, file := range []string{"/dev/null", t.TempDir(), empty, empty + ".missing"} {
		_, err := osimage.FileInputs(map[osimage.Role]string{osimage.RoleUSR: file})
		if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "usr") {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func remove(t *testing.T, file string) {
	t.Helper()

	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, file string) {
	t.Helper()

	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
}

// The layers are ordinary zstd, and the layout is one that other tools read.
func TestOtherToolsReadTheImage(t *testing.T) {
	t.Parallel()

	parts := someContents()
	dir := build(t, parts)

	image, err := osimage.OpenLayout(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}

	for _, content := range image.Config().Contents {
		blob := filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(content.Digest, "sha256:"))

		raw, err := exec.CommandContext(t.Context(), "zstd", "-d", "-c", blob).Output()
		if err != nil {
			t.Fatalf("zstd -d: %v", err)
		}

		if !bytes.Equal(raw, parts[content.Role]) {
			t.Errorf("zstd -d gives other bytes for %s", content.Role)
		}
	}

	inspected, err := exec.CommandContext(t.Context(), "skopeo", "inspect", "--raw", "oci:"+dir+":1.1.0").Output()
	if err != nil {
		t.Fatalf("skopeo inspect: %v", err)
	}

	var manifest v1.Manifest
	if err := json.Unmarshal(inspected, &manifest); err != nil {
		t.Fatal(err)
	}

	if manifest.ArtifactType != osimage.ArtifactType || len(manifest.Layers) != 3*len(parts) {
		t.Errorf("skopeo shows %s with %d layers", manifest.ArtifactType, len(manifest.Layers))
	}
}

// A layer that was made with the zstd program has no seek table, and is read all the same.
func TestPlainZstdLayers(t *testing.T) {
	t.Parallel()

	parts := someContents()
	dir := build(t, parts)
	replaceLayer(t, dir, osimage.RoleUSR, func(raw []byte) []byte {
		command := exec.CommandContext(t.Context(), "zstd", "-c", "-19")
		command.Stdin = bytes.NewReader(raw)

		out, err := command.Output()
		if err != nil {
			t.Fatal(err)
		}

		return out
	})

	image, err := osimage.OpenLayout(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}

	for _, offset := range []int64{0, 5 << 20} {
		reader, err := image.Open(t.Context(), osimage.RoleUSR, offset)
		if err != nil {
			t.Fatal(err)
		}

		got, err := io.ReadAll(reader)
		if err != nil || !bytes.Equal(got, parts[osimage.RoleUSR][offset:]) {
			t.Errorf("from %d: %d bytes, %v", offset, len(got), err)
		}
	}
}
