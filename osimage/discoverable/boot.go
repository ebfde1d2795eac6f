package discoverable

import (
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source/rawdisk"
	"github.com/stayput-dev/stayput/osimage/uki"
)

const (
	linuxDir = "/EFI/Linux"
	// maxUKI is what a file on a FAT can have, and maxLoader more than any boot loader has.
	maxUKI    = 1<<32 - 1
	maxLoader = 64 << 20
	// maxEntries bounds how many UKIs are looked at.
	maxEntries = 256
)

var rootHashPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// entry is a UKI that starts one of the disk's file systems.
type entry struct {
	file  *rawdisk.File
	image uki.Image
	// role is that of the file system that its command line names, and hash the root hash.
	role osimage.Role
	hash string
	// place names the partition and the file, for errors.
	place string
}

// bootFiles are the FAT file systems that the boot loader reads: the ESP and the extended boot loader partition.
type bootFiles struct {
	disk    *rawdisk.Disk
	systems []*rawdisk.FAT
	names   []string
	// refused says of each file why it is no entry.
	refused []string
}

func openBootFiles(disk *rawdisk.Disk) (*bootFiles, error) {
	files := &bootFiles{disk: disk}

	for _, partition := range disk.Partitions {
		if partition.Type != typeESP && partition.Type != typeXBOOTLDR {
			continue
		}

		name := fmt.Sprintf("partition %d %q of %s", partition.Number, partition.Label, disk.Name)

		system, err := rawdisk.OpenFAT(disk.Section(partition, partition.Size), name)
		if err != nil {
			return nil, err
		}

		files.systems, files.names = append(files.systems, system), append(files.names, name)
	}

	if len(files.systems) == 0 {
		return nil, refuse(disk.Name, "it has no EFI system partition; its partitions are "+disk.List(),
			"give the disk image of a system that starts with a UKI")
	}

	return files, nil
}

// entries finds the UKIs with a root hash on their command line.
func (b *bootFiles) entries() ([]entry, error) {
	var found []entry

	for index, system := range b.systems {
		names, err := system.List(linuxDir)
		if err != nil && !errors.Is(err, osimage.ErrNotFound) {
			return nil, err
		}

		names = slices.DeleteFunc(names, func(name string) bool { return !strings.EqualFold(path.Ext(name), ".efi") })
		if len(names) > maxEntries {
			return nil, refuse(b.names[index], fmt.Sprintf("%s has %d UKIs, at most %d are read", linuxDir, len(names), maxEntries),
				"remove those that are not needed")
		}

		for _, name := range names {
			one, err := b.entry(index, path.Join(linuxDir, name))
			if err != nil {
				return nil, err
			}

			if one != nil {
				found = append(found, *one)
			}
		}
	}

	return found, nil
}

// entry reads a UKI, nil when it starts none of the disk's file systems.
func (b *bootFiles) entry(system int, name string) (*entry, error) {
	file, err := b.systems[system].Open(name, maxUKI)
	if err != nil {
		return nil, err
	}

	one := &entry{file: file, place: name + " on " + b.names[system]}

	if problem := one.read(); problem != "" {
		b.refused = append(b.refused, name+": "+problem)

		return nil, nil //nolint:nilnil // Said above.
	}

	if file.Size() < one.image.Size {
		return nil, &osimage.Error{
			Kind: osimage.ErrTruncated, Subject: one.place,
			Detail: fmt.Sprintf("it has %d bytes, its headers tell of %d", file.Size(), one.image.Size), Fix: rebuild,
		}
	}

	return one, nil
}

// read finds out what the file starts. The text tells why it can start nothing.
func (e *entry) read() (problem string) {
	image, err := uki.Read(e.file)
	if err != nil {
		return err.Error()
	}

	e.image = image

	switch usr, root := hashOf(image, "usrhash"), hashOf(image, "roothash"); {
	case !image.HasKernel:
		return "it has no .linux section"
	case image.Architecture == "":
		return "it is made for a machine that is neither amd64 nor arm64"
	case usr != "" && root == "":
		e.role, e.hash = osimage.RoleUSR, usr
	case root != "" && usr == "":
		e.role, e.hash = osimage.RoleRoot, root
	default:
		return fmt.Sprintf("its command line %.200q has not one of usrhash= and roothash= with 64 digits", image.CommandLine)
	}

	return ""
}

func hashOf(image uki.Image, key string) string {
	value, _ := image.CommandLine.Value(key)
	if value = strings.ToLower(value); rootHashPattern.MatchString(value) {
		return value
	}

	return ""
}

// loader finds the boot loader, nil when there is none, or when firmware starts the UKI itself.
func (b *bootFiles) loader(architecture string) (*rawdisk.File, error) {
	for _, system := range b.systems {
		for _, name := range loaderNames(architecture) {
			file, err := system.Open(name, maxLoader)

			switch {
			case errors.Is(err, osimage.ErrNotFound), errors.Is(err, osimage.ErrTooLarge):
				continue
			case err != nil:
				return nil, err
			}

			if !isSystem(file) {
				return file, nil
			}
		}
	}

	return nil, nil //nolint:nilnil // An image without a boot loader is fine for updates.
}

func isSystem(file io.ReaderAt) bool {
	image, err := uki.Read(file)

	return err == nil && image.HasKernel
}

func fileInput(file *rawdisk.File, place string) osimage.Input {
	return sectionInput(place, file, file.Size(), nil)
}

// sectionInput gives the first bytes of something as a content, passed through check when there is one.
func sectionInput(name string, from io.ReaderAt, size int64, check func(io.Reader) io.Reader) osimage.Input {
	return osimage.Input{Name: name, Size: size, Open: opener(from, size, check)}
}
