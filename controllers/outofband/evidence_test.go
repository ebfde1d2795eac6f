package outofband

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/connect"
)

// teller is a BMC that tells a log, and what the boot override is.
type teller struct {
	bmc.Machine

	log     []bmc.LogEntry
	logErr  error
	boot    bmc.BootTarget
	bootErr error
	acts    []bmc.Action
	uuid    string
}

func (m *teller) Log(context.Context, int) ([]bmc.LogEntry, error) { return m.log, m.logErr }

func (m *teller) SetBoot(_ context.Context, boot bmc.Boot) error {
	if boot.Continuous {
		m.boot = "for ever"
	}

	return m.bootErr
}

func (m *teller) Boot(context.Context) (bmc.BootState, error) {
	return bmc.BootState{Boot: bmc.Boot{Target: m.boot}}, nil
}

func (m *teller) Identity(context.Context) (bmc.Identity, error) {
	return bmc.Identity{UUID: m.uuid}, nil
}

func (m *teller) Power(context.Context) (bmc.Power, error)      { return bmc.PowerOn, nil }
func (m *teller) Actions(context.Context) ([]bmc.Action, error) { return nil, nil }
func (m *teller) Close(context.Context) error                   { return nil }

func (m *teller) Do(_ context.Context, action bmc.Action) error {
	m.acts = append(m.acts, action)

	return nil
}

// console is one that keeps the console, too.
type console struct {
	*teller

	lines []string
}

func (m console) ConsoleTail(context.Context, int) ([]string, error) { return m.lines, nil }

// behind is a session of a machine behind a BMC.
func behind(t *testing.T, machine bmc.Machine) *session {
	t.Helper()
	measured, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	bmcs := connect.NewPool(connect.PoolOptions{
		Open: func(context.Context, bmc.Options) (bmc.Machine, error) { return machine, nil },
	})
	t.Cleanup(func() {
		if err := bmcs.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	host := freeHost()

	return &session{
		Reconciler: &Reconciler{
			clock: clocktesting.NewFakePassiveClock(testStart()), metrics: measured, bmcs: bmcs,
			home: serverWith(t, nil, &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: host.Namespace, Name: host.Spec.BMC.CredentialsName},
				Data:       map[string][]byte{secretUsername: []byte("admin"), secretPassword: []byte("secret")},
			}),
		},
		request: Request{Node: "n1"}, host: host,
	}
}

func TestCollectEvidence(t *testing.T) {
	t.Parallel()
	const many = 30
	entries, lines := make([]bmc.LogEntry, 0, many), make([]string, 0, many)
	for i := range many {
		message := fmt.Sprintf("entry %d ", i) + strings.Repeat("ü", 300)
		entries = append(entries, bmc.LogEntry{At: testStart(), Severity: "Critical", Message: message})
		lines = append(lines, fmt.Sprintf("line %d", i))
	}
	full := behind(t, console{teller: &teller{log: entries}, lines: lines}).evidence(t.Context())
	if len(full.Log) != maxLogEntries || !strings.HasPrefix(full.Log[0].Message, "entry 0 ") || full.Log[0].At.IsZero() {
		t.Errorf("log: %+v", full.Log)
	}
	for _, entry := range full.Log {
		if len(entry.Message) > maxLine || !utf8.ValidString(entry.Message) {
			t.Errorf("an entry has %d bytes: %q", len(entry.Message), entry.Message)
		}
	}
	if len(full.Console) != maxConsoleLines || full.Console[maxConsoleLines-1] != "line 29" || full.Missing != "" {
		t.Errorf("console: %q, missing %q", full.Console, full.Missing)
	}
	none := behind(t, &teller{logErr: &bmc.Error{Kind: bmc.Unsupported, Op: "reading the log", Detail: "there is none"}}).evidence(t.Context())
	if len(none.Log) != 0 || !strings.Contains(none.Missing, "there is none") || !strings.Contains(none.Missing, "console") {
		t.Errorf("%+v", none)
	}
	if none.CollectedAt.IsZero() {
		t.Error("it would be collected again and again")
	}
}

// What cannot be asked is said, and asked once.
func TestEvidenceWithoutABMC(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*session){
		"no host":                    func(s *session) { s.host = nil },
		"Metal3's":                   func(s *session) { s.view.ViaMetal3 = true },
		"spec.bmc.address":           func(s *session) { s.host.Spec.BMC.Address = "gopher://10.0.0.1" },
		"there is no Secret metal/x": func(s *session) { s.host.Spec.BMC.CredentialsName = "x" },
	} {
		s := behind(t, &teller{})
		change(s)
		if got := s.evidence(t.Context()); !strings.Contains(got.Missing, want) || got.CollectedAt.IsZero() {
			t.Errorf("%+v, want %q", got, want)
		}
	}
}

// A reset goes on without the override, and says so.
func TestSetBoot(t *testing.T) {
	t.Parallel()
	for want, machine := range map[string]*teller{
		"it is to boot from disk once": {boot: bmc.BootDisk},
		"has not kept":                 {boot: bmc.BootNone},
		"it offers PXE only":           {bootErr: &bmc.Error{Kind: bmc.Unsupported, Op: "setting", Detail: "it offers PXE only"}},
	} {
		if got := behind(t, machine).setBoot(t.Context()); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Another system of the same BMC has kept it busy: what was seen is old, and nothing is sent.
func TestNothingIsSentAfterAnOldLook(t *testing.T) {
	t.Parallel()
	machine := &teller{}
	s := behind(t, machine)
	if _, err := s.observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	clock := clocktesting.NewFakePassiveClock(testStart().Add(lookLife + time.Second))
	s.clock = clock
	if err := s.send(t.Context(), bmc.ActionForceRestart); bmc.KindOf(err) != bmc.Busy || len(machine.acts) > 0 {
		t.Errorf("%v, sent %v", err, machine.acts)
	}
	clock.SetTime(testStart().Add(lookLife))
	if err := s.send(t.Context(), bmc.ActionForceRestart); err == nil || len(machine.acts) > 0 {
		t.Errorf("sent %v without the host's Lease: %v", machine.acts, err)
	}
}

// A session outlives the machine that was behind it: nothing is seen of the one that took its place.
func TestAnotherMachineBehindTheSession(t *testing.T) {
	t.Parallel()
	machine := &teller{uuid: "27946b59-9e44-4fa7-8e91-f3527a1ef000"}
	s := behind(t, machine)
	s.nodeUUID = machine.uuid
	if _, err := s.observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	machine.uuid = "27946b59-9e44-4fa7-8e91-f3527a1ef001"
	if _, err := s.observe(t.Context()); bmc.KindOf(err) != bmc.Mismatch {
		t.Errorf("got %v", err)
	}
}
