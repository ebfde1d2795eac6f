package main

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/partition/gpt"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/uki/ukitest"
	"github.com/stayput-dev/stayput/osimage/verity/veritytest"
)

const gardenRelease = `ID=gardenlinux
PRETTY_NAME="Garden Linux 1877.3"
IMAGE_VERSION=1877.3
GARDENLINUX_CNAME=baremetal_usi-amd64-1877.3
`

func gardenUKI() []byte {
	return ukitest.Image{Architecture: "amd64", Sections: []ukitest.Section{
		{Name: ".osrel", Content: []byte(gardenRelease)},
		{Name: ".uname", Content: []byte("6.12.40-amd64")},
		{Name: ".linux", Content: bytes.Repeat([]byte("system"), 5000)},
	}}.Bytes()
}

func tool(t *testing.T, program string, args ...string) {
	t.Helper()

	if out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
}

func save(t *testing.T, name string, content []byte) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

// saveDisk makes a raw disk of an ESP, with one file in it, and other partitions.
func saveDisk(t *testing.T, file string, content []byte, others ...*gpt.Partition) string {
	t.Helper()

	const sectors = 2048 // in a MiB

	esp := save(t, "esp", nil)
	if err := os.Truncate(esp, 5<<20); err != nil {
		t.Fatal(err)
	}

	tool(t, "mkfs.fat", "-F", "16", "-s", "1", esp)

	directory := ""
	for part := range strings.SplitSeq(filepath.Dir(file)[1:], "/") {
		directory += "/" + part
		tool(t, "mmd", "-i", esp, "::"+directory)
	}

	tool(t, "mcopy", "-i", esp, save(t, "file", content), "::"+file)

	system, err := os.ReadFile(esp)
	if err != nil {
		t.Fatal(err)
	}

	path := save(t, "disk.raw", append(make([]byte, 1<<20), system...))

	disk, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}

	table := &gpt.Table{ProtectiveMBR: true, LogicalSectorSize: 512, PhysicalSectorSize: 512, Partitions: append([]*gpt.Partition{
		{Index: 1, Name: "esp", Type: gpt.EFISystemPartition, Start: sectors, End: 6*sectors - 1},
	}, others...)}

	err = errors.Join(disk.Truncate(32<<20), table.Write(disk, 32<<20), disk.Close())
	if err != nil {
		t.Fatal(err)
	}

	return path
}

func putAt(t *testing.T, path string, at int64, content []byte) {
	t.Helper()

	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}

	_, err = file.WriteAt(content, at)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Fatal(err)
	}
}

func guid(digits string) string {
	return digits[:8] + "-" + digits[8:12] + "-" + digits[12:16] + "-" + digits[16:20] + "-" + digits[20:]
}

// discoverableDisk has a /usr of 300 blocks.
func discoverableDisk(t *testing.T) (path, rootHash string) {
	t.Helper()

	data := make([]byte, 300*veritytest.BlockSize)
	_, _ = rand.Read(data) // never fails
	tree, rootHash := veritytest.Format(data, nil)

	usr := &gpt.Partition{
		Index: 2, Name: "labos_1.2.0", Type: "8484680c-9521-48c6-9c11-b0720656f69e", GUID: guid(rootHash[:32]),
		Start: 8 * 2048, End: 12*2048 - 1,
	}
	verity := &gpt.Partition{
		Index: 3, Name: "labos_1.2.0", Type: "77ff5f63-e7b6-4633-acf4-1565b864c0e6", GUID: guid(rootHash[32:]),
		Start: 12 * 2048, End: 13*2048 - 1,
	}

	path = saveDisk(t, "/EFI/Linux/labos_1.2.0.efi", ukitest.Named("labos", "1.2.0", "amd64", "usrhash="+rootHash+" panic=5"), usr, verity)
	putAt(t, path, 8<<20, data)
	putAt(t, path, 12<<20, tree)

	return path, rootHash
}

