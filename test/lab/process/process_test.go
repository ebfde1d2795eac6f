package process_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stayput-dev/stayput/test/lab/process"
)

func start(t *testing.T, dir, script string) *process.Process {
	t.Helper()

	p, err := process.Start(dir, process.Spec{Name: "child", Path: "/bin/sh", Args: []string{"-c", script}})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = p.Kill(context.Background()) })

	return p
}

func TestStopEndsAProcessFoundByItsPIDFile(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	child := start(t, dir, "echo up; exec sleep 300")

	found, err := process.Open(dir, "child")
	if err != nil {
		t.Fatal(err)
	}

	if !found.Alive() || found.PID() != child.PID() {
		t.Fatalf("found PID %d alive %v, want PID %d alive", found.PID(), found.Alive(), child.PID())
	}

	if err := found.Stop(t.Context(), 5*time.Second); err != nil {
		t.Fatal(err)
	}

	<-child.Exited()

	if found.Alive() {
		t.Error("alive after Stop")
	}

	if all, err := process.All(dir); err != nil || len(all) != 0 {
		t.Errorf("pid files after Stop: %v, %v", all, err)
	}
}

func TestStopKillsAProcessThatIgnoresSIGTERMAndItsChildren(t *testing.T) {
	t.Parallel()

	g := NewWithT(t)
	dir := t.TempDir()
	child := start(t, dir, `trap "" TERM; sleep 300 & echo grandchild $!; while :; do sleep 1; done`)

	g.Eventually(func() string { return child.Tail(5) }).Should(ContainSubstring("grandchild"))
	grandchild := strings.Fields(child.Tail(1))[1]

	g.Expect(child.Stop(t.Context(), 50*time.Millisecond)).To(Succeed())
	g.Expect(child.Alive()).To(BeFalse())
	g.Eventually(func() string {
		stat, err := os.ReadFile(filepath.Join("/proc", grandchild, "stat"))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return "gone"
		}

		return string(stat)
	}).Should(Equal("gone"))
}

func TestAPIDFileOfAnotherBootOrAnotherProcessNamesNobody(t *testing.T) {
	t.Parallel()

	for field, value := range map[string]any{"startTicks": 1, "bootID": "another"} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			child := start(t, dir, "exec sleep 300")
			rewrite(t, filepath.Join(dir, "child.pid"), field, value)

			stale, err := process.Open(dir, "child")
			if err != nil {
				t.Fatal(err)
			}

			if err := stale.Stop(t.Context(), time.Second); err != nil {
				t.Fatal(err)
			}

			if !child.Alive() {
				t.Error("Stop signalled a process that the pid file does not name")
			}
		})
	}
}

func rewrite(t *testing.T, file, field string, value any) {
	t.Helper()

	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	fields := map[string]any{}
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}

	fields[field] = value

	if data, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
