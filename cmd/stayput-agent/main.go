// Command stayput-agent is the node's service: it stages OS images, arms them when the node is drained, and reports how
// the trial boot went. The same program is the boot gate, which runs before a trial boot may be committed.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/agent/config"
	"github.com/stayput-dev/stayput/cmd/internal/buildinfo"
)

const program = "stayput-agent"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRootCommand().ExecuteContext(ctx)

	stop()

	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func newRootCommand() *cobra.Command {
	var path string

	run := newRunCommand(&path)
	root := &cobra.Command{
		Use:           program,
		Short:         "Update this node's operating system in place",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       buildinfo.Version,
		RunE:          run.RunE, // `run` is what it does when not told otherwise.
	}
	root.SetVersionTemplate(buildinfo.String(program) + "\n")
	root.PersistentFlags().StringVar(&path, "config", config.DefaultPath, "configuration file")
	root.AddCommand(run, newBootGateCommand(&path), newStatusCommand(&path), newVersionCommand())

	return root
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and commit of this program",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildinfo.String(program))

			return err
		},
	}
}

// newLog writes lines for journald, which adds the time.
func newLog() logr.Logger {
	return funcr.New(func(prefix, args string) {
		if prefix != "" {
			args = prefix + ": " + args
		}

		fmt.Fprintln(os.Stderr, args)
	}, funcr.Options{})
}
