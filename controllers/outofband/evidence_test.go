package outofband

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/connect"
	"github.com/stayput-dev/stayput/controllers/powerlease"
)

// teller is a BMC that tells a log, and what the boot override is.
type teller struct {
	bmc.Machine

	log     []bmc.LogEntry
	logErr  error
	boot    bmc.BootTarget
	stays   bool // until it is changed
	bootErr error
	acts    []bmc.Action
}

func (m *teller) Log(context.Context, int) ([]bmc.LogEntry, error) { return m.log, m.logErr }

func (m *teller) SetBoot(_ context.Context, boot bmc.Boot) error {
	if boot.Continuous {
		m.boot = "for ever"
	}

	return m.bootErr
}

func (m *teller) Boot(context.Context) (bmc.BootState, error) {
	return bmc.BootState{Boot: bmc.Boot{Target: m.boot, Continuous: m.stays}}, nil
}

func (m *teller) Power(context.Context) (bmc.Power, error)      { return bmc.PowerOn, nil }
func (m *teller) Actions(context.Context) ([]bmc.Action, error) { return nil, nil }
func (m *teller) Close(context.Context) error                   { return nil }

func (m *teller) Do(_ context.Context, action bmc.Action) error {
	m.acts = append(m.acts, action)

	return nil
}

// console is one that keeps the console, too.
type console struct{ *teller }