// flatcarDisk has the layout of Flatcar's, in small.
func flatcarDisk(t *testing.T) (path, rootHash string) {
	t.Helper()

	const size = 4 << 20

	dir := t.TempDir()
	usr := save(t, "usr", nil)
	release := "ID=flatcar\nPRETTY_NAME=\"Flatcar Container Linux 4459.2.1\"\nVERSION=4459.2.1\nVERSION_ID=4459.2.1\n" +
		"FLATCAR_BOARD=amd64-usr\n"

	err := errors.Join(os.Truncate(usr, size), os.Mkdir(filepath.Join(dir, "lib"), 0o700),
		os.WriteFile(filepath.Join(dir, "lib/os-release"), []byte(release), 0o600))
	if err != nil {
		t.Fatal(err)
	}

	tool(t, "mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal", "-d", dir, usr)

	data, err := os.ReadFile(usr)
	if err != nil {
		t.Fatal(err)
	}

	tree, rootHash := veritytest.Format(data, []byte("salt"))
	kernel := make([]byte, 100_000)
	copy(kernel, "MZ")
	binary.LittleEndian.PutUint32(kernel[0x3c:], 0x80)
	copy(kernel[0x40:], rootHash)
	copy(kernel[0x80:], "PE\x00\x00\x64\x86")
	copy(kernel[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(kernel[0x20e:], 0x3000)
	copy(kernel[0x3200:], "6.12.54-flatcar (build@pony) #1 SMP\x00")

	path = saveDisk(t, "/flatcar/vmlinuz-a", kernel, &gpt.Partition{
		Index: 3, Name: "USR-A", Type: typeFlatcarUSR, GUID: "7130c94a-213a-4e5a-8e26-6cce9662f132", Start: 8 * 2048, End: 16*2048 - 1,
	})
	putAt(t, path, 8<<20, append(data, tree...))

	return path, rootHash
}

// inspectImage reads back what was imported.
func inspectImage(t *testing.T, image string, flags ...string) inspection {
	t.Helper()

	out := mustRun(t, append([]string{"image", "inspect", image, "-o", "json"}, flags...)...)

	var inspected inspection
	if err := json.Unmarshal([]byte(out), &inspected); err != nil {
		t.Fatal(err)
	}

	return inspected
}

func TestImageImport(t *testing.T) {
	t.Parallel()

	discoverable, discoverableHash := discoverableDisk(t)
	flatcar, flatcarHash := flatcarDisk(t)

	for _, test := range []struct {
		name, source string
		flags        []string
		want         osimage.Config
		roles, note  string
		inside       inside
	}{
		{
			"gardenlinux", save(t, "gl.uki", gardenUKI()),
			[]string{"--min-source-version", "1800"},
			osimage.Config{Name: "gardenlinux", Version: "1877.3", Variant: "baremetal_usi", Scheme: "uki", MinSourceVersion: "1800"},
			"uki",
			"flavour baremetal_usi-amd64-1877.3",
			inside{
				System: "Garden Linux 1877.3", SystemVersion: "1877.3", Flavour: "baremetal_usi-amd64-1877.3", Kernel: "6.12.40-amd64",
				SecureBoot: "not signed",
			},
		},
		{
			"disk", discoverable,
			[]string{"--name", "labos", "--version", "1.2.0"},
			osimage.Config{Name: "labos", Version: "1.2.0", Scheme: "dps", RootHash: discoverableHash},
			"usr usr-verity uki", "no boot loader",
			inside{
				System: "lab", SystemVersion: "1.2.0", Kernel: "6.12.38-test", SecureBoot: "not signed",
				CommandLine: "usrhash=" + discoverableHash + " panic=5",
			},
		},
		{
			"flatcar-disk", flatcar, nil,
			osimage.Config{Name: "flatcar", Version: "4459.2.1", Scheme: "gptprio", RootHash: flatcarHash},
			"usr kernel", "/usr",
			inside{System: "Flatcar Container Linux 4459.2.1", SystemVersion: "4459.2.1", Kernel: "6.12.54-flatcar"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			first := filepath.Join(dir, "first")

			out, progress, err := stayput(t, append([]string{"image", "import", test.source, first}, test.flags...)...)
			if err != nil {
				t.Fatal(err)
			}

			if !strings.Contains(progress, "Note: ") || !strings.Contains(progress, test.note) {
				t.Errorf("it said\n%s", progress)
			}

			// Once more, named, and compressed by anything: it is the same image.
			pack := func(program string) []string {
				packed := filepath.Join(dir, program)
				tool(t, "sh", "-c", program+" -c "+test.source+" >"+packed)

				return []string{packed, packed + ".image"}
			}

			for _, again := range [][]string{
				{test.source, first},
				{test.source, filepath.Join(dir, "named"), "--from", test.name},
				pack("gzip"), pack("bzip2"), pack("xz"), pack("zstd"),
			} {
				more := mustRun(t, append(append([]string{"image", "import"}, again...), test.flags...)...)
				if _, digest, _ := strings.Cut(out, "@"); !strings.HasSuffix(more, digest) {
					t.Errorf("%v gave %s instead of %s", again, more, out)
				}
			}

			inspected := inspectImage(t, first)
			config := inspected.Config
			roles := make([]string, 0, len(config.Contents))

			for _, content := range config.Contents {
				roles = append(roles, string(content.Role))
			}

			if inspected.Inside != test.inside {
				t.Errorf("inside is %+v, want %+v", inspected.Inside, test.inside)
			}

			test.want.Architecture = "amd64"
			config.Contents = nil

			if fmt.Sprint(config) != fmt.Sprint(test.want) || strings.Join(roles, " ") != test.roles {
				t.Errorf("got %+v with %v, want %+v with %s", config, roles, test.want, test.roles)
			}
		})
	}
}

func TestImageImportMistakes(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	discoverable, _ := discoverableDisk(t)
	uki := save(t, "gl.uki", gardenUKI())
	empty := saveDisk(t, "/EFI/BOOT/BOOTX64.EFI", []byte("x"))
	text := save(t, "text", bytes.Repeat([]byte("some text "), 10_000))

	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{text}, `tried flatcar-update: it begins with "some", want "CrAU"; flatcar-disk: it has no partition table; disk: `},
		{[]string{text}, `gardenlinux: it begins with "some", want "MZ"`},
		{[]string{empty}, `disk: none of its partitions is a dm-verity hash tree of discoverable partitions; they are 1 "esp"`},
		{[]string{save(t, "a.qcow2", []byte("QFI\xfb and more"))}, "qemu-img convert -O raw"},
		{[]string{save(t, "zstd", []byte("\x28\xb5\x2f\xfd nonsense"))}, "zstd data"},
		{[]string{text, "--from", "gardenlinux"}, "not a unified kernel image"},
		{[]string{text, "--from", "disk"}, "no partition table"},
		{[]string{uki, "--from", "flatcar-disk"}, "partition table"},
		{[]string{uki, "--from", "flatcar-update"}, "CrAU"},
		{[]string{uki, "--from", "debian"}, "use one of flatcar-update, flatcar-disk, disk, gardenlinux"},
		{[]string{uki, "--name", "labos"}, `its name is "gardenlinux", --name is "labos"`},
		{[]string{uki, "--version", "1878"}, `its version is "1877.3"`},
		{[]string{uki, "--arch", "arm64"}, `its architecture is "amd64"`},
		{[]string{uki, "--arch", "x86_64"}, "amd64, arm64"},
		{[]string{uki, "--kernel", uki}, "--kernel"},
		{[]string{uki, "--verify-key", text}, "no signature inside"},
		{[]string{discoverable, "--release", text}, "--release"},
		{[]string{discoverable, "--version", "1.3.0"}, "with version 1.3.0"},
		{[]string{dir}, "stayput image build"},
		{[]string{filepath.Join(dir, "none")}, "no such file"},
		{[]string{"none.raw"}, "no such file"},
		{[]string{"registry.example/none"}, "no such file"},
		{[]string{"registry.example/none:1", "--from", "disk"}, "no such file"},
		{[]string{"registry.example/none:1", "--kernel", uki}, "--kernel"},
		{[]string{uki, "--min-source-version", "a_b"}, "minSourceVersion"},
	} {
		args := append([]string{"image", "import", test.args[0], filepath.Join(dir, "image")}, test.args[1:]...)
		if _, _, err := stayput(t, args...); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("stayput %v\n gives %v\n want %q", args, err, test.says)
		}
	}

	if left, err := os.ReadDir(filepath.Join(dir, "image", "blobs", "sha256")); err == nil && len(left) > 0 {
		t.Errorf("the failures left %v", left)
	}
}

