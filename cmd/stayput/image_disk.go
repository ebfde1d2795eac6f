package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/osimage/disk"
)

func newImageDiskCommand() *cobra.Command {
	var (
		registry registryFlags
		output   outputFormat
		options  disk.Options
		sizes    = map[string]*string{}
	)

	command := &cobra.Command{
		Use:   "disk IMAGE FILE",
		Short: "Make the disk for a machine's first provisioning",
		Long: `Make the disk for a machine's first provisioning.

The disk has a GPT with the EFI system partition, slot a with the image, slot b empty, and the persistent root file
system at the end. The image needs a loader and, when it has a /usr, a state content. Nothing is mounted, root is not
needed, and the same image and flags give the same bytes. The file is sparse, and replaced as a whole. Its SHA-256 is
in a file beside it, FILE.sha256.

Slots and the ESP cannot grow later: choose --slot-size and --esp-size for the versions to come. The root file system
can: leave --disk-size out, and let the machine grow it at its first boot.

A drive with sectors of 4096 bytes needs a disk of its own, made with --sector-size 4096.

Images of Flatcar and Garden Linux have no loader of ours: provision such machines with the vendor's disk.`,
		Example: `  stayput image disk registry.example/os/node:1.0.0 node.qcow2 --format qcow2 --slot-size 4Gi
  stayput image disk registry.example/os/node:1.0.0 node-4k.raw --sector-size 4096`,
		Args: takes(cobra.ExactArgs(2)),
	}
	flags := command.Flags()
	registry.add(flags)
	registry.addArchitecture(flags)
	addOutputFlag(flags, &output)

	for name, use := range map[string]string{
		"disk-size":   " of the disk (default: a root file system 1Gi larger than its first contents)",
		"esp-size":    " of the EFI system partition; at least three UKIs must fit (default: 512Mi or more)",
		"slot-size":   " of each slot's data partition (default: half as much again as the content)",
		"verity-size": " of each slot's hash partition (default: what the slot's size needs)",
	} {
		sizes[name] = flags.String(name, "", "`SIZE`"+use+", such as 4Gi")
	}

	flags.StringVar((*string)(&options.Format), "format", string(disk.FormatRaw), "`FORMAT` of the file: raw or qcow2")
	flags.Int64Var(&options.SectorSize, "sector-size", disk.SectorSize512,
		"`BYTES` of a logical sector of the machine's drive: 512 or 4096")
	flags.BoolVar(&options.Checksum, "checksum", true, "also write FILE.sha256")
	flags.StringVar(&options.Seed, "uuid-seed", "",
		"`TEXT` that the disk's own UUIDs are made from (default: the root hash, so all disks of an image have the same)")

	command.RunE = func(cmd *cobra.Command, args []string) error {
		for name, into := range map[string]*int64{
			"disk-size": &options.Sizes.Disk, "esp-size": &options.Sizes.ESP,
			"slot-size": &options.Sizes.Slot, "verity-size": &options.Sizes.Verity,
		} {
			if err := parseSize(name, *sizes[name], into); err != nil {
				return err
			}
		}

		image, err := registry.open(cmd, args[0])
		if err != nil {
			return err
		}

		bars := newProgress(cmd.ErrOrStderr())
		options.Progress = func(done, total int64) { bars.show("disk", done, total) }
		result, err := disk.Create(cmd.Context(), image, args[1], options)

		bars.end()

		if err != nil {
			return err
		}

		return printAs(cmd.OutOrStdout(), output, result, func(out io.Writer) { describeDisk(out, args[1], result) })
	}

	return command
}

// parseSize reads a quantity such as 4Gi.
func parseSize(flag, text string, into *int64) error {
	if text == "" {
		return nil
	}

	size, ok := bytesIn(text)
	if !ok || size <= 0 {
		return mistake(fmt.Sprintf("--%s %q", flag, text), "it is not a size", "use a number of bytes, or one such as 512Mi or 4Gi")
	}

	*into = size

	return nil
}

// describeDisk writes tab-separated columns; the table's Flush reports errors.
func describeDisk(out io.Writer, file string, result disk.Result) {
	_, _ = fmt.Fprintf(out, "%s: %d MiB, %s, sectors of %d bytes, disk GUID %s\n",
		file, result.Size/mebibyte, result.Format, result.SectorSize, result.GUID)

	if result.SHA256 != "" {
		_, _ = fmt.Fprintf(out, "SHA-256: %s\n", result.SHA256)
	}

	_, _ = fmt.Fprintln(out)
	_, _ = fmt.Fprintf(out, "NUMBER\tLABEL\tSTART MiB\tSIZE MiB\tUUID\n")

	for _, partition := range result.Partitions {
		_, _ = fmt.Fprintf(out, "%d\t%s\t%d\t%d\t%s\n", partition.Number, partition.Label,
			partition.Start/mebibyte, partition.Size/mebibyte, partition.UUID)
	}
}
