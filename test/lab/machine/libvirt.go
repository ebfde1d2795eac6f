package machine

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/stayput-dev/stayput/test/lab/process"
	"github.com/stayput-dev/stayput/test/lab/tools"
)

const (
	// URI is the libvirt connection that every machine lives in, for Redfish emulators too.
	URI = "qemu:///system"

	dirMode  = 0o700
	fileMode = 0o600

	libvirtWait = 60 * time.Second
	// lockWait is longer than another lab may take to find that libvirtd does not answer and to start it, or to stop it
	// and virtlogd.
	lockWait     = 3 * libvirtWait
	libvirtGrace = 15 * time.Second
	virshWait    = 60 * time.Second
	pollInterval = 100 * time.Millisecond
)

// ErrVirsh means that virsh ended with an error.
var ErrVirsh = errors.New("virsh failed")

// SharedDir is where the labs of a user keep what they share: stayput-lab/libvirt in the user's cache folder.
func SharedDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the user's cache folder: %w", err)
	}

	return filepath.Join(cache, "stayput-lab", "libvirt"), nil
}

// Libvirt is a connection to libvirtd.
type Libvirt struct {
	dir string
}

// ConnectLibvirt starts virtlogd and libvirtd when nobody answers at URI, and returns when libvirtd answers. dir holds
// their pid files and logs; all labs of a user share it, for a machine has one libvirtd.
func ConnectLibvirt(ctx context.Context, dir string) (*Libvirt, error) {
	libvirt := &Libvirt{dir: dir}

	return libvirt, libvirt.ensure(ctx)
}

// ensure starts what does not run.
func (l *Libvirt) ensure(ctx context.Context) error {
	unlock, err := l.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()

	if _, err := l.run(ctx, "version"); err == nil {
		return nil
	}

	// virtlogd first: libvirtd writes the machines' consoles through it.
	for _, program := range []string{"virtlogd", "libvirtd"} {
		if running, err := process.Open(l.dir, program); err == nil && running.Alive() {
			continue
		}

		if err := l.start(program); err != nil {
			return err
		}
	}

	return l.wait(ctx)
}

// qemuConf is libvirt's qemu.conf for a libvirtd of our own. QEMU runs as root, for two reasons: the lab's files are
// private, and where no udev has opened /dev/kvm to a group (mode 0600), libvirt probes QEMU with it, then finds that
// the unprivileged user cannot open it, and probes again at every call, for seconds. It uses no control groups: in
// libvirt's group all machines together would weigh as much as one session of anything else, whatever Prioritize says.
const qemuConf = "user = \"root\"\ngroup = \"root\"\ncgroup_controllers = []\n"

// start starts one of libvirt's programs. It sees qemuConf in the place of the host's, in a mount namespace of its
// own, so that the host's file stays as it is.
func (l *Libvirt) start(program string) error {
	conf := filepath.Join(l.dir, "qemu.conf")
	if err := os.WriteFile(conf, []byte(qemuConf), fileMode); err != nil {
		return fmt.Errorf("writing libvirt's configuration: %w", err)
	}

	_, err := process.Start(l.dir, process.Spec{
		Name: program, Path: "/usr/bin/unshare",
		Args: []string{
			"--mount", "/bin/sh", "-c", `mount --bind "$1" /etc/libvirt/qemu.conf && exec "$2"`, "sh", conf,
			"/usr/sbin/" + program,
		},
	})
	if err != nil {
		return fmt.Errorf("%w; are the Debian packages libvirt-daemon-system and libvirt-clients installed?", err)
	}

	return nil
}

// ReleaseLibvirt stops the libvirtd that ConnectLibvirt started, unless machines are left, or the system's own
// libvirtd answers.
func ReleaseLibvirt(ctx context.Context, dir string) error {
	libvirt := &Libvirt{dir: dir}

	unlock, err := libvirt.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()

	running, err := process.Open(dir, "libvirtd")
	if errors.Is(err, process.ErrGone) {
		return nil
	}

	if err != nil {
		return err
	}

	if running.Alive() {
		// Not by virsh, which would wait for the lock that is held here.
		if domains, err := libvirt.run(ctx, listDomains()...); err != nil || strings.TrimSpace(domains) != "" {
			return err
		}
	}

	errs := []error{running.Stop(ctx, libvirtGrace)}

	if logger, err := process.Open(dir, "virtlogd"); err == nil {
		errs = append(errs, logger.Stop(ctx, libvirtGrace))
	}

	return errors.Join(errs...)
}

// Domains are the names of all domains, running or not, of labs and of others.
func (l *Libvirt) Domains(ctx context.Context) ([]string, error) {
	output, err := l.virsh(ctx, listDomains()...)
	if err != nil {
		return nil, err
	}

	return strings.Fields(output), nil
}

func listDomains() []string { return []string{"list", "--all", "--name"} }

// capabilities is the part of `virsh capabilities` that is used here.
type capabilities struct {
	SecurityModels []string `xml:"host>secmodel>model"`
}

func (l *Libvirt) securityModels(ctx context.Context) ([]string, error) {
	output, err := l.virsh(ctx, "capabilities")
	if err != nil {
		return nil, err
	}

	var parsed capabilities
	if err := xml.Unmarshal([]byte(output), &parsed); err != nil {
		return nil, fmt.Errorf("reading libvirt's capabilities: %w", err)
	}

	return parsed.SecurityModels, nil
}

// virsh runs a command of virsh. When nobody answers, libvirtd is started and it is run again: another lab may have
// started the libvirtd that was there, and have stopped it before this lab had a machine.
func (l *Libvirt) virsh(ctx context.Context, args ...string) (string, error) {
	output, err := l.run(ctx, args...)
	if err == nil || !strings.Contains(err.Error(), noLibvirtd) {
		return output, err
	}

	if err := l.ensure(ctx); err != nil {
		return "", err
	}

	return l.run(ctx, args...)
}

// noLibvirtd is in what virsh says when it cannot connect. Nothing has been done then.
const noLibvirtd = "failed to connect to the hypervisor"

func (l *Libvirt) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, virshWait)
	defer cancel()

	cmd := exec.CommandContext(ctx, "virsh", append([]string{"-q", "-c", URI}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")

	var stdout, stderr bytes.Buffer

	cmd.Stdout, cmd.Stderr = &stdout, &stderr

	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: virsh %s: %w: %s", ErrVirsh, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}

	return stdout.String(), nil
}

func (l *Libvirt) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, libvirtWait)
	defer cancel()

	for {
		_, err := l.run(ctx, "version")
		if err == nil {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for libvirtd (logs in %s): %w", l.dir, err)
		case <-time.After(pollInterval):
		}
	}
}

// lock keeps two labs from starting or stopping libvirtd at the same time.
func (l *Libvirt) lock(ctx context.Context) (func(), error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()

	// What is in it is private, and the lock would make it otherwise.
	if err := os.MkdirAll(l.dir, dirMode); err != nil {
		return nil, fmt.Errorf("making libvirt's folder: %w", err)
	}

	unlock, err := tools.Lock(ctx, filepath.Join(l.dir, "lock"), func() {})
	if err != nil {
		return nil, fmt.Errorf("locking libvirtd: %w", err)
	}

	return unlock, nil
}
