package osimage_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
	"github.com/stayput-dev/stayput/osimage/trust"
)

// partOf is what Pull left of a layer that is not complete.
func partOf(t *testing.T, dir string, image *osimage.Image) string {
	t.Helper()

	return filepath.Join(dir, "blobs", "sha256", ".partial-"+strings.TrimPrefix(layerDigest(t, image, osimage.RoleUSR), "sha256:"))
}

func sizeOf(t *testing.T, dir string) (total int64) {
	t.Helper()

	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}

	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}

		total += info.Size()
	}

	return total
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

	info, err := os.Stat(partOf(t, dir, image))
	if err != nil || info.Size() != 600_000 {
		t.Fatalf("%v, %v", info, err)
	}

	// Others arrived whole.
	arrived := sizeOf(t, filepath.Join(dir, "blobs", "sha256"))

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
	if got := received.Load() - (total - arrived); got < 0 || got > 10_000 {
		t.Errorf("received %d bytes more than what was missing", got)
	}

	if left, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", ".partial-*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// What a crash left of a layer may be damaged, whole or not: the digest finds it, and the layer is begun anew.
func TestPullFromADamagedPart(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	image := registry.push(t, someContents())
	dir := filepath.Join(t.TempDir(), "pulled")
	client := registry.client(t)
	part := partOf(t, dir, image)

	if err := os.MkdirAll(filepath.Dir(part), 0o755); err != nil {
		t.Fatal(err)
	}

	content, _ := image.Config().Content(osimage.RoleUSR)

	for _, left := range []int64{5000, content.Size} {
		if err := os.WriteFile(part, bytes.Repeat([]byte("x"), int(left)), 0o600); err != nil {
			t.Fatal(err)
		}

		if _, err := client.Pull(background(t), image.Reference(), dir, nil); err != nil {
			t.Errorf("after %d wrong bytes: %v", left, err)
		}

		if err := os.Remove(filepath.Join(filepath.Dir(part), strings.TrimPrefix(content.Digest, "sha256:"))); err != nil {
			t.Fatal(err)
		}
	}
}

// The right bytes and some more, as a crash can leave them, do not become the layer as they are.
func TestPullCutsAPartThatIsTooLong(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	image := registry.push(t, someContents())
	dir := filepath.Join(t.TempDir(), "pulled")
	client := registry.client(t)
	part := partOf(t, dir, image)
	whole := strings.Replace(part, ".partial-", "", 1)

	if _, err := client.Pull(background(t), image.Reference(), dir, nil); err != nil {
		t.Fatal(err)
	}

	layer, err := os.ReadFile(whole)
	if err := errors.Join(err, os.Remove(whole), os.WriteFile(part, append(layer, 0, 0, 0), 0o600)); err != nil {
		t.Fatal(err)
	}

	if _, err := client.Pull(background(t), image.Reference(), dir, nil); err != nil {
		t.Fatal(err)
	}

	again, err := osimage.OpenLayout(t.Context(), dir, "1.1.0")
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

	if _, err := client.Pull(background(t), image.Reference(), dir, nil); !osimage.IsTransient(err) {
		t.Fatalf("got %v, want a transient error", err)
	}

	if _, err := os.Stat(partOf(t, dir, image)); err != nil {
		t.Error(err)
	}

	registry.set(func(f *faults) { f.breaks, f.noRanges = 0, true })

	if _, err := client.Pull(background(t), image.Reference(), dir, nil); err != nil {
		t.Fatal(err)
	}

	again, err := osimage.OpenLayout(t.Context(), dir, "1.1.0")
	if err != nil {
		t.Fatal(err)
	}

	readEntirely(t, again)
}

