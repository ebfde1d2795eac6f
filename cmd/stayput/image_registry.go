package main

import (
	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/osimage"
)

func newImagePushCommand() *cobra.Command {
	var registry registryFlags

	command := &cobra.Command{
		Use:   "push FOLDER[:TAG] REGISTRY/REPOSITORY:TAG",
		Short: "Push an image from an OCI layout folder to a registry, with its signatures",
		Long: `Push an image from an OCI layout folder to a registry, with its signatures.

When the folder's tag is an index, all of it is pushed. Layers that the registry has already are not sent again, so
calling it again after a failure goes on with what is missing. The others are verified while they are sent: a damaged
folder leaves no image in the registry. The tag comes last.

It prints the reference by digest, which is what to put into a HostPool.`,
		Example: `  stayput image push ./image registry.example/os/node:1.1.0`,
		Args:    takes(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := registry.client(cmd)
			if err != nil {
				return err
			}

			dir, tag, _ := layoutOf(args[0])

			return runCopy(cmd, outputText, "push", "Pushed", func(progress func(done, total int64)) (osimage.Copied, error) {
				return client.Push(cmd.Context(), dir, tag, args[1], progress)
			})
		},
	}
	registry.add(command.Flags())

	return command
}

func newImagePullCommand() *cobra.Command {
	var registry registryFlags

	command := &cobra.Command{
		Use:   "pull REGISTRY/REPOSITORY:TAG FOLDER",
		Short: "Pull an image from a registry into an OCI layout folder, with its signatures",
		Long: `Pull an image from a registry into an OCI layout folder, with its signatures.

Of a tag with several images it takes one, for this machine's architecture or that of --arch, with the signatures that
this image has itself; "stayput image copy" takes all of them, and the signatures of the index. In the folder, the tag is
the image's version. Every digest is verified. Calling it again after a failure goes on where it stopped.`,
		Example: `  stayput image pull registry.example/os/node:1.1.0 ./image`,
		Args:    takes(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := registry.client(cmd)
			if err != nil {
				return err
			}

			return runCopy(cmd, outputText, "pull", "Pulled", func(progress func(done, total int64)) (osimage.Copied, error) {
				return client.Pull(cmd.Context(), args[0], args[1], progress)
			})
		},
	}
	registry.add(command.Flags())
	registry.addArchitecture(command.Flags())

	return command
}
