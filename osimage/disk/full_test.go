package disk_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/disk"
)

// fullDisk names the folder of a small file system in the environment of a process that runs this test a second time.
const fullDisk = "STAYPUT_TEST_FULL_DISK"

// A full file system leaves what was there, and nothing else. The test runs itself in a mount namespace of its own.
func TestCreateOnAFullFileSystem(t *testing.T) {
	t.Parallel()

	if dir := os.Getenv(fullDisk); dir != "" {
		createOnFullDisk(t, dir)

		return
	}

	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	// The contents have 17 MiB, and as much again as a QCOW2 file: the raw one does not fit, or only the second one.
	for format, size := range map[disk.Format]string{disk.FormatRaw: "12m", disk.FormatQCOW2: "36m"} {
		dir := t.TempDir()
		command := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", "--mount", "sh", "-ec",
			`mount -t tmpfs -o "size=$1" none "$2"; exec "$3" -test.run '^TestCreateOnAFullFileSystem$' -test.v`,
			"sh", size, dir, program)
		command.Env = append(os.Environ(), fullDisk+"="+dir, "STAYPUT_TEST_FORMAT="+string(format))

		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", format, err, out)
		}
	}
}

func createOnFullDisk(t *testing.T, dir string) {
	t.Helper()

	file := filepath.Join(dir, "disk")
	if err := errors.Join(os.WriteFile(file, []byte("before"), 0o600),
		os.WriteFile(file+disk.ChecksumSuffix, []byte("sum"), 0o600)); err != nil {
		t.Fatal(err)
	}

	_, err := disk.Create(t.Context(), build(t, "amd64", usrContents()), file, disk.Options{
		Sizes: small(), Format: disk.Format(os.Getenv("STAYPUT_TEST_FORMAT")), Checksum: true,
	})
	if !errors.Is(err, osimage.ErrTooLarge) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want that there is no room", err)
	}

	if names := namesIn(t, dir); names != "disk disk.sha256" {
		t.Errorf("the folder has %s", names)
	}

	if data, err := os.ReadFile(file); err != nil || string(data) != "before" {
		t.Errorf("the file holds %q, %v", data, err)
	}
}
