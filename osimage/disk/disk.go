package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/diskfs/go-diskfs/partition/gpt"
	"golang.org/x/sys/unix"

	"github.com/stayput-dev/stayput/osimage"
)

const fileMode = 0o644

// Format is the format of the file that holds the disk.
type Format string

// The formats. A raw file is the disk's bytes; QCOW2 leaves out what is zero.
const (
	FormatRaw   Format = "raw"
	FormatQCOW2 Format = "qcow2"
)

// Formats lists the formats.
func Formats() []Format {
	return []Format{FormatRaw, FormatQCOW2}
}

// The sizes of a logical sector, in bytes. A disk is of use only in a drive with sectors of its size: the partition
// table is counted in them.
const (
	SectorSize512 = 512
	SectorSize4K  = 4096
)

// SectorSizes lists the sizes of a sector.
func SectorSizes() []int64 {
	return []int64{SectorSize512, SectorSize4K}
}

// Options change the disk that is made.
type Options struct {
	Sizes Sizes
	// Seed makes the identities that the image does not give: the disk's, the ESP's, the root's and those of the empty
	// slot. Two disks in one machine must not have the same; "" takes the image's root hash.
	Seed string
	// Format is that of the file; "" means FormatRaw.
	Format Format
	// SectorSize is the size of the drive's logical sectors; 0 means SectorSize512.
	SectorSize int64
	// Checksum also writes the file's SHA-256 to the file's name with ".sha256" behind it, as sha256sum does.
	Checksum bool
	// Progress, when set, is called with the raw bytes of the contents that are on the disk.
	Progress func(done, total int64)
}

// Partition is a partition of the disk that was made.
type Partition struct {
	Number int    `json:"number"`
	Label  string `json:"label"`
	Type   string `json:"type"`
	UUID   string `json:"uuid"`
	// Start and Size are in bytes.
	Start int64 `json:"start"`
	Size  int64 `json:"size"`
}

// Result describes the disk that was made.
type Result struct {
	Format Format `json:"format"`
	// Size is the disk's, in bytes; the file of another format than raw is smaller.
	Size       int64  `json:"size"`
	SectorSize int64  `json:"sectorSize"`
	GUID       string `json:"guid"`
	// SHA256 is that of the file, in hexadecimal, when it was asked for.
	SHA256     string      `json:"sha256,omitempty"`
	Partitions []Partition `json:"partitions"`
}

// Create makes the disk in a regular file, which is sparse, and replaced as a whole when it exists: after an error it
// is as it was. It may be called again. A checksum file of what was there before is removed.
//
// A file in another format than raw needs room for a raw one beside it while it is made.
func Create(ctx context.Context, source osimage.Source, file string, options Options) (Result, error) {
	options, err := options.complete(source.Config())
	if err != nil {
		return Result{}, err
	}

	if err := checkContents(source.Config()); err != nil {
		return Result{}, err
	}

	if err := checkBlocks(ctx, source, options.SectorSize); err != nil {
		return Result{}, err
	}

	plan, err := newPlan(source.Config(), options.Sizes, options.Seed, options.SectorSize)
	if err != nil {
		return Result{}, err
	}

	out, err := openPartial(file)
	if err != nil {
		return Result{}, err
	}

	result := plan.result()
	result.Format = options.Format

	err = plan.write(ctx, source, out, options)
	if err == nil {
		result.SHA256, err = finish(ctx, out, file, options)
	}

	if err != nil {
		return Result{}, errors.Join(explained(err, file), osimage.RemoveFile(out.Name()), out.Close())
	}

	// Only now: the lock must last until the file has its final name.
	if err := out.Close(); err != nil {
		return Result{}, fmt.Errorf("making the disk: %w", err)
	}

	return result, nil
}

// explained says what helps against an error of the operating system.
func explained(err error, file string) error {
	folder := filepath.Dir(file)

	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return &osimage.Error{
			Kind: osimage.ErrTooLarge, Subject: file, Detail: "there is no room for it in " + folder, Err: err,
			Fix: "free some space, or name a file elsewhere; another format than raw needs room for both",
		}
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: file, Detail: "no file can be made in " + folder, Err: err,
			Fix: "name a file in a folder that you may write to",
		}
	default:
		return fmt.Errorf("making the disk: %w", err)
	}
}

