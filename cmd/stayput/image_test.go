package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/agent/slots/dps/faulty"
	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/disk"
	"github.com/stayput-dev/stayput/osimage/registrytest"
	"github.com/stayput-dev/stayput/osimage/verity/veritytest"
)

// testRootHash is that of testUSR.
const testRootHash = "82213f5c18ec23127bc25cf658069f9172d44c229b0dca5bd9937a4a8e848773"

// testUSR is the /usr of the images of testFiles, five blocks.
func testUSR() []byte { return bytes.Repeat([]byte("usr\n"), 5*veritytest.BlockSize/4) }

// stayput runs the command and returns what it printed on its two outputs.
func stayput(t *testing.T, args ...string) (out, progress string, err error) {
	t.Helper()

	var stdout, stderr bytes.Buffer

	command := newRootCommand()
	command.SetArgs(args)
	command.SetOut(&stdout)
	command.SetErr(&stderr)

	err = command.ExecuteContext(t.Context())

	return stdout.String(), stderr.String(), err
}

func mustRun(t *testing.T, args ...string) string {
	t.Helper()

	out, _, err := stayput(t, args...)
	if err != nil {
		t.Fatalf("stayput %s: %v", strings.Join(args, " "), err)
	}

	return out
}

// testFiles makes one file for each role, and the flags that name them. The hash tree is that of usr.
func testFiles(t *testing.T, version string) (dir string, flags []string) {
	t.Helper()

	dir = t.TempDir()

	for _, role := range []string{"usr", "usr-verity", "uki", "loader", "state"} {
		path := filepath.Join(dir, role)
		content := bytes.Repeat([]byte(role+"\n"), 5000)

		switch role {
		case "usr":
			content = testUSR()
		case "usr-verity":
			content, _ = veritytest.Format(testUSR(), nil)
		case "uki":
			content = faulty.UKI("labos", version, "usrhash="+testRootHash+" panic=5")
		}

		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}

		flags = append(flags, "--"+role, path)
	}

	return dir, flags
}