// gardenRegistry serves Garden Linux's artifacts, one flavour of them.
func gardenRegistry(t *testing.T) (repository, caFile string) {
	t.Helper()

	server := httptest.NewTLSServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)

	t.Cleanup(server.Close)

	caFile = save(t, "ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	repository = strings.TrimPrefix(server.URL, "https://") + "/gardenlinux/gardenlinux"

	parsed, err := name.NewRepository(repository)
	if err != nil {
		t.Fatal(err)
	}

	option := remote.WithTransport(server.Client().Transport)
	layer := func(content []byte, mediaType types.MediaType) v1.Descriptor {
		made := static.NewLayer(content, mediaType)
		if err := remote.WriteLayer(parsed, made, option); err != nil {
			t.Fatal(err)
		}

		digest, _ := made.Digest()

		return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: int64(len(content))}
	}
	put := func(tag string, value any, mediaType types.MediaType) v1.Descriptor {
		data, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}

		if err := remote.Put(parsed.Tag(tag), rawManifest{data, mediaType}, option); err != nil {
			t.Fatal(err)
		}

		sum := sha256.Sum256(data)

		return v1.Descriptor{MediaType: mediaType, Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}, Size: int64(len(data))}
	}

	// What its manifest says is not what its UKI says.
	wrong := map[string]string{"cname": "baremetal_usi", "architecture": "amd64", "version": "1879.0"}
	put("1879.0-baremetal_usi-amd64", v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: layer([]byte("{}"), "application/vnd.unknown.config.v1+json"),
		Layers: []v1.Descriptor{layer(gardenUKI(), "application/io.gardenlinux.uki")}, Annotations: wrong,
	}, types.OCIManifestSchema1)

	entry := put("1877.3-baremetal_usi-amd64", v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: layer([]byte("{}"), "application/vnd.unknown.config.v1+json"),
		Layers: []v1.Descriptor{
			layer(gardenUKI(), "application/io.gardenlinux.uki"), layer([]byte(gardenRelease), "application/io.gardenlinux.release"),
		},
		Annotations: map[string]string{"cname": "baremetal_usi", "architecture": "amd64", "version": "1877.3", "commit": "a1b2c3d4"},
	}, types.OCIManifestSchema1)
	entry.Platform = &v1.Platform{OS: "gardenlinux", Architecture: "amd64", OSVersion: "1877.3"}
	entry.Annotations = map[string]string{"cname": "baremetal_usi", "architecture": "amd64"}

	put("1877.3", v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{entry}}, types.OCIImageIndex)

	return repository, caFile
}

