package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/test/lab/osbuild"
)

func newPushCommand(shared *flags) *cobra.Command {
	var fault string

	cmd := &cobra.Command{
		Use:   "push VERSION",
		Short: "Build a version of the lab's OS, push it to the lab's registry, and print its reference",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			variant := osbuild.Variant{Version: args[0], Fault: osbuild.Fault(fault)}
			if err := variant.Validate(); err != nil {
				return err
			}

			running, err := open(cmd.Context(), shared)
			if err != nil {
				return err
			}

			image, err := running.BuildImage(cmd.Context(), variant)
			if err != nil {
				return err
			}

			reference, _, err := running.PushImage(cmd.Context(), image)
			if err != nil {
				return err
			}

			fmt.Fprintln(cmd.OutOrStdout(), reference)

			return nil
		},
	}
	cmd.Flags().StringVar(&fault, "fault", "", fmt.Sprintf("the one thing that is broken in it: one of %q", osbuild.Faults()))

	return cmd
}
