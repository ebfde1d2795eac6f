package disk

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/diskfs/go-diskfs/partition/gpt"
	"github.com/lima-vm/go-qcow2reader/image"
	"github.com/lima-vm/go-qcow2reader/image/qcow2"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source/rawdisk"
	"github.com/stayput-dev/stayput/osimage/uki"
)

const (
	// flatcarKernel is where the kernel of Flatcar's first slot is on the ESP of the disk that Flatcar publishes.
	flatcarKernel = "/flatcar/vmlinuz-a"
	maxKernelSize = 512 * mib
	// ukiFolder is where systemd-boot looks for UKIs; a first disk has one or two of them.
	ukiFolder = "/EFI/Linux"
	maxUKIs   = 64

	// Limits of QEMU on QCOW2 (docs/interop/qcow2.rst; block/qcow2.h): cluster sizes, and an L1 table of 32 MiB.
	minClusterBits = 9
	maxClusterBits = 21
	maxL1Entries   = 4 * mib
	// allowedFeatures are the incompatible features that neither Ironic nor the reader refuses: the compression type.
	allowedFeatures = 1 << 3
)

// diskFile is a disk that somebody has made, open for reading.
type diskFile struct {
	*os.File

	format Format
	size   int64
	table  *rawdisk.Disk
}

// openDisk finds out what a file is. The caller closes it.
func openDisk(name string) (*diskFile, error) {
	in, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening the disk: %w", err)
	}

	found := &diskFile{File: in}
	if err := found.identify(); err != nil {
		return nil, errors.Join(err, in.Close())
	}

	return found, nil
}

func (f *diskFile) identify() error {
	info, err := f.Stat()

	switch {
	case err != nil:
		return fmt.Errorf("opening the disk: %w", err)
	case !info.Mode().IsRegular():
		return &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: f.Name(), Detail: "it is not a regular file", Fix: "give the file with the disk",
		}
	}

	f.size = info.Size()

	content, size, err := f.content()
	if err != nil {
		return err
	}

	f.table, err = rawdisk.Read(content, size, f.Name())
	if err != nil {
		return fmt.Errorf("looking into the disk, which was taken for %s: %w", f.format, err)
	}

	return nil
}

// content is what the machine sees of the disk.
func (f *diskFile) content() (io.ReaderAt, int64, error) {
	magic := make([]byte, len(qcowMagic))
	if _, err := f.ReadAt(magic, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, fmt.Errorf("reading the disk: %w", err)
	}

	if string(magic) != qcowMagic {
		f.format = FormatRaw

		return f.File, f.size, nil
	}

	f.format = FormatQCOW2

	opened, err := openQCOW2(f.File, f.size, f.Name())
	if err != nil {
		return nil, 0, err
	}

	return opened, opened.Size(), nil
}

// openQCOW2 refuses what Ironic would refuse on the machine, and what the reader could not be trusted with.
func openQCOW2(reader io.ReaderAt, size int64, name string) (image.Image, error) {
	if err := checkQCOW2(reader, size, name); err != nil {
		return nil, err
	}

	// Without the file's own methods, so that nothing can be opened beside it.
	opened, err := qcow2.Open(struct{ io.ReaderAt }{reader}, func(io.ReaderAt, image.Type) (image.Image, error) {
		return nil, qcow2.ErrUnsupportedBackingFile
	})
	if err == nil {
		err = opened.Readable()
	}

	if err != nil {
		return nil, &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: name, Detail: "the QCOW2 file cannot be read", Err: err,
			Fix: "look at it with `qemu-img check`, and make it again",
		}
	}

	return opened, nil
}

func checkQCOW2(reader io.ReaderAt, size int64, name string) error {
	header := make([]byte, qcowHeaderLength)
	// A header of version 2 is shorter, and the file is not.
	if _, err := reader.ReadAt(header, 0); err != nil {
		return badQCOW2(name, 0, "its header ends after %d bytes", size)
	}

	version, bits := binary.BigEndian.Uint32(header[4:]), binary.BigEndian.Uint32(header[20:])

	switch {
	case version != 2 && version != qcowVersion:
		return badQCOW2(name, 4, "the version is %d, want 2 or 3", version)
	case binary.BigEndian.Uint64(header[8:]) != 0:
		return badQCOW2(name, 8, "it has a backing file, and machines have not")
	case bits < minClusterBits || bits > maxClusterBits:
		return badQCOW2(name, 20, "clusters have 2^%d bytes, want 2^%d to 2^%d", bits, minClusterBits, maxClusterBits)
	case binary.BigEndian.Uint64(header[24:]) > maxSize:
		return badQCOW2(name, 24, "the disk has %d bytes", binary.BigEndian.Uint64(header[24:]))
	case binary.BigEndian.Uint32(header[32:]) != 0:
		return badQCOW2(name, 32, "it is encrypted")
	case version == qcowVersion && binary.BigEndian.Uint64(header[72:])&^allowedFeatures != 0:
		return badQCOW2(name, 72, "it uses the features %#x: it was not closed, is damaged, or has its data elsewhere",
			binary.BigEndian.Uint64(header[72:]))
	default:
		return checkL1(header, size, name)
	}
}

// checkL1 bounds the table that the reader takes into memory.
func checkL1(header []byte, size int64, name string) error {
	entries, table := int64(binary.BigEndian.Uint32(header[36:])), binary.BigEndian.Uint64(header[40:])

	// The second comparison cannot overflow after the first.
	if entries == 0 || entries > maxL1Entries || table > maxSize || int64(table)+8*entries > size {
		return badQCOW2(name, 36, "the L1 table of %d entries at %d is not within the %d bytes of the file", entries, table, size)
	}

	return nil
}

