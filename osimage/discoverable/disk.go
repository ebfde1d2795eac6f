package discoverable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source"
	"github.com/stayput-dev/stayput/osimage/source/packed"
	"github.com/stayput-dev/stayput/osimage/source/rawdisk"
	"github.com/stayput-dev/stayput/osimage/uki"
	"github.com/stayput-dev/stayput/osimage/verity"
)

// maxDisk bounds what a compressed disk may unpack to. Zeros take no room.
const maxDisk = 1 << 40

const rebuild = "build the disk again, or download it again and compare its checksum"

// Options change how a disk is read.
type Options struct {
	// Version and Architecture choose when the disk holds several; "" takes the newest version, and the only architecture.
	Version, Architecture string
	// TempDir is the folder for what a compressed disk unpacks to, and Progress tells of that.
	TempDir  string
	Progress func(done, total int64)
}

// system is one whole installation on the disk.
type system struct {
	entry        entry
	data, verity rawdisk.Partition
}

// Read reads a raw disk image. The caller releases the parts.
func Read(ctx context.Context, path string, options Options) (parts *source.Parts, err error) {
	file, err := packed.Open(ctx, path, packed.Options{TempDir: options.TempDir, Limit: maxDisk, Progress: options.Progress})
	if err != nil {
		return nil, err
	}

	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close())
		}
	}()

	disk, err := rawdisk.Read(file, file.Size, path)
	if err != nil {
		return nil, err
	}

	parts, err = readDisk(disk, options)
	if err != nil {
		return nil, err
	}

	parts.Close = file.Close

	return parts, nil
}

func readDisk(disk *rawdisk.Disk, options Options) (*source.Parts, error) {
	files, err := openBootFiles(disk)
	if err != nil {
		return nil, err
	}

	entries, err := files.entries()
	if err != nil {
		return nil, err
	}

	chosen, notes, err := choose(disk, entries, files.refused, options)
	if err != nil {
		return nil, err
	}

	image := chosen.entry.image
	parts := &source.Parts{
		Name: image.SortKey(), Version: image.Version(), Variant: uki.Variant(image.OSRelease),
		Architecture: image.Architecture, Scheme: osimage.SchemeDPS,
		RootHash: chosen.entry.hash, Notes: notes,
		Inputs: map[osimage.Role]osimage.Input{osimage.RoleUKI: fileInput(chosen.entry.file, chosen.entry.place)},
	}

	if err := addSlot(disk, chosen, parts); err != nil {
		return nil, err
	}

	loader, err := files.loader(image.Architecture)
	if err != nil {
		return nil, err
	}

	if loader == nil {
		parts.Notes = append(parts.Notes, "no boot loader was found on the disk, so no first disk can be made of the image")
	} else {
		parts.Inputs[osimage.RoleLoader] = fileInput(loader, loader.Name()+" of "+disk.Name)
	}

	return parts, nil
}

// choose finds the newest system whose partitions are all there.
func choose(disk *rawdisk.Disk, entries []entry, refused []string, options Options) (system, []string, error) {
	var (
		found    []system
		problems = refused
	)

	for _, one := range entries {
		whole, problem := assemble(disk, one)
		if problem == "" && options.Architecture != "" && one.image.Architecture != options.Architecture {
			problem = "it is made for " + one.image.Architecture
		}

		if problem == "" && options.Version != "" && one.image.Version() != options.Version {
			problem = "its version is " + one.image.Version()
		}

		if problem != "" {
			problems = append(problems, one.place+": "+problem)

			continue
		}

		found = append(found, whole)
	}

	slices.SortStableFunc(found, func(a, b system) int {
		return cmp.Or(uki.CompareVersions(b.data.Label, a.data.Label), uki.CompareVersions(b.entry.image.Version(), a.entry.image.Version()))
	})

	if len(found) == 0 {
		return system{}, nil, nothingFound(disk, problems, options)
	}

	best := found[0].entry.image

	for _, other := range found[1:] {
		if other.entry.image.Architecture != best.Architecture {
			return system{}, nil, refuse(disk.Name, fmt.Sprintf("it holds systems for %s and %s", best.Architecture, other.entry.image.Architecture),
				"choose one with --arch")
		}
	}

	return found[0], chosenNotes(found), nil
}

func chosenNotes(found []system) []string {
	var notes []string

	for _, other := range found[1:] {
		if other.entry.hash != found[0].entry.hash {
			notes = append(notes, fmt.Sprintf("the disk holds %s, too; the newest was taken, --version chooses", other.data.Label))
		}
	}

	chosen := found[0]

	if want := chosen.entry.image.SortKey() + "_" + chosen.entry.image.Version(); chosen.data.Label != want {
		notes = append(notes, fmt.Sprintf("the partition's label is %q; on a node it will be %q", chosen.data.Label, want))
	}

	if kernel := chosen.entry.image.KernelRelease; kernel != "" {
		notes = append(notes, "kernel "+kernel)
	}

	if !chosen.entry.image.Signed {
		notes = append(notes, "the UKI is not signed for Secure Boot")
	}

	return notes
}

