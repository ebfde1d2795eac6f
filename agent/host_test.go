package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

var errBootPartition = errors.New("a broken boot partition")

// bootFiles is a boot partition with a staged image of this command line, or a broken one.
type bootFiles struct {
	line     boot.CommandLine
	unread   error
	unusable error
}

func (b bootFiles) StagedCommandLine(context.Context) (boot.CommandLine, error) {
	return b.line, b.unread
}

func (b bootFiles) CheckBootPartition(context.Context) error { return b.unusable }

// systemd is one in which all is as the ladder wants it.
type systemd struct{}

func (systemd) RuntimeWatchdog(context.Context) (time.Duration, error) { return time.Minute, nil }

func (systemd) SetRuntimeWatchdog(context.Context, time.Duration) error { return nil }

func (systemd) Requires(context.Context, string) ([]string, error) {
	return []string{boot.UnitBootGate}, nil
}

func (systemd) UnitState(context.Context, string) (string, error) { return "loaded", nil }

func TestRungsKnowTheBootPartition(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		files bootFiles
		want  string // what rung BootTries misses, "" when it is ready
	}{
		"nothing staged":               {bootFiles{}, ""},
		"staged, panic reboots":        {bootFiles{line: "root=/dev/sda2 panic=5"}, ""},
		"staged, panic hangs":          {bootFiles{line: "root=/dev/sda2"}, "the staged image's command line has no panic="},
		"staged, cannot be read":       {bootFiles{unread: errBootPartition}, "not known: " + errBootPartition.Error()},
		"boot partition not available": {bootFiles{unusable: errBootPartition}, "cannot be written: " + errBootPartition.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			root := t.TempDir()
			put(t, filepath.Join(root, "proc/cmdline"), "panic=5\n")
			put(t, filepath.Join(root, "vars/LoaderFeatures-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"),
				"\x06\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00")

			host := NewHost(t.TempDir(), "", tt.files)
			host.system, host.manager = boot.System{Root: root}, systemd{}
			host.variables = boot.NewVariables(filepath.Join(root, "vars"))

			for _, rung := range host.Rungs(t.Context()) {
				if rung.Rung != v1alpha1.RungBootTries {
					continue
				}

				if (rung.State == v1alpha1.RungReady) != (tt.want == "") || !strings.Contains(rung.Message, tt.want) {
					t.Errorf("rung %+v, want it to miss %q", rung, tt.want)
				}
			}
		})
	}
}

func put(t *testing.T, path, content string) {
	t.Helper()

	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
