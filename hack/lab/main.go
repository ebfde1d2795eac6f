// Command lab brings up a small data centre on this machine, shows it, and takes it away again. See package test/lab.
//
// It needs root, for libvirt and for building operating systems.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/test/lab/tools"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)

	cancel()

	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

var errID = errors.New("--id must be letters, digits, '-' and '_'")

// flags are those of every subcommand.
type flags struct {
	id string
}

// dir is the lab's directory: run-ID in the cache.
func (f *flags) dir() (string, error) {
	// It becomes a part of a path that `down` removes.
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`).MatchString(f.id) {
		return "", fmt.Errorf("%w, not %q", errID, f.id)
	}

	cache, err := tools.CacheDir()
	if err != nil {
		return "", err
	}

	return filepath.Join(cache, "run-"+f.id), nil
}

func newCommand() *cobra.Command {
	var shared flags

	root := &cobra.Command{
		Use:           "lab",
		Short:         "Bring up a small data centre on this machine, and take it away again",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&shared.id, "id", "default", "which lab, when there are several on this machine")
	root.AddCommand(
		newUpCommand(&shared), newDemoCommand(&shared), newDownCommand(&shared), newStatusCommand(&shared), newSSHCommand(&shared),
		newConsoleCommand(&shared), newPowerCommand(&shared), newPushCommand(&shared), newToolsCommand(), newOutageCommand(&shared),
		newMemoryCommand(),
	)

	return root
}

// reporter prints progress with the time since it began.
func reporter(out io.Writer) tools.Report {
	var mu sync.Mutex

	began := time.Now()

	return func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()

		fmt.Fprintf(out, "[%6.1fs] %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
}