func (m console) ConsoleTail(context.Context, int) ([]string, error) {
	return []string{"a secret of the machine"}, nil
}

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
	entries := make([]bmc.LogEntry, 0, many)
	for i := range many {
		message := fmt.Sprintf("entry %d \x1b[2J\n", i) + strings.Repeat("ü", 300)
		entries = append(entries, bmc.LogEntry{At: testStart(), Severity: strings.Repeat("Critical", 9), Message: message})
	}
	full := behind(t, console{teller: &teller{log: entries}}).evidence(t.Context())
	if len(full.Log) != maxLogEntries || !strings.HasPrefix(full.Log[0].Message, "entry 0 ") || full.Log[0].At.IsZero() {
		t.Errorf("log: %+v", full.Log)
	}
	for _, entry := range full.Log {
		if len(entry.Message) > maxLine || !utf8.ValidString(entry.Message) || strings.ContainsAny(entry.Message, "\x1b\n") {
			t.Errorf("an entry has %d bytes: %q", len(entry.Message), entry.Message)
		}
		if len(entry.Severity) > maxSeverity {
			t.Errorf("severity %q", entry.Severity)
		}
	}
	if !full.Console || full.Missing != "" {
		t.Errorf("console %t, missing %q", full.Console, full.Missing)
	}
	text := fmt.Sprintf("%+v", full)
	if strings.Contains(text, "a secret of the machine") {
		t.Errorf("what the machine has printed is kept: %s", text)
	}
	none := behind(t, &teller{logErr: &bmc.Error{Kind: bmc.Unsupported, Op: "reading the log", Detail: "there is none"}}).evidence(t.Context())
	if len(none.Log) != 0 || !strings.Contains(none.Missing, "there is none") || none.Console {
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

// The power is seen, and the reset goes on, without the override: the BMC is not left alone for its error.
func TestSetBoot(t *testing.T) {
	t.Parallel()
	failed := func(kind bmc.Kind) error { return &bmc.Error{Kind: kind, Op: "setting", Detail: "it cannot"} }
	for name, c := range map[string]struct {
		machine *teller
		want    string
	}{
		"kept":     {&teller{boot: bmc.BootDisk}, "asked to boot from disk once"},
		"longer":   {&teller{boot: bmc.BootDisk, stays: true}, "once; the BMC keeps: Disk until it is changed"},
		"not kept": {&teller{boot: bmc.BootNone}, "has not kept"},
		"offered":  {&teller{bootErr: failed(bmc.Unsupported)}, "it cannot"},
		"busy":     {&teller{bootErr: failed(bmc.Busy)}, "it cannot"},
		"away":     {&teller{bootErr: failed(bmc.Transient)}, "it cannot"},
		"lost":     {&teller{bootErr: failed(bmc.Unknown)}, "it cannot"},
	} {
		s := behind(t, c.machine)
		for range 2 {
			var seen bmc.Observation
			var boot string
			err := s.withLease(t, func(ctx context.Context) (err error) {
				seen, boot, err = s.observe(ctx, true)

				return err
			})
			if err != nil || seen.Power != bmc.PowerOn || !strings.Contains(boot, c.want) || len(boot) > maxBootText {
				t.Errorf("%s: saw %+v, %q, %v, want %q", name, seen, boot, err, c.want)
			}
		}
	}
}

// withLease calls use with the host's Lease.
func (s *session) withLease(t *testing.T, use func(ctx context.Context) error) error {
	t.Helper()
	leases, err := powerlease.New(powerlease.Options{Leases: kubefake.NewClientset().CoordinationV1(), Holder: "a test"})
	if err != nil {
		t.Fatal(err)
	}

	return leases.TryDo(t.Context(), client.ObjectKeyFromObject(s.host), "u1", use)
}

// Another system of the same BMC has kept it busy: what was seen is old, and nothing is sent. Nor is anything without the
// host's Lease, or more in a minute than may be; what goes on with a reset is.
func TestWhenNothingIsSent(t *testing.T) {
	t.Parallel()
	machine := &teller{}
	s := behind(t, machine)
	clock := clocktesting.NewFakePassiveClock(testStart())
	s.clock, s.pace = clock, newPace(1)
	if _, _, err := s.observe(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	send := func(ctx context.Context, begins bool, want error) {
		t.Helper()
		if err := s.send(ctx, bmc.ActionForceRestart, begins); bmc.KindOf(err) != bmc.Busy || len(machine.acts) > 0 ||
			want != nil && !errors.Is(err, want) {
			t.Errorf("%v, sent %v", err, machine.acts)
		}
	}
	send(t.Context(), true, nil)
	err := s.withLease(t, func(ctx context.Context) error {
		clock.SetTime(testStart().Add(lookLife + time.Second))
		send(ctx, true, errOldLook)
		clock.SetTime(testStart().Add(lookLife))
		s.pace.spend(clock.Now())
		send(ctx, true, errPace)

		return s.send(ctx, bmc.ActionOn, false)
	})
	if err != nil || len(machine.acts) != 1 {
		t.Errorf("sent %v, %v", machine.acts, err)
	}
}

// A BMC that refuses the credentials is not asked with them again, what is said of it stays the same, and corrected ones
// work at once.
func TestACorrectedSecretWorksAtOnce(t *testing.T) {
	t.Parallel()
	s := behind(t, &teller{})
	asked := 0
	s.bmcs = connect.NewPool(connect.PoolOptions{Open: func(_ context.Context, options bmc.Options) (bmc.Machine, error) {
		asked++
		if options.Credentials.Password != "corrected" {
			return nil, &bmc.Error{Kind: bmc.Auth, Op: "logging in", Detail: "it refuses the credentials"}
		}

		return &teller{}, nil
	}})
	t.Cleanup(func() {
		if err := s.bmcs.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for range 3 {
		if _, _, err := s.observe(t.Context(), false); bmc.KindOf(err) != bmc.Auth || err.Error() != "logging in: it refuses the credentials" {
			t.Errorf("got %v", err)
		}
	}
	if counted := testutil.ToFloat64(s.metrics.errors.WithLabelValues(string(bmc.Auth))); asked != 1 || counted != 1 {
		t.Errorf("asked %d times, counted %v", asked, counted)
	}
	s.home = serverWith(t, nil, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.host.Namespace, Name: s.host.Spec.BMC.CredentialsName},
		Data:       map[string][]byte{secretUsername: []byte("admin"), secretPassword: []byte("corrected")},
	})
	if _, _, err := s.observe(t.Context(), false); err != nil {
		t.Error(err)
	}
}
