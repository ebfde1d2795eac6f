package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/stayput-dev/stayput/osimage"
)

const fileMode = 0o644

// Options change the disk that is made.
type Options struct {
	Sizes Sizes
	// Seed makes the identities that the image does not give: the disk's, the ESP's, the root's and those of the empty
	// slot. Two disks in one machine must not have the same; "" takes the image's root hash.
	Seed string
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
	Size       int64       `json:"size"`
	GUID       string      `json:"guid"`
	Partitions []Partition `json:"partitions"`
}

// Create makes the disk in a regular file, which is sparse, and replaced as a whole when it exists: after an error it
// is as it was. It may be called again.
func Create(ctx context.Context, source osimage.Source, file string, options Options) (Result, error) {
	if err := checkContents(source.Config()); err != nil {
		return Result{}, err
	}

	if options.Seed == "" {
		options.Seed = source.Config().RootHash
	}

	plan, err := newPlan(source.Config(), options.Sizes, options.Seed)
	if err != nil {
		return Result{}, err
	}

	out, err := openPartial(file)
	if err != nil {
		return Result{}, err
	}

	err = plan.write(ctx, source, out, options)
	if err == nil {
		err = osimage.RenameFile(out, file)
	}

	if err != nil {
		return Result{}, errors.Join(fmt.Errorf("making the disk: %w", err), osimage.RemoveFile(out.Name()), out.Close())
	}

	// Only now: the lock must last until the file has its final name.
	if err := out.Close(); err != nil {
		return Result{}, fmt.Errorf("making the disk: %w", err)
	}

	return plan.result(), nil
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
		return nil, fmt.Errorf("making the disk: %w", err)
	}

	if err := lockPartial(out); err != nil {
		return nil, errors.Join(fmt.Errorf("making the disk %s: %w", file, err), out.Close())
	}

	// Blocks of zeros are left out when the disk is written, so nothing may be there.
	if err := out.Truncate(0); err != nil {
		return nil, errors.Join(fmt.Errorf("making the disk: %w", err), out.Close())
	}

	return out, nil
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
			Offset: place.start, Room: place.size, Sparse: true, Progress: report.part,
		}); err != nil {
			return fmt.Errorf("filling the partition %s: %w", place.label, err)
		}

		report.finish(content)
	}

	if err := writeESP(ctx, source, out, p.partitions[0], identities(options.Seed)); err != nil {
		return fmt.Errorf("making the EFI system partition: %w", err)
	}

	if err := p.table().Write(out, p.size); err != nil {
		return fmt.Errorf("writing the partition table: %w", err)
	}

	return nil
}

func (p *plan) table() *gpt.Table {
	table := &gpt.Table{
		GUID: p.guid, ProtectiveMBR: true, LogicalSectorSize: sectorSize, PhysicalSectorSize: sectorSize,
	}

	for index, place := range p.partitions {
		table.Partitions = append(table.Partitions, &gpt.Partition{
			Index: index + 1, Name: place.label, Type: place.kind, GUID: place.id, Attributes: place.attributes,
			//nolint:gosec // Both are positive.
			Start: uint64(place.start / sectorSize), End: uint64((place.start+place.size)/sectorSize - 1),
		})
	}

	return table
}

func (p *plan) result() Result {
	result := Result{Size: p.size, GUID: p.guid}

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