// giveUSR puts another /usr into a folder of testFiles, with its tree and the UKI that starts it.
func giveUSR(t *testing.T, dir, version string, usr []byte) (rootHash string) {
	t.Helper()

	tree, rootHash := veritytest.Format(usr, nil)

	for name, content := range map[string][]byte{
		"usr": usr, "usr-verity": tree, "uki": faulty.UKI("labos", version, "usrhash="+rootHash+" panic=5"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	return rootHash
}

func TestImageCommands(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	files, flags := testFiles(t, "1.1.0")
	dir := t.TempDir()
	layout := filepath.Join(dir, "image")
	reference := server.Address + "/os/labos:1.1.0"
	access := []string{"--ca-file", server.CAFile, "--docker-config", server.DockerConfig}
	with := func(args ...string) []string { return append(args, access...) }

	build := append([]string{
		"image", "build", layout, "--name", "labos", "--version", "1.1.0", "--arch", "amd64",
		"--root-hash", testRootHash,
	}, flags...)

	first := mustRun(t, build...)
	if second := mustRun(t, build...); second != first {
		t.Errorf("building again gave %s instead of %s", second, first)
	}

	pushed := strings.TrimSpace(mustRun(t, with("image", "push", layout, reference)...))
	if !strings.HasPrefix(pushed, server.Address+"/os/labos@sha256:") {
		t.Errorf("push printed %q", pushed)
	}

	if text := mustRun(t, with("image", "inspect", reference)...); !strings.Contains(text, pushed) ||
		!strings.Contains(text, "usr-verity") {
		t.Errorf("inspect printed\n%s", text)
	}

	var inspected struct {
		Digest string         `json:"digest"`
		Config osimage.Config `json:"config"`
	}

	if err := json.Unmarshal([]byte(mustRun(t, with("image", "inspect", pushed, "-o", "json")...)), &inspected); err != nil {
		t.Fatal(err)
	}

	if inspected.Config.Version != "1.1.0" || !strings.HasSuffix(pushed, inspected.Digest) {
		t.Errorf("inspect -o json printed %+v", inspected)
	}

	pulled := filepath.Join(dir, "pulled")
	mustRun(t, with("image", "pull", reference, pulled)...)

	for _, image := range []string{pushed, layout, "oci:" + layout, pulled + ":1.1.0"} {
		target := filepath.Join(dir, "usr")

		// The second time there is nothing to do.
		for range 2 {
			mustRun(t, with("image", "write", image, target, "--role", "usr")...)
		}

		got, gotErr := os.ReadFile(target)
		want, wantErr := os.ReadFile(filepath.Join(files, "usr"))

		if err := errors.Join(gotErr, wantErr); err != nil || !bytes.Equal(got, want) {
			t.Errorf("writing from %s: other bytes, %v", image, err)
		}
	}
}

func TestImageDisk(t *testing.T) {
	t.Parallel()

	_, flags := testFiles(t, "1.0.0")
	dir := t.TempDir()
	layout, file := filepath.Join(dir, "image"), filepath.Join(dir, "disk.raw")

	mustRun(t, append([]string{
		"image", "build", layout, "--name", "labos", "--version", "1.0.0", "--arch", "amd64",
		"--root-hash", testRootHash,
	}, flags...)...)

	var result disk.Result

	out := mustRun(t, "image", "disk", layout, file, "--esp-size", "64Mi", "--disk-size", "128Mi", "-o", "json")
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatal(err)
	}

	if info, err := os.Stat(file); err != nil || info.Size() != 128<<20 || result.Size != info.Size() {
		t.Errorf("%v, %+v", err, result)
	}

	if text := mustRun(t, "image", "disk", layout, file, "--uuid-seed", "m1"); !strings.Contains(text, "labos_1.0.0") {
		t.Errorf("disk printed\n%s", text)
	}
}

func TestImageMistakes(t *testing.T) {
	t.Parallel()

	_, flags := testFiles(t, "1.0.0")
	dir := t.TempDir()
	layout := filepath.Join(dir, "image")
	large := filepath.Join(dir, "large")

	mustRun(t, append([]string{
		"image", "build", layout, "--name", "labos", "--version", "1.0.0", "--arch", "amd64",
		"--root-hash", testRootHash,
	}, flags...)...)

	if err := os.WriteFile(large, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"inspect", "none"}, "registry/repository:tag"},
		{[]string{"inspect", filepath.Join(dir, "none")}, "not an OCI layout folder"},
		{[]string{"inspect", dir}, "not an OCI layout folder"},
		{[]string{"inspect", "./none"}, "not an OCI layout folder"},
		{[]string{"inspect", layout, "--arch", "x86_64"}, "amd64, arm64"},
		{[]string{"inspect"}, "usage: stayput image inspect IMAGE"},
		{[]string{"inspect", ""}, "empty"},
		{[]string{"bulid", layout}, `did you mean "build"`},
		{[]string{"write", layout, filepath.Join(dir, "x"), "--role", "usr", "--offset", "9223372036854775807"}, "--offset"},
		{[]string{"write", layout, "/dev/null", "--role", "usr"}, "neither a block device nor a regular file"},
		{[]string{"write", layout, dir, "--role", "usr"}, "neither a block device nor a regular file"},
		{append([]string{"build", layout, "--name", "labos", "--root-hash", testRootHash, "--version", "1.0.1"}, flags...), "IMAGE_VERSION"},
		{append([]string{"build", layout, "--name", "other", "--root-hash", testRootHash, "--version", "1.0.0"}, flags...), "IMAGE_ID"},
		{
			append([]string{"build", layout, "--name", "labos", "--root-hash", testRootHash, "--version", "1.0.0", "--arch", "arm64"}, flags...),
			"--arch",
		},
		{append([]string{"build", layout, "--name", "labos", "--root-hash", "0011", "--version", "1.0.0"}, flags...), "--root-hash"},
		{append([]string{"build", layout, "--uki", large}, flags[:4]...), "not a unified kernel image"},
		{[]string{"build", layout, "--usr", large, "--usr", large}, "twice"},
		{[]string{"inspect", "oci:" + filepath.Join(dir, "none")}, "not an OCI layout folder"},
		{[]string{"inspect", layout + ":2.0.0"}, "2.0.0"},
		{[]string{"inspect", layout, "-o", "yaml"}, "yaml"},
		{[]string{"inspect", layout, "--arch", "arm64"}, "amd64"},
		{[]string{"write", layout, filepath.Join(dir, "x")}, "role"},
		{[]string{"write", layout, filepath.Join(dir, "x"), "--role", "root"}, "no such content"},
		{[]string{"write", layout, large, "--role", "usr"}, "--offset"},
		{[]string{"write", layout, large, "--role", "usr", "--offset", "-1"}, "--offset"},
		{[]string{"disk", layout, filepath.Join(dir, "d"), "--slot-size", "big"}, "--slot-size"},
		{[]string{"disk", layout, "/dev/null"}, "regular file"},
		{[]string{"push", layout, "registry.example/os/labos@sha256:" + testRootHash}, "tag"},
		{[]string{"push", filepath.Join(dir, "none"), "registry.example/os/labos:1"}, "not an OCI layout folder"},
		{[]string{"build", filepath.Join(dir, "b"), "--name", "labos"}, "version"},
		{[]string{"inspect", layout, "--ca-file", filepath.Join(dir, "none")}, ""},
	} {
		_, _, err := stayput(t, append([]string{"image"}, test.args...)...)

		switch {
		case test.says == "" && err != nil:
			t.Errorf("%v: %v", test.args, err)
		case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
			t.Errorf("%v: got %v, want an error that says %q", test.args, err, test.says)
		}
	}
}

