package install

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/stayput-dev/stayput/agent/durable"
)

// Paths on the node, without a leading slash.
const (
	BinaryPath  = "opt/stayput/bin/stayput-agent"
	unitDir     = "etc/systemd/system"
	managerDir  = "etc/systemd/system.conf.d"
	stateDir    = "var/lib/stayput"
	configDir   = "etc/stayput"
	agentUnit   = "stayput-agent.service"
	gateUnit    = "stayput-boot-gate.service"
	failedUnit  = "stayput-boot-gate-failed.service"
	watchdogCnf = "50-stayput-watchdog.conf"
	// pendingFile is there from before the first change until systemd was told of all of them.
	pendingFile = stateDir + "/install-pending"
	agentLink   = unitDir + "/multi-user.target.wants/" + agentUnit
	gateLink    = unitDir + "/boot-complete.target.requires/" + gateUnit

	dirMode    = 0o755
	binaryMode = 0o755
	textMode   = 0o644
	secretMode = 0o700
)

//go:embed units
var units embed.FS

// Action is what was done to a file.
type Action string

// The actions.
const (
	Created   Action = "created"
	Updated   Action = "updated"
	Unchanged Action = "unchanged"
	Removed   Action = "removed"
	Absent    Action = "absent"
)

// Change is what was done to one file.
type Change struct {
	// Path is as on the node, with a leading slash.
	Path   string `json:"path"`
	Action Action `json:"action"`
}

// Systemd is the running manager; nil when files are put into an image.
type Systemd interface {
	// Reload makes the manager read its units and configuration again.
	Reload(ctx context.Context) error
	// Restart starts a unit anew, whether it runs or not.
	Restart(ctx context.Context, unit string) error
	// Stop stops a unit. One that is not loaded is fine.
	Stop(ctx context.Context, unit string) error
}

// Installer installs into one root directory.
type Installer struct {
	// Root is "/" on the node itself.
	Root string
	// Systemd is told about changes when it is not nil.
	Systemd Systemd
}

// Install puts the program and its units in place and enables them. It is safe to repeat. The error names the file
// that could not be written; what was done before it stays and is completed by the next call.
func (i Installer) Install(ctx context.Context, agent io.Reader) ([]Change, error) {
	state, err := i.makeDir(stateDir, secretMode)
	if err != nil {
		return nil, err
	}

	changes := []Change{state}

	pending, err := i.begin()
	if err != nil {
		return changes, err
	}

	for _, step := range []func() (Change, error){
		func() (Change, error) { return i.makeDir(configDir, dirMode) },
		func() (Change, error) { return i.copyBinary(agent) },
		func() (Change, error) { return i.copyUnit(unitDir, agentUnit) },
		func() (Change, error) { return i.copyUnit(unitDir, gateUnit) },
		func() (Change, error) { return i.copyUnit(unitDir, failedUnit) },
		func() (Change, error) { return i.copyUnit(managerDir, watchdogCnf) },
		func() (Change, error) { return i.link(agentLink, "../"+agentUnit) },
		func() (Change, error) { return i.link(gateLink, "../"+gateUnit) },
	} {
		change, err := step()
		if err != nil {
			return changes, err
		}

		changes = append(changes, change)
	}

	if i.Systemd == nil {
		return changes, nil
	}

	if pending || anyChanged(changes) {
		if err := i.activate(ctx); err != nil {
			return changes, err
		}
	}

	return changes, i.end()
}

// begin notes on the running node that files may change of which systemd does not know. It tells whether an earlier
// call has left that note: then the files are right, perhaps, but the agent that runs is not.
func (i Installer) begin() (pending bool, err error) {
	if i.Systemd == nil {
		return false, nil
	}

	if err := i.prepare(pendingFile); err != nil {
		return false, writeError(pendingFile, err)
	}

	_, err = os.Stat(i.at(pendingFile))
	if pending = err == nil; pending {
		return true, nil
	}

	// It must outlast a power cut that the files after it outlast.
	if err := durable.WriteFile(i.at(pendingFile), nil); err != nil {
		return false, writeError(pendingFile, err)
	}

	return false, nil
}

// end takes the note away. An image never has one, and the way to it was not checked there.
func (i Installer) end() error {
	if i.Systemd == nil {
		return nil
	}

	if err := durable.Remove(i.at(pendingFile)); err != nil {
		return removeError(pendingFile, err)
	}

	return nil
}

// activate tells systemd of what changed. The boot gate is not started: it belongs to the next boot.
func (i Installer) activate(ctx context.Context) error {
	if err := i.Systemd.Reload(ctx); err != nil {
		return fmt.Errorf("making systemd read the new units: %w; run `systemctl daemon-reload`", err)
	}

	if err := i.Systemd.Restart(ctx, agentUnit); err != nil {
		return fmt.Errorf("starting %s: %w; see `journalctl -u %s`", agentUnit, err, agentUnit)
	}

	return nil
}

func anyChanged(changes []Change) bool {
	for _, change := range changes {
		if change.Action != Unchanged && change.Action != Absent {
			return true
		}
	}

	return false
}

