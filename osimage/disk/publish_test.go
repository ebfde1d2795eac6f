package disk_test

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/disk"
	"github.com/stayput-dev/stayput/osimage/registrytest"
	"github.com/stayput-dev/stayput/osimage/uki/ukitest"
)

const (
	repository  = "os/labos"
	otherHash   = "aaaaaaaabbbbbbbbccccccccdddddddd" + "0123456789abcdef0123456789abcdef"
	uefiESPType = "ef00"
)

func client(t *testing.T, server *registrytest.Registry, options ...osimage.Option) *osimage.Client {
	t.Helper()

	made, err := osimage.NewClient(append(options, osimage.WithCAFile(server.CAFile),
		osimage.WithDockerConfig(server.DockerConfig))...)
	if err != nil {
		t.Fatal(err)
	}

	return made
}

// labos is the image of an architecture.
func labos(t *testing.T, architecture, hash string) *osimage.Image {
	t.Helper()

	image, _ := buildSpec(t, usrContents(), osimage.BuildSpec{
		Name: "labos", Version: "1.0.0", Architecture: architecture, RootHash: hash,
	})

	return image
}

func diskOf(t *testing.T, image *osimage.Image, options disk.Options) (path, sum string) {
	t.Helper()

	options.Checksum = true
	if options.SectorSize == 0 {
		options.Sizes = small()
	}

	path, result := create(t, image, options)

	return path, result.SHA256
}

// fleet is an index for machines of two architectures.
type fleet struct {
	images []*osimage.Image
	disks  []string
	// sums are the SHA-256 of the disks, by architecture and format.
	sums map[string]string
}

func newFleet(t *testing.T) fleet {
	t.Helper()

	result := fleet{sums: map[string]string{}}

	for architecture, hash := range map[string]string{"amd64": rootHash, "arm64": otherHash} {
		image := labos(t, architecture, hash)
		result.images = append(result.images, image)

		for _, format := range disk.Formats() {
			path, sum := diskOf(t, image, disk.Options{Format: format})
			result.disks = append(result.disks, path)
			result.sums[architecture+" "+string(format)] = sum
		}
	}

	return result
}

// parts are what was heard last of the progress of each part.
type parts map[string]struct{ done, total int64 }

// hear refuses a total that shrinks, as when two pieces of work are one part.
func (p parts) hear(t *testing.T) func(part string, done, total int64) {
	t.Helper()

	var mutex sync.Mutex

	return func(part string, done, total int64) {
		mutex.Lock()
		defer mutex.Unlock()

		if last := p[part]; total < last.total || done > total {
			t.Errorf("%s: %d of %d after %d of %d", part, done, total, last.done, last.total)
		}

		p[part] = struct{ done, total int64 }{max(done, p[part].done), total}
	}
}

// ended are the parts, each of which must have come to its end.
func (p parts) ended(t *testing.T) []string {
	t.Helper()

	for part, last := range p {
		if last.done != last.total || last.total == 0 {
			t.Errorf("%s ended with %d of %d", part, last.done, last.total)
		}
	}

	return slices.Sorted(maps.Keys(p))
}

// One tag deploys machines of two architectures, through both of Ironic's ways, and updates them afterwards.
func TestPublish(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	fleet := newFleet(t)
	reference := server.Address + "/" + repository + ":1.0.0"

	heard := parts{}

	published, err := disk.Publish(t.Context(), client(t, server), disk.Publication{
		Images: fleet.images, Disks: fleet.disks, Progress: heard.hear(t),
	}, reference)
	if err != nil {
		t.Fatal(err)
	}

	if got := heard.ended(t); !slices.Equal(got, []string{"index and disks", "labos_1.0.0 amd64", "labos_1.0.0 arm64"}) {
		t.Errorf("progress of the parts %q", got)
	}

	if !strings.HasPrefix(published.Reference, server.Address+"/"+repository+"@sha256:") || len(published.Entries) != 6 {
		t.Errorf("published %+v", published)
	}

	conductor := newIronic(t, server, repository)
	conductor.neverContainers(t, "1.0.0")

	for _, test := range []struct{ source, cpu, want string }{
		{"http", "x86_64", "amd64 raw"},
		{"local", "x86_64", "amd64 qcow2"},
		{"http", "aarch64", "arm64 raw"},
		{"local", "arm64", "arm64 qcow2"},
		{"", "amd64", "amd64 raw"},
	} {
		found := conductor.find(t, "1.0.0", test.source, test.cpu)
		architecture, format, _ := strings.Cut(test.want, " ")

		if found.format != format || found.name != "labos_1.0.0_"+architecture+"."+format ||
			found.blob != "sha256:"+fleet.sums[test.want] {
			t.Errorf("%+v: Ironic takes %s", test, found)
		}

		if got := conductor.download(t, conductor.pinned(t, found.manifest)); got != fleet.sums[test.want] {
			t.Errorf("%+v: the machine gets %s", test, got)
		}
	}

	if found := conductor.find(t, "1.0.0", "http", "ppc64le"); found != (chosen{}) {
		t.Errorf("for a machine without a disk Ironic takes %s", found)
	}

	for _, image := range fleet.images {
		architecture := image.Config().Architecture
		for _, name := range []string{reference, published.Reference} {
			found, err := client(t, server, osimage.WithArchitecture(architecture)).Image(t.Context(), name)
			if err != nil || found.Digest() != image.Digest() {
				t.Errorf("the agent on %s finds %v, %v", architecture, found, err)
			}
		}
	}
}

