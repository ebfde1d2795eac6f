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

// CommandLine is a kernel command line.
type CommandLine string

// Value returns the last value of a parameter and whether it is there at all, as "key=value" or as "key". Double quotes
// around a value, or around the whole word, are taken off, as the kernel does.
func (c CommandLine) Value(key string) (string, bool) {
	value, found := "", false

	for _, word := range c.words() {
		name, v, _ := strings.Cut(word, "=")
		if name == key {
			value, found = v, true
		}
	}

	return value, found
}

func (c CommandLine) words() []string {
	var (
		words  []string
		word   strings.Builder
		quoted bool
		began  bool
	)

	for _, r := range string(c) {
		switch {
		case r == '"':
			quoted, began = !quoted, true
		case !quoted && (r == ' ' || r == '\t' || r == '\n'):
			if began {
				words = append(words, word.String())
			}

			word.Reset()

			began = false
		default:
			word.WriteRune(r)

			began = true
		}
	}

	if began {
		words = append(words, word.String())
	}

	return words
}

// ParseOSRelease reads the text of an os-release file. Quotes are taken off; escapes inside them are kept as they are,
// because no key that is used here has any.
func ParseOSRelease(text string) map[string]string {
	release := map[string]string{}

	for line := range strings.Lines(text) {
		key, value, found := strings.Cut(strings.TrimSpace(line), "=")
		if !found || strings.HasPrefix(key, "#") {
			continue
		}

		if len(value) > 1 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		}

		release[key] = value
	}

	return release
}
