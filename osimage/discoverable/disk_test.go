package discoverable_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/discoverable"
	"github.com/stayput-dev/stayput/osimage/disk"
	"github.com/stayput-dev/stayput/osimage/source"
	"github.com/stayput-dev/stayput/osimage/source/rawdisk"
	"github.com/stayput-dev/stayput/osimage/uki/ukitest"
	"github.com/stayput-dev/stayput/osimage/verity/veritytest"
)

const mib = 1 << 20

// release is one version of a system.
type release struct {
	version, hash string
	data, tree    []byte
	uki           []byte
}

func newRelease(version, architecture, key string) release {
	data := make([]byte, 300*veritytest.BlockSize)
	_, _ = rand.NewChaCha8([32]byte([]byte(version + strings.Repeat(" ", 32))[:32])).Read(data) // never fails
	tree, hash := veritytest.Format(data, []byte("salt"))

	return release{version, hash, data, tree, ukitest.Named("labos", version, architecture, key+"="+strings.ToUpper(hash)+" panic=5")}
}

// place is a partition of a disk.
type place struct {
	label, kind, id string
	content         []byte
	// size is that of the partition when it is not that of the content.
	size int
}

func id(digits string) string {
	return digits[:8] + "-" + digits[8:12] + "-" + digits[12:16] + "-" + digits[16:20] + "-" + digits[20:]
}

// usr are the two partitions of a version, each larger than what it holds.
func (r release) usr() []place {
	return []place{
		{"labos_" + r.version, "8484680c-9521-48c6-9c11-b0720656f69e", id(r.hash[:32]), r.data, 2 * mib},
		{"labos_" + r.version, "77ff5f63-e7b6-4633-acf4-1565b864c0e6", id(r.hash[32:]), r.tree, mib},
	}
}

// esp makes an ESP with files, by programs that are not under test.
func esp(tb testing.TB, files map[string][]byte) place {
	tb.Helper()

	dir := tb.TempDir()
	image, one := filepath.Join(dir, "esp"), filepath.Join(dir, "file")

	run := func(name string, args ...string) {
		if out, err := exec.CommandContext(tb.Context(), name, args...).CombinedOutput(); err != nil {
			tb.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
	}

	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 5*mib)); err != nil {
		tb.Fatal(err)
	}

	run("mkfs.fat", "-F", "16", "-s", "1", image)
	run("mmd", "-i", image, "::/EFI", "::/EFI/BOOT", "::/EFI/Linux", "::/EFI/systemd")

	for name, content := range files {
		if err := os.WriteFile(one, content, 0o600); err != nil {
			tb.Fatal(err)
		}

		run("mcopy", "-i", image, one, "::"+name)
	}

	content, err := os.ReadFile(image)
	if err != nil {
		tb.Fatal(err)
	}

	return place{label: "esp", kind: "c12a7328-f81f-11d2-ba4b-00a0c93ec93b", id: "11111111-2222-3333-4444-555555555555", content: content}
}

// write makes a raw disk.
func write(tb testing.TB, sector int, places ...place) string {
	tb.Helper()

	table := &gpt.Table{ProtectiveMBR: true, LogicalSectorSize: sector, PhysicalSectorSize: sector}
	content := append([]byte(nil), make([]byte, mib)...)

	for index, place := range places {
		start := len(content)
		size := (max(place.size, len(place.content)) + mib - 1) / mib * mib
		content = append(append(content, place.content...), bytes.Repeat([]byte{0xee}, size-len(place.content))...)
		table.Partitions = append(table.Partitions, &gpt.Partition{
			Index: index + 1, Name: place.label, Type: gpt.Type(place.kind), GUID: place.id,
			Start: uint64(start / sector), End: uint64((start+size)/sector - 1),
		})
	}

	content = append(content, make([]byte, mib)...)

	path := filepath.Join(tb.TempDir(), "disk.raw")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		tb.Fatal(err)
	}

	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}

	if err := errors.Join(table.Write(file, int64(len(content))), file.Close()); err != nil {
		tb.Fatal(err)
	}

	return path
}

func readInput(t *testing.T, parts *source.Parts, role osimage.Role) ([]byte, error) {
	t.Helper()

	body, err := parts.Inputs[role].Open(t.Context())
	if err != nil {
		return nil, err
	}

	content, err := io.ReadAll(body)

	return content, errors.Join(err, body.Close())
}