func TestPublishAgain(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	fleet := newFleet(t)
	reference := server.Address + "/" + repository + ":1.0.0"

	first, err := disk.Publish(t.Context(), client(t, server), disk.Publication{Images: fleet.images, Disks: fleet.disks}, reference)
	if err != nil {
		t.Fatal(err)
	}

	slices.Reverse(fleet.images)
	slices.Reverse(fleet.disks)

	second, err := disk.Publish(t.Context(), client(t, server), disk.Publication{Images: fleet.images, Disks: fleet.disks}, reference)
	if err != nil || second.Reference != first.Reference {
		t.Errorf("in another order: %s, %v, want %s", second.Reference, err, first.Reference)
	}

	// What is in the registry already is an image, too.
	stored := make([]*osimage.Image, 0, len(fleet.images))

	for _, image := range fleet.images {
		found, err := client(t, server, osimage.WithArchitecture(image.Config().Architecture)).Image(t.Context(), reference)
		if err != nil {
			t.Fatal(err)
		}

		stored = append(stored, found)
	}

	third, err := disk.Publish(t.Context(), client(t, server), disk.Publication{Images: stored, Disks: fleet.disks}, reference)
	if err != nil || third.Reference != first.Reference {
		t.Errorf("from the registry: %s, %v, want %s", third.Reference, err, first.Reference)
	}

	// Blobs are sent before the manifest that names them, and so not again either.
	if got := strings.Count(server.Log(), `"PUT /v2/`+repository+`/manifests/`); got > len(first.Entries)+1 {
		t.Errorf("%d manifests were sent, for %d entries and the index:\n%s", got, len(first.Entries), server.Log())
	}

	// And may be put beside disks elsewhere.
	elsewhere, err := disk.Publish(t.Context(), client(t, server), disk.Publication{Images: stored},
		server.Address+"/other/labos:1.0.0")
	if err != nil || len(elsewhere.Entries) != 2 {
		t.Errorf("to another repository: %+v, %v", elsewhere, err)
	}
}

// vendorDisk is a disk with an ESP, with a file in it, and a partition of another type.
func vendorDisk(t *testing.T, path string, content []byte) string {
	t.Helper()

	dir := t.TempDir()
	esp, file, disk := filepath.Join(dir, "esp"), filepath.Join(dir, "file"), filepath.Join(dir, "vendor.bin")

	if err := errors.Join(os.WriteFile(file, content, 0o600), os.WriteFile(disk, nil, 0o600), os.Truncate(disk, 80*mib)); err != nil {
		t.Fatal(err)
	}

	run(t, "mkfs.vfat", "-C", esp, "65536")

	for at := range path {
		if at > 0 && path[at] == '/' {
			run(t, "mmd", "-i", esp, "::"+path[:at])
		}
	}

	run(t, "mcopy", "-i", esp, file, "::"+path)
	run(t, "sgdisk", "-n", "1:2048:+64M", "-t", "1:"+uefiESPType, "-n", "2:0:0", "-t", "2:8300", disk)
	run(t, "dd", "if="+esp, "of="+disk, "bs=1M", "seek=1", "conv=notrunc", "status=none")

	return disk
}

