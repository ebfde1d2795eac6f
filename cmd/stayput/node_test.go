package main

import (
	"bytes"
	"encoding/json"
	"errors"
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
	root := filepath.Join(dir, "root")

	agent, err := os.Executable()
	if err := errors.Join(err, os.Mkdir(root, 0o755)); err != nil {
		t.Fatal(err)
	}

	program, err := os.ReadFile(agent)
	if err != nil {
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

	if content, err := os.ReadFile(filepath.Join(root, install.BinaryPath)); err != nil || !bytes.Equal(content, program) {
		t.Errorf("got %d bytes, %v", len(content), err)
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

// What would be installed in the wrong place, or could not run, is refused before anything is written.
func TestNodeMistakesChangeNothing(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir) // an empty root once meant the working directory

	agent, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	program, err := os.ReadFile(agent)
	if err != nil {
		t.Fatal(err)
	}

	root, files := t.TempDir(), t.TempDir()
	cut, empty, bare := filepath.Join(files, "cut"), filepath.Join(files, "empty"), filepath.Join(files, "bare")

	// Without its section table, which is at the end and need not be there, nothing but the sizes shows the cut (elf(5)).
	stripped := bytes.Clone(program[:len(program)/2])
	clear(stripped[0x28:0x30]) // e_shoff
	clear(stripped[0x3c:0x40]) // e_shnum, e_shstrndx

	if err := errors.Join(
		os.WriteFile(bare, stripped, 0o700), os.WriteFile(cut, program[:len(program)/2], 0o700), os.WriteFile(empty, nil, 0o700),
	); err != nil {
		t.Fatal(err)
	}

	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"install", "--root", "", "--agent", agent}, "variable of the shell"},
		{[]string{"install", "--root", filepath.Join(dir, "none"), "--agent", agent}, "--root"},
		{[]string{"install", "--root", empty, "--agent", agent}, "--root"},
		{[]string{"uninstall", "--purge", "--root", ""}, "variable of the shell"},
		{[]string{"uninstall", "--root", filepath.Join(dir, "none")}, "--root"},
		{[]string{"install", "--root", root, "--agent", empty}, "empty"},
		{[]string{"install", "--root", root, "--agent", cut}, "cut off"},
		{[]string{"install", "--root", root, "--agent", bare}, "its parts need"},
		{[]string{"install", "--root", root, "--agent", files}, "no program"},
		{[]string{"install", "--root", root, "--agent", agent, "-o", "yaml"}, "text or json"},
		{[]string{"instal", "--root", root}, `did you mean "install"`},
	} {
		if _, err := runNode(t, test.args...); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v: got %v, want an error that says %q", test.args, err, test.says)
		}
	}

	for _, untouched := range []string{dir, root} {
		if entries, err := os.ReadDir(untouched); err != nil || len(entries) > 0 {
			t.Errorf("%s has %v, %v", untouched, entries, err)
		}
	}
}
