package osimage_test

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
)

// A mirror can be anybody: what it gives of a content is found out while it is written, and asked for at the registry.
func TestWritesFromAMirrorThatLies(t *testing.T) {
	t.Parallel()

	bomb := func(size int) []byte {
		encoder, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}

		return append(encoder.EncodeAll(make([]byte, 64<<20), nil), make([]byte, size)...)[:size]
	}

	for name, test := range map[string]struct {
		fault  registrytest.Fault
		seeded bool
	}{
		"other bytes, in one stream": {registrytest.Changed, false},
		"other bytes, in pieces":     {registrytest.Changed, true},
		"far too many bytes": {func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(bomb(layerSize(t))))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			upstream, mirror := mirrored(t)
			client := clientOf(t, upstream, osimage.WithHostsDir(hostsDir(t, upstream.Address,
				fmt.Sprintf("[host.%q]\ncapabilities = [\"pull\"]\n", "https://"+mirror.Address))))

			image, err := client.Image(background(t), upstream.Address+wireTag)
			if err != nil {
				t.Fatal(err)
			}

			digest := layerDigest(t, image, osimage.RoleUSR)
			mirror.Misbehave(99, registrytest.Blobs(digest), test.fault)

			var options osimage.WriteOptions

			if test.seeded {
				half := someContents()[osimage.RoleUSR][:usrSize/2]
				options.Seeds = []osimage.Seed{{Reader: bytes.NewReader(half), Size: int64(len(half))}}
			}

			target := openTarget(t, 0)
			if err := osimage.Write(background(t), image, osimage.RoleUSR, target, options); err != nil {
				t.Fatal(err)
			}

			if _, asked := sentOf(mirror.Requests(), digest); asked == 0 {
				t.Error("the mirror was not asked")
			}
		})
	}
}

func layerSize(t *testing.T) int {
	t.Helper()

	image, err := osimage.OpenLayout(t.Context(), build(t, someContents()), "")
	if err != nil {
		t.Fatal(err)
	}

	content, _ := image.Config().Content(osimage.RoleUSR)

	return int(content.Size)
}
