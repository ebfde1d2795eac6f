package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/osimage"
)

func newImageDiffCommand() *cobra.Command {
	var (
		registry registryFlags
		output   outputFormat
	)

	command := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Show what an update from one image to another fetches",
		Long: `Show what an update from one image to another fetches.

A node that runs OLD has most of NEW already. This tells by the images' chunk indexes what it fetches of each content, in
how many requests. What its spare slot holds may save a little more. The contents for first disks, loader and state, are left
out, since no update fetches them. It warns when NEW is another variant (flavour) of the operating system than OLD; older
images do not say theirs.`,
		Example: `  stayput image diff registry.example/os/node:1.1.0 registry.example/os/node:1.2.0
  stayput image diff oci:./image:1.1.0 oci:./image:1.2.0 -o json`,
		Args: takes(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			old, err := registry.open(cmd, args[0])
			if err != nil {
				return err
			}

			next, err := registry.open(cmd, args[1])
			if err != nil {
				return err
			}

			update, err := osimage.Diff(cmd.Context(), old, next)
			if err != nil {
				return err
			}

			if before, after := old.Config().Variant, next.Config().Variant; before != "" && after != "" && before != after {
				fmt.Fprintf(cmd.ErrOrStderr(), "Warning: %s is of the variant %q, %s of %q: it is no update of the same system.\n",
					args[0], before, args[1], after)
			}

			return printAs(cmd.OutOrStdout(), output, update, func(out io.Writer) { printDiff(out, update) })
		},
	}
	registry.add(command.Flags())
	registry.addArchitecture(command.Flags())
	addOutputFlag(command.Flags(), &output)

	return command
}

func printDiff(out io.Writer, update osimage.UpdateDiff) {
	fmt.Fprintln(out, "CONTENT\tRAW BYTES\tLAYER\tFETCHED\tOF LAYER\tREQUESTS\tINDEX\tREUSED")

	for _, content := range update.Contents {
		fmt.Fprintf(out, "%s\t%d\t%d\t%d\t%s\t%d\t%d\t%d\n", content.Role, content.RawSize, content.LayerSize,
			content.Fetch, shareOf(content.Fetch, content.LayerSize), content.Requests, content.IndexFetch, content.Reused)
	}

	layer, fetched := update.Total.LayerSize, update.Total.FetchWithIndex
	fmt.Fprintf(out, "all\t\t%d\t%d\t%s\t\twith indexes\t\n", layer, fetched, shareOf(fetched, layer))
}

func shareOf(part, whole int64) string {
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(max(whole, 1)))
}
