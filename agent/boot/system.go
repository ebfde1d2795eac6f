package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// System reads what the running kernel and its root file system say of themselves.
type System struct {
	// Root is prepended to every path; "" is the real system.
	Root string
}

// BootID is the kernel's random ID of this boot, as in the Node's status.nodeInfo.bootID.
func (s System) BootID() (string, error) {
	return s.line("/proc/sys/kernel/random/boot_id", "reading the boot ID")
}

// MachineID is the machine's ID (machine-id(5)).
func (s System) MachineID() (string, error) {
	return s.line("/etc/machine-id", "reading the machine ID")
}

// CommandLine is the running kernel's command line.
func (s System) CommandLine() (CommandLine, error) {
	text, err := s.line("/proc/cmdline", "reading the kernel command line")

	return CommandLine(text), err
}

// OSRelease reads os-release(5) of the running system.
func (s System) OSRelease() (map[string]string, error) {
	content, err := os.ReadFile(filepath.Join(s.Root, "/usr/lib/os-release"))
	if err != nil {
		if content, err = os.ReadFile(filepath.Join(s.Root, "/etc/os-release")); err != nil {
			return nil, fmt.Errorf("reading os-release: %w", err)
		}
	}

	return ParseOSRelease(string(content)), nil
}

// bootTime is when the kernel started, by the present clock.
func (s System) bootTime() (time.Time, error) {
	text, err := s.line("/proc/uptime", "reading the uptime")
	if err != nil {
		return time.Time{}, err
	}

	seconds, _, _ := strings.Cut(text, " ")

	uptime, err := time.ParseDuration(seconds + "s")
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the uptime: %w", err)
	}

	return time.Now().Add(-uptime), nil
}

func (s System) line(path, doing string) (string, error) {
	content, err := os.ReadFile(filepath.Join(s.Root, path))
	if err != nil {
		return "", fmt.Errorf("%s: %w", doing, err)
	}

	return strings.TrimSpace(string(content)), nil
}
