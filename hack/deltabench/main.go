// Command deltabench measures how many bytes an update moves: with our chunk index, and with what others have.
//
//	deltabench pairs DIR                  makes images of Debian package sets, in pairs, and runs the next one on each
//	deltabench measure OLD NEW            prints a table for one pair of images
//
// It runs casync, desync, zsync and zstd when they are there. All that it measures is what would go over the wire; nothing
// is timed but our own work.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	root := &cobra.Command{
		Use: "deltabench", Short: "Measure how many bytes an update moves", SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(newMeasureCommand(), newPairsCommand())

	err := root.ExecuteContext(ctx)

	cancel()

	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}