func check(t *testing.T, parts *source.Parts, want map[osimage.Role][]byte) {
	t.Helper()

	if len(parts.Inputs) != len(want) {
		t.Errorf("%d contents, want %d", len(parts.Inputs), len(want))
	}

	for role, content := range want {
		got, err := readInput(t, parts, role)
		if err != nil || !bytes.Equal(got, content) || parts.Inputs[role].Size != int64(len(content)) {
			t.Errorf("%s: %d bytes, announced %d, want %d, %v", role, len(got), parts.Inputs[role].Size, len(content), err)
		}
	}
}

func TestRead(t *testing.T) {
	t.Parallel()

	r := newRelease("1.1.0", "amd64", "usrhash")
	loader := []byte("MZ boot loader")

	for _, sector := range []int{512, 4096} {
		path := write(t, sector, append(r.usr(), esp(t, map[string][]byte{
			"/EFI/BOOT/BOOTX64.EFI": loader, "/EFI/Linux/labos_1.1.0+3-0.efi": r.uki, "/EFI/Linux/readme.txt": []byte("x"),
			"/EFI/Linux/other.efi": []byte("no image"),
		}))...)

		parts, err := discoverable.Read(t.Context(), path, discoverable.Options{})
		if err != nil {
			t.Fatal(err)
		}

		if parts.Name != "labos" || parts.Version != "1.1.0" || parts.Architecture != "amd64" || parts.RootHash != r.hash ||
			parts.Scheme != osimage.SchemeDPS || !slices.Contains(parts.Notes, "kernel 6.12.38-test") {
			t.Errorf("%+v", parts)
		}

		check(t, parts, map[osimage.Role][]byte{
			osimage.RoleUSR: r.data, osimage.RoleUSRVerity: r.tree, osimage.RoleUKI: r.uki, osimage.RoleLoader: loader,
		})

		if _, err := osimage.Build(t.Context(), filepath.Join(t.TempDir(), "image"), parts.Spec()); err != nil {
			t.Error(err)
		}

		if err := parts.Release(); err != nil {
			t.Error(err)
		}
	}
}

func TestReadRootOnARM(t *testing.T) {
	t.Parallel()

	r := newRelease("7", "arm64", "roothash")
	places := r.usr()
	places[0].kind, places[0].label = "b921b045-1df0-41c3-af44-4c6f280d3fae", "root"
	places[1].kind = "df3300ce-d69f-4c92-978c-9bfb0f38d820"

	loader := []byte("a loader")
	parts, err := discoverable.Read(t.Context(), write(t, 512, append(places, esp(t, map[string][]byte{
		"/EFI/systemd/systemd-bootaa64.efi": loader, "/EFI/Linux/a.efi": r.uki,
		// Firmware starts this one itself: it is no boot loader.
		"/EFI/BOOT/BOOTAA64.EFI": r.uki,
	}))...), discoverable.Options{Architecture: "arm64", Version: "7"})
	if err != nil {
		t.Fatal(err)
	}

	check(t, parts, map[osimage.Role][]byte{
		osimage.RoleRoot: r.data, osimage.RoleRootVerity: r.tree, osimage.RoleUKI: r.uki, osimage.RoleLoader: loader,
	})

	if !slices.ContainsFunc(parts.Notes, func(note string) bool { return strings.Contains(note, `"labos_7"`) }) {
		t.Errorf("%q do not tell of the label", parts.Notes)
	}

	if err := parts.Release(); err != nil {
		t.Error(err)
	}
}

