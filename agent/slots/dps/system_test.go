package dps_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stayput-dev/stayput/agent/slots/dps"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// sysfs is a root directory with the parts of /proc, /sys and /dev of a machine that runs /usr from dm-0, which is on
// partitions 2 and 3 of nvme0n1, while dm-1 is the user's encrypted disk and sda has a /usr of its own.
func sysfs(t *testing.T) string {
	t.Helper()

	root := t.TempDir()
	disk := "sys/devices/pci/nvme/nvme0n1"

	for path, content := range map[string]string{
		"proc/cmdline": "quiet usrhash=" + strings.Repeat("ab", 32) + "\n",
		"proc/self/mountinfo": `20 1 259:4 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p4 rw
21 20 254:0 / /usr ro,relatime shared:2 - erofs /dev/mapper/usr ro
22 20 0:30 / /usr rw - overlay sysext rw,lowerdir=/x
23 20 254:1 / /var/lib/data rw - ext4 /dev/mapper/data rw
24 20 0:40 / /efi rw - autofs systemd-1 rw,fd=5
25 20 8:1 / /mnt/my\040esp rw - vfat /dev/sda1 rw
`,
		disk + "/size": "2048\n", disk + "/queue/logical_block_size": "4096\n", disk + "/uevent": "MAJOR=259\nDEVNAME=nvme0n1\n",
		"sys/devices/virtual/dm-0/dev": "254:0\n", "sys/devices/virtual/dm-0/dm/name": "usr\n",
		"sys/devices/virtual/dm-0/dm/uuid": "CRYPT-VERITY-1234-usr\n",
		"sys/devices/virtual/dm-1/dev":     "254:1\n", "sys/devices/virtual/dm-1/dm/name": "data\n",
		"sys/devices/virtual/dm-1/dm/uuid": "CRYPT-LUKS2-1234-data\n",
	} {
		write(t, root, path, content)
	}

	for number, start := range map[int]int{1: 100, 2: 200, 3: 300, 4: 400} {
		part := fmt.Sprintf("%s/nvme0n1p%d", disk, number)
		write(t, root, part+"/partition", fmt.Sprintln(number))
		write(t, root, part+"/start", fmt.Sprintln(start))
		write(t, root, part+"/size", "100\n")
		write(t, root, part+"/dev", fmt.Sprintf("259:%d\n", number))
		write(t, root, part+"/uevent", fmt.Sprintf("DEVNAME=nvme0n1p%d\n", number))
		write(t, root, fmt.Sprintf("dev/nvme0n1p%d", number), strings.Repeat(strconv.Itoa(number), 100*512))
		link(t, root, part, fmt.Sprintf("sys/class/block/nvme0n1p%d", number))
	}

	write(t, root, "dev/nvme0n1", "whole disk")
	link(t, root, disk, "sys/class/block/nvme0n1")
	link(t, root, "sys/devices/virtual/dm-0", "sys/block/dm-0")
	link(t, root, "sys/devices/virtual/dm-1", "sys/block/dm-1")
	link(t, root, disk+"/nvme0n1p2", "sys/devices/virtual/dm-0/slaves/nvme0n1p2")
	link(t, root, disk+"/nvme0n1p3", "sys/devices/virtual/dm-0/slaves/nvme0n1p3")

	return root
}

func write(t *testing.T, root, path, content string) {
	t.Helper()

	file := filepath.Join(root, path)
	must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must(t, os.WriteFile(file, []byte(content), 0o600))
}

func link(t *testing.T, root, target, path string) {
	t.Helper()

	file := filepath.Join(root, path)
	must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must(t, os.Symlink(filepath.Join(root, target), file))
}

func TestFindRunningSlot(t *testing.T) {
	t.Parallel()

	place, err := dps.NewSystem(sysfs(t)).Find(t.Context())
	must(t, err)

	slices.Sort(place.Running)

	if place.Disk != "/dev/nvme0n1" || place.Size != 2048*512 || place.SectorSize != 4096 || place.Role != osimage.RoleUSR ||
		!slices.Equal(place.Running, []int{2, 3}) || place.RootHash != strings.Repeat("ab", 32) {
		t.Errorf("got %+v", place)
	}

	want := map[int]dps.Extent{1: {51200, 51200}, 2: {102400, 51200}, 3: {153600, 51200}, 4: {204800, 51200}}
	if !maps.Equal(place.Kernel, want) {
		t.Errorf("the kernel's partitions are %v", place.Kernel)
	}
}

