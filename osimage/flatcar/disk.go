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
		return nil, refuse(path, "a disk image brings its own kernel, and has no signature inside", "leave --kernel and --key out")
	}

	file, err := openArtifact(ctx, path, options)
	if err != nil {
		return nil, err
	}

	parts, err := readDisk(ctx, file, options)
	if err != nil {
		return nil, errors.Join(err, file.file.Close())
	}

	parts.Close = file.file.Close
	parts.Notes = append(parts.Notes, "a disk image has no signature inside: "+unsigned)

	return parts, nil
}

func readDisk(ctx context.Context, file *artifact, options Options) (*source.Parts, error) {
	disk, err := openDisk(file, options)
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

	boot, err := readKernel(image, image.Name()+" on the ESP of "+file.name)
	if err != nil {
		return nil, err
	}

	section := disk.Section(slot, slotSize)

	data := usr{name: "USR-A of " + file.name, size: section.Size(), reader: func() io.ReaderAt { return section }}

	parts, err := assemble(ctx, data, boot, options)
	if err != nil {
		return nil, err
	}

	parts.Inputs = map[osimage.Role]osimage.Input{
		osimage.RoleUSR:    opened(data.name, data.size, section),
		osimage.RoleKernel: opened(image.Name()+" of "+file.name, image.Size(), image),
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

// openDisk reads the partition table. Of a compressed image it unpacks what is needed, and no more: all of that lies in
// the first half.
func openDisk(file *artifact, options Options) (*rawdisk.Disk, error) {
	if file.plain == nil {
		return rawdisk.Read(file.file, file.size, file.name)
	}

	head := make([]byte, rawdisk.TableSize)

	count, err := fill(file.plain, head)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, file.broken(err)
	}

	disk, err := rawdisk.Read(bytes.NewReader(head[:count]), rawdisk.Unknown, file.name)
	if err != nil {
		return nil, err
	}

	slot, esp, err := choose(disk)
	if err != nil {
		return nil, err
	}

	temp, err := temporary(options)
	if err != nil {
		return nil, err
	}

	stream := io.MultiReader(bytes.NewReader(head[:count]), file.plain)

	end, err := unpackPartitions(temp, stream, disk, [2]rawdisk.Partition{slot, esp})
	if err != nil {
		return nil, errors.Join(file.broken(err), temp.Close())
	}

	if err := errors.Join(temp.Truncate(end), file.replace(temp, end)); err != nil {
		return nil, fmt.Errorf("unpacking %s: %w", file.name, err)
	}

	return disk.On(temp), nil
}

// unpackPartitions copies partitions to the same place of a file, and returns where the last of them ends.
func unpackPartitions(to io.WriterAt, from io.Reader, disk *rawdisk.Disk, wanted [2]rawdisk.Partition) (int64, error) {
	if wanted[0].Start > wanted[1].Start {
		wanted[0], wanted[1] = wanted[1], wanted[0]
	}

	var position int64

	for _, partition := range wanted {
		length := partition.Size
		if partition.Type == typeUSR {
			length = min(length, slotSize)
		}

		if partition.Start < position {
			return position, refuse(disk.Name, fmt.Sprintf("partition %d begins inside another one", partition.Number), redownload)
		}

		if _, err := io.CopyN(io.Discard, from, partition.Start-position); err != nil {
			return position, err
		}

		done, err := copySparse(to, partition.Start, io.LimitReader(from, length))
		if err != nil {
			return position, err
		}

		if done < length {
			return position, &osimage.Error{
				Kind: osimage.ErrTruncated, Subject: disk.Name, Fix: redownload,
				Detail: fmt.Sprintf("the partition table wants %d bytes, the file unpacks to %d", disk.Size, partition.Start+done),
			}
		}

		position = partition.Start + length
	}

	return position, nil
}
