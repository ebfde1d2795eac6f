package install_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/agent/install"
)

var errKilled = errors.New("killed")

// brokenSystemd fails once, as a call does that is killed there.
type brokenSystemd struct {
	fakeSystemd

	failed bool
}

func (b *brokenSystemd) Reload(ctx context.Context) error {
	if !b.failed {
		b.failed = true

		return errKilled
	}

	return b.fakeSystemd.Reload(ctx)
}

// All files are right, but systemd was never told of them: the next call sees to that.
func TestInstallGoesOnWithWhatSystemdWasNotTold(t *testing.T) {
	t.Parallel()

	systemd := &brokenSystemd{}
	installer := install.Installer{Root: t.TempDir(), Systemd: systemd}

	if _, err := installer.Install(t.Context(), strings.NewReader("program")); !errors.Is(err, errKilled) {
		t.Fatalf("got %v", err)
	}

	if changes := mustInstall(t, installer, "program"); actions(changes)[install.Unchanged] != len(changes) {
		t.Errorf("the files were not there: %v", changes)
	}

	mustInstall(t, installer, "program")

	if want := []string{"reload", "restart stayput-agent.service"}; !slices.Equal(systemd.calls, want) {
		t.Errorf("got %q, want %q", systemd.calls, want)
	}
}

// An image may have links that are right on its machine only.
func TestLinksDoNotLeadOutOfAnImage(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		link, target string
		allowed      bool
	}{
		"absolute":           {link: "opt", target: "OUTSIDE"},
		"upwards":            {link: "opt", target: "../OUTSIDE"},
		"nowhere":            {link: "opt", target: "none"},
		"of the directory":   {link: "etc/stayput", target: "OUTSIDE"},
		"within, relative":   {link: "opt", target: "usr/opt", allowed: true},
		"within, and upward": {link: "var/lib", target: "../usr/opt", allowed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			root, outside := filepath.Join(dir, "root"), filepath.Join(dir, "outside")
			target := strings.Replace(test.target, "../OUTSIDE", "../outside", 1)
			target = strings.Replace(target, "OUTSIDE", outside, 1)

			if err := errors.Join(
				os.MkdirAll(filepath.Join(root, "usr/opt"), 0o755), os.Mkdir(outside, 0o755),
				os.WriteFile(filepath.Join(outside, "foreign"), nil, 0o600),
				os.MkdirAll(filepath.Join(root, filepath.Dir(test.link)), 0o755), os.Symlink(target, filepath.Join(root, test.link)),
			); err != nil {
				t.Fatal(err)
			}

			installer := install.Installer{Root: root}

			_, err := installer.Install(t.Context(), strings.NewReader("program"))
			if (err == nil) != test.allowed {
				t.Errorf("installing: %v", err)
			}

			if _, err := installer.Uninstall(t.Context(), true); err != nil && test.allowed {
				t.Errorf("uninstalling: %v", err)
			}

			if got := tree(t, outside); !slices.Equal(got, []string{"foreign"}) {
				t.Errorf("outside are %q", got)
			}
		})
	}
}

func TestWhatAKilledInstallLeftGoesAway(t *testing.T) {
	t.Parallel()

	for name, again := range map[string]func(install.Installer) error{
		"install": func(i install.Installer) error {
			_, err := i.Install(t.Context(), strings.NewReader("program"))

			return err
		},
		"uninstall": func(i install.Installer) error {
			_, err := i.Uninstall(t.Context(), false)

			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			installer := install.Installer{Root: t.TempDir()}
			mustInstall(t, installer, "program")

			left := filepath.Join(installer.Root, install.BinaryPath)
			left = filepath.Join(filepath.Dir(left), ".stayput-agent4711")
			foreign := filepath.Join(filepath.Dir(left), ".stayput-agent.swp")

			if err := errors.Join(os.WriteFile(left, nil, 0o600), os.WriteFile(foreign, nil, 0o600)); err != nil {
				t.Fatal(err)
			}

			if err := again(installer); err != nil {
				t.Fatal(err)
			}

			if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("still there: %v", err)
			}

			if _, err := os.Stat(foreign); err != nil {
				t.Errorf("it was not ours: %v", err)
			}
		})
	}
}

