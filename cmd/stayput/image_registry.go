package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/osimage"
)

func newImagePushCommand() *cobra.Command {
	var registry registryFlags

	command := &cobra.Command{
		Use:   "push FOLDER[:TAG] REGISTRY/REPOSITORY:TAG",
		Short: "Push an image from an OCI layout folder to a registry",
		Long: `Push an image from an OCI layout folder to a registry.

Layers that the registry has already are not sent again, so calling it again after a failure goes on with what is
missing. The others are verified while they are sent: a damaged folder leaves no image in the registry.

It prints the reference by digest, which is what to put into a HostPool.`,
		Example: `  stayput image push ./image registry.example/os/node:1.1.0`,
		Args:    takes(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := registry.client(cmd)
			if err != nil {
				return err
			}

			dir, tag, _ := layoutOf(args[0])
			bars := newProgress(cmd.ErrOrStderr())
			resolved, err := client.Push(cmd.Context(), dir, tag, args[1],
				func(done, total int64) { bars.show("push", done, total) })

			bars.end()

			if err != nil {
				return err
			}

			return printLine(cmd, "%s", resolved.Reference)
		},
	}
	registry.add(command.Flags())

	return command
}

func newImagePullCommand() *cobra.Command {
	var registry registryFlags

	command := &cobra.Command{
		Use:   "pull REGISTRY/REPOSITORY:TAG FOLDER",
		Short: "Pull an image from a registry into an OCI layout folder",
		Long: `Pull an image from a registry into an OCI layout folder.

Every digest is verified. Calling it again after a failure goes on where it stopped.`,
		Example: `  stayput image pull registry.example/os/node:1.1.0 ./image`,
		Args:    takes(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := registry.client(cmd)
			if err != nil {
				return err
			}

			bars := newProgress(cmd.ErrOrStderr())
			image, err := client.Pull(cmd.Context(), args[0], args[1],
				func(done, total int64) { bars.show("pull", done, total) })

			bars.end()

			if err != nil {
				return err
			}

			return printLine(cmd, "%s", image.Reference())
		},
	}
	registry.add(command.Flags())
	registry.addArchitecture(command.Flags())

	return command
}

func newImageInspectCommand() *cobra.Command {
	var (
		registry registryFlags
		output   outputFormat
	)

	command := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Show what an image is and holds",
		Example: `  stayput image inspect registry.example/os/node:1.1.0
  stayput image inspect ./image -o json`,
		Args: takes(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			image, err := registry.open(cmd, args[0])
			if err != nil {
				return err
			}

			return printAs(cmd.OutOrStdout(), output, struct {
				Reference string         `json:"reference"`
				Digest    string         `json:"digest"`
				Config    osimage.Config `json:"config"`
			}{image.Reference(), image.Digest(), image.Config()}, func(out io.Writer) {
				describeImage(out, image)
			})
		},
	}
	registry.add(command.Flags())
	registry.addArchitecture(command.Flags())
	addOutputFlag(command.Flags(), &output)

	return command
}

// describeImage writes tab-separated columns; the table's Flush reports errors.
func describeImage(out io.Writer, image *osimage.Image) {
	config := image.Config()

	for _, line := range [][2]string{
		{"Reference", image.Reference()},
		{"Name", config.Name},
		{"Version", config.Version},
		{"Architecture", config.Architecture},
		{"Scheme", config.Scheme},
		{"Minimum source", orAny(config.MinSourceVersion)},
		{"Root hash", config.RootHash},
	} {
		_, _ = fmt.Fprintf(out, "%s:\t%s\n", line[0], line[1])
	}

	_, _ = fmt.Fprintf(out, "\nROLE\tSIZE MiB\tLAYER MiB\tRAW DIGEST\n")

	for _, content := range config.Contents {
		_, _ = fmt.Fprintf(out, "%s\t%.1f\t%.1f\t%s\n", content.Role,
			float64(content.RawSize)/mebibyte, float64(content.Size)/mebibyte, content.RawDigest)
	}
}

func orAny(version string) string {
	if version == "" {
		return "any"
	}

	return version
}
