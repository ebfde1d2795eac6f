package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/disk"
	"github.com/stayput-dev/stayput/osimage/registrytest"
	"github.com/stayput-dev/stayput/osimage/uki/ukitest"
)

// From files to a tag that machines are provisioned from and updated to.
func TestImagePublish(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	_, flags := testFiles(t, "1.1.0")
	dir := t.TempDir()
	layout, raw, packed := filepath.Join(dir, "image"), filepath.Join(dir, "node.raw"), filepath.Join(dir, "node.qcow2")
	reference := server.Address + "/os/labos:1.1.0"
	access := []string{"--ca-file", server.CAFile, "--docker-config", server.DockerConfig}

	mustRun(t, append([]string{
		"image", "build", layout, "--name", "labos", "--version", "1.1.0", "--arch", "amd64", "--root-hash", testRootHash,
	}, flags...)...)

	var made disk.Result

	text := mustRun(t, "image", "disk", layout, packed, "--format", "qcow2", "--esp-size", "64Mi", "-o", "json")
	if err := json.Unmarshal([]byte(text), &made); err != nil || made.Format != disk.FormatQCOW2 || len(made.SHA256) != 64 {
		t.Errorf("image disk -o json printed %s, %v", text, err)
	}

	if line, err := os.ReadFile(packed + disk.ChecksumSuffix); err != nil || string(line) != made.SHA256+"  node.qcow2\n" {
		t.Errorf("the checksum file has %q, %v", line, err)
	}

	text = mustRun(t, "image", "disk", layout, raw, "--esp-size", "64Mi", "--checksum=false")
	if _, err := os.Stat(raw + disk.ChecksumSuffix); !errors.Is(err, os.ErrNotExist) || !strings.Contains(text, "raw, sectors of 512") {
		t.Errorf("%v, image disk printed %s", err, text)
	}

	publish := append([]string{"image", "publish", layout, reference, "--disk", raw, "--disk", packed}, access...)
	text = mustRun(t, publish...)

	lines := strings.Split(strings.TrimSpace(text), "\n")
	if !strings.HasPrefix(lines[0], server.Address+"/os/labos@sha256:") || len(lines) != 6 ||
		!strings.Contains(lines[4], "raw disk") || !strings.Contains(lines[5], "oci://"+server.Address+"/os/labos@sha256:") {
		t.Errorf("image publish printed\n%s", text)
	}

	if again := mustRun(t, publish...); again != text {
		t.Errorf("publishing again printed\n%s", again)
	}

	// Without a disk the tag names less than before, and the command tells what that was.
	before, _, _ := strings.Cut(text, "\n")
	fewer := append([]string{"image", "publish", layout, reference, "--disk", packed}, access...)

	if out := mustRun(t, fewer...); !strings.Contains(out, "\nThe tag named something else before: "+before+"\n") {
		t.Errorf("publishing without a disk printed\n%s", out)
	}

	var published disk.Published

	out := mustRun(t, append(publish, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &published); err != nil || published.Reference != before || published.Replaced == "" ||
		strings.HasSuffix(before, published.Replaced) {
		t.Errorf("publishing with all disks once more printed %s, %v", out, err)
	}

	inspect := append([]string{"image", "inspect", reference, "--arch", "amd64"}, access...)
	if text := mustRun(t, inspect...); !strings.Contains(text, testRootHash) {
		t.Errorf("image inspect printed\n%s", text)
	}

	_, _, err := stayput(t, append([]string{"image", "publish", layout, reference, "--disk", filepath.Join(dir, "absent")}, access...)...)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
}

// Where there is no terminal each image has its own progress, and what comes after the images, too.
func TestImagePublishProgress(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	files, flags := testFiles(t, "1.1.0")
	dir := t.TempDir()
	packed := filepath.Join(dir, "node.qcow2")
	publish := []string{
		"image", "publish", server.Address + "/os/labos:1.1.0", "--disk", packed,
		"--ca-file", server.CAFile, "--docker-config", server.DockerConfig,
	}

	for _, architecture := range []string{"arm64", "amd64"} {
		layout := filepath.Join(dir, architecture)

		uki := ukitest.Named("labos", "1.1.0", architecture, "usrhash="+testRootHash)
		if err := os.WriteFile(filepath.Join(files, "uki"), uki, 0o600); err != nil {
			t.Fatal(err)
		}

		mustRun(t, append([]string{
			"image", "build", layout, "--name", "labos", "--version", "1.1.0", "--arch", architecture, "--root-hash", testRootHash,
		}, flags...)...)

		publish = slices.Insert(publish, 2, layout)
	}

	mustRun(t, "image", "disk", filepath.Join(dir, "amd64"), packed, "--format", "qcow2", "--esp-size", "64Mi", "--checksum=false")

	_, told, err := stayput(t, publish...)
	if err != nil {
		t.Fatal(err)
	}

	for _, part := range []string{"labos_1.1.0 amd64", "labos_1.1.0 arm64", "index and disks"} {
		ended := slices.ContainsFunc(strings.Split(told, "\n"), func(line string) bool {
			return strings.HasPrefix(line, part+": ") && strings.Contains(line, "(100%)")
		})
		if !ended {
			t.Errorf("nothing tells the end of %q in\n%s", part, told)
		}
	}
}

func TestImageDiskRefuses(t *testing.T) {
	t.Parallel()

	_, flags := testFiles(t, "1.1.0")
	layout, file := filepath.Join(t.TempDir(), "image"), filepath.Join(t.TempDir(), "disk")

	mustRun(t, append([]string{
		"image", "build", layout, "--name", "labos", "--version", "1.1.0", "--arch", "amd64", "--root-hash", testRootHash,
	}, flags...)...)

	for _, test := range []struct{ flag, value, says string }{
		{"--format", "vmdk", "use raw or qcow2"},
		{"--sector-size", "520", "use what `cat /sys/block/DISK/queue/logical_block_size` says"},
		{"--esp-size", "tiny", "it is not a size"},
	} {
		_, _, err := stayput(t, "image", "disk", layout, file, test.flag, test.value)
		if !errors.Is(err, osimage.ErrInvalid) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s %s: %v", test.flag, test.value, err)
		}
	}
}
