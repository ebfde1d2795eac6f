package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/osimage"
)

func newImageCopyCommand() *cobra.Command {
	var (
		registry     registryFlags
		output       outputFormat
		architecture string
		dryRun       bool
	)

	command := &cobra.Command{
		Use:   "copy SOURCE TARGET",
		Short: "Copy an image between registries and OCI layout folders, with its signatures",
		Long: `Copy an image between registries and OCI layout folders, with its signatures.

SOURCE and TARGET are each REGISTRY/REPOSITORY:TAG, or FOLDER or FOLDER:TAG. What belongs to the image comes along: an
index with all its manifests, cosign's signatures and attestations, and what else refers to it, so that it verifies at
the target as it did at the source. All digests stay the same. Any OCI artifact can be copied, not only OS images.

Blobs that the target has are not copied again; in another repository of the same registry they are mounted. Calling
it again after a failure goes on with what is missing. The target's tag comes last. Signatures that are only at the
target stay.

It prints the reference of the copy by digest.`,
		Example: `  stayput image copy registry.example/os/node:1.1.0 /media/stick/os
  stayput image copy /media/stick/os:1.1.0 registry.airgap.example/os/node:1.1.0
  stayput image copy registry.example/os/node:1.1.0 registry.example/released/node:1.1.0 --dry-run`,
		Args: takes(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := registry.client(cmd)
			if err != nil {
				return err
			}

			options := osimage.CopyOptions{Architecture: architecture, DryRun: dryRun}

			done := "Copied"
			if dryRun {
				done = "Would copy"
			}

			return runCopy(cmd, output, "copy", done, func(progress func(done, total int64)) (osimage.Copied, error) {
				options.Progress = progress

				return client.Copy(cmd.Context(), locationOf(args[0]), locationOf(args[1]), options)
			})
		},
	}
	registry.add(command.Flags())
	addOutputFlag(command.Flags(), &output)
	command.Flags().StringVar(&architecture, "arch", "",
		"copy only the manifest of an index that is for this `GOARCH`; its signatures are those of that manifest, not the index's")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "find out what would be copied, and copy nothing")

	return command
}

// runCopy shows how far a copy is, then the reference for a script, and what was done beside it for a person.
func runCopy(
	cmd *cobra.Command, output outputFormat, name, done string,
	work func(progress func(done, total int64)) (osimage.Copied, error),
) error {
	bars := newProgress(cmd.ErrOrStderr())
	copied, err := work(func(done, total int64) { bars.show(name, done, total) })

	bars.end()

	if err != nil {
		return err
	}

	return printAs(cmd.OutOrStdout(), output, copied, func(out io.Writer) {
		describeCopy(cmd.ErrOrStderr(), done, copied)
		fmt.Fprintln(out, copied.Reference)
	})
}

func describeCopy(beside io.Writer, done string, copied osimage.Copied) {
	fmt.Fprintf(beside, "%s %d manifests, and %d blobs with %.1f MiB; %d manifests, and blobs with %.1f MiB, are there already.\n",
		done, copied.Manifests, copied.Blobs, float64(copied.Bytes)/mebibyte,
		copied.PresentManifests, float64(copied.PresentBytes)/mebibyte)

	if copied.Unasked {
		fmt.Fprintln(beside, "The registry itself could not be reached: what it has attached to the image, such as signatures, "+
			"may be missing here. Do this again when it can be, or have somebody sign the image here.")
	}

	switch {
	case copied.Attached > 0 || copied.Unasked:
	case copied.ChosenFrom != "":
		fmt.Fprintln(beside, "The image has no signatures itself. Those of the index that it is in, if any, stay behind: "+
			"take all of the index with `stayput image copy`, or sign the image.")
	default:
		fmt.Fprintln(beside, "The image has no signatures.")
	}
}

// locationOf is where an image is, or where there is nothing yet.
func locationOf(argument string) osimage.Location {
	dir, tag, isLayout := layoutOf(argument)
	if !isLayout {
		return osimage.Location{Reference: argument}
	}

	// A folder that is to be made can have a tag behind it; a ':' in a folder's name would be unusual.
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if at := strings.LastIndex(dir, ":"); at > strings.LastIndex(dir, "/") {
			dir, tag = dir[:at], dir[at+1:]
		}
	}

	return osimage.Location{Dir: dir, Tag: tag}
}
