package gardenlinux_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/gardenlinux"
	"github.com/stayput-dev/stayput/osimage/uki/ukitest"
)

const usi = "baremetal-gardener_prod_usi"

// osRelease is like that of features/base/exec.config, with VERSION_ID missing as there.
func osRelease(cname, architecture, version string) string {
	return fmt.Sprintf(`ID=gardenlinux
NAME="Garden Linux"
PRETTY_NAME="Garden Linux %[3]s"
IMAGE_VERSION=%[3]s
VARIANT_ID="%[1]s-%[2]s"
GARDENLINUX_CNAME="%[1]s-%[2]s-%[3]s"
GARDENLINUX_FEATURES="log,sap,ssh,_prod,_usi,server,base"
GARDENLINUX_VERSION="%[3]s"
GARDENLINUX_COMMIT_ID="a1b2c3d4"
`, cname, architecture, version)
}

func system(cname, architecture, version string, more ...ukitest.Section) []byte {
	return ukitest.Image{Architecture: architecture, Sections: append([]ukitest.Section{
		{Name: ".osrel", Content: []byte(osRelease(cname, architecture, version))},
		{Name: ".cmdline", Content: []byte("systemd.gpt_auto=0 console=ttyS0")},
		{Name: ".uname", Content: []byte("6.12.40-cloud-" + architecture)},
		{Name: ".linux", Content: bytes.Repeat([]byte(cname+version), 20_000)},
	}, more...)}.Bytes()
}

func write(t *testing.T, path string, content []byte) string {
	t.Helper()

	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

func TestRead(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	content := system(usi, "arm64", "1877.3.0")

	var zipped bytes.Buffer

	packer := gzip.NewWriter(&zipped)
	_, _ = packer.Write(content)
	_ = packer.Close()

	write(t, filepath.Join(dir, "gl.release"), []byte(osRelease(usi, "arm64", "1877.3.0")))

	for _, path := range []string{write(t, filepath.Join(dir, "gl.uki"), content), write(t, filepath.Join(dir, "gl.efi"), zipped.Bytes())} {
		parts, err := gardenlinux.Read(t.Context(), path, gardenlinux.Options{TempDir: dir})
		if err != nil {
			t.Fatal(err)
		}

		if parts.Name != "gardenlinux" || parts.Version != "1877.3.0" || parts.Architecture != "arm64" || parts.Scheme != osimage.SchemeUKI ||
			parts.RootHash != "" || parts.Variant != usi || len(parts.Inputs) != 1 {
			t.Errorf("got %+v", parts)
		}

		for _, note := range []string{
			"flavour " + usi + "-arm64-1877.3.0", "commit a1b2c3d4", "kernel 6.12.40-cloud-arm64", "it is not signed for Secure Boot",
		} {
			if !slices.Contains(parts.Notes, note) {
				t.Errorf("%q is not in %q", note, parts.Notes)
			}
		}

		image, err := osimage.Build(t.Context(), filepath.Join(dir, "image"), parts.Spec())
		if err != nil {
			t.Fatal(err)
		}

		body, err := image.Open(t.Context(), osimage.RoleUKI, 0)
		if err != nil {
			t.Fatal(err)
		}

		if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, content) {
			t.Errorf("other bytes, %v", err)
		}

		if err := errors.Join(body.Close(), parts.Release()); err != nil {
			t.Error(err)
		}
	}
}

