package dps

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// sysfsSector is the unit of every size and start in sysfs, whatever the disk's sectors are.
const sysfsSector = 512

// System is the Host of the machine that this runs on, seen through /proc, /sys and /dev.
type System struct {
	// root is prepended to every path; "" is the real system.
	root string
	// bootMounts is the directory below which the boot partition is mounted when nobody else has done so.
	bootMounts string
}

var _ Host = System{}

// NewSystem returns the Host of this machine. The root is prepended to every path; "" is the real system.
func NewSystem(root string) System {
	return System{root: root, bootMounts: filepath.Join(root, "/run/stayput")}
}

// mount is a line of /proc/self/mountinfo (proc(5)).
type mount struct {
	device, point, kind, source string
	readOnly                    bool
}

// Find finds the verity device under /usr or /, the partitions under that, and their disk.
func (s System) Find(_ context.Context) (Place, error) {
	mounts, err := s.mounts()
	if err != nil {
		return Place{}, err
	}

	role, mapped, err := s.verityDevice(mounts)
	if err != nil {
		return Place{}, err
	}

	place, err := s.placeOf(role, mapped)
	if err != nil {
		return Place{}, err
	}

	line, err := boot.System{Root: s.root}.CommandLine()
	if err != nil {
		return Place{}, fmt.Errorf("finding the running root hash: %w", err)
	}

	place.RootHash = line.RootHash()

	return place, nil
}

// verityDevice is the name in sysfs of the device-mapper device under the running /usr, or else under /.
func (s System) verityDevice(mounts []mount) (role osimage.Role, name string, err error) {
	for _, candidate := range []struct {
		point string
		role  osimage.Role
	}{{"/usr", osimage.RoleUSR}, {"/", osimage.RoleRoot}} {
		for _, m := range mounts {
			// A later mount, such as an overlay with extensions, may lie on top; the one that we look for is below.
			if m.point != candidate.point {
				continue
			}

			name, err := s.mappedDevice(m)
			if err != nil {
				return "", "", err
			}

			if name != "" {
				return candidate.role, name, nil
			}
		}
	}

	return "", "", slots.Refuse(v1alpha1.ReasonSchemeUnsupported, "neither /usr nor / is on a dm-verity device, so the slot "+
		"that runs cannot be told; run an image with a verity-protected root or usr file system")
}

// mappedDevice is the name of the dm-verity device that a mount is on, "" when it is on none. Some file systems (btrfs)
// have a device number of their own; then the name of the mount's source is what is left.
func (s System) mappedDevice(m mount) (string, error) {
	devices, err := filepath.Glob(filepath.Join(s.root, "/sys/block/dm-*"))
	if err != nil {
		return "", fmt.Errorf("listing device-mapper devices: %w", err)
	}

	for _, device := range devices {
		kind, err := readLine(filepath.Join(device, "dm/uuid"))
		if err != nil {
			return "", err
		}

		number, err := readLine(filepath.Join(device, "dev"))
		if err != nil {
			return "", err
		}

		name, err := readLine(filepath.Join(device, "dm/name"))
		if err != nil {
			return "", err
		}

		base := filepath.Base(device)
		if strings.HasPrefix(kind, "CRYPT-VERITY-") &&
			(number == m.device || m.source == "/dev/mapper/"+name || m.source == "/dev/"+base) {
			return base, nil
		}
	}

	return "", nil
}

// placeOf finds the partitions under a verity device, and their disk.
func (s System) placeOf(role osimage.Role, mapped string) (Place, error) {
	below, err := os.ReadDir(filepath.Join(s.root, "/sys/block", mapped, "slaves"))
	if err != nil {
		return Place{}, fmt.Errorf("finding the partitions under %s: %w", mapped, err)
	}

	place := Place{Role: role}
	disk := ""

	for _, device := range below {
		partition, err := filepath.EvalSymlinks(filepath.Join(s.root, "/sys/class/block", device.Name()))
		if err != nil {
			return Place{}, fmt.Errorf("finding the partitions under %s: %w", mapped, err)
		}

		number, err := readNumber(filepath.Join(partition, "partition"))
		if errors.Is(err, fs.ErrNotExist) {
			return Place{}, slots.Refuse(v1alpha1.ReasonSchemeUnsupported, "the running %s is on %s, which is no partition of a "+
				"disk; this scheme does not work through RAID, LVM or multipath", role, device.Name())
		}

		if err != nil {
			return Place{}, err
		}

		place.Running = append(place.Running, int(number))

		if parent := filepath.Dir(partition); disk == "" || disk == parent {
			disk = parent
		} else {
			return Place{}, slots.Refuse(v1alpha1.ReasonSchemeUnsupported, "the running %s is spread over disks %s and %s",
				role, filepath.Base(disk), filepath.Base(parent))
		}
	}

	if len(place.Running) != 2 {
		return Place{}, slots.Refuse(v1alpha1.ReasonSchemeUnsupported, "the running %s is on %d partitions instead of a file "+
			"system and a hash partition", role, len(place.Running))
	}

	return s.describeDisk(place, disk)
}