func nothingFound(disk *rawdisk.Disk, problems []string, options Options) error {
	detail := "no UKI in " + linuxDir + " starts a file system of the disk"

	if options.Version != "" {
		detail += " with version " + options.Version
	}

	if len(problems) > 0 {
		detail += ": " + strings.Join(problems, "; ")
	}

	return refuse(disk.Name, detail+"; its partitions are "+disk.List(),
		"build the disk with a UKI that has usrhash= or roothash= on its command line, and partitions with the UUIDs that belong to it")
}

// assemble finds the partitions of a UKI's root hash. The text tells what is missing.
func assemble(disk *rawdisk.Disk, one entry) (whole system, problem string) {
	whole.entry = one
	dataID, verityID := uuidOf(one.hash[:32]), uuidOf(one.hash[32:])

	for _, partition := range disk.Partitions {
		is, ok := kindOf(partition.Type)
		if !ok || is.data != one.role || is.architecture != one.image.Architecture || is.signature || !inUse(partition.Label) {
			continue
		}

		switch {
		case !is.verity && partition.UUID == dataID:
			whole.data = partition
		case is.verity && partition.UUID == verityID:
			whole.verity = partition
		}
	}

	switch {
	case whole.data.Size == 0:
		return system{}, fmt.Sprintf("there is no %s partition for %s with the UUID %s", one.role, one.image.Architecture, dataID)
	case whole.verity.Size == 0:
		return system{}, fmt.Sprintf("there is no %s-verity partition for %s with the UUID %s", one.role, one.image.Architecture, verityID)
	default:
		return whole, ""
	}
}

// addSlot adds the file system and its hash tree, as long as they are: a partition's rest is nobody's.
func addSlot(disk *rawdisk.Disk, chosen system, parts *source.Parts) error {
	name := func(partition rawdisk.Partition) string {
		return fmt.Sprintf("partition %d %q of %s", partition.Number, partition.Label, disk.Name)
	}

	data := disk.Section(chosen.data, chosen.data.Size)
	hashes := disk.Section(chosen.verity, chosen.verity.Size)

	tree, err := verity.Open(hashes, 0)
	if err == nil {
		err = tree.CheckRoot(parts.RootHash)
	}

	if err != nil {
		return &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: name(chosen.verity), Detail: "it is not the hash tree that the UKI names", Err: err, Fix: rebuild,
		}
	}

	for _, size := range []struct {
		partition rawdisk.Partition
		want      int64
		what      string
	}{{chosen.data, tree.DataSize(), "hash tree covers"}, {chosen.verity, tree.Size(), "hash tree has"}} {
		if size.want > size.partition.Size {
			return &osimage.Error{
				Kind: osimage.ErrTruncated, Subject: name(size.partition),
				Detail: fmt.Sprintf("the %s %d bytes, the partition has %d", size.what, size.want, size.partition.Size), Fix: rebuild,
			}
		}
	}

	dataRole, verityRole := osimage.RoleUSR, osimage.RoleUSRVerity
	if chosen.entry.role == osimage.RoleRoot {
		dataRole, verityRole = osimage.RoleRoot, osimage.RoleRootVerity
	}

	parts.Inputs[dataRole] = sectionInput(name(chosen.data), data, tree.DataSize(),
		func(data io.Reader) io.Reader {
			return &checked{reader: tree.Reader(data, parts.RootHash), name: name(chosen.data)}
		})
	parts.Inputs[verityRole] = sectionInput(name(chosen.verity), hashes, tree.Size(), nil)

	return nil
}

// checked says of which partition the data does not match.
type checked struct {
	reader io.Reader
	name   string
}

func (c *checked) Read(buffer []byte) (int, error) {
	count, err := c.reader.Read(buffer)
	if errors.Is(err, verity.ErrMismatch) || errors.Is(err, verity.ErrNoTree) {
		err = &osimage.Error{Kind: osimage.ErrWrongDigest, Subject: c.name, Err: err, Fix: rebuild}
	}

	return count, err
}

func opener(from io.ReaderAt, size int64, check func(io.Reader) io.Reader) func(context.Context) (io.ReadCloser, error) {
	return func(context.Context) (io.ReadCloser, error) {
		reader := io.Reader(io.NewSectionReader(from, 0, size))
		if check != nil {
			reader = check(reader)
		}

		return io.NopCloser(reader), nil
	}
}

func refuse(subject, detail, fix string) error {
	return &osimage.Error{Kind: osimage.ErrInvalid, Subject: subject, Detail: detail, Fix: fix}
}
