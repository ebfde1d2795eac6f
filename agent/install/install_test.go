package install_test

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/agent/install"
)

type fakeSystemd struct{ calls []string }

func (f *fakeSystemd) Reload(context.Context) error {
	f.calls = append(f.calls, "reload")
	return nil
}

func (f *fakeSystemd) Restart(_ context.Context, unit string) error {
	f.calls = append(f.calls, "restart "+unit)
	return nil
}

func (f *fakeSystemd) Stop(_ context.Context, unit string) error {
	f.calls = append(f.calls, "stop "+unit)
	return nil
}

// tree lists all files and links of a directory, links with their targets.
func tree(t *testing.T, root string) []string {
	t.Helper()

	var found []string

	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}

		name := strings.TrimPrefix(path, root+"/")
		if target, err := os.Readlink(path); err == nil {
			name += " -> " + target
		}

		found = append(found, name)

		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	return found
}

func mustInstall(t *testing.T, installer install.Installer, program string) []install.Change {
	t.Helper()

	changes, err := installer.Install(t.Context(), strings.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}

	return changes
}

func actions(changes []install.Change) map[install.Action]int {
	counts := map[install.Action]int{}
	for _, change := range changes {
		counts[change.Action]++
	}

	return counts
}

func TestInstallIntoAnImage(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	installer := install.Installer{Root: root}
	changes := mustInstall(t, installer, "program")

	want := []string{
		"etc/systemd/system/boot-complete.target.requires/stayput-boot-gate.service -> ../stayput-boot-gate.service",
		"etc/systemd/system/multi-user.target.wants/stayput-agent.service -> ../stayput-agent.service",
		"etc/systemd/system/stayput-agent.service",
		"etc/systemd/system/stayput-boot-gate-failed.service",
		"etc/systemd/system/stayput-boot-gate.service",
		"etc/systemd/system.conf.d/50-stayput-watchdog.conf",
		"opt/stayput/bin/stayput-agent",
	}
	if got := tree(t, root); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	if got := actions(changes); got[install.Created] != len(changes) {
		t.Errorf("first time: %v", changes)
	}

	if info, err := os.Stat(filepath.Join(root, install.BinaryPath)); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the program's mode: %v, %v", info, err)
	}

	if again := mustInstall(t, installer, "program"); actions(again)[install.Unchanged] != len(again) {
		t.Errorf("again: %v", again)
	}

	if newer := mustInstall(t, installer, "newer"); actions(newer)[install.Updated] != 1 {
		t.Errorf("newer program: %v", newer)
	}
}

func TestInstallRepairsWhatWasChanged(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	installer := install.Installer{Root: root}
	mustInstall(t, installer, "program")

	link := filepath.Join(root, "etc/systemd/system/boot-complete.target.requires/stayput-boot-gate.service")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}

	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}

	if err := os.Chmod(filepath.Join(root, install.BinaryPath), 0o600); err != nil {
		t.Fatal(err)
	}

	if changes := mustInstall(t, installer, "program"); actions(changes)[install.Updated] != 2 {
		t.Errorf("got %v", changes)
	}

	if target, err := os.Readlink(link); err != nil || target != "../stayput-boot-gate.service" {
		t.Errorf("link to %q, %v", target, err)
	}
}

func TestInstallLiveTellsSystemdOnlyOfChanges(t *testing.T) {
	t.Parallel()

	systemd := &fakeSystemd{}
	installer := install.Installer{Root: t.TempDir(), Systemd: systemd}
	mustInstall(t, installer, "program")
	mustInstall(t, installer, "program")

	if want := []string{"reload", "restart stayput-agent.service"}; !slices.Equal(systemd.calls, want) {
		t.Errorf("got %q, want %q", systemd.calls, want)
	}
}

func TestUninstallRemovesExactlyWhatWasInstalled(t *testing.T) {
	t.Parallel()

	for name, purge := range map[string]bool{"keep state": false, "purge": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			root := t.TempDir()
			systemd := &fakeSystemd{}
			installer := install.Installer{Root: root, Systemd: systemd}
			mustInstall(t, installer, "program")

			foreign := []string{"etc/systemd/system/other.service", "var/lib/stayput/journal.json", "etc/stayput/agent.yaml", "opt/other"}
			for _, path := range foreign {
				if err := os.WriteFile(filepath.Join(root, path), []byte("x"), 0o600); err != nil {
					t.Fatal(err)
				}
			}

			if _, err := installer.Uninstall(t.Context(), purge); err != nil {
				t.Fatal(err)
			}

			want := []string{"etc/stayput/agent.yaml", "etc/systemd/system/other.service", "opt/other", "var/lib/stayput/journal.json"}
			if purge {
				want = []string{"etc/systemd/system/other.service", "opt/other"}
			}

			if got := tree(t, root); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}

			if last := systemd.calls[len(systemd.calls)-2:]; !slices.Equal(last, []string{"stop stayput-agent.service", "reload"}) {
				t.Errorf("got %q", systemd.calls)
			}

			again, err := installer.Uninstall(t.Context(), purge)
			if err != nil || actions(again)[install.Absent] != len(again) {
				t.Errorf("again: %v, %v", again, err)
			}
		})
	}
}

// systemd itself reads the units: no unknown setting and no ordering cycle, with a default.target that, as in the
// field, waits for all it wants.
func TestSystemdAcceptsTheUnits(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	mustInstall(t, install.Installer{Root: root}, "program")

	systemUnits := "/usr/lib/systemd/system"
	if _, err := os.Stat(systemUnits); err != nil {
		systemUnits = "/lib/systemd/system"
	}

	unitPath := filepath.Join(root, "etc/systemd/system")
	if err := os.MkdirAll(filepath.Join(unitPath, "basic.target.wants"), 0o755); err != nil {
		t.Fatal(err)
	}

	// What systemd-bless-boot-generator does on a counted boot.
	bless := "systemd-bless-boot.service"
	if err := os.Symlink(filepath.Join(systemUnits, bless), filepath.Join(unitPath, "basic.target.wants", bless)); err != nil {
		t.Fatal(err)
	}

	// verify looks for the program of each unit on this machine.
	for _, unit := range []string{"stayput-agent.service", "stayput-boot-gate.service"} {
		path := filepath.Join(unitPath, unit)

		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}

		local := strings.ReplaceAll(string(text), "/opt/stayput/bin/stayput-agent", filepath.Join(root, install.BinaryPath))
		if err := os.WriteFile(path, []byte(local), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	verify := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--recursive-errors=one",
		"multi-user.target", "boot-complete.target", "stayput-agent.service", "stayput-boot-gate.service", "stayput-boot-gate-failed.service")
	verify.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+unitPath+":"+systemUnits)

	output, err := verify.CombinedOutput()
	if err != nil {
		t.Errorf("%v", err)
	}

	for line := range strings.Lines(string(output)) {
		if strings.Contains(line, "stayput") || strings.Contains(line, "cycle") {
			t.Error(strings.TrimSpace(line))
		}
	}
}