func TestFindSpellings(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		mounts string
		role   osimage.Role
	}{
		"root":                  {"20 1 254:0 / / ro - erofs /dev/mapper/root ro\n", osimage.RoleRoot},
		"btrfs, by name":        {"20 1 0:25 / /usr ro - btrfs /dev/mapper/usr ro\n", osimage.RoleUSR},
		"btrfs, by node":        {"20 1 0:25 / /usr ro - btrfs /dev/dm-0 ro\n", osimage.RoleUSR},
		"plain root and usr":    {"20 1 259:4 / / rw - ext4 /dev/x rw\n21 20 254:0 / /usr ro - erofs /dev/y ro\n", osimage.RoleUSR},
		"encrypted":             {"20 1 254:1 / /usr rw - ext4 /dev/mapper/data rw\n", ""},
		"no verity":             {"20 1 259:4 / / rw - ext4 /dev/nvme0n1p4 rw\n", ""},
		"a directory of verity": {"20 1 254:0 /sub /usr rw - ext4 /dev/mapper/usr rw\n", ""},
		"nonsense":              {"\n20 1\n20 1 254:0 / /usr\n", ""},
	} {
		root := sysfs(t)
		write(t, root, "proc/self/mountinfo", tt.mounts)

		place, err := dps.NewSystem(root).Find(t.Context())
		if tt.role == "" {
			wantRefusal(t, err, v1alpha1.ReasonSchemeUnsupported)
		} else if err != nil || place.Role != tt.role {
			t.Errorf("%s: %+v, %v", name, place, err)
		}
	}
}

func TestFindRefusesWhatIsNoPartition(t *testing.T) {
	t.Parallel()

	slaves := "sys/devices/virtual/dm-0/slaves"

	for name, change := range map[string]func(t *testing.T, root string){
		"raid": func(t *testing.T, root string) {
			t.Helper()
			write(t, root, "sys/devices/virtual/md0/size", "1\n")
			link(t, root, "sys/devices/virtual/md0", "sys/class/block/md0")
			must(t, os.Remove(filepath.Join(root, slaves, "nvme0n1p2")))
			link(t, root, "sys/devices/virtual/md0", slaves+"/md0")
		},
		"one partition": func(t *testing.T, root string) {
			t.Helper()
			must(t, os.Remove(filepath.Join(root, slaves, "nvme0n1p2")))
		},
		"two disks": func(t *testing.T, root string) {
			t.Helper()
			write(t, root, "sys/devices/pci/sda/sda1/partition", "1\n")
			link(t, root, "sys/devices/pci/sda/sda1", "sys/class/block/sda1")
			must(t, os.Remove(filepath.Join(root, slaves, "nvme0n1p2")))
			link(t, root, "sys/devices/pci/sda/sda1", slaves+"/sda1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			root := sysfs(t)
			change(t, root)

			_, err := dps.NewSystem(root).Find(t.Context())
			wantRefusal(t, err, v1alpha1.ReasonSchemeUnsupported)
		})
	}
}

func TestOpenPartition(t *testing.T) {
	t.Parallel()

	system := dps.NewSystem(sysfs(t))

	medium, err := system.OpenPartition(t.Context(), 4, true)
	must(t, err)

	_, err = medium.WriteAt([]byte("written"), 10)
	must(t, err)
	must(t, medium.Sync())
	must(t, medium.DropCache())

	got := make([]byte, 9)
	_, err = medium.ReadAt(got, 9)
	must(t, err)
	must(t, medium.Close())

	if string(got) != "4written4" {
		t.Errorf("read %q", got)
	}

	if _, err := system.OpenPartition(t.Context(), 9, false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a partition that is not there: %v", err)
	}

	readOnly, err := system.OpenPartition(t.Context(), 4, false)
	must(t, err)

	if _, err := readOnly.WriteAt([]byte("x"), 0); err == nil {
		t.Error("wrote to a partition that was opened for reading")
	}

	must(t, readOnly.Close())
}

