// Command stayput is the operator's tool: it makes and inspects OS images, prepares nodes, and shows and steers
// rollouts. Installed as kubectl-stayput it is also `kubectl stayput`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/cmd/internal/buildinfo"
)

func main() {
	ctx := withInterrupts(context.Background())
	err := newRootCommand().ExecuteContext(ctx)
	interrupted := ctx.Err() != nil
	unread, isOutput := errors.AsType[*outputError](err)

	switch {
	case err == nil:
	case interrupted:
		fmt.Fprintln(os.Stderr, "Interrupted:", err)
		os.Exit(exitInterrupted)
	case isOutput && errors.Is(unread, syscall.EPIPE):
		// As head(1) does it: who reads no further wants to hear nothing of it.
		os.Exit(exitBrokenPipe)
	default:
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// What shells report of a program that a signal has ended: 128 and the signal's number.
const (
	exitInterrupted = 130
	exitBrokenPipe  = 141
)

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "stayput",
		Short:         "Update the operating system of physical Kubernetes nodes in place",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       buildinfo.Version,
	}
	root.SetVersionTemplate(buildinfo.String("stayput") + "\n")
	root.AddCommand(newVersionCommand())
	root.AddCommand(newImageCommand())
	root.AddCommand(newStatusCommand(), newRetryCommand())
	root.AddCommand(newNodeCommand())
	root.AddCommand(newBMCCommand(realOutside()))

	return root
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and commit of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildinfo.String("stayput"))

			return err
		},
	}
}
