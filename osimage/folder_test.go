package osimage_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/stayput-dev/stayput/osimage"
)

var errBrokenInput = errors.New("the medium is broken")

func readEntirely(t *testing.T, image *osimage.Image) {
	t.Helper()

	for _, content := range image.Config().Contents {
		reader, err := image.Open(t.Context(), content.Role, 0)
		if err != nil {
			t.Fatal(err)
		}

		if _, err := io.Copy(io.Discard, reader); err != nil {
			t.Errorf("%s: %v", content.Role, err)
		}

		if err := reader.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A file of the right name and size may hold anything after a power cut. Pulling and building again mend it.
func TestDamagedFoldersAreMended(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	parts := someContents()
	image := registry.push(t, parts)
	dir := filepath.Join(t.TempDir(), "pulled")

	if _, err := registry.client(t).Pull(background(t), image.Reference(), dir, nil); err != nil {
		t.Fatal(err)
	}

	for name, again := range map[string]func() (*osimage.Image, error){
		"pull": func() (*osimage.Image, error) {
			if _, err := registry.client(t).Pull(background(t), image.Reference(), dir, nil); err != nil {
				return nil, err
			}

			return osimage.OpenLayout(t.Context(), dir, image.Digest())
		},
		"build": func() (*osimage.Image, error) { return osimage.Build(t.Context(), dir, spec(t, parts)) },
	} {
		blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
		if err != nil || len(blobs) == 0 {
			t.Fatal(blobs, err)
		}

		for _, blob := range blobs {
			info, err := os.Stat(blob)
			if err != nil {
				t.Fatal(err)
			}

			if err := os.WriteFile(blob, make([]byte, info.Size()), 0o600); err != nil {
				t.Fatal(err)
			}
		}

		mended, err := again()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}

		readEntirely(t, mended)
	}
}

func TestFoldersHaveOneWriter(t *testing.T) {
	t.Parallel()

	parts := someContents()
	dir := build(t, parts)

	other, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}

	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}

	if _, err := osimage.Build(t.Context(), dir, spec(t, parts)); !errors.Is(err, osimage.ErrInvalid) {
		t.Errorf("beside another writer: %v", err)
	}

	if err := other.Close(); err != nil {
		t.Fatal(err)
	}

	if _, err := osimage.Build(t.Context(), dir, spec(t, parts)); err != nil {
		t.Errorf("after the other writer: %v", err)
	}
}

// The index is replaced, never rewritten: whoever is killed in between leaves the old one.
func TestIndexIsReplacedAsAWhole(t *testing.T) {
	t.Parallel()

	parts := someContents()
	dir := build(t, parts)
	index, kept := filepath.Join(dir, "index.json"), filepath.Join(t.TempDir(), "index.json")
	left := filepath.Join(dir, "blobs", "sha256", ".building-123")

	before, err := os.ReadFile(index)
	if err := errors.Join(err, os.Link(index, kept), os.WriteFile(left, []byte("half"), 0o600)); err != nil {
		t.Fatal(err)
	}

	input := spec(t, parts)
	input.Version = "1.2.0"

	if _, err := osimage.Build(t.Context(), dir, input); err != nil {
		t.Fatal(err)
	}

	if after, err := os.ReadFile(kept); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the old index was written to: %s, %v", after, err)
	}

	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a killed build left is still there: %v", err)
	}
}

// What cannot become an image leaves the one that is there alone.
func TestBuildThatIsRefusedKeepsTheImage(t *testing.T) {
	t.Parallel()

	dir := build(t, someContents())
	before, err := osimage.OpenLayout(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}

	for _, broken := range []func(context.Context) (io.ReadCloser, error){
		func(context.Context) (io.ReadCloser, error) { return nil, errBrokenInput },
		func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(iotest.ErrReader(errBrokenInput)), nil
		},
	} {
		input := spec(t, someContents())
		input.Inputs[osimage.RoleUSR] = osimage.Input{Name: "disk.bin", Size: 10, Open: broken}

		_, err = osimage.Build(t.Context(), dir, input)
		if !errors.Is(err, errBrokenInput) || !strings.Contains(err.Error(), "disk.bin") {
			t.Errorf("the error is %v", err)
		}

		after, err := osimage.OpenLayout(t.Context(), dir, "")
		if err != nil || after.Digest() != before.Digest() {
			t.Errorf("the folder holds another image, %v", err)
		}
	}
}