type rawManifest struct {
	data      []byte
	mediaType types.MediaType
}

func (m rawManifest) RawManifest() ([]byte, error)        { return m.data, nil }
func (m rawManifest) MediaType() (types.MediaType, error) { return m.mediaType, nil }

func TestImageImportFromRegistry(t *testing.T) {
	t.Parallel()

	repository, caFile := gardenRegistry(t)
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")

	out, progress, err := stayput(t, "image", "import", repository+":1877.3", first,
		"--cname", "baremetal_usi", "--arch", "amd64", "--ca-file", caFile)
	if err != nil {
		t.Fatal(err)
	}

	for _, note := range []string{"Note: flavour baremetal_usi", "Note: commit a1b2c3d4", "was not checked"} {
		if !strings.Contains(progress, note) {
			t.Errorf("%q is not in\n%s", note, progress)
		}
	}

	// It is read as it is, too.
	seen := inspectImage(t, repository+":1877.3", "--cname", "baremetal_usi", "--arch", "amd64", "--ca-file", caFile)
	if seen.Config.Name != "gardenlinux" || seen.Inside.Kernel != "6.12.40-amd64" || seen.Signatures != (signatureCount{}) {
		t.Errorf("inspect printed %+v", seen)
	}

	// The file itself gives the same image.
	same := mustRun(t, "image", "import", save(t, "gl.uki", gardenUKI()), second)
	if _, digest, _ := strings.Cut(out, "@"); !strings.HasSuffix(same, digest) {
		t.Errorf("from the registry %s, from the file %s", out, same)
	}

	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}

	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}

	keyFile := save(t, "key.pem", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))

	for says, args := range map[string][]string{
		"no flavour has exactly": {":1877.3", "--cname", "baremetal"},
		"none was chosen":        {":1877.3"},
		"not found":              {":1878", "--cname", "baremetal_usi"},
		`version in its UKI is "1877.3", want "1879.0"`: {":1879.0-baremetal_usi-amd64"},
		"signature": {":1877.3", "--cname", "baremetal_usi", "--verify-key", keyFile},
	} {
		all := append([]string{
			"image", "import", repository + args[0], filepath.Join(dir, "none"), "--arch", "amd64", "--ca-file", caFile,
		}, args[1:]...)
		if _, _, err := stayput(t, all...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("stayput %v\n gives %v\n want %q", all, err, says)
		}
	}
}
