package osimage_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
	"github.com/stayput-dev/stayput/osimage/trust"
)

// A registry, a folder, another folder (such as a USB stick), a registry without the referrers API, and one with it.
func TestCopyInAllDirections(t *testing.T) {
	t.Parallel()

	source, old, modern := newSite(t, registrytest.WithReferrers()), newSite(t), newSite(t, registrytest.WithReferrers())
	index, all := source.release(t, "os/labos")

	dir, stick := filepath.Join(t.TempDir(), "folder"), filepath.Join(t.TempDir(), "stick")
	places := []osimage.Location{
		source.location("os/labos:1.1.0"), {Dir: dir}, {Dir: stick, Tag: "renamed"}, old.location("air/gap:1"), modern.location("os/labos:1.1.0"),
	}

	for step, to := range places[1:] {
		var last int64

		options := osimage.CopyOptions{Progress: func(done, _ int64) { last = max(last, done) }}

		copied := copyTo(t, source.client, places[step], to, options)
		if copied.Digest != index.Digest.String() || copied.Manifests != len(all) || copied.Attached != 4 || copied.Blobs == 0 {
			t.Errorf("%s: %+v, want %s with %d manifests", to, copied, index.Digest, len(all))
		}

		if last < copied.Bytes {
			t.Errorf("%s: progress ended at %d of %d", to, last, copied.Bytes)
		}

		again := copyTo(t, source.client, places[step], to, osimage.CopyOptions{})
		if again.Manifests+again.Blobs > 0 || again.PresentBytes != copied.Bytes+copied.PresentBytes {
			t.Errorf("%s: copied anew %+v", to, again)
		}
	}

	for _, target := range []*site{old, modern} {
		var puts []string

		for _, request := range target.Requests() {
			if request.Method == http.MethodPut && strings.Contains(request.Path, "/manifests/") {
				puts = append(puts, request.Path[strings.LastIndex(request.Path, "/")+1:])
			}
		}

		// Whoever sees the tag sees the signatures.
		if last := puts[len(puts)-1]; last != "1" && last != "1.1.0" || slices.Contains(puts[:len(puts)-1], last) {
			t.Errorf("manifests came as %q", puts)
		}
	}

	for _, target := range []struct {
		*site

		repository string
	}{{old, "air/gap"}, {modern, "os/labos"}} {
		for _, manifest := range all {
			if _, err := remote.Get(target.at(t, target.repository+"@"+manifest.Digest.String()), target.remote...); err != nil {
				t.Errorf("%s: %v", target.repository, err)
			}
		}

		for _, subject := range []v1.Descriptor{all[len(all)-2], all[1]} {
			digest := target.at(t, target.repository).Context().Digest(subject.Digest.String())

			list, err := remote.Referrers(digest, target.remote...)
			if err != nil {
				t.Fatal(err)
			}

			if manifest, err := list.IndexManifest(); err != nil || len(manifest.Manifests) != 1 {
				t.Errorf("%s: %d referrers of %s, %v", target.repository, len(manifest.Manifests), subject.Digest, err)
			}
		}

		tag := strings.Replace(index.Digest.String(), ":", "-", 1) + ".sig"
		if found, err := remote.Head(target.at(t, target.repository+":"+tag), target.remote...); err != nil || found.Digest != all[3].Digest {
			t.Errorf("%s: the signature is %v, %v", target.repository, found, err)
		}
	}

	image, err := clientOf(t, modern.Faulty, osimage.WithArchitecture("arm64")).Image(background(t), modern.Address+wireTag)
	if err != nil {
		t.Fatal(err)
	}

	if data, err := readFrom(t, image, osimage.RoleUSR, 0); err != nil || !bytes.Equal(data, someContents()[osimage.RoleUSR]) {
		t.Errorf("the copy has other bytes: %v", err)
	}
}

func TestCopyOneArchitecture(t *testing.T) {
	t.Parallel()

	source, target := newSite(t), newSite(t)
	_, all := source.release(t, "os/labos")
	arm64 := all[len(all)-1]

	copied := copyTo(t, source.client, source.location("os/labos:1.1.0"), target.location("os/labos:1"),
		osimage.CopyOptions{Architecture: "arm64"})
	if copied.Digest != arm64.Digest.String() || copied.Manifests != 2 {
		t.Errorf("%+v, want %s and its signature", copied, arm64.Digest)
	}

	_, err := source.client.Copy(background(t), source.location("os/labos:1.1.0"), target.location("os/labos:1"),
		osimage.CopyOptions{Architecture: "riscv64"})
	if !errors.Is(err, osimage.ErrWrongArchitecture) {
		t.Errorf("got %v", err)
	}

	// One image under its own tag is for one architecture, too.
	_, err = source.client.Copy(background(t), source.location("os/labos@"+arm64.Digest.String()), target.location("os/labos:1"),
		osimage.CopyOptions{Architecture: "amd64"})
	if !errors.Is(err, osimage.ErrWrongArchitecture) {
		t.Errorf("got %v", err)
	}
}

