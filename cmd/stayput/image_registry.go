package main

import "github.com/spf13/cobra"

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
