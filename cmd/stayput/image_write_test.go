package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestImageWriteAtAnOffset(t *testing.T) {
	t.Parallel()

	layout, _, newUSR := twoVersions(t)

	for text, offset := range map[string]int{"0": 0, "4096": 4096, "2Mi": 2 << 20, "3k": 3000, "0Mi": 0} {
		target := filepath.Join(t.TempDir(), "target")
		mustRun(t, "image", "write", layout+":1.1.0", target, "--role", "usr", "--offset", text)

		got, err := os.ReadFile(target)
		if err != nil || len(got) != offset+len(newUSR) || !bytes.Equal(got[offset:], newUSR) {
			t.Errorf("at %s: %d bytes, %v", text, len(got), err)
		}
	}

	for _, text := range []string{"", "far", "-1", "-4Ki", "50m", "0.5", "8Ei", "9223372036854775807"} {
		target := filepath.Join(t.TempDir(), "target")
		_, _, err := stayput(t, "image", "write", layout+":1.1.0", target, "--role", "usr", "--offset", text)

		if err == nil || !strings.Contains(err.Error(), "--offset") || strings.Contains(err.Error(), "strconv") {
			t.Errorf("at %q: %v", text, err)
		}

		if _, err := os.Stat(target); err == nil {
			t.Errorf("at %q: it made the target", text)
		}
	}
}

// Where there is no terminal, the last that a log says is that all is done: also when nothing had to be written.
func TestImageWriteEndsAtAllOfIt(t *testing.T) {
	t.Parallel()

	layout, _, _ := twoVersions(t)
	target := filepath.Join(t.TempDir(), "target")

	for range 2 {
		_, told, err := stayput(t, "image", "write", layout+":1.1.0", target, "--role", "usr")
		if err != nil {
			t.Fatal(err)
		}

		lines := strings.Split(strings.TrimSpace(told), "\n")
		if last := lines[len(lines)-1]; !strings.HasPrefix(last, "usr: ") || !strings.Contains(last, "(100%)") {
			t.Errorf("it told\n%s", told)
		}
	}
}

// What the commands print of a folder is an IMAGE again, and a SOURCE.
func TestFoldersByDigest(t *testing.T) {
	t.Parallel()

	layout, _, newUSR := twoVersions(t)
	dir := filepath.Dir(layout)
	reference := inspectImage(t, layout+":1.1.0").Reference

	if !strings.HasPrefix(reference, layout+"@sha256:") {
		t.Fatalf("the reference is %q", reference)
	}

	for at, image := range []string{reference, layoutPrefix + reference} {
		if got := inspectImage(t, image); got.Reference != reference || got.Config.Version != "1.1.0" {
			t.Errorf("%s is %+v", image, got)
		}

		target, copied := filepath.Join(dir, "target"), filepath.Join(dir, []string{"one", "two"}[at])
		mustRun(t, "image", "write", image, target, "--role", "usr")

		if got, err := os.ReadFile(target); err != nil || !bytes.Equal(got, newUSR) {
			t.Errorf("writing from %s: other bytes, %v", image, err)
		}

		printed := strings.TrimSpace(mustRun(t, "image", "copy", image, copied+":new"))
		if got := inspectImage(t, printed); got.Config.Version != "1.1.0" {
			t.Errorf("the copy %s is %+v", printed, got)
		}
	}

	wrong := layout + "@sha256:" + testRootHash
	if _, _, err := stayput(t, "image", "inspect", wrong); err == nil || !strings.Contains(err.Error(), testRootHash) {
		t.Errorf("of a digest that is not there: %v", err)
	}

	missing := filepath.Join(dir, "none")
	_, _, err := stayput(t, "image", "inspect", missing+"@sha256:"+testRootHash)

	if err == nil || !strings.Contains(err.Error(), "not an OCI layout folder") || strings.Contains(err.Error(), "@") {
		t.Errorf("of a folder that is not there: %v", err)
	}
}

func TestLayoutOf(t *testing.T) {
	t.Parallel()

	layout, _, _ := twoVersions(t)
	digest := "sha256:" + testRootHash

	type location struct {
		dir, tag string
		isLayout bool
	}

	for image, want := range map[string]location{
		layout:                                 {layout, "", true},
		layout + ":1.1.0":                      {layout, "1.1.0", true},
		layout + "@" + digest:                  {layout, digest, true},
		"oci:" + layout + "@" + digest:         {layout, digest, true},
		"oci:none@" + digest:                   {"none", digest, true},
		"./none@" + digest:                     {"./none", digest, true},
		"registry.example/os/node@" + digest:   {isLayout: false},
		"registry.example/os/node:1@" + digest: {isLayout: false},
	} {
		dir, tag, isLayout := layoutOf(image)
		if got := (location{dir, tag, isLayout}); isLayout != want.isLayout || isLayout && got != want {
			t.Errorf("%s is %+v, want %+v", image, got, want)
		}
	}
}