// describeDisk adds what sysfs says of the disk and its partitions.
func (s System) describeDisk(place Place, disk string) (Place, error) {
	sectors, err := readNumber(filepath.Join(disk, "size"))
	if err != nil {
		return Place{}, err
	}

	if place.SectorSize, err = readNumber(filepath.Join(disk, "queue/logical_block_size")); err != nil {
		return Place{}, err
	}

	place.Size = sectors * sysfsSector
	place.Kernel = map[int]Extent{}

	if place.Disk, err = deviceNode(disk); err != nil {
		return Place{}, err
	}

	parts, err := filepath.Glob(filepath.Join(disk, "*", "partition"))
	if err != nil {
		return Place{}, fmt.Errorf("listing partitions: %w", err)
	}

	for _, part := range parts {
		number, err := readNumber(part)
		if err != nil {
			return Place{}, err
		}

		start, err := readNumber(filepath.Join(filepath.Dir(part), "start"))
		if err != nil {
			return Place{}, err
		}

		size, err := readNumber(filepath.Join(filepath.Dir(part), "size"))
		if err != nil {
			return Place{}, err
		}

		place.Kernel[int(number)] = Extent{Start: start * sysfsSector, Size: size * sysfsSector}
	}

	return place, nil
}

// OpenDisk opens the disk of the running system.
func (s System) OpenDisk(ctx context.Context, write bool) (Medium, error) {
	place, err := s.Find(ctx)
	if err != nil {
		return nil, err
	}

	return openDisk(ctx, filepath.Join(s.root, place.Disk), write)
}

// OpenPartition opens a partition of that disk. For writing it takes the device for itself, which fails when it is
// mounted or under a device-mapper device: the last guard of the running slot.
func (s System) OpenPartition(ctx context.Context, number int, write bool) (Medium, error) {
	partition, err := s.partition(ctx, number)
	if err != nil {
		return nil, err
	}

	node, err := deviceNode(partition)
	if err != nil {
		return nil, err
	}

	return openPartition(filepath.Join(s.root, node), write)
}

// OpenBoot returns the boot partition where others have mounted it, or mounts it for this caller alone until it is closed.
// A mount of ours is never shared: the one who made it takes it away, in this process or in another.
func (s System) OpenBoot(ctx context.Context, number int) (BootFiles, error) {
	partition, err := s.partition(ctx, number)
	if err != nil {
		return nil, err
	}

	device, err := readLine(filepath.Join(partition, "dev"))
	if err != nil {
		return nil, err
	}

	mounts, err := s.mounts()
	if err != nil {
		return nil, err
	}

	usable := slices.IndexFunc(mounts, func(m mount) bool {
		return m.device == device && m.kind == "vfat" && !m.readOnly && filepath.Dir(filepath.Join(s.root, m.point)) != s.bootMounts
	})
	if usable >= 0 {
		return OpenFolder(filepath.Join(s.root, mounts[usable].point))
	}

	node, err := deviceNode(partition)
	if err != nil {
		return nil, err
	}

	return mountBoot(filepath.Join(s.root, node), s.bootMounts)
}

// partition is the directory in sysfs of a partition of the running disk.
func (s System) partition(ctx context.Context, number int) (string, error) {
	place, err := s.Find(ctx)
	if err != nil {
		return "", err
	}

	disk, err := filepath.EvalSymlinks(filepath.Join(s.root, "/sys/class/block",
		strings.ReplaceAll(strings.TrimPrefix(place.Disk, "/dev/"), "/", "!")))
	if err != nil {
		return "", fmt.Errorf("finding partition %d of %s: %w", number, place.Disk, err)
	}

	parts, err := filepath.Glob(filepath.Join(disk, "*", "partition"))
	if err != nil {
		return "", fmt.Errorf("finding partition %d of %s: %w", number, place.Disk, err)
	}

	for _, part := range parts {
		if found, err := readNumber(part); err == nil && found == int64(number) {
			return filepath.Dir(part), nil
		}
	}

	return "", fmt.Errorf("finding partition %d of %s: %w", number, place.Disk, fs.ErrNotExist)
}

func (s System) mounts() ([]mount, error) {
	file, err := os.Open(filepath.Join(s.root, "/proc/self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}
	defer func() { _ = file.Close() }() // only read

	var mounts []mount

	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if m, ok := parseMount(lines.Text()); ok {
			mounts = append(mounts, m)
		}
	}

	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}

	return mounts, nil
}

// parseMount reads "id parent major:minor root point options [optional…] - type source superoptions". Mounts of a
// directory below the file system's root are left out.
func parseMount(line string) (mount, bool) {
	const (
		device, root, point, options   = 2, 3, 4, 5
		kind, source, superOptions     = 0, 1, 2
		fieldsBefore, fieldsAfterwards = 6, 3
	)

	before, after, found := strings.Cut(line, " - ")
	left, right := strings.Fields(before), strings.Fields(after)

	if !found || len(left) < fieldsBefore || len(right) < fieldsAfterwards || left[root] != "/" {
		return mount{}, false
	}

	readOnly := func(options string) bool { return slices.Contains(strings.Split(options, ","), "ro") }

	return mount{
		device: left[device], point: unescape(left[point]), kind: right[kind], source: unescape(right[source]),
		readOnly: readOnly(left[options]) || readOnly(right[superOptions]),
	}, true
}

// unescape takes the octal escapes of blanks out of a path.
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}

// deviceNode is the device node of a block device's directory in sysfs.
func deviceNode(device string) (string, error) {
	content, err := os.ReadFile(filepath.Join(device, "uevent"))
	if err != nil {
		return "", fmt.Errorf("finding the device node of %s: %w", filepath.Base(device), err)
	}

	for line := range strings.Lines(string(content)) {
		if name, found := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); found {
			return "/dev/" + name, nil
		}
	}

	return "", fmt.Errorf("finding the device node of %s: its uevent has no DEVNAME: %w", filepath.Base(device), fs.ErrNotExist)
}

func readLine(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}

	return strings.TrimSpace(string(content)), nil
}

func readNumber(path string) (int64, error) {
	text, err := readLine(path)
	if err != nil {
		return 0, err
	}

	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", path, err)
	}

	return number, nil
}