// Uninstall takes away what Install puts in place. With purge the state directory and the configuration go, too. A
// file that is not there is fine.
func (i Installer) Uninstall(ctx context.Context, purge bool) ([]Change, error) {
	if i.Systemd != nil {
		if err := i.Systemd.Stop(ctx, agentUnit); err != nil {
			return nil, fmt.Errorf("stopping %s: %w", agentUnit, err)
		}
	}

	paths := []string{
		gateLink, agentLink, unitDir + "/" + gateUnit, unitDir + "/" + failedUnit, unitDir + "/" + agentUnit,
		managerDir + "/" + watchdogCnf, BinaryPath,
	}
	if purge {
		paths = append(paths, stateDir, configDir)
	}

	var changes []Change

	for _, path := range paths {
		change, err := i.remove(path)
		if err != nil {
			return changes, err
		}

		changes = append(changes, change)
	}

	// Only directories that are empty now go away; others hold something that is not ours. A link to a directory is not
	// ours either.
	for _, dir := range []string{
		filepath.Dir(gateLink), managerDir, filepath.Dir(BinaryPath), filepath.Dir(filepath.Dir(BinaryPath)),
	} {
		if err := unix.Rmdir(i.at(dir)); err != nil && !isKept(err) {
			return changes, removeError(dir, err)
		}
	}

	if err := i.end(); err != nil {
		return changes, err
	}

	// Also when nothing changed: an earlier call may have been ended before it came here.
	if i.Systemd != nil {
		if err := i.Systemd.Reload(ctx); err != nil {
			return changes, fmt.Errorf("making systemd forget the units: %w; run `systemctl daemon-reload`", err)
		}
	}

	return changes, nil
}

// isKept tells why a directory stays without that being a failure (rmdir(2)): there is none, it is not empty, it is a
// link, or something is mounted there.
func isKept(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) ||
		errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EBUSY)
}

func (i Installer) at(path string) string { return filepath.Join(i.Root, path) }

func (i Installer) makeDir(path string, mode os.FileMode) (Change, error) {
	change := Change{Path: "/" + path, Action: Unchanged}

	if err := i.inside(path + "/."); err != nil {
		return change, writeError(path, err)
	}

	if _, err := os.Stat(i.at(path)); errors.Is(err, fs.ErrNotExist) {
		change.Action = Created
	}

	if err := os.MkdirAll(i.at(path), mode); err != nil {
		return change, writeError(path, err)
	}

	return change, nil
}

func (i Installer) copyBinary(agent io.Reader) (Change, error) {
	data, err := io.ReadAll(agent)
	if err != nil {
		return Change{}, fmt.Errorf("reading the agent's program: %w", err)
	}

	return i.write(BinaryPath, data, binaryMode)
}

func (i Installer) copyUnit(dir, name string) (Change, error) {
	data, err := units.ReadFile("units/" + name)
	if err != nil {
		return Change{}, fmt.Errorf("reading the built-in unit %s: %w", name, err)
	}

	return i.write(dir+"/"+name, data, textMode)
}

func (i Installer) write(path string, data []byte, mode os.FileMode) (Change, error) {
	change := Change{Path: "/" + path, Action: Created}

	if err := i.prepare(path); err != nil {
		return change, writeError(path, err)
	}

	old, err := os.ReadFile(i.at(path))
	if err == nil {
		change.Action = Updated

		info, err := os.Stat(i.at(path))
		if err == nil && info.Mode().Perm() == mode && bytes.Equal(old, data) {
			change.Action = Unchanged

			return change, nil
		}
	}

	if err := os.MkdirAll(filepath.Dir(i.at(path)), dirMode); err != nil {
		return change, writeError(path, err)
	}

	dir := filepath.Dir(i.at(path))
	if err := renameio.WriteFile(i.at(path), data, mode, renameio.WithTempDir(dir), renameio.WithStaticPermissions(mode)); err != nil {
		return change, writeError(path, err)
	}

	return change, nil
}

func (i Installer) link(path, target string) (Change, error) {
	change := Change{Path: "/" + path, Action: Created}

	if err := i.prepare(path); err != nil {
		return change, writeError(path, err)
	}

	old, err := os.Readlink(i.at(path))
	if err == nil {
		change.Action = Updated

		if old == target {
			change.Action = Unchanged

			return change, nil
		}
	}

	if err := os.MkdirAll(filepath.Dir(i.at(path)), dirMode); err != nil {
		return change, writeError(path, err)
	}

	if err := renameio.Symlink(target, i.at(path)); err != nil {
		return change, writeError(path, err)
	}

	return change, nil
}

func writeError(path string, err error) error {
	switch {
	case errors.Is(err, errOutside), errors.Is(err, errDangling):
		return fmt.Errorf("writing /%s: %w", path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("writing /%s: %w; run it as root", path, err)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, fs.ErrExist):
		return fmt.Errorf("writing /%s: %w; something of another kind is in the way: move it aside", path, err)
	}

	return fmt.Errorf("writing /%s: %w; the directory must be writable and outlast a slot switch", path, err)
}

func removeError(path string, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("removing /%s: %w; run it as root", path, err)
	}

	return fmt.Errorf("removing /%s: %w", path, err)
}

func (i Installer) remove(path string) (Change, error) {
	change := Change{Path: "/" + path, Action: Removed}

	if err := i.prepare(path); err != nil {
		return change, removeError(path, err)
	}

	if _, err := os.Lstat(i.at(path)); errors.Is(err, fs.ErrNotExist) {
		change.Action = Absent

		return change, nil
	}

	if err := os.RemoveAll(i.at(path)); err != nil {
		return change, removeError(path, err)
	}

	return change, nil
}
