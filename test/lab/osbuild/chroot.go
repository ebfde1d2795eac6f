package osbuild

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// chroot runs the build tools of the base tree, so that the host's versions do not matter.
type chroot struct{ root string }

// run runs a program with the base tree as its root, in namespaces of its own: what it mounts (only /proc) and what it
// starts ends with it. It gives what it wrote to its standard output.
func (c chroot) run(ctx context.Context, program string, arguments ...string) (string, error) {
	full := append([]string{
		"--mount", "--pid", "--fork", "--kill-child", "--root=" + c.root, "--wd=/", "--mount-proc",
		"/usr/bin/eatmydata", "--", program,
	}, arguments...)

	command := exec.CommandContext(ctx, "unshare", full...)
	command.Env = []string{
		"PATH=/usr/sbin:/usr/bin", "HOME=/root", "LC_ALL=C.UTF-8",
		fmt.Sprintf("SOURCE_DATE_EPOCH=%d", epoch), fmt.Sprintf("E2FSPROGS_FAKE_TIME=%d", epoch),
	}

	return output(command)
}

// output runs a command; when it fails, the error has the last lines that it wrote.
func output(command *exec.Cmd) (string, error) {
	var stdout, all bytes.Buffer

	command.Stdout = &stdout
	command.Stderr = &all

	if err := command.Run(); err != nil {
		all.Write(stdout.Bytes())

		return "", fmt.Errorf("running %s: %w: %s", filepath.Base(command.Path), err, tail(all.String()))
	}

	return stdout.String(), nil
}

// tail gives the last lines of an output, as one line.
func tail(text string) string {
	const most = 12

	all := strings.Split(strings.TrimSpace(text), "\n")
	if len(all) > most {
		all = all[len(all)-most:]
	}

	return strings.Join(all, " | ")
}

// desk is a folder in the base tree where the tools find their work and leave their results.
type desk struct{ host, inside string }

// withDesk gives a new desk to work, and clears it away.
func (c chroot) withDesk(work func(desk) error) error {
	host, err := os.MkdirTemp(c.root, "desk-")
	if err != nil {
		return fmt.Errorf("making room to work: %w", err)
	}

	defer func() { _ = os.RemoveAll(host) }()

	return work(desk{host: host, inside: "/" + filepath.Base(host)})
}

// outside and in give a file's path for us, and for the tools.
func (d desk) outside(name string) string { return filepath.Join(d.host, name) }
func (d desk) in(name string) string      { return filepath.Join(d.inside, name) }

// put writes a tree as a tar file.
func (d desk) put(name string, files tree) error {
	file, err := os.Create(d.outside(name))
	if err != nil {
		return fmt.Errorf("packing files: %w", err)
	}

	if err := files.writeTar(file); err != nil {
		_ = file.Close()

		return err
	}

	if err := file.Close(); err != nil {
		return fmt.Errorf("packing files: %w", err)
	}

	return nil
}
