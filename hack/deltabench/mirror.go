package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stayput-dev/stayput/test/lab/tools"
)

//go:embed packages.txt
var packageList string

// mirror fetches Debian packages with apt, which checks their signatures, into a directory of its own.
type mirror struct {
	dir string
}

// apt returns a command of apt that knows nothing of the host's packages.
func (m *mirror) apt(ctx context.Context, command, name string, arguments ...string) *exec.Cmd {
	root := filepath.Join(m.dir, "apt-"+name)
	options := []string{
		"-qq", "-o", "Dir=" + root, "-o", "Dir::State::status=" + filepath.Join(root, "status"),
		"-o", "Dir::Etc::TrustedParts=/etc/apt/trusted.gpg.d", "-o", "APT::Architecture=amd64",
		"-o", "APT::Architectures::=amd64", "-o", "APT::Sandbox::User=root", "-o", "APT::Install-Recommends=false",
		"-o", "Acquire::Languages=none",
	}

	return exec.CommandContext(ctx, command, slices.Concat(options, arguments)...)
}

// packages fetches the packages of packages.txt, or only the kernel, and all that they need.
func (m *mirror) packages(ctx context.Context, suite string, updated, kernel bool) (packages, error) {
	name := suite
	suites := suite

	if updated {
		name += "-updated"
		suites += " " + suite + "-updates"
	}

	root := filepath.Join(m.dir, "apt-"+name)
	if err := m.update(ctx, name, suite, suites, updated); err != nil {
		return nil, err
	}

	wanted, list := []string{"linux-image-amd64"}, filepath.Join(root, "kernel.list")

	if !kernel {
		var err error

		list = filepath.Join(root, "node.list")
		if wanted, err = m.known(ctx, name); err != nil {
			return nil, err
		}
	}

	// apt lists only what it has to fetch: so the list is kept.
	if _, err := os.Stat(list); err != nil {
		if err := m.fetch(ctx, name, list, wanted); err != nil {
			return nil, err
		}
	}

	data, err := os.ReadFile(list)
	if err != nil {
		return nil, fmt.Errorf("reading what was fetched: %w", err)
	}

	found := packages{}

	for line := range strings.Lines(string(data)) {
		// 'http://…' libssl3t64_3.5.1-1_amd64.deb 2415164 SHA256:…
		fields := strings.Fields(line)
		if len(fields) < 3 || !strings.HasSuffix(fields[1], ".deb") {
			continue
		}

		deb, _, _ := strings.Cut(fields[1], "_")
		found[deb] = filepath.Join(root, "var/cache/apt/archives", fields[1])
	}

	return found, nil
}

// fetch fetches packages and all that they need, and writes the list of them.
func (m *mirror) fetch(ctx context.Context, name, list string, wanted []string) error {
	install := func(option string) *exec.Cmd {
		return m.apt(ctx, "apt-get", name, append([]string{"install", "-y", option}, wanted...)...)
	}

	if err := install("--download-only").Run(); err != nil {
		return fmt.Errorf("fetching packages of %s: %w", name, err)
	}

	archives := filepath.Join(m.dir, "apt-"+name, "var/cache/apt/archives")
	hidden := archives + ".fetched"

	// With an empty cache the list is complete.
	if err := errors.Join(os.Rename(archives, hidden), os.MkdirAll(filepath.Join(archives, "partial"), 0o750)); err != nil {
		return fmt.Errorf("hiding what was fetched: %w", err)
	}

	output, err := install("--print-uris").Output()
	if err := errors.Join(err, os.RemoveAll(archives), os.Rename(hidden, archives)); err != nil {
		return fmt.Errorf("listing packages of %s: %w", name, err)
	}

	if err := os.WriteFile(list, output, 0o600); err != nil {
		return fmt.Errorf("keeping the list: %w", err)
	}

	return nil
}

// update makes apt's directories, and reads the lists of the suites.
func (m *mirror) update(ctx context.Context, name, suite, suites string, updated bool) error {
	root := filepath.Join(m.dir, "apt-"+name)
	if _, err := os.Stat(filepath.Join(root, "updated")); err == nil {
		return nil
	}

	sources, err := repository(ctx, "Debian", suites)
	if err != nil {
		return err
	}

	if updated {
		security, err := repository(ctx, "Debian-Security", suite+"-security")
		if err != nil {
			return err
		}

		sources += security
	}

	for _, dir := range []string{
		"etc/apt/sources.list.d", "etc/apt/preferences.d", "etc/apt/apt.conf.d", "var/lib/apt/lists/partial",
		"var/cache/apt/archives/partial",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o750); err != nil {
			return fmt.Errorf("making apt's directories: %w", err)
		}
	}

	err = errors.Join(
		os.WriteFile(filepath.Join(root, "status"), nil, 0o600),
		os.WriteFile(filepath.Join(root, "etc/apt/sources.list.d/debian.sources"), []byte(sources), 0o600),
	)
	if err != nil {
		return fmt.Errorf("making apt's files: %w", err)
	}

	if output, err := m.apt(ctx, "apt-get", name, "update").CombinedOutput(); err != nil {
		return fmt.Errorf("updating the lists of %s: %w: %s", name, err, output)
	}

	return os.WriteFile(filepath.Join(root, "updated"), nil, 0o600)
}

