package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source"
)

// importFlags say what is imported and how.
type importFlags struct {
	registry registryFlags

	from, name, version, architecture, minSourceVersion string
	// keys are files with public keys.
	keys []string
	// kernel belongs to a Flatcar update, release to Garden Linux.
	kernel, release string
	tempDir         string
	zstdLevel       int
}

func newImageImportCommand() *cobra.Command {
	var given importFlags

	command := &cobra.Command{
		Use:   "import SOURCE FOLDER",
		Short: "Make an image of what a vendor publishes",
		Long: `Make an image of what a vendor publishes, in an OCI layout folder.

SOURCE is one of these, and is recognised by what is in it:

  flatcar-disk     flatcar_production_image.bin: its USR-A partition and its kernel
  flatcar-update   flatcar_production_update.gz: what Flatcar's own updater gets
  gardenlinux      the .uki or .efi file of a _usi flavour, or REGISTRY/REPOSITORY:VERSION with --cname
  disk             a raw disk of discoverable partitions, as mkosi and systemd-repart make it: root or /usr with dm-verity,
                   and a UKI

Files may be compressed with bzip2, gzip, xz or zstd. Nothing is mounted, root is not needed, and the source is only read.
Loose files become an image with "stayput image build". The same source gives the same image.`,
		Example: `  stayput image import flatcar_production_image.bin.bz2 ./image
  stayput image import registry.example/gardenlinux:1877.3 ./image --cname baremetal-gardener_prod_usi --verify-key gl.pem
  stayput image import labos_1.1.0.raw.zst ./image --min-source-version 1.0.0`,
		Args: takes(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error { return given.run(cmd, args[0], args[1]) },
	}
	flags := command.Flags()
	given.registry.add(flags)
	flags.StringVar(&given.from, "from", "", "what SOURCE is, when it is not to be recognised: "+strings.Join(importerNames(), ", "))
	flags.StringVar(&given.name, "name", "", "the OS's name; only needed where the source has none")
	flags.StringVar(&given.version, "version", "", "the OS's version; only needed where the source has none or several")
	flags.StringVar(&given.architecture, "arch", "", "the machines' `GOARCH`; only needed where the source has several")
	flags.StringVar(&given.minSourceVersion, "min-source-version", "",
		"the oldest `VERSION` that can be updated to this one in place")
	flags.StringArrayVar(&given.keys, "verify-key", nil,
		"PEM `FILE` with a public key that the source must be signed with: a Flatcar update, or Garden Linux in a registry; may be repeated")
	flags.StringVar(&given.kernel, "kernel", "", "`FILE` with the kernel of a Flatcar update that has none")
	flags.StringVar(&given.release, "release", "", "Garden Linux's os-release `FILE` (default: NAME.release beside NAME.uki, if it is there)")
	given.registry.addCname(flags)
	addZstdLevel(flags, &given.zstdLevel)
	flags.StringVar(&given.tempDir, "temp-dir", "", "`FOLDER` for what a compressed source unpacks to (default: the system's)")

	return command
}

func (f *importFlags) run(cmd *cobra.Command, path, folder string) (err error) {
	bars := newProgress(cmd.ErrOrStderr())

	defer bars.end()

	parts, err := f.read(cmd, path, bars)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, parts.Release()) }()

	if err := f.check(path, parts); err != nil {
		return err
	}

	spec := parts.Spec()
	spec.MinSourceVersion, spec.ZstdLevel = f.minSourceVersion, f.zstdLevel
	spec.Progress = func(role osimage.Role, done, total int64) { bars.show(string(role), done, total) }

	image, err := osimage.Build(cmd.Context(), folder, spec)
	if err != nil {
		return err
	}

	bars.end()

	for _, note := range parts.Notes {
		fmt.Fprintf(cmd.ErrOrStderr(), "Note: %s\n", note)
	}

	return printLine(cmd, "%s", image.Reference())
}

// read finds out what the source is and reads it.
func (f *importFlags) read(cmd *cobra.Command, path string, bars progress) (*source.Parts, error) {
	if f.architecture != "" && !slices.Contains(osimage.Architectures(), f.architecture) {
		return nil, mistake(fmt.Sprintf("--arch %q", f.architecture), "it is unknown", "use one of "+strings.Join(osimage.Architectures(), ", "))
	}

	if f.from != "" && !slices.Contains(importerNames(), f.from) {
		return nil, mistake(fmt.Sprintf("--from %q", f.from), "it is unknown", "use one of "+strings.Join(importerNames(), ", "))
	}

	info, err := os.Stat(path)

	switch {
	case errors.Is(err, fs.ErrNotExist) && isReference(path) && (f.from == "" || f.from == fromGardenLinux):
		return f.fromRegistry(cmd, path)
	case err != nil:
		return nil, fmt.Errorf("reading the source: %w", err)
	case info.IsDir():
		return nil, mistake(path, "it is a folder",
			"give a file; an image in a folder needs no import, and loose files become one with `stayput image build`")
	}

	chosen, err := f.choose(path)
	if err == nil {
		err = chosen.checkFlags(cmd)
	}

	if err != nil {
		return nil, err
	}

	return chosen.read(cmd.Context(), f, path, func(done, total int64) { bars.show("reading", done, total) })
}

// isReference tells a reference from the name of a file that is not there.
func isReference(path string) bool {
	return strings.Contains(path, "/") && !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, ".") && strings.ContainsAny(path, ":@")
}

// check compares what was asked for with what the source is.
func (f *importFlags) check(path string, parts *source.Parts) error {
	for _, of := range []struct{ what, got, flag, want string }{
		{"name", parts.Name, "--name", cmp.Or(f.name, parts.Name)},
		{"version", parts.Version, "--version", cmp.Or(f.version, parts.Version)},
		{"architecture", parts.Architecture, "--arch", cmp.Or(f.architecture, parts.Architecture)},
	} {
		if of.got != of.want {
			return mistake(path, fmt.Sprintf("its %s is %q, %s is %q", of.what, of.got, of.flag, of.want),
				"leave "+of.flag+" out, or give another source")
		}
	}

	return nil
}