// Machines of others are provisioned from the disks of others, which go beside our images, too.
func TestPublishDisksOfVendors(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	usr := usrContents()
	kernel := usr[osimage.RoleUKI]

	flatcar, _ := buildSpec(t, map[osimage.Role][]byte{osimage.RoleUSR: usr[osimage.RoleUSR], osimage.RoleKernel: kernel},
		osimage.BuildSpec{
			Name: "flatcar", Version: "4230.2.1", RootHash: rootHash, Scheme: osimage.SchemeGPTPrio, Architecture: "amd64",
		})
	garden, _ := buildSpec(t, map[osimage.Role][]byte{osimage.RoleUKI: kernel},
		osimage.BuildSpec{Name: "gardenlinux", Version: "1877.3.0", Scheme: osimage.SchemeUKI, Architecture: "arm64"})

	raw := vendorDisk(t, "/flatcar/vmlinuz-a", kernel)
	packed := filepath.Join(t.TempDir(), "vendor.qcow2")
	run(t, "qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", raw, packed)

	withUKI := func(version, architecture string) string {
		return vendorDisk(t, "/EFI/Linux/baremetal-gardener_prod_usi.efi", ukitest.Named("gardenlinux", version, architecture, ""))
	}

	for name, test := range map[string]struct {
		image *osimage.Image
		path  string
		says  string
	}{
		"Flatcar":                   {flatcar, raw, ""},
		"Flatcar, compressed":       {flatcar, packed, ""},
		"another Flatcar":           {flatcar, vendorDisk(t, "/flatcar/vmlinuz-a", kernel[1:]), "holds none of the images"},
		"no Flatcar":                {flatcar, withUKI("1877.3.0", "amd64"), "holds none of the images"},
		"Garden Linux":              {garden, withUKI("1877.3.0", "arm64"), ""},
		"another Garden Linux":      {garden, withUKI("1877.4.0", "arm64"), "holds none of the images"},
		"of another architecture":   {garden, withUKI("1877.3.0", "amd64"), "holds none of the images"},
		"no UKI":                    {garden, vendorDisk(t, "/EFI/Linux/text.efi", []byte("text")), "holds none of the images"},
		"no Garden Linux":           {garden, raw, "holds none of the images"},
		"Flatcar for our own image": {labos(t, "amd64", rootHash), raw, "holds none of the images"},
	} {
		reference := server.Address + "/os/" + strings.ToLower(strings.NewReplacer(" ", "", ",", "").Replace(name)) + ":1"
		_, err := disk.Publish(t.Context(), client(t, server), disk.Publication{
			Images: []*osimage.Image{test.image}, Disks: []string{test.path},
		}, reference)

		switch {
		case test.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case test.says != "" && (!errors.Is(err, osimage.ErrInvalid) || !strings.Contains(err.Error(), test.says)):
			t.Errorf("%s: got %v, want an error that says %q", name, err, test.says)
		}
	}
}

