package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/uki/ukitest"
)

// twoVersions builds 1.0.0 and 1.1.0 in one folder. The newer /usr has some bytes more in its middle.
func twoVersions(t *testing.T) (layout, oldUSR string, newUSR []byte) {
	t.Helper()

	dir := t.TempDir()
	layout = filepath.Join(dir, "image")

	files, flags := testFiles(t, "1.0.0")
	oldUSR = filepath.Join(files, "usr")
	old := pseudoRandom(1 << 20)

	newFiles, newFlags := testFiles(t, "1.1.0")
	newUSR = slices.Concat(old[:500_000], []byte("something new"), old[500_000:])[:len(old)] // whole blocks

	for _, one := range []struct {
		version, files string
		usr            []byte
		flags          []string
	}{{"1.0.0", files, old, flags}, {"1.1.0", newFiles, newUSR, newFlags}} {
		rootHash := giveUSR(t, one.files, one.version, one.usr)
		mustRun(t, append([]string{
			"image", "build", layout, "--name", "labos", "--version", one.version, "--arch", "amd64", "--root-hash", rootHash,
		}, one.flags...)...)
	}

	return layout, oldUSR, newUSR
}

// pseudoRandom is bytes that neither compress nor repeat.
func pseudoRandom(size int) []byte {
	data := make([]byte, size)
	state := uint64(1)

	for at := range data {
		state = state*6364136223846793005 + 1442695040888963407
		data[at] = byte(state >> 56)
	}

	return data
}

func TestImageDiff(t *testing.T) {
	t.Parallel()

	layout, _, newUSR := twoVersions(t)

	var update osimage.UpdateDiff

	out := mustRun(t, "image", "diff", layout+":1.0.0", layout+":1.1.0", "-o", "json")
	if err := json.Unmarshal([]byte(out), &update); err != nil {
		t.Fatal(err)
	}

	usr := update.Contents[0]
	if usr.Role != osimage.RoleUSR || usr.RawSize != int64(len(newUSR)) || usr.Fetch == 0 || usr.Fetch > usr.LayerSize/20 ||
		usr.Reused < usr.RawSize*9/10 {
		t.Errorf("usr: %+v", usr)
	}

	text := mustRun(t, "image", "diff", layout+":1.0.0", layout+":1.1.0")
	if !strings.Contains(text, "FETCHED") || !strings.Contains(text, "usr-verity") ||
		!regexp.MustCompile(fmt.Sprintf(`(?m)^all +%d +%d `, update.Total.LayerSize, update.Total.FetchWithIndex)).MatchString(text) {
		t.Errorf("it printed\n%s", text)
	}
}

// Two flavours of one version have the same name: only the variant tells them apart.
func TestVariants(t *testing.T) {
	t.Parallel()

	folders := map[string]string{}

	// The UKI need not have a variant: then the image has none, as all had before there were variants, or the flag's.
	plain := save(t, "plain.efi", ukitest.Named("labos", "1.1.0", "amd64", ""))

	for folder, flags := range map[string][]string{"none": nil, "named": {"--variant", "desktop"}} {
		folders[folder] = filepath.Join(t.TempDir(), folder)
		mustRun(t, append([]string{
			"image", "build", folders[folder], "--name", "labos", "--version", "1.1.0", "--arch", "amd64", "--scheme", "uki", "--uki", plain,
		}, flags...)...)

		if got, want := inspectImage(t, folders[folder]).Config.Variant, strings.Join(flags[min(1, len(flags)):], ""); got != want {
			t.Errorf("%s: the variant is %q, want %q", folder, got, want)
		}
	}

	for _, variant := range []string{"server", "desktop"} {
		folders[variant] = filepath.Join(t.TempDir(), variant)
		uki := save(t, variant+".efi", ukitest.Image{Architecture: "amd64", Sections: []ukitest.Section{
			{Name: ".osrel", Content: []byte("ID=labos\nIMAGE_VERSION=1.1.0\nVARIANT_ID=" + variant + "\n")},
			{Name: ".linux", Content: []byte(variant)},
		}}.Bytes())
		build := func(more ...string) error {
			_, _, err := stayput(t, append([]string{
				"image", "build", folders[variant], "--name", "labos", "--version", "1.1.0", "--arch", "amd64",
				"--scheme", "uki", "--uki", uki,
			}, more...)...)

			return err
		}

		if err := build(); err != nil {
			t.Fatal(err)
		}

		if got := inspectImage(t, folders[variant]).Config.Variant; got != variant {
			t.Errorf("the variant is %q, want %q", got, variant)
		}

		if text := mustRun(t, "image", "inspect", folders[variant]); !strings.Contains(text, "Variant:         "+variant) {
			t.Errorf("inspect printed\n%s", text)
		}

		imported := filepath.Join(t.TempDir(), "imported")
		mustRun(t, "image", "import", uki, imported)

		if got := inspectImage(t, imported).Config.Variant; got != variant {
			t.Errorf("the imported variant is %q, want %q", got, variant)
		}

		if err := build("--variant", "other"); err == nil || !strings.Contains(err.Error(), "--variant") {
			t.Errorf("with another variant than the UKI's: %v", err)
		}
	}

	for _, test := range []struct {
		old, next string
		warn      bool
	}{
		{"server", "desktop", true},
		{"desktop", "desktop", false},
		{"none", "desktop", false},
		{"server", "none", false},
		{"none", "none", false},
		{"named", "desktop", false},
		{"named", "server", true},
	} {
		_, beside, err := stayput(t, "image", "diff", folders[test.old], folders[test.next])
		if err != nil || strings.Contains(beside, "Warning") != test.warn {
			t.Errorf("%+v: %v: %q", test, err, beside)
		}
	}
}

func TestImageWriteFromASeed(t *testing.T) {
	t.Parallel()

	layout, oldUSR, newUSR := twoVersions(t)
	target := filepath.Join(t.TempDir(), "usr")

	_, told, err := stayput(t, "image", "write", layout+":1.1.0", target, "--role", "usr", "--seed", oldUSR)
	if err != nil {
		t.Fatal(err)
	}

	got, err := os.ReadFile(target)
	if err != nil || !bytes.Equal(got, newUSR) {
		t.Errorf("other bytes, %v", err)
	}

	if !strings.Contains(told, "copied from older contents") || strings.Contains(told, " 0 are copied") {
		t.Errorf("it told\n%s", told)
	}

	for _, seed := range []string{target, t.TempDir(), target + ".missing"} {
		_, _, err := stayput(t, "image", "write", layout+":1.1.0", target, "--role", "usr", "--seed", seed)
		if err == nil || !strings.Contains(err.Error(), seed) {
			t.Errorf("with the seed %s: %v", seed, err)
		}
	}
}
