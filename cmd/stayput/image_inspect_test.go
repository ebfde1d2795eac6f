package main

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

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/trust"
)

func TestImageInspectText(t *testing.T) {
	t.Parallel()

	folder := filepath.Join(t.TempDir(), "image")
	evil := bytes.Replace(gardenUKI(), []byte("Garden Linux 1877.3"), []byte("Garden \x1b[31m 1877.3"), 1)

	mustRun(t, "image", "import", save(t, "gl.uki", evil), folder)

	text := mustRun(t, "image", "inspect", folder)
	for _, want := range []string{"System:          Garden ?[31m 1877.3", "Kernel:          6.12.40-amd64", "Signatures:      none", "uki "} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}

	// An image that we made has a chunk index.
	if _, table, _ := strings.Cut(text, "ROLE"); !strings.Contains(table, "INDEX KiB") || strings.Contains(table, " - ") {
		t.Errorf("inspect printed\n%s", table)
	}

	if strings.Contains(text, "Root hash") || strings.ContainsRune(text, 0x1b) {
		t.Errorf("inspect printed\n%q", text)
	}
}

// What is inside and cannot be read keeps nobody from seeing the rest.
func TestImageInspectOfUnreadableContents(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	inputs := map[osimage.Role]osimage.Input{}

	for _, role := range []osimage.Role{osimage.RoleUSR, osimage.RoleKernel} {
		inputs[role] = osimage.Input{Name: string(role), Size: 70_000, Open: func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(make([]byte, 70_000))), nil
		}}
	}

	if _, err := osimage.Build(t.Context(), dir, osimage.BuildSpec{
		Name: "flatcar", Version: "1", Architecture: "amd64", Scheme: osimage.SchemeGPTPrio, RootHash: testRootHash, Inputs: inputs,
	}); err != nil {
		t.Fatal(err)
	}

	if seen := inspectImage(t, dir); !strings.Contains(seen.Inside.Problem, "os-release in /usr") || seen.Inside.Kernel != "" {
		t.Errorf("inspect printed %+v", seen)
	}
}

func TestContentAt(t *testing.T) {
	t.Parallel()

	content := make([]byte, 3*insideBlockSize+1000)
	for i := range content {
		content[i] = byte(i * 7 >> 8)
	}

	dir := t.TempDir()
	input := osimage.Input{Name: "kernel", Size: int64(len(content)), Open: func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}}

	image, err := osimage.Build(t.Context(), dir, osimage.BuildSpec{
		Name: "flatcar", Version: "1", Architecture: "amd64", Scheme: osimage.SchemeGPTPrio, RootHash: testRootHash,
		Inputs: map[osimage.Role]osimage.Input{osimage.RoleUSR: input, osimage.RoleKernel: input},
	})
	if err != nil {
		t.Fatal(err)
	}

	reader := newContentAt(t.Context(), image, osimage.RoleKernel)

	for _, offset := range []int64{0, 100, insideBlockSize - 1, 2 * insideBlockSize, int64(len(content)) - 10, int64(len(content)), 1 << 40} {
		buffer := make([]byte, insideBlockSize+2)
		want := content[min(offset, int64(len(content))):]
		want = want[:min(len(want), len(buffer))]

		count, err := reader.ReadAt(buffer, offset)
		if !bytes.Equal(buffer[:count], want) || (count < len(buffer)) != errors.Is(err, io.EOF) {
			t.Errorf("from %d: %d bytes, %v", offset, count, err)
		}
	}

	for index := range int64(maxInsideBlocks) {
		reader.blocks[1000+index] = nil
	}

	delete(reader.blocks, 0)

	if _, err := reader.ReadAt(make([]byte, 1), 0); !errors.Is(err, errTooManyBlocks) {
		t.Errorf("one block too many: %v", err)
	}
}

func TestKernelRelease(t *testing.T) {
	t.Parallel()

	kernel := make([]byte, 0x400)
	copy(kernel[0x202:], "HdrS")
	copy(kernel[0x20e:], []byte{0xf0, 0x01})
	copy(kernel[0x3f0:], "6.1.2 (x)")

	for name, test := range map[string]struct {
		kernel []byte
		want   string
	}{
		"whole": {kernel, "6.1.2"}, "no header": {make([]byte, 0x400), ""}, "short": {kernel[:0x20e], ""}, "cut": {kernel[:0x3f2], "6."},
		"no text": {kernel[:0x300], ""}, "empty": {nil, ""},
	} {
		if got := kernelRelease(bytes.NewReader(test.kernel)); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// signatureStore has manifests by tag, and lists no referrers.
type signatureStore map[string]any

func (s signatureStore) Manifest(_ context.Context, tag string) (trust.Manifest, error) {
	value, ok := s[tag]
	if !ok {
		return trust.Manifest{}, trust.ErrNotFound
	}

	if err, isError := value.(error); isError {
		return trust.Manifest{}, err
	}

	data, err := json.Marshal(value)

	return trust.Manifest{Bytes: data}, err
}

func (s signatureStore) Blob(context.Context, v1.Descriptor) ([]byte, error) {
	return nil, trust.ErrNotFound
}

func (s signatureStore) Referrers(context.Context, string) ([]v1.Descriptor, error) {
	return nil, trust.ErrNotFound
}

func TestCountSignatures(t *testing.T) {
	t.Parallel()

	digest := "sha256:" + strings.Repeat("a", 64)
	hash := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("b", 64)}
	signatures := v1.Manifest{Config: v1.Descriptor{Digest: hash}, Layers: []v1.Descriptor{{Digest: hash}, {Digest: hash}}}
	referrers := v1.IndexManifest{Manifests: []v1.Descriptor{
		{Digest: hash, ArtifactType: "application/vnd.dev.sigstore.bundle.v0.3+json"}, {Digest: hash, ArtifactType: "application/spdx+json"},
	}}

	for _, test := range []struct {
		store signatureStore
		want  string
	}{
		{signatureStore{}, "none"},
		{signatureStore{trust.SignatureTag(digest): signatures}, "2 with a tag, 0 as bundles (not verified)"},
		{signatureStore{trust.ReferrersTag(digest): referrers}, "0 with a tag, 1 as bundles (not verified)"},
		{signatureStore{trust.SignatureTag(digest): "nonsense", trust.ReferrersTag(digest): "nonsense"}, "none"},
	} {
		if got := countSignatures(t.Context(), test.store, digest); got.String() != test.want {
			t.Errorf("%v: %s, want %s", test.store, got, test.want)
		}
	}

	for _, tag := range []string{trust.SignatureTag(digest), trust.ReferrersTag(digest)} {
		got := countSignatures(t.Context(), signatureStore{tag: os.ErrDeadlineExceeded}, digest)
		if got.String() != "cannot be told: "+os.ErrDeadlineExceeded.Error() {
			t.Errorf("%s fails: %s", tag, got)
		}
	}
}

// An interrupted look is no finding.
func TestInspectEndsWithItsContext(t *testing.T) {
	t.Parallel()

	dir := builtImage(t)

	image, err := osimage.OpenLayout(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	if found, err := inspect(ctx, image, osimage.LayoutSignatures(dir)); !errors.Is(err, context.Canceled) {
		t.Errorf("found %+v, %v", found, err)
	}
}
