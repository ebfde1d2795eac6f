package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/trust"
)

const kibibyte = 1 << 10

// inspection is what `stayput image inspect` prints.
type inspection struct {
	Reference string         `json:"reference"`
	Digest    string         `json:"digest"`
	Config    osimage.Config `json:"config"`
	Inside    inside         `json:"inside"`
	// Signatures counts those that are there; none is verified.
	Signatures signatureCount `json:"signatures"`
}

func newImageInspectCommand() *cobra.Command {
	var (
		registry registryFlags
		output   outputFormat
	)

	command := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Show what an image is and holds",
		Long: `Show what an image is and holds.

Besides the image's config it shows what the operating system says of itself, in its os-release and its kernel, and how many
signatures there are. Only the few blocks that say so are fetched. Nothing of it is verified; "stayput image verify" does
that for signatures.`,
		Example: `  stayput image inspect registry.example/os/node:1.1.0
  stayput image inspect ./image -o json
  stayput image inspect registry.example/gardenlinux:1877.3 --cname baremetal-gardener_prod_usi`,
		Args: takes(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			image, err := registry.open(cmd, args[0])
			if err != nil {
				return err
			}

			store, err := registry.signatures(cmd, args[0])
			if err != nil {
				return err
			}

			found, err := inspect(cmd.Context(), image, store)
			if err != nil {
				return err
			}

			return printAs(cmd.OutOrStdout(), output, found, found.describe)
		},
	}
	registry.add(command.Flags())
	registry.addArchitecture(command.Flags())
	addOutputFlag(command.Flags(), &output)

	return command
}

// inspect looks into an image. When it is interrupted, what it would tell of what it could not read is wrong.
func inspect(ctx context.Context, image *osimage.Image, store trust.Store) (inspection, error) {
	found := inspection{
		Reference: image.Reference(), Digest: image.Digest(), Config: image.Config(),
		Inside: lookInside(ctx, image), Signatures: countSignatures(ctx, store, image.Digest()),
	}

	if ctx.Err() != nil {
		return inspection{}, context.Cause(ctx)
	}

	return found, nil
}

// signatures finds where an image's signatures are.
func (f *registryFlags) signatures(cmd *cobra.Command, image string) (trust.Store, error) {
	if dir, _, isLayout := layoutOf(image); isLayout {
		return osimage.LayoutSignatures(dir), nil
	}

	client, err := f.client(cmd, osimage.WithRetry(osimage.Retry{Tries: 1}))
	if err != nil {
		return nil, err
	}

	return client.Signatures(image)
}

// describe writes tab-separated columns; the table's Flush reports errors.
func (i inspection) describe(out io.Writer) {
	for _, line := range [][2]string{
		{"Reference", i.Reference},
		{"Name", i.Config.Name},
		{"Version", i.Config.Version},
		{"Variant", i.Config.Variant},
		{"Architecture", i.Config.Architecture},
		{"Scheme", i.Config.Scheme},
		{"Minimum source", orAny(i.Config.MinSourceVersion)},
		{"Root hash", i.Config.RootHash},
		{"System", i.Inside.System},
		{"System version", i.Inside.SystemVersion},
		{"Flavour", i.Inside.Flavour},
		{"Kernel", i.Inside.Kernel},
		{"Secure Boot", i.Inside.SecureBoot},
		{"Command line", i.Inside.CommandLine},
		{"Signatures", i.Signatures.String()},
		{"Problem", i.Inside.Problem},
	} {
		if line[1] != "" {
			_, _ = fmt.Fprintf(out, "%s:\t%s\n", line[0], plain(line[1]))
		}
	}

	_, _ = fmt.Fprintf(out, "\nROLE\tSIZE MiB\tLAYER MiB\tINDEX KiB\tRAW DIGEST\n")

	for _, content := range i.Config.Contents {
		index := "-" // an update fetches all of it
		if content.ChunkIndex != nil {
			index = fmt.Sprintf("%.1f", float64(content.ChunkIndex.TotalSize())/kibibyte)
		}

		_, _ = fmt.Fprintf(out, "%s\t%.1f\t%.1f\t%s\t%s\n", content.Role,
			float64(content.RawSize)/mebibyte, float64(content.Size)/mebibyte, index, content.RawDigest)
	}
}

// plain keeps what an image says of itself from steering the terminal.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '?'
		}

		return r
	}, text)
}

func orAny(version string) string {
	if version == "" {
		return "any"
	}

	return version
}
