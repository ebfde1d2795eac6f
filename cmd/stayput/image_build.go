package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/gardenlinux"
	"github.com/stayput-dev/stayput/osimage/uki"
)

// roleUses say what a role's file is, for the flags' help.
func roleUses() map[osimage.Role]string {
	return map[osimage.Role]string{
		osimage.RoleRoot:       "root file system, read-only (instead of --usr)",
		osimage.RoleRootVerity: "dm-verity hash tree of --root",
		osimage.RoleUSR:        "/usr file system, read-only (instead of --root)",
		osimage.RoleUSRVerity:  "dm-verity hash tree of --usr",
		osimage.RoleUKI:        "unified kernel image",
		osimage.RoleKernel:     "kernel with the root hash in it (scheme gptprio)",
		osimage.RoleLoader:     "boot loader, such as systemd-bootx64.efi (for `stayput image disk`)",
		osimage.RoleState:      "first contents of the persistent root file system (for `stayput image disk`)",
	}
}

func newImageBuildCommand() *cobra.Command {
	var spec osimage.BuildSpec

	command := &cobra.Command{
		Use:   "build FOLDER",
		Short: "Build an image from files in an OCI layout folder",
		Long: `Build an image from files in an OCI layout folder.

The folder is made when it is missing; an image of the same version in it is replaced. The same files give the same
digests. The layers are zstd: plain "zstd -d" gives the files back.

Before anything is written, the file system is read and compared with its hash tree, and that with the root hash.`,
		Example: `  stayput image build ./image --name labos --version 1.1.0 --arch amd64 \
      --root-hash "$(cat usr.roothash)" --usr usr.erofs --usr-verity usr.verity --uki labos.efi`,
		Args: takes(cobra.ExactArgs(1)),
	}
	flags := command.Flags()
	flags.StringVar(&spec.Name, "name", "", "the OS's name, its IMAGE_ID")
	flags.StringVar(&spec.Version, "version", "", "the OS's version, its IMAGE_VERSION")
	flags.StringVar(&spec.Variant, "variant", "", "the OS's variant, its `VARIANT_ID` (default: what the UKI says)")
	flags.StringVar(&spec.Architecture, "arch", runtime.GOARCH, "the machines' `GOARCH`: amd64 or arm64")
	flags.StringVar(&spec.Scheme, "scheme", osimage.SchemeDPS, "how the machines keep two versions: "+
		"dps (verity partitions and a UKI), gptprio (Flatcar), uki (Garden Linux: the UKI is the OS)")
	flags.StringVar(&spec.RootHash, "root-hash", "", "the dm-verity root hash, as veritysetup prints it")
	flags.StringVar(&spec.MinSourceVersion, "min-source-version", "",
		"the oldest `VERSION` that can be updated to this one in place")

	addZstdLevel(flags, &spec.ZstdLevel)

	files := map[osimage.Role]*roleFile{}
	for role, use := range roleUses() {
		files[role] = new(roleFile)
		flags.Var(files[role], string(role), "`FILE` with the "+use)
	}

	command.RunE = func(cmd *cobra.Command, args []string) error {
		spec.Scheme = cmp.Or(spec.Scheme, osimage.SchemeDPS)
		given := map[osimage.Role]string{}

		for role, file := range files {
			if *file != "" {
				given[role] = string(*file)
			}
		}

		var err error
		if spec.Inputs, err = osimage.FileInputs(given); err != nil {
			return err
		}

		if err := checkPairs(spec); err != nil {
			return err
		}

		if err := checkUKI(&spec, cmd.ErrOrStderr()); err != nil {
			return err
		}

		bars := newProgress(cmd.ErrOrStderr())
		defer bars.end()

		if err := checkTrees(cmd.Context(), spec, bars.show); err != nil {
			return err
		}

		spec.Progress = func(role osimage.Role, done, total int64) { bars.show(string(role), done, total) }
		image, err := osimage.Build(cmd.Context(), args[0], spec)

		bars.end()

		if err != nil {
			return err
		}

		return printLine(cmd, "%s", image.Reference())
	}

	return command
}

func addZstdLevel(flags *pflag.FlagSet, level *int) {
	flags.IntVar(level, "zstd-level", 0, "compress with the program zstd at this `LEVEL`, 1 to 22, for updates that fetch less: "+
		"19 takes several times as long (default: the encoder that is built in)")
}

// checkUKI refuses what every node would refuse (reason ImageInvalid), or could not start. It takes the variant from it,
// if it has one. What starts, but leaves a node without its way back, is told of beside.
func checkUKI(spec *osimage.BuildSpec, beside io.Writer) (err error) {
	path := spec.Inputs[osimage.RoleUKI].Name
	if path == "" || spec.Scheme == osimage.SchemeGPTPrio {
		return nil // The build says what is missing, or does not belong.
	}

	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening the UKI: %w; --uki takes the file that ukify has made", err)
	}

	defer func() { err = errors.Join(err, file.Close()) }()

	image, err := uki.Read(file)
	if err != nil {
		return mistake("--uki "+path, err.Error(), "give the file that ukify has made")
	}

	if spec.Scheme == osimage.SchemeDPS {
		if err := checkRootHash(image.CommandLine, path, *spec); err != nil {
			return err
		}
	}

	variant := gardenlinux.Variant(image.OSRelease)
	spec.Variant = cmp.Or(spec.Variant, variant)

	for _, of := range []struct{ what, got, flag, want string }{
		{"VARIANT_ID", cmp.Or(variant, spec.Variant), "--variant", spec.Variant},
		{"IMAGE_ID", image.SortKey(), "--name", spec.Name},
		{"IMAGE_VERSION", image.Version(), "--version", spec.Version},
		{"architecture", image.Architecture, "--arch", spec.Architecture},
	} {
		if of.got != of.want {
			return mistake("--uki "+path, fmt.Sprintf("its %s is %q, %s is %q", of.what, of.got, of.flag, of.want),
				"build the UKI for this image, or correct "+of.flag)
		}
	}

	// The kernel's documentation, kernel-parameters: without it, or with 0, a kernel that panics waits forever.
	if seconds, _ := image.CommandLine.Value("panic"); seconds == "" || seconds == "0" {
		fmt.Fprintf(beside, "Note: --uki %s: its command line has no panic= with a number but 0. After a kernel panic a node "+
			"would stand still, instead of going back to its old version by itself. Build the UKI with panic=5 on its command line.\n", path)
	}

	return nil
}

// checkRootHash makes sure that the UKI starts the image's file system: by the hash a node finds out its slot.
func checkRootHash(line uki.CommandLine, path string, spec osimage.BuildSpec) error {
	key, other := "usrhash", "roothash"
	if _, root := spec.Inputs[osimage.RoleRoot]; root {
		key, other = other, key
	}

	hash, named := line.Value(key)
	if _, wrong := line.Value(other); wrong || !named {
		return mistake("--uki "+path, fmt.Sprintf("its command line is %q, want one with %s= and without %s=: by that it finds its slot, "+
			"and every node refuses an image without it", line, key, other),
			fmt.Sprintf("build the UKI with %s=%s on its command line", key, spec.RootHash))
	}

	if got := strings.ToLower(hash); got != spec.RootHash {
		return mistake("--uki "+path, fmt.Sprintf("its %s= on its command line is %q, --root-hash is %q", key, got, spec.RootHash),
			"build the UKI for this image, or correct --root-hash")
	}

	return nil
}

func printLine(cmd *cobra.Command, format string, args ...any) error {
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}

	return nil
}