// repository is an entry of apt's sources, from the mirror that this machine fetches from.
func repository(ctx context.Context, label, suites string) (string, error) {
	root, err := tools.RepositoryRoot()
	if err != nil {
		return "", err
	}

	address, err := exec.CommandContext(ctx, filepath.Join(root, "hack", "debian-mirror.sh"), label).Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}

		return "", fmt.Errorf("finding the mirror: %w", err)
	}

	return "Types: deb\nURIs: " + strings.TrimSpace(string(address)) + "\nSuites: " + suites +
		"\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n", nil
}

// known are the packages of packages.txt that the suite has.
func (m *mirror) known(ctx context.Context, name string) ([]string, error) {
	output, err := m.apt(ctx, "apt-cache", name, "pkgnames").Output()
	if err != nil {
		return nil, fmt.Errorf("listing packages of %s: %w", name, err)
	}

	there := strings.Fields(string(output))

	var known []string

	for line := range strings.Lines(packageList) {
		deb := strings.TrimSpace(line)
		if !strings.HasPrefix(deb, "#") && slices.Contains(there, deb) {
			known = append(known, deb)
		}
	}

	return known, nil
}

// tree unpacks packages, without their scripts, and returns the path of the tree's /usr. The same packages are unpacked
// once.
func (m *mirror) tree(ctx context.Context, found packages) (string, error) {
	sum := sha256.New()

	for _, name := range slices.Sorted(maps.Keys(found)) {
		fmt.Fprintln(sum, filepath.Base(found[name]))
	}

	root := filepath.Join(m.dir, "tree-"+hex.EncodeToString(sum.Sum(nil)[:6]))
	usr := filepath.Join(root, "usr")

	if _, err := os.Stat(filepath.Join(root, "unpacked")); err == nil {
		return usr, nil
	}

	if err := os.RemoveAll(root); err != nil {
		return "", fmt.Errorf("removing what was left: %w", err)
	}

	if err := os.MkdirAll(usr, 0o750); err != nil {
		return "", fmt.Errorf("making a tree: %w", err)
	}

	group, unpacking := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))

	names := slices.Sorted(maps.Keys(found))
	parts := make([]string, len(names))

	for i, name := range names {
		group.Go(func() (err error) {
			parts[i], err = m.unpacked(unpacking, found[name])

			return err
		})
	}

	if err := group.Wait(); err != nil {
		return "", err
	}

	for _, part := range parts {
		if err := run(ctx, "cp", "-al", filepath.Join(part, "usr")+"/.", usr); err != nil {
			return "", err
		}
	}

	return usr, os.WriteFile(filepath.Join(root, "unpacked"), nil, 0o600)
}

// unpacked returns the directory where a package is unpacked.
func (m *mirror) unpacked(ctx context.Context, deb string) (string, error) {
	root := filepath.Join(m.dir, "packages", filepath.Base(deb))
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}

	part := root + ".part"
	if err := os.RemoveAll(part); err != nil {
		return "", fmt.Errorf("removing what was left: %w", err)
	}

	// Older releases have files in directories that are links today.
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		err := errors.Join(os.MkdirAll(filepath.Join(part, "usr", dir), 0o750), os.Symlink("usr/"+dir, filepath.Join(part, dir)))
		if err != nil {
			return "", fmt.Errorf("making a tree: %w", err)
		}
	}

	if err := unpack(ctx, deb, part); err != nil {
		return "", err
	}

	return root, os.Rename(part, root)
}

// floor is the floor of two trees, computed once.
func (m *mirror) floor(ctx context.Context, oldUsr, newUsr string) (int64, error) {
	name := filepath.Join(m.dir, "floor-"+filepath.Base(filepath.Dir(oldUsr))+"-"+filepath.Base(filepath.Dir(newUsr)))

	if data, err := os.ReadFile(name); err == nil {
		return strconv.ParseInt(string(data), 10, 64)
	}

	size, err := floor(ctx, oldUsr, newUsr)
	if err != nil {
		return 0, err
	}

	return size, os.WriteFile(name, strconv.AppendInt(nil, size, 10), 0o600)
}

func unpack(ctx context.Context, deb, root string) (err error) {
	archive := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	tar := exec.CommandContext(ctx, "tar", "-x", "--keep-directory-symlink", "-C", root)

	// dpkg-deb leaves a child behind when it is killed, which keeps our end of the pipe open.
	archive.WaitDelay, tar.WaitDelay = time.Second, time.Second

	var output bytes.Buffer

	tar.Stderr, archive.Stderr = &output, &output

	if tar.Stdin, err = archive.StdoutPipe(); err != nil {
		return fmt.Errorf("unpacking %s: %w", deb, err)
	}

	if err := tar.Start(); err != nil {
		return fmt.Errorf("unpacking %s: %w", deb, err)
	}

	if err := errors.Join(archive.Run(), tar.Wait()); err != nil {
		return fmt.Errorf("unpacking %s: %w: %s", deb, err, output.String())
	}

	return nil
}
