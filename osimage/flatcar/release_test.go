package flatcar

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source"
)

const (
	mib = 1 << 20
	// fsSize and partSize are those of the fixture's /usr, small.
	fsSize   = 24 * mib
	partSize = 26 * mib
	espSize  = 36 * mib

	goodRelease = `NAME="Flatcar Container Linux by Kinvolk"
ID=flatcar
ID_LIKE=coreos
VERSION=4459.2.1
VERSION_ID=4459.2.1
FLATCAR_BOARD="ARCH-usr"
`
)

// release is what Flatcar's build makes, small but true: a file system made by mkfs, a hash tree by veritysetup, and a
// kernel that holds the root hash where GRUB looks for it.
type release struct {
	usr, kernel []byte
	rootHash    string
}

func command(tb testing.TB, name string, args ...string) string {
	tb.Helper()

	out, err := exec.CommandContext(tb.Context(), name, args...).CombinedOutput()
	if err != nil {
		tb.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}

	return string(out)
}

func write(tb testing.TB, path string, data []byte) string {
	tb.Helper()

	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tb.Fatal(err)
	}

	if err := os.WriteFile(path, data, 0o600); err != nil {
		tb.Fatal(err)
	}

	return path
}

func read(tb testing.TB, path string) []byte {
	tb.Helper()

	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}

	return data
}

func noise(size int) []byte {
	data := make([]byte, size)
	_, _ = rand.Read(data) // never fails

	return data
}

// makeRelease makes one with a file system of a kind, "btrfs" or "ext4", and the os-release file, none when it is "".
func makeRelease(tb testing.TB, architecture, system, osRelease string) release {
	tb.Helper()

	dir := tb.TempDir()
	tree := filepath.Join(dir, "tree")
	image := write(tb, filepath.Join(dir, "usr"), nil)

	write(tb, filepath.Join(tree, "bin/program"), noise(mib))
	write(tb, filepath.Join(tree, "lib/text"), bytes.Repeat([]byte("text "), mib/5))

	if osRelease != "" {
		write(tb, filepath.Join(tree, "lib/os-release"), []byte(strings.ReplaceAll(osRelease, "ARCH", architecture)))
	}

	if err := os.Truncate(image, fsSize); err != nil {
		tb.Fatal(err)
	}

	switch system {
	case "btrfs":
		command(tb, "mkfs.btrfs", "-q", "--mixed", "-m", "single", "-d", "single", "--rootdir", tree, image)
	case "ext4":
		command(tb, "mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", "-d", tree, image)
	}

	if err := os.Truncate(image, partSize); err != nil {
		tb.Fatal(err)
	}

	out := command(tb, "veritysetup", "format", "--hash=sha256", "--data-block-size=4096", "--hash-block-size=4096",
		"--data-blocks="+strconv.Itoa(fsSize/4096), "--hash-offset="+strconv.Itoa(fsSize), image, image)
	rootHash := regexp.MustCompile(`Root hash:\s+([0-9a-f]{64})`).FindStringSubmatch(out)[1]

	return release{usr: read(tb, image), kernel: makeKernel(architecture, rootHash), rootHash: rootHash}
}

// makeKernel makes what begins like a kernel of Flatcar. Its size is no multiple of anything.
func makeKernel(architecture, rootHash string) []byte {
	data := noise(mib + 12345)
	clear(data[:4096])
	copy(data, "MZ")

	start, machine, hashAt := 0x80, uint16(machineAMD64), hashAtAMD64
	if architecture == "arm64" {
		start, machine, hashAt = 0x40, machineARM64, hashAtARM64
	}

	binary.LittleEndian.PutUint32(data[peOffsetAt:], uint32(start))
	copy(data[start:], "PE\x00\x00")
	binary.LittleEndian.PutUint16(data[start+4:], machine)
	copy(data[hashAt:], rootHash)

	return data
}

// diskSpec changes the disk that makeDisk makes.
type diskSpec struct {
	sector           int
	kernelPath       string
	usrType, usrID   string
	noESP, secondESP bool
}