// Other people's artifacts: many flavors for each architecture, and media types that nobody here knows.
func TestCopyForeignArtifacts(t *testing.T) {
	t.Parallel()

	source := newSite(t, registrytest.WithReferrers())
	repository := source.at(t, "their/os").Context()

	entries := make([]v1.Descriptor, 0, 4)

	for index := range cap(entries) {
		entry := source.manifest(t, "their/os", "", nil,
			source.blob(t, repository, "application/io.gardenlinux.release", fmt.Appendf(nil, "flavor %d", index), nil))
		entry.Platform = &v1.Platform{OS: "linux", Architecture: "amd64"}
		entry.Annotations = map[string]string{"cname": fmt.Sprintf("flavor-%d-amd64", index)}
		entries = append(entries, entry)
	}

	index := source.raw(t, "their/os:1", types.OCIImageIndex, v1.IndexManifest{
		SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: entries,
	})

	dir := t.TempDir()
	if copied := copyTo(t, source.client, source.location("their/os:1"), osimage.Location{Dir: dir}, osimage.CopyOptions{}); copied.Digest !=
		index.Digest.String() || copied.Manifests != 5 {
		t.Errorf("%+v", copied)
	}

	_, err := source.client.Copy(background(t), source.location("their/os:1"), osimage.Location{Dir: dir},
		osimage.CopyOptions{Architecture: "amd64"})
	if !errors.Is(err, osimage.ErrInvalid) || !strings.Contains(err.Error(), "4 manifests") {
		t.Errorf("got %v, want that one cannot be chosen", err)
	}
}

func TestCopyWithoutDoing(t *testing.T) {
	t.Parallel()

	source, target := newSite(t), newSite(t)
	source.release(t, "os/labos")

	dir := filepath.Join(t.TempDir(), "none")

	for _, to := range []osimage.Location{{Dir: dir}, target.location("os/labos:1")} {
		planned := copyTo(t, source.client, source.location("os/labos:1.1.0"), to, osimage.CopyOptions{DryRun: true})
		if planned.Manifests == 0 || planned.Blobs == 0 || planned.Bytes == 0 {
			t.Errorf("%s: planned %+v", to, planned)
		}

		for _, request := range target.Requests() {
			if request.Method != http.MethodGet && request.Method != http.MethodHead {
				t.Errorf("a dry run did %s %s", request.Method, request.Path)
			}
		}

		if _, err := os.Stat(dir); err == nil && to.Dir != "" {
			t.Error("a dry run made the folder")
		}

		if done := copyTo(t, source.client, source.location("os/labos:1.1.0"), to, osimage.CopyOptions{}); done != planned {
			t.Errorf("%s: planned %+v, did %+v", to, planned, done)
		}
	}
}

// A copy that failed goes on: in a folder at the byte, in a registry with the blobs that are missing.
func TestCopyGoesOn(t *testing.T) {
	t.Parallel()

	source, target := newSite(t), newSite(t)
	image := fill(t, source.Faulty)
	layer, _ := image.Config().Content(osimage.RoleUSR)
	impatient := clientOf(t, source.Faulty, osimage.WithRetry(osimage.Retry{Tries: 1, First: time.Millisecond, Max: time.Millisecond}))

	for _, to := range []osimage.Location{{Dir: filepath.Join(t.TempDir(), "folder")}, target.location("os/labos:1")} {
		source.Misbehave(2, registrytest.Blobs(layer.Digest), registrytest.CutAfter(int(layer.Size/3)))

		for try := range 3 {
			_, err := impatient.Copy(background(t), source.location("os/labos:1.1.0"), to, osimage.CopyOptions{})
			if (err == nil) != (try == 2) {
				t.Errorf("%s: try %d: %v", to, try, err)
			}
		}

		sent, _ := sentOf(source.Requests(), layer.Digest)
		if to.Dir != "" && sent != layer.Size {
			t.Errorf("%d bytes were sent of a layer of %d", sent, layer.Size)
		}

		if copied := copyTo(t, source.client, source.location("os/labos:1.1.0"), to, osimage.CopyOptions{}); copied.Blobs > 0 {
			t.Errorf("%s: copied anew: %+v", to, copied)
		}
	}

	// With more tries the transfer itself goes on at the byte, also into a registry.
	other := newSite(t)

	source.Requests()
	source.Misbehave(2, registrytest.Blobs(layer.Digest), registrytest.CutAfter(int(layer.Size/3)))
	copyTo(t, source.client, source.location("os/labos:1.1.0"), other.location("os/labos:1"), osimage.CopyOptions{})

	if sent, _ := sentOf(source.Requests(), layer.Digest); sent != layer.Size {
		t.Errorf("%d bytes were sent of a layer of %d", sent, layer.Size)
	}
}

