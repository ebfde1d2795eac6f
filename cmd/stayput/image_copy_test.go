package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
)

// A registry, a stick, another registry that is a mirror of the first: what came by the stick is used from there.
func TestImageCopy(t *testing.T) {
	t.Parallel()

	first, second := registrytest.Start(t), registrytest.Start(t)
	_, flags := testFiles(t, "1.1.0")
	dir := t.TempDir()
	layout, stick := filepath.Join(dir, "image"), filepath.Join(dir, "stick")

	mustRun(t, append([]string{
		"image", "build", layout, "--name", "labos", "--version", "1.1.0", "--arch", "amd64", "--root-hash", testRootHash,
	}, flags...)...)

	one := []string{"--ca-file", first.CAFile, "--docker-config", first.DockerConfig}
	two := []string{"--ca-file", second.CAFile, "--docker-config", second.DockerConfig}
	reference := first.Address + "/os/labos:1.1.0"

	digest := ""

	for _, step := range [][]string{
		append([]string{layout, reference, "--limit-rate", "100M"}, one...),
		append([]string{reference, stick + ":renamed"}, one...),
		append([]string{"oci:" + stick, second.Address + "/os/labos:1.1.0"}, two...),
	} {
		out := strings.TrimSpace(mustRun(t, append([]string{"image", "copy"}, step...)...))

		_, got, ok := strings.Cut(out, "@")
		if !ok || digest != "" && got != digest {
			t.Errorf("%s printed %q, want the digest %q", step[:2], out, digest)
		}

		digest = got
	}

	out, beside, err := stayput(t, append([]string{
		"image", "copy", stick, second.Address + "/os/labos:1.1.0", "--dry-run", "-o", "json",
	}, two...)...)

	var copied osimage.Copied
	if err := json.Unmarshal([]byte(out), &copied); err != nil || copied.Blobs > 0 || copied.PresentManifests == 0 {
		t.Errorf("%v: %+v, %s", err, copied, beside)
	}

	if err != nil {
		t.Error(err)
	}

	// The first registry is not asked any more.
	hosts := filepath.Join(dir, "certs.d")
	if err := os.MkdirAll(filepath.Join(hosts, "registry.example"), 0o755); err != nil {
		t.Fatal(err)
	}

	text := fmt.Sprintf("unheard_of = 1\n[host.%q]\nca = %q\n", "https://"+second.Address, second.CAFile)
	if err := os.WriteFile(filepath.Join(hosts, "registry.example", "hosts.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	_, beside, err = stayput(t, "image", "inspect", "registry.example/os/labos:1.1.0", "--hosts-dir", hosts,
		"--docker-config", second.DockerConfig)
	if err != nil || !strings.Contains(beside, "unheard_of") {
		t.Errorf("through the mirror: %v, %s", err, beside)
	}
}

// Signed where it was built, pushed, pulled for a site without a network, and pushed there: it verifies everywhere.
func TestSignaturesTravel(t *testing.T) {
	t.Parallel()

	home, site := registrytest.Start(t), registrytest.Start(t)
	private, public := keyPair(t, "")
	layout, stick := builtImage(t), filepath.Join(t.TempDir(), "stick")
	one := []string{"--ca-file", home.CAFile, "--docker-config", home.DockerConfig}
	two := []string{"--ca-file", site.CAFile, "--docker-config", site.DockerConfig}

	_, beside, err := stayput(t, append([]string{"image", "push", layout, home.Address + "/os/unsigned:1.1.0"}, one...)...)
	if err != nil || !strings.Contains(beside, "no signatures") {
		t.Errorf("%v: %q", err, beside)
	}

	for _, form := range [][]string{nil, {"--bundle"}} {
		mustRun(t, append([]string{"image", "sign", layout, "--key", private}, form...)...)
	}

	for _, step := range [][]string{
		append([]string{"push", layout, home.Address + "/os/labos:1.1.0"}, one...),
		append([]string{"pull", home.Address + "/os/labos:1.1.0", stick}, one...),
		append([]string{"push", stick, site.Address + "/os/labos:1.1.0"}, two...),
	} {
		_, beside, err := stayput(t, append([]string{"image"}, step...)...)
		if err != nil || strings.Contains(beside, "no signatures") {
			t.Errorf("%s: %v: %q", step[:3], err, beside)
		}
	}

	mustRun(t, append([]string{"image", "publish", stick, site.Address + "/os/all:1.1.0"}, two...)...)
	mustRun(t, append([]string{"image", "publish", site.Address + "/os/labos:1.1.0", site.Address + "/os/again:1.1.0"}, two...)...)

	for _, image := range []string{
		layout, stick, site.Address + "/os/labos:1.1.0", site.Address + "/os/all:1.1.0", site.Address + "/os/again:1.1.0",
	} {
		out := mustRun(t, append([]string{"image", "verify", image, "--key", public}, two...)...)
		if !strings.Contains(out, "Verified:   yes") {
			t.Errorf("%s: %s", image, out)
		}
	}

	// A tag with images for several machines is signed as a whole: what is taken out of it is not.
	mustRun(t, append([]string{"image", "publish", home.Address + "/os/unsigned:1.1.0", home.Address + "/os/all:1.1.0"}, one...)...)

	_, beside, err = stayput(t, append([]string{"image", "pull", home.Address + "/os/all:1.1.0", stick + "-2", "--arch", "amd64"}, one...)...)
	if err != nil || !strings.Contains(beside, "stay behind") {
		t.Errorf("%v: %q", err, beside)
	}
}

func TestImageTransferMistakes(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"copy", "a.example/os:1"}, "usage"},
		{[]string{"copy", "a.example/os:1", "b.example/os:1", "--limit-rate", "fast"}, "--limit-rate"},
		{[]string{"inspect", "a.example/os:1", "--limit-rate", "-5"}, "--limit-rate"},
		{[]string{"inspect", "a.example/os:1", "--limit-rate", "0"}, "--limit-rate"},
		{[]string{"inspect", "a.example/os:1", "--proxy", "robot:hunter2@proxy"}, "proxy"},
		{[]string{"inspect", "a.example/os:1", "--hosts-dir", "/none/of/this"}, "--hosts-dir"},
		{[]string{"copy", t.TempDir(), "b.example/os:1"}, "OCI layout"},
	} {
		_, _, err := stayput(t, append([]string{"image"}, test.args...)...)
		if err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want an error that says %q", test.args, err, test.says)
		}
	}
}

func TestLocations(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()

	for argument, want := range map[string]osimage.Location{
		"a.example/os:1":          {Reference: "a.example/os:1"},
		dir:                       {Dir: dir},
		dir + "/new":              {Dir: dir + "/new"},
		dir + "/new:1.0":          {Dir: dir + "/new", Tag: "1.0"},
		"oci:" + dir + "/new:1.0": {Dir: dir + "/new", Tag: "1.0"},
		"oci:new":                 {Dir: "new"},
	} {
		if got := locationOf(argument); got != want {
			t.Errorf("%s is %+v, want %+v", argument, got, want)
		}
	}
}