// Each obstacle is named with what to do about it.
func TestObstacles(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		obstruct func(root string) error
		says     string
	}{
		"a file for a directory": {
			obstruct: func(root string) error { return os.WriteFile(filepath.Join(root, "opt"), nil, 0o600) }, says: "move it aside",
		},
		"a directory for a unit": {
			obstruct: func(root string) error {
				return os.MkdirAll(filepath.Join(root, "etc/systemd/system/stayput-agent.service"), 0o755)
			},
			says: "move it aside",
		},
		"a directory for a link": {
			obstruct: func(root string) error {
				return os.MkdirAll(filepath.Join(root, "etc/systemd/system/multi-user.target.wants/stayput-agent.service"), 0o755)
			},
			says: "move it aside",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			root := t.TempDir()
			if err := test.obstruct(root); err != nil {
				t.Fatal(err)
			}

			_, err := install.Installer{Root: root}.Install(t.Context(), strings.NewReader("program"))
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Before the first file changes the note is there, and it stays until systemd was told.
func TestTheNoteIsThereWhileSystemdDoesNotKnow(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	note := filepath.Join(root, "var/lib/stayput/install-pending")
	installer := install.Installer{Root: root, Systemd: &lookingSystemd{note: note}}

	// What is in the way lets the call end at its first file.
	if err := os.WriteFile(filepath.Join(root, "etc"), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	if _, err := installer.Install(t.Context(), strings.NewReader("program")); err == nil {
		t.Fatal("nothing was in the way")
	}

	if _, err := os.Stat(note); err != nil {
		t.Errorf("before the first file: %v", err)
	}

	if err := os.Remove(filepath.Join(root, "etc")); err != nil {
		t.Fatal(err)
	}

	mustInstall(t, installer, "program")

	if _, err := os.Stat(note); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after all: %v", err)
	}
}

// lookingSystemd refuses to be told when the note is not there.
type lookingSystemd struct {
	fakeSystemd

	note string
}

func (l *lookingSystemd) Restart(context.Context, string) error {
	_, err := os.Stat(l.note)

	return err
}

// An image's link can name this machine's state directory, which has a note of its own.
func TestUninstallFromAnImageLeavesTheMachinesNote(t *testing.T) {
	t.Parallel()

	machine, root := t.TempDir(), t.TempDir()
	note := filepath.Join(machine, "stayput", "install-pending")

	if err := errors.Join(
		os.MkdirAll(filepath.Dir(note), 0o755), os.WriteFile(note, nil, 0o600),
		os.Mkdir(filepath.Join(root, "var"), 0o755), os.Symlink(machine, filepath.Join(root, "var/lib")),
	); err != nil {
		t.Fatal(err)
	}

	if _, err := (install.Installer{Root: root}).Uninstall(t.Context(), false); err != nil {
		t.Fatal(err)
	}

	if _, err := os.Stat(note); err != nil {
		t.Errorf("the machine's note: %v", err)
	}
}

// A link in place of a directory was made by somebody else.
func TestUninstallKeepsLinksToDirectories(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	link := filepath.Join(root, "opt/stayput")

	if err := errors.Join(
		os.MkdirAll(filepath.Join(root, "opt"), 0o755), os.MkdirAll(filepath.Join(root, "data/stayput"), 0o755),
		os.Symlink("../data/stayput", link),
	); err != nil {
		t.Fatal(err)
	}

	installer := install.Installer{Root: root}
	mustInstall(t, installer, "program")

	if _, err := installer.Uninstall(t.Context(), true); err != nil {
		t.Fatal(err)
	}

	if target, err := os.Readlink(link); err != nil || target != "../data/stayput" {
		t.Errorf("the link leads to %q, %v", target, err)
	}
}