func TestUnusableFoldersNameTheFix(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	image := registry.push(t, someContents())
	dir := filepath.Join(t.TempDir(), "pulled")
	pull := func() error {
		_, err := registry.client(t).Pull(background(t), image.Reference(), dir, nil)

		return err
	}

	if err := pull(); err != nil {
		t.Fatal(err)
	}

	index := filepath.Join(dir, "index.json")

	for text, fix := range map[string]string{"": "remove that file", "{": "remove that file", "{}": "again"} {
		if err := os.WriteFile(index, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		if _, err := osimage.OpenLayout(t.Context(), dir, ""); err == nil || !strings.Contains(err.Error(), fix) {
			t.Errorf("index %q: %v", text, err)
		}

		if err := pull(); text != "{}" && (err == nil || !strings.Contains(err.Error(), fix)) {
			t.Errorf("pulling with index %q: %v", text, err)
		}
	}

	if err := os.Remove(index); err != nil {
		t.Fatal(err)
	}

	if err := pull(); err != nil {
		t.Errorf("after the fix: %v", err)
	}
}

// A folder may come from anywhere. Reading what its index names ends with the context, and has a bound.
func TestFoldersOfManyManifests(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	if _, err := osimage.Build(t.Context(), dir, spec(t, someContents())); err != nil {
		t.Fatal(err)
	}

	path := filepath.Join(dir, "index.json")

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	var index v1.IndexManifest
	if err := json.Unmarshal(data, &index); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	if _, err := osimage.OpenLayout(ctx, dir, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v after the end of the context", err)
	}

	for len(index.Manifests) <= 4096 {
		index.Manifests = append(index.Manifests, index.Manifests...)
	}

	if data, err = json.Marshal(index); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}

	if _, err := osimage.OpenLayout(t.Context(), dir, "1.1.0"); !errors.Is(err, osimage.ErrNotAnImage) ||
		!strings.Contains(err.Error(), "8192 manifests, at most 4096") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// What a folder has in place of files may never end.
func TestPipesInFolders(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()

	built, err := osimage.Build(t.Context(), dir, spec(t, someContents()))
	if err != nil {
		t.Fatal(err)
	}

	manifest := filepath.Join(dir, "blobs", "sha256", strings.TrimPrefix(built.Digest(), "sha256:"))

	for _, path := range []string{manifest, filepath.Join(dir, "index.json")} {
		if err := errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)); err != nil {
			t.Fatal(err)
		}

		if _, err := osimage.OpenLayout(t.Context(), dir, ""); err == nil || !strings.Contains(err.Error(), "want a file") {
			t.Errorf("%s: got %v, want a refusal", path, err)
		}
	}
}

// Two systems, or two architectures, of one version do not replace each other in silence.
func TestAnotherImageOfAVersionIsNotReplaced(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	pushed := registry.push(t, someContents())
	dir := t.TempDir()
	first := spec(t, someContents())

	built, err := osimage.Build(t.Context(), dir, first)
	if err != nil {
		t.Fatal(err)
	}

	for field, change := range map[string]func(spec *osimage.BuildSpec){
		"name":         func(spec *osimage.BuildSpec) { spec.Name = "other" },
		"variant":      func(spec *osimage.BuildSpec) { spec.Variant = "server" },
		"architecture": func(spec *osimage.BuildSpec) { spec.Architecture = "arm64" },
	} {
		other := first
		change(&other)

		if _, err := osimage.Build(t.Context(), dir, other); !errors.Is(err, osimage.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v, want a refusal", field, err)
		}

		elsewhere := t.TempDir()
		if _, err := osimage.Build(t.Context(), elsewhere, other); err != nil {
			t.Fatal(err)
		}

		_, err := registry.client(t).Pull(background(t), pushed.Reference(), elsewhere, nil)
		if !errors.Is(err, osimage.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: got %v for a pull, want a refusal", field, err)
		}
	}

	if found, err := osimage.OpenLayout(t.Context(), dir, ""); err != nil || found.Digest() != built.Digest() {
		t.Errorf("the image is lost: %v", err)
	}
}