// A real registry: what is in another repository of it is mounted, not sent.
func TestCopyMounts(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	client := newClient(t, osimage.WithCAFile(server.CAFile), osimage.WithDockerConfig(server.DockerConfig))
	dir := build(t, someContents())

	copyTo(t, client, osimage.Location{Dir: dir}, osimage.Location{Reference: server.Address + "/os/labos:1.1.0"}, osimage.CopyOptions{})

	before := len(server.Log())
	copied := copyTo(t, client, osimage.Location{Reference: server.Address + "/os/labos:1.1.0"},
		osimage.Location{Reference: server.Address + "/released/labos:1.1.0"}, osimage.CopyOptions{})

	log := server.Log()[before:]
	if mounts := strings.Count(log, "mount=sha256"); mounts != copied.Blobs || strings.Contains(log, "PATCH") {
		t.Errorf("%d of %d blobs were mounted:\n%s", mounts, copied.Blobs, log)
	}

	image, err := client.Image(background(t), server.Address+"/released/labos:1.1.0")
	if err != nil || image.Digest() != copied.Digest {
		t.Errorf("%v, %v", image, err)
	}
}

// Whoever runs the target may have signed there: those signatures stay, and the source's come to them.
func TestCopyKeepsSignaturesOfTheTarget(t *testing.T) {
	t.Parallel()

	source, target := newSite(t), newSite(t)
	index, _ := source.release(t, "os/labos")

	target.sign(t, "os/labos", index, "theirs")

	for round := range 2 {
		copied := copyTo(t, source.client, source.location("os/labos:1.1.0"), target.location("os/labos:1"), osimage.CopyOptions{})
		if round == 1 && copied.Manifests > 0 {
			t.Errorf("copied anew %+v", copied)
		}

		tag := "os/labos:" + strings.Replace(index.Digest.String(), ":", "-", 1) + ".sig"

		signatures, err := remote.Image(target.at(t, tag), target.remote...)
		if err != nil {
			t.Fatal(err)
		}

		manifest, err := signatures.Manifest()
		if err != nil {
			t.Fatal(err)
		}

		found := make([]string, 0, len(manifest.Layers))
		for _, layer := range manifest.Layers {
			found = append(found, layer.Annotations["dev.cosignproject.cosign/signature"])
		}

		if got := strings.Join(found, " "); got != "theirs one" {
			t.Errorf("the signatures are %q", got)
		}
	}
}

// What verified at the source verifies at the target, whichever way it came, and in whichever form it was signed.
func TestCopiesVerify(t *testing.T) {
	t.Parallel()

	signer := newSigner(t)

	for name, form := range map[string]trust.Form{"by tag": trust.FormTag, "by bundle": trust.FormBundle} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			source, old, modern := newSite(t), newSite(t), newSite(t, registrytest.WithReferrers())
			image := fill(t, source.Faulty)
			stick := filepath.Join(t.TempDir(), "stick")

			signDigest(t, signatures(t, source.client, source.Address+wireTag), signer, image.Digest(), form)

			from := source.location("os/labos:1.1.0")
			for _, to := range []osimage.Location{{Dir: stick}, old.location("os/labos:1.1.0"), modern.location("os/labos:1.1.0")} {
				copyTo(t, source.client, from, to, osimage.CopyOptions{})

				from = to
			}

			for _, target := range []*site{old, modern} {
				if _, err := clientOf(t, target.Faulty, requireBy(t, signer)).Image(background(t), target.Address+wireTag); err != nil {
					t.Error(err)
				}

				_, err := clientOf(t, target.Faulty, requireBy(t, newSigner(t))).Image(background(t), target.Address+wireTag)
				if !errors.Is(err, osimage.ErrUntrusted) {
					t.Errorf("with another key: %v", err)
				}
			}

			policy, err := trust.NewPolicy(trust.ModeRequire, []trust.Key{signer.Key()})
			if err != nil {
				t.Fatal(err)
			}

			if _, err := osimage.OpenTrustedLayout(background(t), stick, "", policy); err != nil {
				t.Error(err)
			}
		})
	}
}