// Nodes find a slot by the root hash on the UKI's command line, so a UKI that has none, another one, or that of the other
// kind of file system is refused before anything is built.
func TestImageBuildChecksTheCommandLine(t *testing.T) {
	t.Parallel()

	_, usr := testFiles(t, "1.0.0")
	root := slices.Clone(usr)
	root[0], root[2] = "--root", "--root-verity"
	other := strings.Repeat("0123", 16)

	for _, test := range []struct {
		files       []string
		commandLine string
		says        []string // nil when it is right
	}{
		{usr, "panic=5 usrhash=" + testRootHash, nil},
		{usr, "usrhash=" + strings.ToUpper(testRootHash), nil},
		{root, "roothash=" + testRootHash, nil},
		{usr, "panic=5", []string{`"panic=5"`, "usrhash=" + testRootHash}},
		{usr, "", []string{`""`, "usrhash=" + testRootHash}},
		{root, "panic=5", []string{"roothash=" + testRootHash}},
		{usr, "usrhash=" + other, []string{other, testRootHash, "--root-hash"}},
		{root, "roothash=" + other, []string{other, testRootHash, "--root-hash"}},
		{usr, "roothash=" + testRootHash, []string{"usrhash="}},
		{root, "usrhash=" + testRootHash, []string{"roothash="}},
		{usr, "usrhash=" + testRootHash + " roothash=" + testRootHash, []string{"without roothash="}},
	} {
		dir := t.TempDir()
		uki, layout := filepath.Join(dir, "uki.efi"), filepath.Join(dir, "image")

		if err := os.WriteFile(uki, faulty.UKI("labos", "1.0.0", test.commandLine), 0o600); err != nil {
			t.Fatal(err)
		}

		_, _, err := stayput(t, append([]string{
			"image", "build", layout, "--name", "labos", "--version", "1.0.0", "--arch", "amd64",
			"--root-hash", testRootHash, "--uki", uki,
		}, test.files[:4]...)...)

		if (err == nil) != (test.says == nil) {
			t.Errorf("%q: got %v", test.commandLine, err)
		}

		for _, part := range test.says {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%q: got %v, want an error that says %q", test.commandLine, err, part)
			}
		}

		if _, statErr := os.Stat(layout); (statErr == nil) != (err == nil) {
			t.Errorf("%q: the folder: %v", test.commandLine, statErr)
		}
	}
}

