package osimage

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// A registry that got all bytes could keep them, whatever they are.
func TestTheLastBytesOfADamagedFileAreNotSent(t *testing.T) {
	t.Parallel()

	dir, data := t.TempDir(), []byte("these are not the bytes")
	source := blob{digest: digestOfBytes([]byte("others")), size: int64(len(data)), subject: "usr"}
	path := blobPath(dir, source.digest)

	if err := errors.Join(os.MkdirAll(filepath.Dir(path), dirMode), os.WriteFile(path, data, blobMode)); err != nil {
		t.Fatal(err)
	}

	body, err := (&uploadedLayer{blobs: layoutBlobs{dir}, blob: source, path: path}).Compressed()
	if err != nil {
		t.Fatal(err)
	}

	sent, err := io.ReadAll(body)
	if !errors.Is(err, ErrWrongDigest) || len(sent) == len(data) {
		t.Errorf("sent %q, %v", sent, err)
	}

	if err := body.Close(); err != nil {
		t.Error(err)
	}
}
