package machine

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
)

func TestConfigDriveHoldsTheFilesWithTheirModes(t *testing.T) {
	t.Parallel()

	drive := filepath.Join(t.TempDir(), "config.iso")

	err := writeConfigDrive(drive, []File{
		{Path: "/etc/kubernetes/kubeconfig", Mode: 0o600, Data: []byte("secret")},
		{Path: "/opt/stayput/bin/agent", Mode: 0o755, Data: make([]byte, 3<<20)},
		{Path: "/etc/systemd/system/sockets.target.wants/lab.socket", Link: "../lab.socket"},
		{Path: "/root/.ssh/authorized_keys", Mode: 0o600, Data: []byte("key")},
	})
	if err != nil {
		t.Fatal(err)
	}

	label, got := read(t, drive)
	if label != configLabel {
		t.Errorf("label is %q, want %q", label, configLabel)
	}

	for name, want := range map[string]struct {
		kind byte
		mode int64
		size int64
		link string
	}{
		"etc/kubernetes/":           {tar.TypeDir, 0o755, 0, ""},
		"etc/kubernetes/kubeconfig": {tar.TypeReg, 0o600, 6, ""},
		"opt/stayput/bin/agent":     {tar.TypeReg, 0o755, 3 << 20, ""},
		"root/.ssh/":                {tar.TypeDir, 0o700, 0, ""},
		"etc/systemd/system/sockets.target.wants/lab.socket": {tar.TypeSymlink, 0, 0, "../lab.socket"},
	} {
		header := got[name]
		if header == nil {
			t.Errorf("%s is missing", name)

			continue
		}

		if header.Typeflag != want.kind || header.Mode != want.mode || header.Size != want.size ||
			header.Linkname != want.link || header.Uid != 0 {
			t.Errorf("%s is %+v, want %+v", name, header, want)
		}
	}

	for _, existing := range []string{"etc/", "root/", "opt/"} {
		if got[existing] != nil {
			t.Errorf("%s is in the archive and would get its mode", existing)
		}
	}
}

// read returns the drive's label and the headers of its archive.
func read(t *testing.T, drive string) (string, map[string]*tar.Header) {
	t.Helper()

	storage, err := file.OpenFromPath(drive, true)
	if err != nil {
		t.Fatal(err)
	}

	defer storage.Close()

	iso, err := iso9660.Read(storage, 0, 0, isoBlock)
	if err != nil {
		t.Fatal(err)
	}

	archive, err := iso.OpenFile("/"+configTar, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}

	headers := map[string]*tar.Header{}

	for reader := tar.NewReader(archive); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return strings.TrimRight(iso.Label(), "\x00 "), headers
		}

		if err != nil {
			t.Fatal(err)
		}

		headers[header.Name] = header
	}
}
