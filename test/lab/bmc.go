package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stayput-dev/stayput/test/lab/machine"
	"github.com/stayput-dev/stayput/test/lab/redfish"
)

const bmcUser = "lab"

// startBMC starts the Redfish emulator that drives the power of the lab's machines.
func (l *Lab) startBMC(ctx context.Context) error {
	l.state.BMCPassword = rand.Text()

	var err error

	l.BMC, err = redfish.Start(ctx, redfish.Options{
		StateDir: l.path(bmcDir), Username: bmcUser, Password: l.state.BMCPassword, LibvirtURI: machine.URI,
		Progress: lineWriter{report: l.report},
	})
	if err != nil {
		return fmt.Errorf("starting the Redfish emulator: %w", err)
	}

	return nil
}

// lineWriter reports each line that is written to it.
type lineWriter struct {
	report func(format string, args ...any)
}

// Write implements io.Writer.
func (w lineWriter) Write(data []byte) (int, error) {
	for line := range strings.Lines(string(data)) {
		if line = strings.TrimSpace(line); line != "" {
			w.report("%s", line)
		}
	}

	return len(data), nil
}

// stopBMC stops the emulator whose PID file lies in the directory. Another process that has its PID by now is known
// by its arguments, and left alone.
func stopBMC(ctx context.Context, dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "pid"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("reading the emulator's PID: %w", err)
	}

	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return fmt.Errorf("reading the emulator's PID: %w", err)
	}

	deadline := time.Now().Add(stopGrace)

	for signal := syscall.SIGTERM; isEmulator(pid, dir); {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stopping the emulator: %w", err)
		}

		if time.Now().After(deadline) {
			signal = syscall.SIGKILL
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("stopping the emulator (PID %d): %w", pid, ctx.Err())
		case <-time.After(pollInterval):
		}
	}

	return nil
}

func isEmulator(pid int, dir string) bool {
	arguments, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline")) // empty for a zombie

	return err == nil && bytes.Contains(arguments, []byte(filepath.Join(dir, "emulator.conf")))
}