// Two that write to one file would both find bytes that the other wrote.
func TestImageWriteBesideAnother(t *testing.T) {
	t.Parallel()

	_, flags := testFiles(t, "1.0.0")
	dir := t.TempDir()
	layout, path := filepath.Join(dir, "image"), filepath.Join(dir, "usr")

	mustRun(t, append([]string{
		"image", "build", layout, "--name", "labos", "--version", "1.0.0", "--arch", "amd64",
		"--root-hash", testRootHash,
	}, flags...)...)

	other, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = other.Close() })

	if err := osimage.LockFile(other, path); err != nil {
		t.Fatal(err)
	}

	_, _, err = stayput(t, "image", "write", layout, path, "--role", "usr")
	if !errors.Is(err, osimage.ErrInvalid) || !strings.Contains(err.Error(), "another program") {
		t.Errorf("beside another: %v", err)
	}

	if info, err := other.Stat(); err != nil || info.Size() != 0 {
		t.Errorf("it was written to: %v, %v", info, err)
	}
}

// A layer that was changed in the folder ends in one error, and what is at the target cannot be taken for good.
func TestImageWriteOfAChangedLayer(t *testing.T) {
	t.Parallel()

	_, flags := testFiles(t, "1.0.0")
	dir := t.TempDir()
	layout := filepath.Join(dir, "image")

	mustRun(t, append([]string{
		"image", "build", layout, "--name", "labos", "--version", "1.0.0", "--arch", "amd64",
		"--root-hash", testRootHash,
	}, flags...)...)

	image, err := osimage.OpenLayout(t.Context(), layout, "")
	if err != nil {
		t.Fatal(err)
	}

	content, _ := image.Config().Content(osimage.RoleUSR)
	blob := filepath.Join(layout, "blobs", "sha256", strings.TrimPrefix(content.Digest, "sha256:"))

	if err := os.WriteFile(blob, make([]byte, content.Size), 0o600); err != nil {
		t.Fatal(err)
	}

	_, _, err = stayput(t, "image", "write", layout, filepath.Join(dir, "usr"), "--role", "usr")
	if !errors.Is(err, osimage.ErrWrongDigest) {
		t.Errorf("got %v, want a wrong digest", err)
	}
}

// A registry that does not answer is tried again for minutes: the operator sees why.
func TestWaitsAreShown(t *testing.T) {
	t.Parallel()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err := errors.Join(err, listener.Close()); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	shown := &firstWrite{then: cancel}
	command := newRootCommand()
	command.SetArgs([]string{"image", "inspect", "--plain-http", listener.Addr().String() + "/os/labos:1"})
	command.SetErr(shown)

	if err := command.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}

	if text := shown.text.String(); !strings.Contains(text, "Trying again in") || !strings.Contains(text, "refused") {
		t.Errorf("it printed %q", text)
	}
}

// firstWrite keeps what is written, and calls a function after the first piece.
type firstWrite struct {
	text bytes.Buffer
	then func()
}

func (w *firstWrite) Write(data []byte) (int, error) {
	defer w.then()

	return w.text.Write(data)
}

func TestEveryImageCommandHasHelp(t *testing.T) {
	t.Parallel()

	for _, command := range newImageCommand().Commands() {
		if command.Short == "" || command.Example == "" {
			t.Errorf("%s has no short text or no example", command.Name())
		}
	}
}
