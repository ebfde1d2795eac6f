package dps_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/agent/slots/dps"
	"github.com/stayput-dev/stayput/agent/slots/dps/faulty"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

const oldEntry = "labos_1.0.0.efi"

// fataler is what testing.T and rapid.T have in common.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// bench is a machine that runs labos 1.0.0 from slot a, and a newer image.
type bench struct {
	machine   *faulty.Machine
	scheme    *dps.Scheme
	old, next *faulty.Image
	stateDir  string
	variables string
	written   int64
	// staged is called once the image is staged and before it is armed.
	staged func()
}

func newBench(t *testing.T) *bench {
	t.Helper()

	return newBenchIn(t, t.TempDir())
}

func newBenchIn(t fataler, dir string) *bench {
	t.Helper()

	b := &bench{
		old: faulty.NewImage("labos", "1.0.0"), next: faulty.NewImage("labos", "1.1.0"),
		stateDir: filepath.Join(dir, "state"), variables: filepath.Join(dir, "efivars"),
	}

	for _, path := range []string{b.stateDir, b.variables} {
		must(t, os.MkdirAll(path, 0o755))
	}

	machine, err := faulty.NewMachine(b.variables)
	must(t, err)
	must(t, machine.Install(b.old, 0, oldEntry))
	machine.Run(b.old, 0)
	machine.Know(b.next)
	b.use(machine)

	return b
}

// use makes a scheme for a machine, as an agent does that has just started.
func (b *bench) use(machine *faulty.Machine) {
	b.machine = machine
	b.scheme = dps.New(dps.Options{
		Host: machine, Variables: boot.NewVariables(b.variables), StateDir: b.stateDir, Architecture: "amd64",
		Written: func(bytes int64) { b.written += bytes },
	})
	b.scheme.SetSyncEvery(8 << 10)
}

func (b *bench) state(t fataler) slots.State {
	t.Helper()

	state, err := b.scheme.Observe(contextOf(t))
	must(t, err)

	return state
}

func (b *bench) stage(t fataler, image *faulty.Image) {
	t.Helper()
	must(t, b.scheme.Stage(contextOf(t), image, nil))
}

func (b *bench) arm(t fataler, image *faulty.Image) {
	t.Helper()
	must(t, b.scheme.Arm(contextOf(t), image.Config(), 3))
}

func (b *bench) boot(t fataler, want string) {
	t.Helper()

	got, err := b.machine.Boot()
	must(t, err)

	if got != want {
		t.Fatalf("the machine boots %s, want %s; files: %v", got, want, b.machine.Files())
	}
}

func must(t fataler, err error) {
	t.Helper()

	if err != nil {
		t.Fatalf("unexpected error: %v", err)
	}
}

func wantRefusal(t fataler, err error, reason v1alpha1.Reason) {
	t.Helper()

	refusal, ok := slots.AsRefusal(err)
	if !ok {
		t.Fatalf("got error %v, want a refusal with reason %s", err, reason)
	}

	if refusal.Reason != reason {
		t.Fatalf("refused with %s (%v), want %s", refusal.Reason, err, reason)
	}
}