// makeDisk writes flatcar_production_image.bin: another implementation of GPT than the one that reads it, and the FAT of
// mkfs and mtools.
func makeDisk(tb testing.TB, from release, spec diskSpec) string {
	tb.Helper()

	dir := tb.TempDir()
	esp := write(tb, filepath.Join(dir, "esp"), nil)
	kernel := write(tb, filepath.Join(dir, "kernel"), from.kernel)

	if err := os.Truncate(esp, espSize); err != nil {
		tb.Fatal(err)
	}

	command(tb, "mkfs.fat", "-F", "32", "-s", "1", "-n", "EFI-SYSTEM", esp)

	path := spec.kernelPath
	if path == "" {
		path = "/flatcar/vmlinuz-a"
	}

	command(tb, "mmd", "-i", esp, "::"+filepath.Dir(path), "::/EFI")
	command(tb, "mcopy", "-i", esp, kernel, "::"+path)

	usrType, usrID, sector := typeUSR, partUSRA, 512
	if spec.usrType != "" {
		usrType = spec.usrType
	}

	if spec.usrID != "" {
		usrID = spec.usrID
	}

	if spec.sector != 0 {
		sector = spec.sector
	}

	const usrStart, usrBStart, end = 2*mib + espSize, 2*mib + espSize + partSize, 2*mib + espSize + partSize + 8*mib

	per := func(bytes int) uint64 { return uint64(bytes / sector) }
	table := &gpt.Table{
		GUID: "00000000-0000-0000-0000-000000000001", ProtectiveMBR: true, LogicalSectorSize: sector, PhysicalSectorSize: sector,
		Partitions: []*gpt.Partition{
			{
				Index: 3, Name: "USR-A", Type: gpt.Type(usrType), GUID: usrID,
				Start: per(usrStart), End: per(usrBStart) - 1, Attributes: 1<<56 | 1<<48,
			},
			{
				Index: 4, Name: "USR-B", Type: typeUSR, GUID: "e03dd35c-7c2d-4a47-b3fe-27f15780a57c",
				Start: per(usrBStart), End: per(usrBStart+mib) - 1,
			},
			{
				Index: 9, Name: "ROOT", Type: "3884dd41-8582-4404-b9a8-e9b84f2df50e",
				Start: per(usrBStart + mib), End: per(usrBStart+2*mib) - 1,
			},
		},
	}

	if !spec.noESP {
		table.Partitions = append(table.Partitions, &gpt.Partition{
			Index: 1, Name: "EFI-SYSTEM", Type: gpt.EFISystemPartition, Start: per(2 * mib), End: per(usrStart) - 1,
		})
	}

	if spec.secondESP {
		table.Partitions = append(table.Partitions, &gpt.Partition{
			Index: 12, Name: "ESP2", Type: gpt.EFISystemPartition, Start: per(usrBStart + 2*mib), End: per(usrBStart+3*mib) - 1,
		})
	}

	file, err := os.Create(filepath.Join(dir, "flatcar_production_image.bin"))
	if err != nil {
		tb.Fatal(err)
	}

	defer func() { _ = file.Close() }()

	if err := file.Truncate(end); err != nil {
		tb.Fatal(err)
	}

	for offset, data := range map[int64][]byte{2 * mib: read(tb, esp), usrStart: from.usr} {
		if _, err := file.WriteAt(data, offset); err != nil {
			tb.Fatal(err)
		}
	}

	if err := table.Write(file, end); err != nil {
		tb.Fatal(err)
	}

	return file.Name()
}

// contentOf reads an input to its end.
func contentOf(tb testing.TB, parts *source.Parts, role osimage.Role) []byte {
	tb.Helper()

	data, err := slurp(tb, parts, role)
	if err != nil {
		tb.Fatalf("reading %s: %v", role, err)
	}

	return data
}

func slurp(tb testing.TB, parts *source.Parts, role osimage.Role) ([]byte, error) {
	tb.Helper()

	input, ok := parts.Inputs[role]
	if !ok {
		tb.Fatalf("there is no %s", role)
	}

	reader, err := input.Open(tb.Context())
	if err != nil {
		return nil, err
	}

	data, err := io.ReadAll(reader)
	if err == nil && int64(len(data)) != input.Size {
		tb.Errorf("%s has %d bytes, its input says %d", role, len(data), input.Size)
	}

	if err := reader.Close(); err != nil {
		tb.Error(err)
	}

	return data, err
}

// check compares parts with the release that they come from, and builds an image of them.
func check(t *testing.T, parts *source.Parts, want release, architecture string) {
	t.Helper()

	if parts.Name != "flatcar" || parts.Version != "4459.2.1" || parts.Architecture != architecture ||
		parts.Scheme != osimage.SchemeGPTPrio || parts.RootHash != want.rootHash || len(parts.Inputs) != 2 {
		t.Errorf("%+v", parts)
	}

	if !bytes.Equal(contentOf(t, parts, osimage.RoleUSR), want.usr) {
		t.Error("/usr differs")
	}

	if !bytes.Equal(contentOf(t, parts, osimage.RoleKernel), want.kernel) {
		t.Error("the kernel differs")
	}

	image, err := osimage.Build(t.Context(), filepath.Join(t.TempDir(), "layout"), parts.Spec())
	if err != nil {
		t.Fatal(err)
	}

	if config := image.Config(); config.Scheme != osimage.SchemeGPTPrio || config.RootHash != want.rootHash || len(config.Contents) != 2 {
		t.Errorf("the image has %+v", config)
	}

	if err := parts.Release(); err != nil {
		t.Error(err)
	}

	if _, err := slurp(t, parts, osimage.RoleUSR); err == nil {
		t.Error("a file is still open after the release")
	}
}

func noted(parts *source.Parts, text string) bool {
	return strings.Contains(strings.Join(parts.Notes, "\n"), text)
}

// refused checks an error; no kind is ErrInvalid.
func refused(t *testing.T, parts *source.Parts, err, kind error, says, names string) {
	t.Helper()

	if kind == nil {
		kind = osimage.ErrInvalid
	}

	if parts != nil || !errors.Is(err, kind) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), names) {
		t.Errorf("got %v, %v, want %q of %s", parts, err, says, names)
	}
}
