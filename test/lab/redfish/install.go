package redfish

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Version of sushy-tools.
const Version = "2.2.0"

// python is Debian's own: only it sees python3-libvirt.
const python = "/usr/bin/python3"

// CacheDir is the lab's cache, ${XDG_CACHE_HOME:-~/.cache}/stayput-lab.
func CacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("looking for the cache directory: %w", err)
	}

	return filepath.Join(base, "stayput-lab"), nil
}

// Install puts the emulator into the cache and gives the path of its program. It needs PyPI the first time and does
// nothing when it is there; concurrent calls wait for each other. progress gets the installer's output.
func Install(ctx context.Context, progress io.Writer) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "sushy-tools-"+Version)
	unlock, err := lockFile(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	program := filepath.Join(dir, "bin", "sushy-emulator")
	complete := filepath.Join(dir, ".complete")
	if _, err := os.Stat(complete); err == nil {
		return program, nil
	}
	// Left by an installation that was broken off.
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("clearing %s: %w", dir, err)
	}
	steps := [][]string{
		{python, "-m", "venv", "--system-site-packages", dir},
		{
			filepath.Join(dir, "bin", "pip"), "install", "--disable-pip-version-check", "--no-input",
			"sushy-tools==" + Version,
		},
	}
	for _, step := range steps {
		if err := run(ctx, progress, step); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(complete, nil, 0o600); err != nil {
		return "", fmt.Errorf("marking the installation complete: %w", err)
	}

	return program, nil
}

func run(ctx context.Context, progress io.Writer, argv []string) error {
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Stdout, command.Stderr = progress, progress
	if err := command.Run(); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("installing sushy-tools: %w; install python3-venv", err)
		}

		return fmt.Errorf("installing sushy-tools: %v: %w; it needs python3-venv and PyPI", argv, err)
	}

	return nil
}

// lockFile waits for an exclusive lock on a file, which is kept.
func lockFile(name string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return nil, fmt.Errorf("making the cache: %w", err)
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the cache: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		_ = file.Close()

		return nil, fmt.Errorf("locking %s: %w", name, err)
	}

	return func() { _ = file.Close() }, nil
}