// While another program holds the lock the disk is not opened for writing.
func TestOpenDiskTakesTheLock(t *testing.T) {
	t.Parallel()

	root := sysfs(t)
	system := dps.NewSystem(root)

	other, err := os.Open(filepath.Join(root, "dev/nvme0n1"))
	must(t, err)
	must(t, unix.Flock(int(other.Fd()), unix.LOCK_EX))

	free, err := system.OpenDisk(t.Context(), false)
	must(t, err)
	must(t, free.Close())

	impatient, cancel := context.WithCancel(t.Context())
	cancel()

	if _, err := system.OpenDisk(impatient, true); !errors.Is(err, context.Canceled) {
		t.Errorf("OpenDisk() = %v while another holds the lock", err)
	}

	must(t, other.Close())

	disk, err := system.OpenDisk(t.Context(), true)
	must(t, err)
	must(t, disk.Close())
}

func TestOpenBootWhereItIsMounted(t *testing.T) {
	t.Parallel()

	root := sysfs(t)
	write(t, root, "boot/efi/EFI/Linux/x.efi", "here")
	write(t, root, "proc/self/mountinfo", "1 1 254:0 / /usr ro - erofs /dev/mapper/usr ro\n"+
		"2 1 259:1 / /ro ro - vfat /dev/nvme0n1p1 ro\n3 1 259:1 / /boot/efi rw - vfat /dev/nvme0n1p1 rw\n")

	files, err := dps.NewSystem(root).OpenBoot(t.Context(), 1)
	must(t, err)

	found, err := files.List("EFI/Linux")
	must(t, err)
	must(t, files.Close())

	if len(found) != 1 || found[0] != (dps.FileInfo{Name: "x.efi", Size: 4}) {
		t.Errorf("found %v", found)
	}
}

func TestOpenBootSharesNoMountOfOurs(t *testing.T) {
	t.Parallel()

	root := sysfs(t)
	write(t, root, "run/stayput/esp-1/EFI/Linux/x.efi", "mounted by another pass")
	write(t, root, "proc/self/mountinfo", "1 1 254:0 / /usr ro - erofs /dev/mapper/usr ro\n"+
		"3 1 259:1 / /run/stayput/esp-1 rw - vfat /dev/nvme0n1p1 rw\n")

	// There is no such device here, so that a mount of its own can only fail.
	if files, err := dps.NewSystem(root).OpenBoot(t.Context(), 1); err == nil {
		_ = files.Close()

		t.Error("OpenBoot() gave out the mount of another pass, which goes away under it")
	}
}

func TestFolder(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	files, err := dps.OpenFolder(dir)
	must(t, err)

	if found, err := files.List("EFI/Linux"); err != nil || len(found) > 0 {
		t.Errorf("an absent directory has %v, %v", found, err)
	}

	must(t, files.Create("EFI/Linux/A.efi", strings.NewReader("content")))

	if err := files.Create("EFI/Linux/a.EFI", strings.NewReader("other")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("created a file of the same name: %v", err)
	}

	must(t, files.Create("EFI/Linux/b.tmp", strings.NewReader("b")))

	if err := files.Rename("EFI/Linux/b.tmp", "EFI/Linux/A.EFI"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("replaced a file: %v", err)
	}

	must(t, files.Rename("EFI/Linux/b.tmp", "EFI/Linux/b+3.efi"))

	if err := files.Rename("EFI/Linux/b.tmp", "EFI/Linux/c.efi"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("renamed nothing: %v", err)
	}

	open, err := files.Open("EFI/Linux/A.efi")
	must(t, err)

	content, err := io.ReadAll(io.NewSectionReader(open, 0, open.Size()))
	must(t, err)
	must(t, open.Close())

	if string(content) != "content" {
		t.Errorf("read %q", content)
	}

	must(t, files.Remove("EFI/Linux/A.efi"))
	must(t, files.Remove("EFI/Linux/A.efi"))

	if _, err := files.Open("EFI/Linux/A.efi"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opened what was removed: %v", err)
	}

	if _, err := files.Open("../outside"); err == nil {
		t.Error("left the boot partition")
	}

	if free, err := files.Free(); err != nil || free <= 0 {
		t.Errorf("Free() = %d, %v", free, err)
	}

	must(t, files.Close())
}

// A source that breaks leaves a file that is not whole, under the staged name only.
func TestFolderKeepsTheErrorOfTheSource(t *testing.T) {
	t.Parallel()

	files, err := dps.OpenFolder(t.TempDir())
	must(t, err)

	broken := io.MultiReader(strings.NewReader("half"), failing{})
	if err := files.Create("EFI/Linux/x.tmp", broken); !errors.Is(err, errFailing) {
		t.Errorf("Create() = %v", err)
	}

	must(t, files.Close())
}

var errFailing = errors.New("the source failed")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errFailing }
