package osimage_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
)

// partialFiles lists what Pull left of layers that are not complete.
func partialFiles(t *testing.T, dir string) []string {
	t.Helper()

	files, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", ".partial-*"))
	if err != nil {
		t.Fatal(err)
	}

	return files
}

func TestPullGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)

	var received atomic.Int64

	image := registry.push(t, someContents())
	dir := filepath.Join(t.TempDir(), "pulled")
	client := registry.client(t, osimage.WithByteCounter(func(n int64) { received.Add(n) }))

	// Each of the three tries brings 200 kB, too little to count as progress.
	registry.set(func(f *faults) { f.breakAfter, f.breaks = 200_000, 1000 })

	if _, err := client.Pull(background(t), image.Reference(), dir, nil); !osimage.IsTransient(err) {
		t.Fatalf("got %v, want a transient error", err)
	}

	if _, err := osimage.OpenLayout(t.Context(), dir, ""); err == nil {
		t.Error("half an image can be opened")
	}

	left := partialFiles(t, dir)
	if len(left) != 1 {
		t.Fatalf("left behind: %v", left)
	}

	info, err := os.Stat(left[0])
	if err != nil || info.Size() != 600_000 {
		t.Fatalf("%v, %v", info, err)
	}

	registry.set(func(f *faults) { f.breaks = 0 })
	received.Store(0)

	if _, err := client.Pull(background(t), image.Reference(), dir, nil); err != nil {
		t.Fatal(err)
	}

	var total int64
	for _, content := range image.Config().Contents {
		total += content.Size + content.ChunkIndex.TotalSize()
	}

	// Manifest and config are fetched again.
	if got := received.Load() - (total - info.Size()); got < 0 || got > 10_000 {
		t.Errorf("received %d bytes more than what was missing", got)
	}

	if left := partialFiles(t, dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// What a crash left of a layer may be damaged: the digest finds it, and the next call starts that layer anew.
func TestPullFromADamagedPart(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	image := registry.push(t, someContents())
	dir := filepath.Join(t.TempDir(), "pulled")
	client := registry.client(t)
	digest := strings.TrimPrefix(layerDigest(t, image, osimage.RoleUSR), "sha256:")
	part := filepath.Join(dir, "blobs", "sha256", ".partial-"+digest)

	if err := os.MkdirAll(filepath.Dir(part), 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(part, bytes.Repeat([]byte("x"), 5000), 0o600); err != nil {
		t.Fatal(err)
	}

	if _, err := client.Pull(background(t), image.Reference(), dir, nil); !errors.Is(err, osimage.ErrWrongDigest) {
		t.Fatalf("got %v, want a wrong digest", err)
	}

	if _, err := client.Pull(background(t), image.Reference(), dir, nil); err != nil {
		t.Errorf("the second call: %v", err)
	}
}

// The right bytes and some more, as a crash can leave them, do not become the layer as they are.
func TestPullCutsAPartThatIsTooLong(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	image := registry.push(t, someContents())
	dir := filepath.Join(t.TempDir(), "pulled")
	client := registry.client(t)
	digest := strings.TrimPrefix(layerDigest(t, image, osimage.RoleUSR), "sha256:")

	if _, err := client.Pull(background(t), image.Reference(), dir, nil); err != nil {
		t.Fatal(err)
	}

	blobs := filepath.Join(dir, "blobs", "sha256")

	layer, err := os.ReadFile(filepath.Join(blobs, digest))
	if err := errors.Join(
		err, os.Remove(filepath.Join(blobs, digest)),
		os.WriteFile(filepath.Join(blobs, ".partial-"+digest), append(layer, 0, 0, 0), 0o600),
	); err != nil {
		t.Fatal(err)
	}

	again, err := client.Pull(background(t), image.Reference(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}

	readEntirely(t, again)
}

// Without ranges a part cannot be completed: the layer is fetched from its start.
func TestPullGoesOnWithoutRanges(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	image := registry.push(t, someContents())
	dir := filepath.Join(t.TempDir(), "pulled")
	client := registry.client(t)

	registry.set(func(f *faults) { f.breakAfter, f.breaks = 200_000, 1000 })

	if _, err := client.Pull(background(t), image.Reference(), dir, nil); !osimage.IsTransient(err) || len(partialFiles(t, dir)) != 1 {
		t.Fatalf("got %v, want a transient error and a part", err)
	}

	registry.set(func(f *faults) { f.breaks, f.noRanges = 0, true })

	again, err := client.Pull(background(t), image.Reference(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}

	readEntirely(t, again)
}
