package disk_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/disk"
)

const (
	rootHash = "00112233445566778899aabbccddeeff" + "0123456789abcdef0123456789abcdef"
	mib      = 1 << 20
)

func randomBytes(seed uint64, size int) []byte {
	source := rand.New(rand.NewPCG(seed, seed))
	data := make([]byte, size)

	for i := range data {
		data[i] = byte(source.Uint32())
	}

	return data
}

func usrContents() map[osimage.Role][]byte {
	return map[osimage.Role][]byte{
		osimage.RoleUSR:       randomBytes(1, 5*mib+4096),
		osimage.RoleUSRVerity: randomBytes(2, 60*1024),
		osimage.RoleUKI:       randomBytes(3, 9*mib+777),
		osimage.RoleLoader:    randomBytes(4, 130001),
		osimage.RoleState:     randomBytes(5, 3*mib),
	}
}

// small keeps the tests quick.
func small() disk.Sizes {
	return disk.Sizes{ESP: 64 * mib, Disk: 128 * mib}
}

func build(t *testing.T, architecture string, contents map[osimage.Role][]byte) *osimage.Image {
	t.Helper()

	image, _ := buildIn(t, architecture, contents)

	return image
}

// buildIn also returns the layout folder.
func buildIn(t *testing.T, architecture string, contents map[osimage.Role][]byte) (*osimage.Image, string) {
	t.Helper()

	return buildSpec(t, contents, osimage.BuildSpec{
		Name: "labos", Version: "1.0.0", Architecture: architecture, RootHash: rootHash,
	})
}

func buildSpec(
	t *testing.T, contents map[osimage.Role][]byte, spec osimage.BuildSpec,
) (image *osimage.Image, folder string) {
	t.Helper()

	dir := t.TempDir()
	files := map[osimage.Role]string{}

	for role, data := range contents {
		files[role] = filepath.Join(dir, string(role))
		if err := os.WriteFile(files[role], data, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	inputs, err := osimage.FileInputs(files)
	if err != nil {
		t.Fatal(err)
	}

	spec.Inputs = inputs
	folder = filepath.Join(dir, "image")

	image, err = osimage.Build(t.Context(), folder, spec)
	if err != nil {
		t.Fatal(err)
	}

	return image, folder
}

func create(t *testing.T, image *osimage.Image, options disk.Options) (string, disk.Result) {
	t.Helper()

	file := filepath.Join(t.TempDir(), "disk.raw")

	result, err := disk.Create(t.Context(), image, file, options)
	if err != nil {
		t.Fatal(err)
	}

	return file, result
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()

	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}

	return string(out)
}

// part reads the first bytes of a partition.
func part(t *testing.T, file string, partition disk.Partition, size int) []byte {
	t.Helper()

	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = in.Close() }()

	data := make([]byte, size)
	if _, err := in.ReadAt(data, partition.Start); err != nil {
		t.Fatal(err)
	}

	return data
}

func TestPartitionTable(t *testing.T) {
	t.Parallel()

	contents := usrContents()
	file, result := create(t, build(t, "amd64", contents), disk.Options{})

	if out := run(t, "sgdisk", "-v", file); !strings.Contains(out, "No problems found") {
		t.Errorf("sgdisk -v: %s", out)
	}

	for index, want := range []struct{ label, kind, id, attributes string }{
		{"esp", "C12A7328-F81F-11D2-BA4B-00A0C93EC93B", "", "0000000000000000"},
		{
			"labos_1.0.0", "8484680C-9521-48C6-9C11-B0720656F69E", "00112233-4455-6677-8899-AABBCCDDEEFF",
			"1000000000000000",
		},
		{
			"labos_1.0.0", "77FF5F63-E7B6-4633-ACF4-1565B864C0E6", "01234567-89AB-CDEF-0123-456789ABCDEF",
			"1000000000000000",
		},
		{"_empty", "8484680C-9521-48C6-9C11-B0720656F69E", "", "1000000000000000"},
		{"_empty", "77FF5F63-E7B6-4633-ACF4-1565B864C0E6", "", "1000000000000000"},
		{"root", "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709", "", "0800000000000000"},
	} {
		out := run(t, "sgdisk", "-i", strconv.Itoa(index+1), file)
		for _, part := range []string{
			"Partition name: '" + want.label + "'", "Partition GUID code: " + want.kind,
			"Partition unique GUID: " + want.id, "Attribute flags: " + want.attributes,
		} {
			if !strings.Contains(out, part) {
				t.Errorf("partition %d has no %q:\n%s", index+1, part, out)
			}
		}
	}

	for index, role := range map[int]osimage.Role{
		1: osimage.RoleUSR, 2: osimage.RoleUSRVerity, 5: osimage.RoleState,
	} {
		if !bytes.Equal(part(t, file, result.Partitions[index], len(contents[role])), contents[role]) {
			t.Errorf("partition %d does not hold %s", index+1, role)
		}
	}

	if result.Partitions[1].Size != result.Partitions[3].Size || result.Partitions[2].Size != result.Partitions[4].Size {
		t.Error("the slots differ in size")
	}

	if last := result.Partitions[5]; last.Start+last.Size != result.Size-mib {
		t.Errorf("the root ends at %d of %d", last.Start+last.Size, result.Size)
	}
}

