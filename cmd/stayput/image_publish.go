package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/osimage/disk"
)

func newImagePublishCommand() *cobra.Command {
	var (
		registry registryFlags
		output   outputFormat
		what     disk.Publication
	)

	command := &cobra.Command{
		Use:   "publish IMAGE... REGISTRY/REPOSITORY:TAG",
		Short: "Put images, and the disks that machines begin with, under one tag",
		Long: `Put images, and the disks that machines begin with, under one tag.

The tag names an OCI index with one image for each architecture, and beside each its disks as Ironic reads them. So the
same name is "oci://REGISTRY/REPOSITORY:TAG" in a BareMetalHost, and REGISTRY/REPOSITORY:TAG in a HostPool and for all
other commands, which choose the image from it. An IMAGE is a folder, or an image that is in a registry already.

A disk is what "stayput image disk" has made from the image, or the vendor's disk of Flatcar or Garden Linux; raw or
QCOW2, at most one of each for an architecture. A disk that does not hold the image is refused; file systems and their
hash trees are compared byte for byte. Disks for sectors of 4096 bytes need a tag of their own.

The images keep their signatures, and the index has none yet: "stayput image sign" signs all of it.

It may be called again: what the registry has is not sent again, and the same images and disks give the same index. With
others the tag names only those afterwards, also when disks are left out, and what it named before is told.`,
		Example: `  stayput image publish ./image registry.example/os/node:1.0.0 --disk node.raw --disk node.qcow2
  stayput image publish ./amd64 ./arm64 registry.example/os/node:1.0.0 --disk amd64.qcow2 --disk arm64.qcow2`,
		Args: takes(cobra.MinimumNArgs(2)), //nolint:mnd // an image and a reference
	}
	flags := command.Flags()
	registry.add(flags)
	addOutputFlag(flags, &output)
	flags.StringArrayVar(&what.Disks, "disk", nil, "`FILE` with a disk of one of the images; may be repeated")

	command.RunE = func(cmd *cobra.Command, args []string) error {
		client, err := registry.client(cmd)
		if err != nil {
			return err
		}

		last := len(args) - 1

		for _, name := range args[:last] {
			image, err := registry.open(cmd, name)
			if err != nil {
				return err
			}

			what.Images = append(what.Images, image)
		}

		bars := newProgress(cmd.ErrOrStderr())
		what.Progress = bars.show
		published, err := disk.Publish(cmd.Context(), client, what, args[last])

		bars.end()

		if err != nil {
			return err
		}

		return printAs(cmd.OutOrStdout(), output, published, func(out io.Writer) { describePublished(out, published) })
	}

	return command
}

// describePublished writes tab-separated columns; the table's Flush reports errors. The digest of a disk's manifest is
// what Ironic takes in place of the tag; that of the index it does not.
func describePublished(out io.Writer, published disk.Published) {
	repository, _, _ := strings.Cut(published.Reference, "@")

	_, _ = fmt.Fprintf(out, "%s\n", published.Reference)

	if published.Replaced != "" {
		_, _ = fmt.Fprintf(out, "The tag named something else before: %s@%s\n", repository, published.Replaced)
	}

	_, _ = fmt.Fprintf(out, "\nARCH\tWHAT\tSIZE MiB\tREFERENCE\n")

	for _, entry := range published.Entries {
		what, scheme := "image", ""
		if entry.Format != "" {
			what, scheme = fmt.Sprintf("%s disk, sectors of %d", entry.Format, entry.SectorSize), "oci://"
		}

		_, _ = fmt.Fprintf(out, "%s\t%s\t%.1f\t%s%s@%s\n", entry.Architecture, what, float64(entry.Size)/mebibyte,
			scheme, repository, entry.Digest)
	}
}
