package flatcar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source"
	"github.com/stayput-dev/stayput/osimage/source/packed"
	"github.com/stayput-dev/stayput/osimage/source/rawdisk"
)

// The partitions are known by the GUIDs of build_library/disk_layout.json; that of USR-A is the same on every disk, and
// GRUB chooses the kernel by it.
const (
	typeUSR  = "5dfbf5f4-2848-4bac-aa5e-0d9a20b745a6"
	typeESP  = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
	partUSRA = "7130c94a-213a-4e5a-8e26-6cce9662f132"
)

// kernelPaths are where the kernel of USR-A is on the ESP; disks that began as CoreOS have the second.
func kernelPaths() []string { return []string{"/flatcar/vmlinuz-a", "/coreos/vmlinuz-a"} }

// ReadDisk reads flatcar_production_image.bin, also as .bin.bz2 or .gz. The /usr is the first GiB of USR-A, as Flatcar's
// own update has it. The caller closes the parts.
func ReadDisk(ctx context.Context, path string, options Options) (*source.Parts, error) {
	if options.Kernel != "" || len(options.Keys) > 0 {
		return nil, refuse(path, "a disk image brings its own kernel, and has no signature inside", "leave --kernel and --verify-key out")
	}

	file, err := packed.OpenRanges(ctx, path, rawdisk.TableSize, func(head []byte) ([]packed.Range, error) {
		return needed(head, path)
	}, options.unpacking(maxDisk))
	if err != nil {
		return nil, err
	}

	parts, err := readDisk(ctx, file, options)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}

	parts.Close = file.Close
	parts.Notes = append(parts.Notes, "a disk image has no signature inside: "+unsigned)

	return parts, nil
}

// needed tells which parts of a disk are to be unpacked: nothing else is looked at, and all of it lies in the first half.
func needed(head []byte, name string) ([]packed.Range, error) {
	disk, err := rawdisk.Read(bytes.NewReader(head), rawdisk.Unknown, name)
	if err != nil {
		return nil, err
	}

	slot, esp, err := choose(disk)
	if err != nil {
		return nil, err
	}

	return []packed.Range{
		{Offset: 0, Size: int64(len(head))}, {Offset: slot.Start, Size: min(slot.Size, slotSize)}, {Offset: esp.Start, Size: esp.Size},
	}, nil
}

func readDisk(ctx context.Context, file *packed.File, options Options) (*source.Parts, error) {
	size := file.Size
	if file.Format != packed.None {
		size = rawdisk.Unknown // its end was not unpacked
	}

	disk, err := rawdisk.Read(file, size, file.Name)
	if err != nil {
		return nil, err
	}

	slot, esp, err := choose(disk)
	if err != nil {
		return nil, err
	}

	image, err := findKernel(disk, esp)
	if err != nil {
		return nil, err
	}

	boot, err := readKernel(image, image.Name()+" on the ESP of "+file.Name)
	if err != nil {
		return nil, err
	}

	section := disk.Section(slot, slotSize)

	data := usr{name: "USR-A of " + file.Name, size: section.Size(), reader: func() io.ReaderAt { return section }}

	parts, err := assemble(ctx, data, boot, options)
	if err != nil {
		return nil, err
	}

	parts.Inputs = map[osimage.Role]osimage.Input{
		osimage.RoleUSR:    opened(data.name, data.size, section),
		osimage.RoleKernel: opened(image.Name()+" of "+file.Name, image.Size(), image),
	}

	return parts, nil
}

// choose finds the slot and the ESP.
func choose(disk *rawdisk.Disk) (slot, esp rawdisk.Partition, err error) {
	for _, partition := range disk.Partitions {
		switch {
		case partition.Type == typeUSR && partition.UUID == partUSRA:
			slot = partition
		case partition.Type == typeESP && esp.Number != 0:
			return slot, esp, refuse(disk.Name, fmt.Sprintf("partitions %d and %d are both EFI system partitions", esp.Number, partition.Number),
				"give a Flatcar disk image")
		case partition.Type == typeESP:
			esp = partition
		}
	}

	if slot.Number == 0 {
		return slot, esp, refuse(disk.Name, fmt.Sprintf("no partition is USR-A, with the type %s and the UUID %s; there are %s",
			typeUSR, partUSRA, disk.List()), "give a Flatcar disk image")
	}

	if esp.Number == 0 {
		return slot, esp, refuse(disk.Name, fmt.Sprintf("no partition is an EFI system partition, with the type %s; there are %s",
			typeESP, disk.List()), "give a Flatcar disk image")
	}

	return slot, esp, nil
}

func findKernel(disk *rawdisk.Disk, esp rawdisk.Partition) (*rawdisk.File, error) {
	fat, err := rawdisk.OpenFAT(disk.Section(esp, math.MaxInt64), fmt.Sprintf("partition %d of %s", esp.Number, disk.Name))
	if err != nil {
		return nil, err
	}

	for _, path := range kernelPaths() {
		file, err := fat.Open(path, maxKernel)
		if err == nil || !errors.Is(err, osimage.ErrNotFound) {
			return file, err
		}
	}

	return nil, refuse(disk.Name, fmt.Sprintf("the ESP, partition %d, has none of %v", esp.Number, kernelPaths()), "give a Flatcar disk image")
}