// An image that goes into a folder and out of it again, for a site without a network, is signed there as before.
func TestPulledAndPushedImagesVerify(t *testing.T) {
	t.Parallel()

	signer := newSigner(t)

	policy, err := trust.NewPolicy(trust.ModeRequire, []trust.Key{signer.Key()})
	if err != nil {
		t.Fatal(err)
	}

	for name, form := range map[string]trust.Form{"by tag": trust.FormTag, "by bundle": trust.FormBundle} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			source, old, modern := newSite(t), newSite(t), newSite(t, registrytest.WithReferrers())
			image := fill(t, source.Faulty)
			dir := filepath.Join(t.TempDir(), "stick")

			signDigest(t, signatures(t, source.client, source.Address+wireTag), signer, image.Digest(), form)

			pulled, err := source.client.Pull(background(t), source.Address+wireTag, dir, nil)
			if err != nil || pulled.Attached != 1 || pulled.Digest != image.Digest() {
				t.Errorf("pulled %+v, %v", pulled, err)
			}

			if _, err := osimage.OpenTrustedLayout(background(t), dir, "", policy); err != nil {
				t.Error(err)
			}

			for _, target := range []*site{old, modern} {
				pushed, err := target.client.Push(background(t), dir, "", target.Address+wireTag, nil)
				if err != nil || pushed.Attached != 1 || pushed.Digest != image.Digest() {
					t.Errorf("pushed %+v, %v", pushed, err)
				}

				if _, err := clientOf(t, target.Faulty, requireBy(t, signer)).Image(background(t), target.Address+wireTag); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Of an index comes one image, under its version, with what is attached to it.
func TestPullOneOfAnIndex(t *testing.T) {
	t.Parallel()

	source := newSite(t)
	index, all := source.release(t, "os/labos")

	for number, attached := range []int{2, 1} {
		architecture, dir := osimage.Architectures()[number], filepath.Join(t.TempDir(), "pulled")
		client := clientOf(t, source.Faulty, osimage.WithArchitecture(architecture))

		pulled, err := client.Pull(background(t), source.Address+"/os/labos@"+index.Digest.String(), dir, nil)
		if err != nil || pulled.Digest != all[len(all)-2+number].Digest.String() || pulled.Attached != attached ||
			pulled.ChosenFrom != index.Digest.String() {
			t.Errorf("%s: pulled %+v, %v", architecture, pulled, err)
		}

		// What is attached is no second image.
		for _, tag := range []string{"", "1.1.0"} {
			if image, err := osimage.OpenLayoutFor(t.Context(), dir, tag, architecture); err != nil || image.Digest() != pulled.Digest {
				t.Errorf("%s as %q: %v", architecture, tag, err)
			}
		}
	}

	client := clientOf(t, source.Faulty, osimage.WithArchitecture("arm64"))

	_, err := client.Pull(background(t), source.Address+"/os/labos:of-amd64", t.TempDir(), nil)
	if !errors.Is(err, osimage.ErrWrongArchitecture) {
		t.Errorf("got %v, want a refusal", err)
	}
}

// Signatures come from the first host that has them. A mirror that has none is believed when nobody else can be reached,
// but not when the registry only has trouble.
func TestPullTakesSignaturesFromWhereTheyAre(t *testing.T) {
	t.Parallel()

	for name, form := range map[string]trust.Form{"by tag": trust.FormTag, "by bundle": trust.FormBundle} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			upstream, mirror := mirrored(t)
			hosts := hostsDir(t, upstream.Address, fmt.Sprintf("[host.%q]\n", "https://"+mirror.Address))
			client := clientOf(t, upstream, osimage.WithHostsDir(hosts))
			reference := upstream.Address + wireTag

			image, err := client.Image(background(t), reference)
			if err != nil {
				t.Fatal(err)
			}

			signDigest(t, signatures(t, clientOf(t, upstream), reference), newSigner(t), image.Digest(), form)

			pull := func() (osimage.Copied, error) {
				return client.Pull(background(t), reference, filepath.Join(t.TempDir(), "pulled"), nil)
			}

			if pulled, err := pull(); err != nil || pulled.Attached != 1 || pulled.Unasked {
				t.Errorf("pulled %+v, %v", pulled, err)
			}

			upstream.Misbehave(99, registrytest.Everything, registrytest.Status(http.StatusServiceUnavailable))

			if pulled, err := pull(); !osimage.IsTransient(err) {
				t.Errorf("the registry is sick: pulled %+v, %v", pulled, err)
			}

			upstream.Stop()

			if pulled, err := pull(); err != nil || pulled.Attached != 0 || !pulled.Unasked {
				t.Errorf("the registry is out of reach: pulled %+v, %v", pulled, err)
			}
		})
	}
}

