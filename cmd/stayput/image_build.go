package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/osimage"
)

// roleUses say what a role's file is, for the flags' help.
func roleUses() map[osimage.Role]string {
	return map[osimage.Role]string{
		osimage.RoleRoot:       "root file system, read-only (instead of --usr)",
		osimage.RoleRootVerity: "dm-verity hash tree of --root",
		osimage.RoleUSR:        "/usr file system, read-only (instead of --root)",
		osimage.RoleUSRVerity:  "dm-verity hash tree of --usr",
		osimage.RoleUKI:        "unified kernel image",
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
digests. The layers are zstd: plain "zstd -d" gives the files back.`,
		Example: `  stayput image build ./image --name labos --version 1.1.0 --arch amd64 \
      --root-hash "$(cat usr.roothash)" --usr usr.erofs --usr-verity usr.verity --uki labos.efi`,
		Args: cobra.ExactArgs(1),
	}
	flags := command.Flags()
	flags.StringVar(&spec.Name, "name", "", "the OS's name, its IMAGE_ID")
	flags.StringVar(&spec.Version, "version", "", "the OS's version, its IMAGE_VERSION")
	flags.StringVar(&spec.Architecture, "arch", runtime.GOARCH, "the machines' `GOARCH`: amd64 or arm64")
	flags.StringVar(&spec.RootHash, "root-hash", "", "the dm-verity root hash, as veritysetup prints it")
	flags.StringVar(&spec.MinSourceVersion, "min-source-version", "",
		"the oldest `VERSION` that can be updated to this one in place")

	files := map[osimage.Role]*string{}
	for role, use := range roleUses() {
		files[role] = flags.String(string(role), "", "`FILE` with the "+use)
	}

	command.RunE = func(cmd *cobra.Command, args []string) error {
		spec.Files = map[osimage.Role]string{}

		for role, file := range files {
			if *file != "" {
				spec.Files[role] = *file
			}
		}

		bars := newProgress(cmd.ErrOrStderr())
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

func printLine(cmd *cobra.Command, format string, args ...any) error {
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), format+"\n", args...); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}

	return nil
}