func TestESP(t *testing.T) {
	t.Parallel()

	for _, sizes := range []disk.Sizes{{ESP: 64 * mib}, {ESP: 65 * mib}, {ESP: 66 * mib}, {ESP: 100 * mib}, {ESP: 270 * mib}} {
		t.Run(strconv.FormatInt(sizes.ESP/mib, 10), func(t *testing.T) {
			t.Parallel()

			contents := usrContents()
			file, result := create(t, build(t, "amd64", contents), disk.Options{Sizes: sizes})
			esp := result.Partitions[0]

			alone := filepath.Join(t.TempDir(), "esp.raw")
			if err := os.WriteFile(alone, part(t, file, esp, int(esp.Size)), 0o600); err != nil {
				t.Fatal(err)
			}

			if out := run(t, "fsck.fat", "-n", "-v", alone); !strings.Contains(out, "32 bit") &&
				!strings.Contains(out, "32-bit") || strings.Contains(out, "Free cluster summary") {
				t.Errorf("fsck.fat: %s", out)
			}

			for path, want := range map[string][]byte{
				"EFI/BOOT/BOOTX64.EFI":            contents[osimage.RoleLoader],
				"EFI/systemd/systemd-bootx64.efi": contents[osimage.RoleLoader],
				"EFI/Linux/labos_1.0.0.efi":       contents[osimage.RoleUKI],
				"loader/loader.conf":              []byte("timeout 0\n"),
			} {
				got := run(t, "mtype", "-i", alone, "::/"+path)
				if got != string(want) {
					t.Errorf("%s holds other bytes", path)
				}
			}
		})
	}
}

// A new file written by the firmware, the kernel or mtools must find its place.
func TestESPTakesTheNextUKI(t *testing.T) {
	t.Parallel()

	file, result := create(t, build(t, "amd64", usrContents()), disk.Options{Sizes: disk.Sizes{ESP: 64 * mib}})
	target := file + "@@" + strconv.FormatInt(result.Partitions[0].Start, 10)

	for _, name := range []string{"labos_1.1.0+3.efi", "labos_1.2.0+3.efi"} {
		uki := filepath.Join(t.TempDir(), "uki")
		if err := os.WriteFile(uki, randomBytes(8, 9*mib), 0o600); err != nil {
			t.Fatal(err)
		}

		run(t, "mcopy", "-i", target, uki, "::/EFI/Linux/"+name)
	}

	alone := filepath.Join(t.TempDir(), "esp.raw")
	if err := os.WriteFile(alone, part(t, file, result.Partitions[0], 64*mib), 0o600); err != nil {
		t.Fatal(err)
	}

	run(t, "fsck.fat", "-n", alone)
}

func sumOf(t *testing.T, file string) string {
	t.Helper()

	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = in.Close() }()

	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		t.Fatal(err)
	}

	return string(sum.Sum(nil))
}

// Not parallel: it changes the time that the FAT driver sees.
func TestCreateIsReproducible(t *testing.T) {
	image := build(t, "amd64", usrContents())

	t.Setenv("SOURCE_DATE_EPOCH", "1000000000")

	first, _ := create(t, image, disk.Options{Sizes: small()})
	seeded, _ := create(t, image, disk.Options{Sizes: small(), Seed: "machine-1"})

	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")

	second, _ := create(t, image, disk.Options{Sizes: small()})

	if sumOf(t, first) != sumOf(t, second) {
		t.Errorf("the same image gave two disks: %s", run(t, "sh", "-c", "cmp -l "+first+" "+second+" | head -20; true"))
	}

	if sumOf(t, first) == sumOf(t, seeded) {
		t.Error("the seed changes nothing")
	}
}

func TestRootImage(t *testing.T) {
	t.Parallel()

	usr := usrContents()
	contents := map[osimage.Role][]byte{
		osimage.RoleRoot: usr[osimage.RoleUSR], osimage.RoleRootVerity: usr[osimage.RoleUSRVerity],
		osimage.RoleUKI: usr[osimage.RoleUKI], osimage.RoleLoader: usr[osimage.RoleLoader],
	}
	file, result := create(t, build(t, "arm64", contents), disk.Options{Sizes: small()})

	for index, want := range []string{
		"C12A7328-F81F-11D2-BA4B-00A0C93EC93B", "B921B045-1DF0-41C3-AF44-4C6F280D3FAE",
		"DF3300CE-D69F-4C92-978C-9BFB0F38D820", "B921B045-1DF0-41C3-AF44-4C6F280D3FAE",
		"DF3300CE-D69F-4C92-978C-9BFB0F38D820", "0FC63DAF-8483-4772-8E79-3D69D8477DE4",
	} {
		if result.Partitions[index].Type != want {
			t.Errorf("partition %d has the type %s, want %s", index+1, result.Partitions[index].Type, want)
		}
	}

	target := file + "@@" + strconv.FormatInt(result.Partitions[0].Start, 10)
	run(t, "mdir", "-i", target, "::/EFI/BOOT/BOOTAA64.EFI")
}