// A mirror that may be asked for digests only has the image, and cannot say whether it is signed.
func TestPullFromAMirrorOfDigestsAlone(t *testing.T) {
	t.Parallel()

	upstream, mirror := mirrored(t)
	hosts := hostsDir(t, upstream.Address, fmt.Sprintf("[host.%q]\ncapabilities = [\"pull\"]\n", "https://"+mirror.Address))

	image, err := clientOf(t, upstream).Image(background(t), upstream.Address+wireTag)
	if err != nil {
		t.Fatal(err)
	}

	client := clientOf(t, upstream, osimage.WithHostsDir(hosts))
	pull := func() (osimage.Copied, error) {
		return client.Pull(background(t), image.Reference(), filepath.Join(t.TempDir(), "pulled"), nil)
	}

	upstream.Misbehave(99, registrytest.Everything, registrytest.Status(http.StatusServiceUnavailable))

	if pulled, err := pull(); !osimage.IsTransient(err) {
		t.Errorf("the registry is sick: pulled %+v, %v", pulled, err)
	}

	upstream.Stop()

	if pulled, err := pull(); err != nil || pulled.Digest != image.Digest() || pulled.Attached != 0 || !pulled.Unasked {
		t.Errorf("the registry is out of reach: pulled %+v, %v", pulled, err)
	}
}

// A folder's index goes as a whole, with the images for all machines.
func TestPushAnIndex(t *testing.T) {
	t.Parallel()

	source, target := newSite(t), newSite(t)
	index, all := source.release(t, "os/labos")
	dir := filepath.Join(t.TempDir(), "folder")

	copyTo(t, source.client, source.location("os/labos:1.1.0"), osimage.Location{Dir: dir}, osimage.CopyOptions{})

	pushed, err := target.client.Push(background(t), dir, "1.1.0", target.Address+"/air/gap:1", nil)
	if err != nil || pushed.Digest != index.Digest.String() {
		t.Errorf("pushed %+v, %v", pushed, err)
	}

	for _, manifest := range all {
		if _, err := remote.Get(target.at(t, "air/gap@"+manifest.Digest.String()), target.remote...); err != nil {
			t.Error(err)
		}
	}
}

// Before anything is sent it is known to be an OS image, and one that somebody can use.
func TestPushRefusesWhatIsNoImage(t *testing.T) {
	t.Parallel()

	source, target := newSite(t), newSite(t)
	repository := source.at(t, "their/os").Context()
	layer := source.blob(t, repository, "text/plain", []byte("x"), nil)
	config := source.blob(t, repository, osimage.ConfigMediaType, []byte(`{"name":"labos"}`), nil)

	for name, artifact := range map[string]v1.Descriptor{
		"another artifact": source.manifest(t, "their/os", "text/plain", nil, layer),
		"a broken image": source.raw(t, "their/os", "application/vnd.oci.image.manifest.v1+json", v1.Manifest{
			SchemaVersion: 2, MediaType: "application/vnd.oci.image.manifest.v1+json", ArtifactType: osimage.ArtifactType,
			Config: config, Layers: []v1.Descriptor{layer},
		}),
	} {
		dir := filepath.Join(t.TempDir(), "folder")
		from, to := source.location("their/os@"+artifact.Digest.String()), osimage.Location{Dir: dir, Tag: "1"}

		copyTo(t, source.client, from, to, osimage.CopyOptions{})

		_, err := target.client.Push(background(t), dir, "1", target.Address+wireTag, nil)
		if !errors.Is(err, osimage.ErrNotAnImage) {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
	}

	for _, request := range target.Requests() {
		if request.Method != http.MethodGet && request.Method != http.MethodHead {
			t.Errorf("a push that was refused did %s %s", request.Method, request.Path)
		}
	}
}