func badQCOW2(name string, offset int, format string, values ...any) error {
	return &osimage.Error{
		Kind: osimage.ErrInvalid, Subject: name,
		Detail: fmt.Sprintf("QCOW2 header, offset %d: %s", offset, fmt.Sprintf(format, values...)),
		Fix:    "make it a plain one: qemu-img convert -O qcow2 FILE NEW",
	}
}

// holds tells whether a machine with the disk runs the image from its first boot.
func (f *diskFile) holds(ctx context.Context, config osimage.Config) (bool, error) {
	switch config.Scheme {
	case osimage.SchemeDPS:
		return f.hasPartitions(ctx, config)
	case osimage.SchemeGPTPrio:
		return f.hasKernel(ctx, config)
	default:
		return f.hasUKI(config)
	}
}

// hasPartitions looks for the partitions of the image by their types and by their UUIDs, which are the halves of the root
// hash. What is found by that must have the image's bytes: a machine whose disk has others would not get through its first
// boot.
func (f *diskFile) hasPartitions(ctx context.Context, config osimage.Config) (bool, error) {
	kinds := typesOf(config.Architecture)
	data, verity := uuidOf(config.RootHash[:32]), uuidOf(config.RootHash[32:])

	for _, of := range []struct {
		role osimage.Role
		kind gpt.Type
		uuid string
	}{
		{osimage.RoleUSR, kinds.usr, data},
		{osimage.RoleUSRVerity, kinds.usrVerity, verity},
		{osimage.RoleRoot, kinds.root, data},
		{osimage.RoleRootVerity, kinds.rootVerity, verity},
	} {
		content, ok := config.Content(of.role)
		if !ok {
			continue
		}

		at := slices.IndexFunc(f.table.Partitions, func(partition rawdisk.Partition) bool {
			return strings.EqualFold(partition.Type, string(of.kind)) && strings.EqualFold(partition.UUID, of.uuid)
		})
		if at < 0 {
			return false, nil
		}

		if err := f.compare(ctx, f.table.Partitions[at], content); err != nil {
			return false, err
		}
	}

	return true, nil
}

// compare refuses a partition that is said to hold a content and does not.
func (f *diskFile) compare(ctx context.Context, partition rawdisk.Partition, content osimage.Content) error {
	sum, err := sumOfSection(ctx, f.table.Section(partition, content.RawSize))
	if err != nil {
		return fmt.Errorf("reading partition %d of %s: %w", partition.Number, f.Name(), err)
	}

	if got := "sha256:" + sum; got != content.RawDigest {
		return &osimage.Error{
			Kind: osimage.ErrWrongDigest, Subject: f.Name(),
			Detail: fmt.Sprintf("partition %d has the UUID of the image's %s, but its first %d bytes have the digest %s, not %s",
				partition.Number, content.Role, content.RawSize, got, content.RawDigest),
			Fix: "make the disk again with `stayput image disk`, or fetch the vendor's again",
		}
	}

	return nil
}

// hasUKI looks on the ESP for a UKI with the name, version and architecture of the image. Its bytes are not compared: the
// vendor may have signed the two at different times.
func (f *diskFile) hasUKI(config osimage.Config) (bool, error) {
	fat, err := f.openESP()
	if fat == nil || err != nil {
		return false, err
	}

	names, err := fat.List(ukiFolder)
	if errors.Is(err, osimage.ErrNotFound) {
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("looking for UKIs: %w", err)
	}

	for _, name := range names[:min(len(names), maxUKIs)] {
		opened, err := fat.Open(path.Join(ukiFolder, name), math.MaxUint32)
		if err != nil {
			return false, fmt.Errorf("looking for UKIs: %w", err)
		}

		image, err := uki.Read(opened)
		if err != nil && !errors.Is(err, uki.ErrNotUKI) {
			return false, fmt.Errorf("reading %s of %s: %w", name, f.Name(), err)
		}

		if err == nil && image.SortKey() == config.Name && image.Version() == config.Version &&
			image.Architecture == config.Architecture {
			return true, nil
		}
	}

	return false, nil
}

// openESP opens the file system of the first ESP; without one it is nil.
func (f *diskFile) openESP() (*rawdisk.FAT, error) {
	for _, partition := range f.table.Partitions {
		if !strings.EqualFold(partition.Type, string(gpt.EFISystemPartition)) {
			continue
		}

		fat, err := rawdisk.OpenFAT(f.table.Section(partition, partition.Size), "ESP of "+f.Name())
		if err != nil {
			return nil, fmt.Errorf("looking at what the disk boots: %w", err)
		}

		return fat, nil
	}

	return nil, nil //nolint:nilnil // Said above.
}

// hasKernel compares the kernel that GRUB starts from the first slot with the image's: it holds the root hash.
func (f *diskFile) hasKernel(ctx context.Context, config osimage.Config) (bool, error) {
	fat, err := f.openESP()
	if fat == nil || err != nil {
		return false, err
	}

	kernel, err := fat.Open(flatcarKernel, maxKernelSize)
	if errors.Is(err, osimage.ErrNotFound) {
		return false, nil
	}

	if err != nil {
		return false, fmt.Errorf("looking for Flatcar's kernel: %w", err)
	}

	sum := sha256.New()
	if _, err := io.Copy(sum, untilDone{ctx, io.NewSectionReader(kernel, 0, kernel.Size())}); err != nil {
		return false, fmt.Errorf("reading Flatcar's kernel: %w", err)
	}

	content, _ := config.Content(osimage.RoleKernel)

	return content.RawDigest == "sha256:"+hex.EncodeToString(sum.Sum(nil)), nil
}