func TestSizes(t *testing.T) {
	t.Parallel()

	image := build(t, "amd64", usrContents())

	for name, test := range map[string]struct {
		sizes disk.Sizes
		says  string
	}{
		"small slot":       {disk.Sizes{Slot: 5 * mib}, "--slot-size"},
		"small hash tree":  {disk.Sizes{Verity: -1}, "--verity-size"},
		"ESP for two UKIs": {disk.Sizes{ESP: 20 * mib}, "--esp-size"},
		"small disk":       {disk.Sizes{Disk: 100 * mib}, "--disk-size"},
		"uneven disk":      {disk.Sizes{Disk: 2000*mib + 1}, "multiple"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			file := filepath.Join(t.TempDir(), "disk.raw")

			_, err := disk.Create(t.Context(), image, file, disk.Options{Sizes: test.sizes})
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want an error that names %s", err, test.says)
			}

			if _, err := os.Stat(file); err == nil {
				t.Error("a disk was made")
			}
		})
	}

	_, result := create(t, image, disk.Options{Sizes: disk.Sizes{Disk: 2000 * mib, Slot: 40 * mib, Verity: 2 * mib}})
	if result.Size != 2000*mib || result.Partitions[3].Size != 40*mib || result.Partitions[4].Size != 2*mib {
		t.Errorf("the sizes asked for were not taken: %+v", result)
	}
}

func TestIncompleteImages(t *testing.T) {
	t.Parallel()

	for _, role := range []osimage.Role{osimage.RoleLoader, osimage.RoleState} {
		contents := usrContents()
		delete(contents, role)

		file := filepath.Join(t.TempDir(), "disk.raw")

		_, err := disk.Create(t.Context(), build(t, "amd64", contents), file, disk.Options{})
		if !errors.Is(err, osimage.ErrNotFound) || !strings.Contains(err.Error(), "--"+string(role)) {
			t.Errorf("without %s: %v", role, err)
		}
	}
}

func TestCreateKeepsWhatIsThereOnError(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	image := build(t, "amd64", usrContents())
	file := filepath.Join(dir, "disk.raw")

	if err := os.WriteFile(file, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}

	if _, err := disk.Create(t.Context(), broken{image}, file, disk.Options{}); !errors.Is(err, osimage.ErrTransient) {
		t.Fatalf("got %v", err)
	}

	if data, err := os.ReadFile(file); err != nil || string(data) != "before" {
		t.Errorf("the file holds %q, %v", data, err)
	}

	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v %v", entries, err)
	}
}

// What a killed program has left is taken over, whatever is in it, and goes away with success.
func TestCreateAfterACrash(t *testing.T) {
	t.Parallel()

	image := build(t, "amd64", usrContents())
	want, _ := create(t, image, disk.Options{Sizes: small()})
	file := filepath.Join(t.TempDir(), "disk.raw")
	left := filepath.Join(filepath.Dir(file), ".disk.raw.partial")

	if err := errors.Join(os.WriteFile(left, bytes.Repeat([]byte("x"), 130*mib), 0o600),
		os.WriteFile(left+".packed", []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}

	if _, err := disk.Create(t.Context(), image, file, disk.Options{Sizes: small()}); err != nil {
		t.Fatal(err)
	}

	run(t, "cmp", want, file)

	if names := namesIn(t, filepath.Dir(file)); names != "disk.raw" {
		t.Errorf("the folder has %s", names)
	}
}

func TestCreateOnceAtATime(t *testing.T) {
	t.Parallel()

	image := build(t, "amd64", usrContents())
	file := filepath.Join(t.TempDir(), "disk.raw")

	other, err := os.Create(filepath.Join(filepath.Dir(file), ".disk.raw.partial"))
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = other.Close() })

	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}

	if _, err := disk.Create(t.Context(), image, file, disk.Options{Sizes: small()}); !errors.Is(err, osimage.ErrInvalid) {
		t.Errorf("beside another: %v", err)
	}
}

// Sizes that no disk has are refused; they once overflowed, or made the FAT driver panic.
func TestSizesThatNoDiskHas(t *testing.T) {
	t.Parallel()

	image := build(t, "amd64", usrContents())

	for flag, sizes := range map[string]disk.Sizes{
		"--disk-size":   {Disk: math.MaxInt64},
		"--slot-size":   {Slot: 1 << 62},
		"--verity-size": {Verity: 1 << 62},
		"--esp-size":    {ESP: 1 << 40},
	} {
		_, err := disk.Create(t.Context(), image, filepath.Join(t.TempDir(), "disk.raw"), disk.Options{Sizes: sizes})
		if !errors.Is(err, osimage.ErrInvalid) || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}

	create(t, image, disk.Options{Sizes: disk.Sizes{ESP: 32 << 30}})
}
