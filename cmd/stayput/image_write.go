package main

import (
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/osimage"
)

func newImageWriteCommand() *cobra.Command {
	var (
		registry registryFlags
		role     string
		offset   int64
	)

	command := &cobra.Command{
		Use:   "write IMAGE TARGET --role ROLE",
		Short: "Write one content of an image to a block device or a file, and read it back",
		Long: `Write one content of an image to a block device or a file, and read it back.

The content is streamed: nothing is stored besides, and memory does not grow with its size. Success means that the
medium returned every byte. What is on the target already is kept, so calling it again goes on where it stopped, and
does nothing when all is there. A device that is mounted or otherwise in use is refused.

This writes bytes only: it changes no partition table and no boot entry.`,
		Example: `  stayput image write registry.example/os/node:1.1.0 /dev/disk/by-partlabel/_empty --role usr
  stayput image write ./image usr.erofs --role usr`,
		Args: takes(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			image, err := registry.open(cmd, args[0])
			if err != nil {
				return err
			}

			return writeContent(cmd, image, osimage.Role(role), args[1], offset)
		},
	}
	registry.add(command.Flags())
	registry.addArchitecture(command.Flags())
	command.Flags().StringVar(&role, "role", "", "the content's `ROLE`, as `stayput image inspect` lists them")
	command.Flags().Int64Var(&offset, "offset", 0, "where on the target the content begins, in `BYTES`")

	if err := command.MarkFlagRequired("role"); err != nil {
		panic(err) // The flag was added above.
	}

	return command
}

func writeContent(cmd *cobra.Command, image *osimage.Image, role osimage.Role, path string, offset int64) (err error) {
	content, ok := image.Config().Content(role)
	if !ok {
		return mistake(fmt.Sprintf("--role %q", role), "the image has no such content", "`stayput image inspect` lists them")
	}

	if offset < 0 || offset > math.MaxInt64-content.RawSize {
		return mistake(fmt.Sprintf("--offset %d", offset), "no target has that many bytes", "use 0 or more, up to the target's end")
	}

	target, err := openTarget(path, content.RawSize, offset)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, target.Close()) }()

	bars := newProgress(cmd.ErrOrStderr())
	err = osimage.Write(cmd.Context(), image, role, target, osimage.WriteOptions{
		Offset: offset, Resume: true,
		Progress: func(done int64) { bars.show(string(role), done, content.RawSize) },
	})

	bars.end()

	if err != nil {
		return err
	}

	return printLine(cmd, "%s of %s is on %s: %d bytes, %s", role, image.Config().Label(), path, content.RawSize,
		content.RawDigest)
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
