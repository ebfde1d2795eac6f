package tools

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// ErrNotRoot means that packages are missing and only root can install them.
var ErrNotRoot = errors.New("only root can install packages")

// PackageList reads a list of Debian packages: one a line, '#' starts a comment.
func PackageList(text []byte) []string {
	var names []string

	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if fields := strings.Fields(line); len(fields) > 0 {
			names = append(names, fields[0])
		}
	}

	return names
}

// MissingPackages are those of the packages that dpkg does not have installed.
func MissingPackages(ctx context.Context, names []string) []string {
	var missing []string

	for _, name := range names {
		status, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f=${db:Status-Status}", name).Output()
		if err != nil || string(status) != "installed" {
			missing = append(missing, name)
		}
	}

	return missing
}

// EnsurePackages installs the Debian packages that are missing. It needs root only when one is.
func EnsurePackages(ctx context.Context, names []string, report Report) error {
	missing := MissingPackages(ctx, names)
	if len(missing) == 0 {
		return nil
	}

	install := append([]string{"install", "-y", "--no-install-recommends"}, missing...)
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w; run: sudo apt-get %s", ErrNotRoot, strings.Join(install, " "))
	}

	report("installing Debian packages: %s", strings.Join(missing, " "))

	for _, args := range [][]string{{"update"}, install} {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-qq"}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")

		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, output)
		}
	}

	return nil
}
