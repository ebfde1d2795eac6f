package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/osimage"
)

func newImageWriteCommand() *cobra.Command {
	var (
		registry registryFlags
		role     string
		offset   string
		seeds    []string
	)

	command := &cobra.Command{
		Use:   "write IMAGE TARGET --role ROLE",
		Short: "Write one content of an image to a block device or a file, and read it back",
		Long: `Write one content of an image to a block device or a file, and read it back.

The content is streamed: nothing is stored besides, and memory does not grow with its size. Success means that the
medium returned every byte. What is on the target already is kept, so calling it again goes on where it stopped, and
does nothing when all is there. Bytes that an older content has, on the target or in a --seed, are not fetched. A device
that is mounted or otherwise in use is refused.

This writes bytes only: it changes no partition table and no boot entry.`,
		Example: `  stayput image write registry.example/os/node:1.1.0 /dev/disk/by-partlabel/_empty --role usr
  stayput image write registry.example/os/node:1.2.0 /dev/disk/by-partlabel/_empty --role usr \
      --seed /dev/disk/by-partlabel/node_1.1.0
  stayput image write ./image usr.erofs --role usr`,
		Args: takes(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			start, err := parseOffset(offset)
			if err != nil {
				return err
			}

			image, err := registry.open(cmd, args[0])
			if err != nil {
				return err
			}

			return writeContent(cmd, image, osimage.Role(role), args[1], start, seeds)
		},
	}
	registry.add(command.Flags())
	registry.addArchitecture(command.Flags())
	command.Flags().StringVar(&role, "role", "", "the content's `ROLE`, as `stayput image inspect` lists them")
	command.Flags().StringVar(&offset, "offset", "0", "where on the target the content begins, in `BYTES`, such as 50Mi")
	command.Flags().StringArrayVar(&seeds, "seed", nil,
		"`FILE` or device with an older content, which is only read; may be given more than once")

	if err := command.MarkFlagRequired("role"); err != nil {
		panic(err) // The flag was added above.
	}

	return command
}

// parseOffset reads a quantity such as 50Mi, or 0.
func parseOffset(text string) (int64, error) {
	offset, ok := bytesIn(text)
	if !ok || offset < 0 {
		return 0, mistake(fmt.Sprintf("--offset %q", text), "it is no place on a target",
			"use 0, a number of bytes, or one such as 50Mi")
	}

	return offset, nil
}

func writeContent(
	cmd *cobra.Command, image *osimage.Image, role osimage.Role, path string, offset int64, seedPaths []string,
) (err error) {
	content, ok := image.Config().Content(role)
	if !ok {
		return mistake(fmt.Sprintf("--role %q", role), "the image has no such content", "`stayput image inspect` lists them")
	}

	if offset > math.MaxInt64-content.RawSize {
		return mistake(fmt.Sprintf("--offset %d", offset), "no target has that many bytes", "use less, up to the target's end")
	}

	target, err := openTarget(path, content.RawSize, offset)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, target.Close()) }()

	seeds, closeSeeds, err := openSeeds(seedPaths, target)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, closeSeeds()) }()

	bars := newProgress(cmd.ErrOrStderr())
	err = osimage.Write(cmd.Context(), image, role, target, osimage.WriteOptions{
		Offset: offset, Resume: true, Seeds: seeds,
		Progress: tellPlans(bars, role, content),
	})

	bars.end()

	if err != nil {
		return err
	}

	return printLine(cmd, "%s of %s is on %s: %d bytes, %s", role, image.Config().Label(), path, content.RawSize,
		content.RawDigest)
}

// tellPlans shows progress, and says of each plan what will be fetched, and why not all.
func tellPlans(bars progress, role osimage.Role, content osimage.Content) func(osimage.Progress) {
	var told *osimage.Planned

	return func(now osimage.Progress) {
		if plan := now.Plan; plan != nil && plan != told {
			told = plan

			bars.note(fmt.Sprintf("Fetching %d of the layer's %d bytes, in requests: %d; of the content's %d bytes %d are there "+
				"already, %d are copied from older contents", plan.Fetch, content.Size, plan.Requests, content.RawSize, plan.Kept, plan.Reused))
		}

		bars.write(string(role), now)
	}
}

// openSeeds opens files and devices with older contents.
func openSeeds(paths []string, target *os.File) (seeds []osimage.Seed, closeAll func() error, err error) {
	var files []*os.File

	closeAll = func() error {
		var err error
		for _, file := range files {
			err = errors.Join(err, file.Close())
		}

		return err
	}

	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("opening the seed: %w", err), closeAll())
		}

		files = append(files, file)

		size, err := seedSize(file, target)
		if err != nil {
			return nil, nil, errors.Join(err, closeAll())
		}

		seeds = append(seeds, osimage.Seed{Name: path, Reader: file, Size: size})
	}

	return seeds, closeAll, nil
}

func seedSize(file, target *os.File) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, fmt.Errorf("looking at the seed: %w", err)
	}

	other, err := target.Stat()
	if err != nil {
		return 0, fmt.Errorf("looking at the target: %w", err)
	}

	isDevice := info.Mode()&(os.ModeDevice|os.ModeCharDevice) == os.ModeDevice

	switch {
	case !info.Mode().IsRegular() && !isDevice:
		return 0, mistake("--seed "+file.Name(), "it is neither a block device nor a regular file", "name an older content")
	case os.SameFile(info, other):
		return 0, mistake("--seed "+file.Name(), "it is the target, which is written to",
			"leave it out: what is on the target is used anyway")
	}

	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("finding the size of the seed %s: %w", file.Name(), err)
	}

	return size, nil
}

// openTarget opens a block device exclusively, or a file that is not larger than what will be in it, locked.
func openTarget(path string, size, offset int64) (*os.File, error) {
	const mode = 0o644

	info, err := os.Stat(path)

	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("looking at the target: %w", err)
	case info.Mode()&os.ModeCharDevice == 0 && info.Mode()&os.ModeDevice != 0:
		// On a block device O_EXCL without O_CREAT means: not while it is in use (open(2)).
		target, err := os.OpenFile(path, os.O_RDWR|os.O_EXCL, 0)
		if err != nil {
			return nil, fmt.Errorf("opening the device: %w (it must not be mounted or in use)", err)
		}

		return target, nil
	case !info.Mode().IsRegular():
		return nil, mistake(path, "it is neither a block device nor a regular file", "name the partition's device, or a file")
	case offset == 0 && info.Size() > size:
		return nil, mistake(path, fmt.Sprintf("it has %d bytes already, more than the content's %d", info.Size(), size),
			"remove it, or give --offset to write into it")
	}

	target, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, mode)
	if err != nil {
		return nil, fmt.Errorf("opening the target: %w", err)
	}

	// Two that write to one file would both find other bytes than they wrote.
	if err := osimage.LockFile(target, path); err != nil {
		return nil, errors.Join(err, target.Close())
	}

	return target, nil
}
