package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/agent/install"
)

func runNode(t *testing.T, args ...string) (string, error) {
	t.Helper()

	var out bytes.Buffer

	root := newRootCommand()
	root.SetOut(&out)
	root.SetArgs(append([]string{"node"}, args...))

	err := root.ExecuteContext(t.Context())

	return out.String(), err
}

func TestNodeInstallAndUninstallInAnImage(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	root, agent := filepath.Join(dir, "root"), filepath.Join(dir, "agent")

	if err := os.WriteFile(agent, []byte("program"), 0o600); err != nil {
		t.Fatal(err)
	}

	text, err := runNode(t, "install", "--root", root, "--agent", agent)
	if err != nil {
		t.Fatal(err)
	}

	for _, want := range []string{"created", "/" + install.BinaryPath, "MISSING", "/etc/stayput/kubeconfig", "->"} {
		if !strings.Contains(text, want) {
			t.Errorf("the output does not name %q:\n%s", want, text)
		}
	}

	if content, err := os.ReadFile(filepath.Join(root, install.BinaryPath)); err != nil || string(content) != "program" {
		t.Errorf("got %q, %v", content, err)
	}

	text, err = runNode(t, "uninstall", "--root", root, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}

	var report nodeReport
	if err := json.Unmarshal([]byte(text), &report); err != nil || len(report.Changes) == 0 ||
		report.Changes[0].Action != install.Removed {
		t.Errorf("got %s, %v", text, err)
	}
}

func TestNodeInstallNamesTheMissingProgram(t *testing.T) {
	t.Parallel()

	_, err := runNode(t, "install", "--root", t.TempDir(), "--agent", "/nowhere/stayput-agent")
	if err == nil || !strings.Contains(err.Error(), "--agent") {
		t.Fatalf("got %v", err)
	}
}