// A machine's disk has two versions, and perhaps a slot that is being filled.
func TestReadChoosesTheNewest(t *testing.T) {
	t.Parallel()

	older, newer := newRelease("1.9.0", "amd64", "usrhash"), newRelease("1.10.0", "amd64", "usrhash")
	partial := newRelease("1.11.0", "amd64", "usrhash")
	unfinished := partial.usr()
	unfinished[0].label = "PRT#labos_1.11.0"

	places := slices.Concat(older.usr(), newer.usr(), unfinished, []place{
		{"_empty", "8484680c-9521-48c6-9c11-b0720656f69e", id(strings.Repeat("1", 32)), nil, mib},
		esp(t, map[string][]byte{
			"/EFI/Linux/labos_1.9.0.efi": older.uki, "/EFI/Linux/labos_1.10.0+2-1.efi": newer.uki, "/EFI/Linux/labos_1.11.0.efi": partial.uki,
		}),
	})
	path := write(t, 512, places...)

	for asked, want := range map[string]release{"": newer, "1.9.0": older, "1.10.0": newer} {
		parts, err := discoverable.Read(t.Context(), path, discoverable.Options{Version: asked})
		if err != nil {
			t.Fatal(err)
		}

		if parts.Version != want.version {
			t.Errorf("asked for %q: %s", asked, parts.Version)
		}

		check(t, parts, map[osimage.Role][]byte{osimage.RoleUSR: want.data, osimage.RoleUSRVerity: want.tree, osimage.RoleUKI: want.uki})

		if err := parts.Release(); err != nil {
			t.Error(err)
		}
	}

	if _, err := discoverable.Read(t.Context(), path, discoverable.Options{Version: "1.11.0"}); !errors.Is(err, osimage.ErrInvalid) {
		t.Errorf("a slot that is being filled: %v", err)
	}
}

// The disk that is made of an image gives the same image.
func TestRoundTrip(t *testing.T) {
	t.Parallel()

	r := newRelease("1.0.0", "amd64", "usrhash")
	dir := t.TempDir()
	file := filepath.Join(dir, "disk.raw")
	inputs := map[osimage.Role]osimage.Input{}

	for role, content := range map[osimage.Role][]byte{
		osimage.RoleUSR: r.data, osimage.RoleUSRVerity: r.tree, osimage.RoleUKI: r.uki, osimage.RoleLoader: []byte("loader"),
		osimage.RoleState: make([]byte, mib),
	} {
		inputs[role] = osimage.Input{Name: string(role), Size: int64(len(content)), Open: func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(content)), nil
		}}
	}

	image, err := osimage.Build(t.Context(), filepath.Join(dir, "first"), osimage.BuildSpec{
		Name: "labos", Version: "1.0.0", Architecture: "amd64", RootHash: r.hash, Inputs: inputs,
	})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := disk.Create(t.Context(), image, file, disk.Options{Sizes: disk.Sizes{ESP: 64 * mib, Disk: 128 * mib}}); err != nil {
		t.Fatal(err)
	}

	parts, err := discoverable.Read(t.Context(), file, discoverable.Options{})
	if err != nil {
		t.Fatal(err)
	}

	again, err := osimage.Build(t.Context(), filepath.Join(dir, "second"), parts.Spec())
	if err := errors.Join(err, parts.Release()); err != nil {
		t.Fatal(err)
	}

	for _, role := range []osimage.Role{osimage.RoleUSR, osimage.RoleUSRVerity, osimage.RoleUKI, osimage.RoleLoader} {
		before, _ := image.Config().Content(role)
		after, _ := again.Config().Content(role)

		if before.RawDigest != after.RawDigest || before.Digest != after.Digest {
			t.Errorf("%s: %+v became %+v", role, before, after)
		}
	}
}

