package dps_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stayput-dev/stayput/agent/slots/dps/faulty"
	"github.com/stayput-dev/stayput/osimage"
)

// chunked is an image with a chunk index, whose usr is a file system in blocks.
func chunked(t *testing.T, version string, usr []byte) *osimage.Image {
	t.Helper()

	sum := sha256.Sum256(usr)
	rootHash := hex.EncodeToString(sum[:])
	dir := t.TempDir()
	files := map[osimage.Role]string{}

	for role, content := range map[osimage.Role][]byte{
		osimage.RoleUSR: usr, osimage.RoleUSRVerity: []byte("tree " + version),
		osimage.RoleUKI: faulty.UKI("labos", version, "usrhash="+rootHash+" panic=5"),
	} {
		files[role] = filepath.Join(dir, string(role))
		must(t, os.WriteFile(files[role], content, 0o600))
	}

	inputs, err := osimage.FileInputs(files)
	must(t, err)

	layout := filepath.Join(dir, "image")
	_, err = osimage.Build(t.Context(), layout, osimage.BuildSpec{
		Name: "labos", Version: version, Architecture: "amd64", RootHash: rootHash, Inputs: inputs,
	})
	must(t, err)

	image, err := osimage.OpenLayout(t.Context(), layout, "")
	must(t, err)

	return image
}

// The version that was there before helps even when the running one has nothing in common with the next.
func TestStageTakesWhatTheSpareSlotHas(t *testing.T) {
	t.Parallel()

	const size, block = 28 << 10, 4 << 10

	usr := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(usr) // never fails
	copy(usr[1024:], "\xe2\xe1\xf5\xe0")          // the magic number of erofs

	b := newBench(t)
	must(t, b.scheme.Stage(t.Context(), chunked(t, "1.1.0", usr), nil))

	newer := bytes.Clone(usr)
	copy(newer[size-block:], usr[block:2*block])

	var last osimage.Progress

	must(t, b.scheme.Stage(t.Context(), chunked(t, "1.2.0", newer), func(now osimage.Progress) { last = now }))

	if last.Reused < size {
		t.Errorf("%d bytes were reused, want all %d of usr: %+v", last.Reused, size, last)
	}
}
