package boot_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

var (
	errNoBus    = errors.New("no bus")
	errReadOnly = errors.New("read-only file system")
)

type manager struct {
	watchdog time.Duration
	requires []string
	states   map[string]string
	err      error
}

func (m *manager) RuntimeWatchdog(context.Context) (time.Duration, error) { return m.watchdog, m.err }

func (m *manager) SetRuntimeWatchdog(_ context.Context, timeout time.Duration) error {
	m.watchdog = timeout

	return m.err
}

func (m *manager) Requires(context.Context, string) ([]string, error) { return m.requires, m.err }

func (m *manager) UnitState(_ context.Context, unit string) (string, error) {
	return m.states[unit], m.err
}

// whole is a machine with every rung.
func whole(t *testing.T) (root string, in boot.LadderInput, m *manager) {
	t.Helper()

	root = t.TempDir()
	write(t, []byte("quiet panic=5\n"), root, "/proc/cmdline")
	write(t, nil, root, "/dev/watchdog0")
	write(t, []byte("\x06\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00"), root, "vars", boot.LoaderFeatures+vendor)

	m = &manager{
		watchdog: time.Minute, requires: []string{"sysinit.target", boot.UnitBootGate},
		states: map[string]string{boot.UnitBootGate: "loaded", boot.UnitBlessBoot: "loaded"},
	}

	return root, boot.LadderInput{
		System: boot.System{Root: root}, Variables: boot.NewVariables(root + "/vars"), Manager: m,
		StagedCommandLine: "panic=-1",
	}, m
}

func TestLadder(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		spoil func(t *testing.T, root string, in *boot.LadderInput, m *manager)
		// The rungs that are missing then, and a word of the message.
		want map[v1alpha1.Rung]string
	}{
		"whole": {func(*testing.T, string, *boot.LadderInput, *manager) {}, nil},
		"nothing staged": {func(_ *testing.T, _ string, in *boot.LadderInput, _ *manager) {
			in.StagedCommandLine = ""
		}, nil},
		"running kernel hangs on panic": {func(t *testing.T, root string, _ *boot.LadderInput, _ *manager) {
			t.Helper()
			write(t, []byte("panic=5 panic=0\n"), root, "/proc/cmdline")
		}, map[v1alpha1.Rung]string{v1alpha1.RungBootTries: "running kernel"}},
		"new kernel hangs on panic": {func(_ *testing.T, _ string, in *boot.LadderInput, _ *manager) {
			in.StagedCommandLine = "oops=panic"
		}, map[v1alpha1.Rung]string{v1alpha1.RungBootTries: "staged image"}},
		"new kernel unknown": {func(_ *testing.T, _ string, in *boot.LadderInput, _ *manager) {
			in.StagedCommandLine, in.StagedUnread = "", errReadOnly
		}, map[v1alpha1.Rung]string{v1alpha1.RungBootTries: "staged image's command line is not known"}},
		"no systemd-boot": {func(_ *testing.T, root string, in *boot.LadderInput, _ *manager) {
			in.Variables = boot.NewVariables(root + "/other")
		}, map[v1alpha1.Rung]string{v1alpha1.RungBootTries: "systemd-boot"}},
		"old systemd-boot": {func(t *testing.T, root string, _ *boot.LadderInput, _ *manager) {
			t.Helper()
			write(t, []byte("\x06\x00\x00\x00\xef\x00\x00\x00\x00\x00\x00\x00"), root, "vars", boot.LoaderFeatures+vendor)
		}, map[v1alpha1.Rung]string{v1alpha1.RungBootTries: "boot counting"}},
		"read-only boot partition": {func(_ *testing.T, _ string, in *boot.LadderInput, _ *manager) {
			in.BootPartition = errReadOnly
		}, map[v1alpha1.Rung]string{v1alpha1.RungBootTries: "read-only"}},
		"gate not installed": {func(_ *testing.T, _ string, _ *boot.LadderInput, m *manager) {
			m.requires, m.states[boot.UnitBootGate] = nil, "not-found"
		}, map[v1alpha1.Rung]string{v1alpha1.RungBootGate: "stayput node install"}},
		"no bless": {func(_ *testing.T, _ string, _ *boot.LadderInput, m *manager) {
			m.states[boot.UnitBlessBoot] = "not-found"
		}, map[v1alpha1.Rung]string{v1alpha1.RungBootGate: boot.UnitBlessBoot}},
		"watchdog off": {func(_ *testing.T, _ string, _ *boot.LadderInput, m *manager) {
			m.watchdog = 0
		}, map[v1alpha1.Rung]string{v1alpha1.RungWatchdog: "RuntimeWatchdogSec"}},
		"no watchdog": {func(_ *testing.T, _ string, in *boot.LadderInput, _ *manager) {
			in.System.Root += "/vars"
		}, map[v1alpha1.Rung]string{v1alpha1.RungWatchdog: "/dev/watchdog", v1alpha1.RungBootTries: "command line"}},
		"no bus": {func(_ *testing.T, _ string, _ *boot.LadderInput, m *manager) {
			m.err = errNoBus
		}, map[v1alpha1.Rung]string{v1alpha1.RungWatchdog: "no bus", v1alpha1.RungBootGate: "no bus"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			root, in, m := whole(t)
			tt.spoil(t, root, &in, m)

			rungs := boot.Ladder(t.Context(), in)
			if boot.FallbackReady(rungs) != (len(tt.want) == 0) {
				t.Errorf("FallbackReady() = %v", boot.FallbackReady(rungs))
			}

			for _, rung := range rungs {
				word, missing := tt.want[rung.Rung]
				if missing != (rung.State == v1alpha1.RungMissing) || !strings.Contains(rung.Message, word) {
					t.Errorf("rung %+v, want missing: %v with %q", rung, missing, word)
				}
			}
		})
	}
}

func TestEnsureWatchdog(t *testing.T) {
	t.Parallel()

	_, in, m := whole(t)
	m.watchdog = 0

	if err := boot.EnsureWatchdog(t.Context(), in.System, m); err != nil || m.watchdog != boot.DefaultWatchdog {
		t.Errorf("a watchdog that is off: %v, %v", m.watchdog, err)
	}

	m.watchdog = time.Second

	if err := boot.EnsureWatchdog(t.Context(), in.System, m); err != nil || m.watchdog != time.Second {
		t.Errorf("a watchdog that is on: %v, %v", m.watchdog, err)
	}

	m.watchdog, m.err = 0, errNoBus

	if err := boot.EnsureWatchdog(t.Context(), in.System, m); !errors.Is(err, errNoBus) {
		t.Errorf("without a bus: %v", err)
	}

	if err := boot.EnsureWatchdog(t.Context(), boot.System{Root: t.TempDir()}, m); err != nil {
		t.Errorf("without a watchdog: %v", err)
	}
}