// What the root hash does not vouch for is found when the image is built.
func TestBuildFindsChangedData(t *testing.T) {
	t.Parallel()

	r := newRelease("1.0.0", "amd64", "usrhash")
	places := r.usr()
	places[0].content = bytes.Clone(places[0].content)
	places[0].content[123456] ^= 1

	parts, err := discoverable.Read(t.Context(), write(t, 512, append(places, esp(t, map[string][]byte{"/EFI/Linux/a.efi": r.uki}))...),
		discoverable.Options{})
	if err != nil {
		t.Fatal(err)
	}

	_, err = osimage.Build(t.Context(), filepath.Join(t.TempDir(), "image"), parts.Spec())
	if !errors.Is(err, osimage.ErrWrongDigest) || !strings.Contains(err.Error(), `partition 1 "labos_1.0.0"`) {
		t.Error(err)
	}

	if err := parts.Release(); err != nil {
		t.Error(err)
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()

	r := newRelease("1.1.0", "amd64", "usrhash")
	other := newRelease("1.2.0", "amd64", "usrhash")
	boot := esp(t, map[string][]byte{"/EFI/Linux/a.efi": r.uki})
	change := func(change func(places []place)) []place {
		places := append(r.usr(), boot)
		change(places)

		return places
	}
	unformatted := place{label: "esp", kind: boot.kind, id: boot.id, content: make([]byte, 4096)}
	tooSmall := change(func(places []place) { places[0].content, places[0].size = nil, mib })
	system := func(uki []byte) []place {
		return append(r.usr(), esp(t, map[string][]byte{"/EFI/Linux/labos.efi": uki}))
	}

	for _, test := range []struct {
		name   string
		places []place
		says   string
	}{
		{"no ESP", r.usr(), "no EFI system partition"},
		{"an ESP without a file system", append(r.usr(), unformatted), "55 aa"},
		{"no UKI", append(r.usr(), esp(t, nil)), "no UKI in /EFI/Linux starts"},
		{"a UKI that is none", system([]byte("MZ")), ".EFI: not a unified kernel image"},
		{"a UKI without a hash", system(ukitest.Named("labos", "1", "amd64", "quiet")), `command line "quiet" has not one`},
		{"a UKI with both", system(ukitest.Named("labos", "1", "amd64", "usrhash="+r.hash+" roothash="+r.hash)), "has not one of usrhash="},
		{"a short hash", system(ukitest.Named("labos", "1", "amd64", "usrhash="+r.hash[:40])), "has not one of usrhash="},
		{"a UKI of another system", system(other.uki), "there is no usr partition for amd64 with the UUID"},
		{"a UKI for another machine", system(newRelease("1.1.0", "arm64", "usrhash").uki), "there is no usr partition for arm64"},
		{"a UKI that is cut", system(r.uki[:len(r.uki)-1]), "its headers tell of"},
		{"a UKI for a root", system(ukitest.Named("labos", "1", "amd64", "roothash="+r.hash)), "there is no root partition"},
		{"no hash partition", change(func(places []place) { places[1].id = boot.id }), "there is no usr-verity partition"},
		{"an empty slot", change(func(places []place) { places[0].label = "_empty" }), "there is no usr partition"},
		{"another tree", change(func(places []place) { places[1].content = other.tree }), "root hash"},
		{"no tree", change(func(places []place) { places[1].content = nil }), "no dm-verity hash tree"},
		{"a data partition that is too small", tooSmall, "covers 1228800 bytes"},
	} {
		_, err := discoverable.Read(t.Context(), write(t, 512, test.places...), discoverable.Options{})
		problem, ok := errors.AsType[*osimage.Error](err)

		if !ok || problem.Fix == "" || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want it to say %q", test.name, err, test.says)
		}
	}
}

func TestReadTwoArchitectures(t *testing.T) {
	t.Parallel()

	a, b := newRelease("1", "amd64", "usrhash"), newRelease("2", "arm64", "usrhash")
	arm := b.usr()
	arm[0].kind, arm[1].kind = "b0e01050-ee5f-4390-949a-9101b17104e9", "6e11a4e7-fbca-4ded-b9e9-e1a512bb664e"
	boot := esp(t, map[string][]byte{"/EFI/Linux/a.efi": a.uki, "/EFI/Linux/b.efi": b.uki})
	path := write(t, 512, append(slices.Concat(a.usr(), arm), boot)...)

	if _, err := discoverable.Read(t.Context(), path, discoverable.Options{}); err == nil || !strings.Contains(err.Error(), "--arch") {
		t.Error(err)
	}

	parts, err := discoverable.Read(t.Context(), path, discoverable.Options{Architecture: "amd64"})
	if err != nil || parts.Version != "1" {
		t.Errorf("%+v, %v", parts, err)
	}

	if err := parts.Release(); err != nil {
		t.Error(err)
	}
}

func TestRecognises(t *testing.T) {
	t.Parallel()

	r := newRelease("1", "amd64", "usrhash")

	for _, test := range []struct {
		places []place
		want   bool
	}{
		{r.usr(), true},
		{r.usr()[:1], false},
		{[]place{{label: "USR-A", kind: "5dfbf5f4-2848-4bac-aa5e-0d9a20b745a6", id: id(r.hash[:32]), size: mib}}, false},
	} {
		content, err := os.ReadFile(write(t, 512, test.places...))
		if err != nil {
			t.Fatal(err)
		}

		table, err := rawdisk.Read(bytes.NewReader(content), int64(len(content)), "disk")
		if err != nil || discoverable.Recognises(table) != test.want {
			t.Errorf("%+v, %v", table, err)
		}
	}
}
