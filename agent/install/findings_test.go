package install_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/agent/install"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

type fakeScheme struct {
	slots.Scheme

	state slots.State
	err   error
}

func (fakeScheme) Name() string                                   { return "fake" }
func (f fakeScheme) Observe(context.Context) (slots.State, error) { return f.state, f.err }

var errDisk = errors.New("input/output error")

func TestInspect(t *testing.T) {
	t.Parallel()

	good := slots.State{Running: slots.Slot{Name: "a", Version: "1.0.0"}, Spare: slots.Slot{Name: "b"}}
	ready := []v1alpha1.RungStatus{{Rung: v1alpha1.RungWatchdog, State: v1alpha1.RungReady}}

	tests := map[string]struct {
		scheme  fakeScheme
		rungs   []v1alpha1.RungStatus
		noFiles bool
		bad     []install.Finding
	}{
		"all is well": {scheme: fakeScheme{state: good}, rungs: ready},
		"no identity": {
			scheme: fakeScheme{state: good}, rungs: ready, noFiles: true,
			bad: []install.Finding{{
				Subject: "identity", Found: "/etc/stayput/kubeconfig: absent",
				Fix: "put a kubeconfig with a client certificate CN=stayput:agent:<node>, O=stayput:agents there",
			}},
		},
		"not ours": {
			scheme: fakeScheme{err: slots.Refuse(v1alpha1.ReasonSchemeUnsupported, "no verity device under /usr")}, rungs: ready,
			bad: []install.Finding{{
				Subject: "slots", Found: "scheme fake: no verity device under /usr",
				Fix: "provision the machine from an image that `stayput image disk` has made, or whose disk has two slots",
			}},
		},
		"disk fails": {
			scheme: fakeScheme{err: errDisk}, rungs: ready,
			bad: []install.Finding{{Subject: "slots", Found: "scheme fake: input/output error"}},
		},
		"second ESP and no watchdog": {
			scheme: fakeScheme{state: slots.State{Problems: []string{"two ESPs; remove one"}}},
			rungs:  []v1alpha1.RungStatus{{Rung: v1alpha1.RungWatchdog, State: v1alpha1.RungMissing, Message: "no device; load a driver"}},
			bad: []install.Finding{
				{Subject: "boot loader", Found: "two ESPs", Fix: "remove one"},
				{Subject: "fallback Watchdog", Found: "no device", Fix: "load a driver"},
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			root := t.TempDir()
			if !test.noFiles {
				if err := os.MkdirAll(filepath.Join(root, "etc/stayput"), 0o755); err != nil {
					t.Fatal(err)
				}

				text := kubeconfig(t, hostName(t), time.Hour)
				if err := os.WriteFile(filepath.Join(root, "etc/stayput/kubeconfig"), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}

			live := &install.Live{Scheme: test.scheme, Rungs: func(context.Context) []v1alpha1.RungStatus { return test.rungs }}

			var bad []install.Finding

			for _, finding := range install.Inspect(t.Context(), root, live) {
				if !finding.OK {
					bad = append(bad, finding)
				}
			}

			if len(bad) != len(test.bad) {
				t.Fatalf("got %+v", bad)
			}

			for i := range bad {
				if bad[i] != test.bad[i] {
					t.Errorf("got %+v\nwant %+v", bad[i], test.bad[i])
				}
			}
		})
	}
}

func TestInspectOfAnImageLooksAtNoMachine(t *testing.T) {
	t.Parallel()

	for _, finding := range install.Inspect(t.Context(), t.TempDir(), nil) {
		if finding.Subject != "configuration" && finding.Subject != "identity" && finding.Subject != "machine" {
			t.Errorf("got %+v", finding)
		}
	}
}