// complete fills in what was left out and refuses what there is not.
func (o Options) complete(config osimage.Config) (Options, error) {
	o.Seed = cmp.Or(o.Seed, config.RootHash)
	o.Format = cmp.Or(o.Format, FormatRaw)
	o.SectorSize = cmp.Or(o.SectorSize, SectorSize512)

	if !slices.Contains(Formats(), o.Format) {
		return o, &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: fmt.Sprintf("--format %q", o.Format), Detail: "it is unknown",
			Fix: fmt.Sprintf("use %s or %s", FormatRaw, FormatQCOW2),
		}
	}

	if !slices.Contains(SectorSizes(), o.SectorSize) {
		return o, &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: fmt.Sprintf("--sector-size %d", o.SectorSize), Detail: "no drive has such sectors",
			Fix: fmt.Sprintf("use what `cat /sys/block/DISK/queue/logical_block_size` says: %d or %d", SectorSize512, SectorSize4K),
		}
	}

	return o, nil
}

// finish turns the raw disk into what was asked for and gives it its name, and returns its checksum.
func finish(ctx context.Context, raw *os.File, file string, options Options) (sum string, err error) {
	made := raw

	if options.Format == FormatQCOW2 {
		made, err = convert(ctx, raw, packedName(raw))
		if err != nil {
			return "", err
		}

		defer func() {
			if err != nil {
				err = errors.Join(err, osimage.RemoveFile(made.Name()))
			}

			err = errors.Join(err, made.Close())
		}()
	}

	if options.Checksum {
		if sum, err = checksumOf(ctx, made); err != nil {
			return "", fmt.Errorf("computing the checksum: %w", err)
		}
	}

	// First of all, so that there is never a checksum of something else.
	if err := osimage.RemoveFile(file + ChecksumSuffix); err != nil {
		return "", fmt.Errorf("removing the old checksum: %w", err)
	}

	if err := osimage.RenameFile(made, file); err != nil {
		return "", err
	}

	if made != raw {
		if err := osimage.RemoveFile(raw.Name()); err != nil {
			return "", err
		}
	}

	if options.Checksum {
		return sum, writeChecksum(file, sum)
	}

	return "", nil
}

// openPartial opens the file that becomes the disk. Its name is always the same, so that what a crash has left is
// taken over, and it is locked, so that two do not make it at once.
func openPartial(file string) (*os.File, error) {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return nil, &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: file, Detail: "it is not a regular file",
			Fix: "name a file, and write that to the device",
		}
	}

	if info, err := os.Stat(filepath.Dir(file)); err != nil || !info.IsDir() {
		return nil, &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: file, Detail: "there is no folder " + filepath.Dir(file),
			Fix: "make the folder, or name a file elsewhere",
		}
	}

	name := filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".partial")

	out, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, explained(err, file)
	}

	if err := lockPartial(out); err != nil {
		return nil, errors.Join(fmt.Errorf("making the disk %s: %w", file, err), out.Close())
	}

	// Blocks of zeros are left out when the disk is written, so nothing may be there. Nor of another format's try.
	if err := errors.Join(out.Truncate(0), osimage.RemoveFile(packedName(out))); err != nil {
		return nil, errors.Join(fmt.Errorf("making the disk: %w", err), out.Close())
	}

	return out, nil
}

// packedName is where a disk of another format is made from the raw one.
func packedName(raw *os.File) string {
	return raw.Name() + ".packed"
}

// lockPartial makes sure that nobody else makes the disk in this file, or has just finished it.
func lockPartial(out *os.File) error {
	if err := osimage.LockFile(out, out.Name()); err != nil {
		return err
	}

	opened, err := out.Stat()
	if err != nil {
		return err
	}

	if named, err := os.Stat(out.Name()); err != nil || !os.SameFile(opened, named) {
		return &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: out.Name(), Detail: "another program has just renamed or removed it",
			Fix: "look at what it has made, then try again or name another file",
		}
	}

	return nil
}