// One flavour is one variant, whatever form its names have had; two flavours are two.
func TestVariant(t *testing.T) {
	t.Parallel()

	const other = "metal-gardener_prod_usi"

	for _, test := range []struct{ id, cname, variant, want string }{
		{"gardenlinux", usi + "-amd64-1877.3", usi + "-amd64", usi},
		{"gardenlinux", usi + "-amd64-1877.3-a1b2c3d4", "", usi},
		{"gardenlinux", usi, usi, usi},
		{"gardenlinux", "", usi + "-arm64", usi},
		{"gardenlinux", other + "-amd64-1877.3", other + "-amd64", other},
		{"gardenlinux", "No Name", "", ""},
		{"gardenlinux", strings.Repeat("a", 300), "", ""},
		{"labos", "", "server-amd64", "server-amd64"},
		{"labos", usi, "", ""},
	} {
		got := gardenlinux.Variant(map[string]string{
			"ID": test.id, "IMAGE_VERSION": "1877.3", "GARDENLINUX_CNAME": test.cname, "VARIANT_ID": test.variant,
		})
		if got != test.want {
			t.Errorf("%+v: got %q", test, got)
		}
	}
}

func TestReadOtherSystems(t *testing.T) {
	t.Parallel()

	path := write(t, filepath.Join(t.TempDir(), "labos.efi"), ukitest.Named("labos", "1.1.0", "amd64", "quiet"))

	parts, err := gardenlinux.Read(t.Context(), path, gardenlinux.Options{})
	if err != nil {
		t.Fatal(err)
	}

	if parts.Name != "labos" || !strings.Contains(parts.Notes[0], "not Garden Linux") {
		t.Errorf("%+v", parts)
	}

	if err := parts.Release(); err != nil {
		t.Error(err)
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()

	whole := system(usi, "amd64", "1877.3.0")
	image := func(architecture string, sections ...ukitest.Section) []byte {
		return ukitest.Image{Architecture: architecture, Sections: sections}.Bytes()
	}
	release := ukitest.Section{Name: ".osrel", Content: []byte(osRelease(usi, "amd64", "1"))}
	unversioned := ukitest.Section{Name: ".osrel", Content: []byte("ID=gardenlinux\n")}
	kernel := ukitest.Section{Name: ".linux", Content: []byte("x")}

	for _, test := range []struct {
		name    string
		content []byte
		release string
		kind    error
		says    string
	}{
		{"no PE file", bytes.Repeat([]byte("x"), 1000), "", osimage.ErrInvalid, "not a unified kernel image"},
		{"empty", nil, "", osimage.ErrInvalid, "not a unified kernel image"},
		{"cut", whole[:len(whole)-512], "", osimage.ErrTruncated, "its headers tell of"},
		{"an add-on", image("amd64", release), "", osimage.ErrInvalid, "no .linux section"},
		{"another machine", image("riscv64", release, kernel), "", osimage.ErrInvalid, "neither amd64 nor arm64"},
		{"no version", image("amd64", unversioned, kernel), "", osimage.ErrInvalid, "IMAGE_VERSION"},
		{
			"of verity partitions", ukitest.Named("labos", "1.1.0", "amd64", "usrhash="+strings.Repeat("ab", 32)), "",
			osimage.ErrInvalid, "not the whole operating system",
		},
		{"another release", whole, osRelease(usi, "amd64", "1877.4.0"), osimage.ErrInvalid, `IMAGE_VERSION is "1877.4.0"`},
		{"another flavour", whole, osRelease("baremetal-capi_usi", "amd64", "1877.3.0"), osimage.ErrInvalid, "GARDENLINUX_CNAME"},
		{"no os-release", whole, "nonsense", osimage.ErrInvalid, `ID is ""`},
	} {
		dir := t.TempDir()
		path := write(t, filepath.Join(dir, "system.uki"), test.content)

		if test.release != "" {
			write(t, filepath.Join(dir, "system.release"), []byte(test.release))
		}

		_, err := gardenlinux.Read(t.Context(), path, gardenlinux.Options{})
		problem, ok := errors.AsType[*osimage.Error](err)

		if !ok || !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.says) || problem.Fix == "" {
			t.Errorf("%s: %v, want %v that says %q", test.name, err, test.kind, test.says)
		}
	}

	path := write(t, filepath.Join(t.TempDir(), "system.uki"), whole)
	if _, err := gardenlinux.Read(t.Context(), path, gardenlinux.Options{Release: path + ".none"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a release file that is not there: %v", err)
	}
}