func TestPublishRefuses(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	amd64, arm64 := labos(t, "amd64", rootHash), labos(t, "arm64", otherHash)
	next, _ := buildSpec(t, usrContents(), osimage.BuildSpec{
		Name: "labos", Version: "1.1.0", Architecture: "arm64", RootHash: otherHash,
	})
	raw, _ := diskOf(t, amd64, disk.Options{})
	again, _ := diskOf(t, amd64, disk.Options{Seed: "other"})
	large, _ := diskOf(t, amd64, disk.Options{SectorSize: sector4K, Format: disk.FormatQCOW2})
	other, _ := diskOf(t, arm64, disk.Options{})

	dir := t.TempDir()
	text, backed, shortened := filepath.Join(dir, "text"), filepath.Join(dir, "backed"), filepath.Join(dir, "shortened")

	if err := errors.Join(os.WriteFile(text, []byte("no disk"), 0o600), os.WriteFile(shortened, []byte("QFI\xfb"), 0o600)); err != nil {
		t.Fatal(err)
	}

	run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", raw, "-F", "raw", backed)

	one := []*osimage.Image{amd64}

	for name, test := range map[string]struct {
		images []*osimage.Image
		disks  []string
		kind   error
		says   string
	}{
		"no image":         {nil, nil, osimage.ErrInvalid, "at least one image"},
		"two versions":     {[]*osimage.Image{amd64, next}, nil, osimage.ErrInvalid, "a tag of its own"},
		"twice":            {[]*osimage.Image{amd64, amd64}, nil, osimage.ErrInvalid, "one image for each architecture"},
		"no file":          {one, []string{filepath.Join(dir, "absent")}, os.ErrNotExist, "absent"},
		"a folder":         {one, []string{dir}, osimage.ErrInvalid, "not a regular file"},
		"no disk":          {one, []string{text}, osimage.ErrInvalid, "no partition table"},
		"short QCOW2":      {one, []string{shortened}, osimage.ErrInvalid, "header ends after 4 bytes"},
		"backing file":     {one, []string{backed}, osimage.ErrInvalid, "backing file"},
		"another's disk":   {one, []string{other}, osimage.ErrInvalid, "holds none of the images"},
		"other types":      {[]*osimage.Image{labos(t, "arm64", rootHash)}, []string{raw}, osimage.ErrInvalid, "holds none"},
		"two raw disks":    {one, []string{raw, again}, osimage.ErrInvalid, "under another tag"},
		"two sector sizes": {one, []string{raw, large}, osimage.ErrInvalid, "sectors of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			before := server.Log()

			_, err := disk.Publish(t.Context(), client(t, server), disk.Publication{Images: test.images, Disks: test.disks},
				server.Address+"/"+repository+":"+strings.ReplaceAll(name, " ", "-"))
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want %v that says %q", err, test.kind, test.says)
			}

			if strings.Contains(server.Log()[len(before):], "PUT ") {
				t.Error("something was sent")
			}
		})
	}

	_, err := disk.Publish(t.Context(), client(t, server), disk.Publication{Images: one},
		server.Address+"/"+repository+"@"+amd64.Digest())
	if !errors.Is(err, osimage.ErrInvalid) || !strings.Contains(err.Error(), "name a tag") {
		t.Errorf("to a digest: %v", err)
	}
}

// A partition that says by its UUID that it is the image's must have its bytes.
func TestPublishReadsTheSlots(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	image := labos(t, "amd64", rootHash)

	for role, content := range usrContents() {
		raw, _ := diskOf(t, image, disk.Options{})

		whole, err := os.ReadFile(raw)
		if err != nil {
			t.Fatal(err)
		}

		at := bytes.Index(whole, content)
		if at < 0 {
			continue // In the file system of the ESP it may be in pieces; the vendor's may be another one there.
		}

		whole[at+len(content)-1] ^= 1
		if err := os.WriteFile(raw, whole, 0o600); err != nil {
			t.Fatal(err)
		}

		packed := filepath.Join(t.TempDir(), "disk.qcow2")
		run(t, "qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", raw, packed)

		for _, path := range []string{raw, packed} {
			_, err = disk.Publish(t.Context(), client(t, server), disk.Publication{Images: []*osimage.Image{image}, Disks: []string{path}},
				server.Address+"/"+repository+":1.0.0")

			switch {
			case role != osimage.RoleUSR && role != osimage.RoleUSRVerity:
				if err != nil {
					t.Errorf("%s is not of the slot: %v", role, err)
				}
			case !errors.Is(err, osimage.ErrWrongDigest) || !strings.Contains(err.Error(), "image's "+string(role)+","):
				t.Errorf("with another %s in %s: %v", role, filepath.Base(path), err)
			}
		}
	}
}

// A file that changes after its digest was computed reaches no machine.
func TestPublishNoticesAFileThatChanges(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	image := labos(t, "amd64", rootHash)
	raw, _ := diskOf(t, image, disk.Options{})
	reference := server.Address + "/" + repository + ":1.0.0"
	changed := false

	_, err := disk.Publish(t.Context(), client(t, server, osimage.WithRetry(osimage.Retry{Tries: 1})), disk.Publication{
		Images: []*osimage.Image{image}, Disks: []string{raw},
		Progress: func(string, int64, int64) {
			if changed {
				return
			}

			changed = true

			out, err := os.OpenFile(raw, os.O_WRONLY, 0)
			if err == nil {
				_, err = out.WriteAt([]byte("changed"), 127*mib)
			}

			if err := errors.Join(err, out.Close()); err != nil {
				t.Error(err)
			}
		},
	}, reference)
	if !errors.Is(err, osimage.ErrWrongDigest) || !strings.Contains(err.Error(), "let nobody write") {
		t.Errorf("got %v, want a wrong digest", err)
	}

	if _, err := client(t, server).Image(t.Context(), reference); !errors.Is(err, osimage.ErrNotFound) {
		t.Errorf("the tag is there: %v", err)
	}
}