// checkContents refuses images that a disk cannot boot from.
func checkContents(config osimage.Config) error {
	if config.Scheme != osimage.SchemeDPS {
		return foreignScheme(config)
	}

	needed := []osimage.Role{osimage.RoleLoader}
	if _, ok := config.Content(osimage.RoleUSR); ok {
		needed = append(needed, osimage.RoleState)
	}

	for _, role := range needed {
		if _, ok := config.Content(role); !ok {
			return &osimage.Error{
				Kind: osimage.ErrNotFound, Subject: config.Label(),
				Detail: fmt.Sprintf("the image has no %s content, so no disk can be made from it", role),
				Fix:    fmt.Sprintf("build it with `stayput image build --%s FILE`", role),
			}
		}
	}

	return nil
}

// foreignScheme refuses images of others: their machines boot from the disk that their makers publish, with a layout,
// a boot loader and a first boot of its own.
func foreignScheme(config osimage.Config) error {
	disks := map[string]string{
		osimage.SchemeGPTPrio: "Flatcar's flatcar_production_image.bin, or the one of your platform",
		osimage.SchemeUKI:     "Garden Linux's .raw or .qcow2 of the same cname and version",
	}

	return &osimage.Error{
		Kind: osimage.ErrInvalid, Subject: config.Label(),
		Detail: fmt.Sprintf("no first disk is made from images of the scheme %s: their makers publish it", config.Scheme),
		Fix: fmt.Sprintf("provision the machine with %s; `stayput image publish --disk FILE` puts it beside this image",
			disks[config.Scheme]),
	}
}

// write fills the partitions and writes the partition table last.
func (p *plan) write(ctx context.Context, source osimage.Source, out *os.File, options Options) error {
	if err := errors.Join(out.Chmod(fileMode), out.Truncate(p.size)); err != nil {
		return fmt.Errorf("making a file of %d bytes: %w", p.size, err)
	}

	report := newReport(source.Config(), options.Progress)

	for _, place := range p.partitions {
		if place.role == "" {
			continue
		}

		content, ok := source.Config().Content(place.role)
		if !ok {
			continue
		}

		if err := osimage.Write(ctx, source, place.role, out, osimage.WriteOptions{
			Offset: place.start, Room: place.size, Sparse: true,
			Progress: func(progress osimage.Progress) { report.part(progress.Written) },
		}); err != nil {
			return fmt.Errorf("filling the partition %s: %w", place.label, err)
		}

		report.finish(content)
	}

	medium := &noted{File: out}

	err := writeESP(ctx, source, medium, p.partitions[0], p.sectorSize, identities(options.Seed))
	if err := medium.explain(err); err != nil {
		return fmt.Errorf("making the EFI system partition: %w", err)
	}

	if err := medium.explain(p.table().Write(medium, p.size)); err != nil {
		return fmt.Errorf("writing the partition table: %w", err)
	}

	return nil
}

func (p *plan) table() *gpt.Table {
	table := &gpt.Table{
		GUID: p.guid, ProtectiveMBR: true,
		LogicalSectorSize: int(p.sectorSize), PhysicalSectorSize: int(p.sectorSize),
	}

	for index, place := range p.partitions {
		table.Partitions = append(table.Partitions, &gpt.Partition{
			Index: index + 1, Name: place.label, Type: place.kind, GUID: place.id, Attributes: place.attributes,
			//nolint:gosec // Both are positive.
			Start: uint64(place.start / p.sectorSize), End: uint64((place.start+place.size)/p.sectorSize - 1),
		})
	}

	return table
}

func (p *plan) result() Result {
	result := Result{Size: p.size, SectorSize: p.sectorSize, GUID: p.guid}

	for index, place := range p.partitions {
		result.Partitions = append(result.Partitions, Partition{
			Number: index + 1, Label: place.label, Type: string(place.kind), UUID: place.id,
			Start: place.start, Size: place.size,
		})
	}

	return result
}

// report adds up progress over the contents that are written to partitions.
type report struct {
	done, total int64
	call        func(done, total int64)
}

func newReport(config osimage.Config, call func(done, total int64)) *report {
	result := &report{call: call}

	for _, content := range config.Contents {
		if content.Role != osimage.RoleUKI && content.Role != osimage.RoleLoader {
			result.total += content.RawSize
		}
	}

	return result
}

func (r *report) part(done int64) {
	if r.call != nil {
		r.call(r.done+done, r.total)
	}
}

func (r *report) finish(content osimage.Content) {
	r.done += content.RawSize
}
