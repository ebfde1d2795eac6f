package e2e_test

import (
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/stayput-dev/stayput/test/e2e"
	"github.com/stayput-dev/stayput/test/lab"
	"github.com/stayput-dev/stayput/test/lab/osbuild"
	"github.com/stayput-dev/stayput/test/lab/tools"
)

const (
	// readyWait is for both machines at once, emulated on two cores.
	readyWait = 20 * time.Minute
	// logTail is how much of the controller's log and of each console a failure shows.
	logTail = 4 << 10
)

// TestScenarios plays each scenario as soon as those before it that are about the same machines have ended, so that
// the machines are at work side by side. One that fails does not keep the others from being played.
func TestScenarios(t *testing.T) {
	programs := buildPrograms(t)
	running := startLab(t, programs)
	scenarios := e2e.Scenarios()
	ended := make([]chan struct{}, len(scenarios))

	for index := range ended {
		ended[index] = make(chan struct{})
	}

	var playing sync.WaitGroup

	for index, scenario := range scenarios {
		playing.Go(func() {
			defer close(ended[index])

			for _, earlier := range e2e.Predecessors(scenarios, index) {
				<-ended[earlier]
			}

			// Not t.Parallel, which would wait for the end of this test's function.
			t.Run(scenario.Name, func(t *testing.T) { play(t, running, scenario, programs) })
		})
	}

	playing.Wait()
}

func play(t *testing.T, running *lab.Lab, scenario e2e.Scenario, programs string) {
	t.Helper()

	began := time.Now()
	track := strings.Join(scenario.Machines, "+")
	run := &e2e.Run{
		Scenario: scenario, Lab: running, Controller: controllerProgram(programs),
		Log: func(format string, args ...any) {
			t.Logf("[%s %6.1fs] "+format, append([]any{track, time.Since(began).Seconds()}, args...)...)
		},
	}

	if err := run.Play(t.Context()); err != nil {
		showLogs(t, running, scenario.Machines)
		t.Fatal(err)
	}
}

func controllerProgram(programs string) string { return filepath.Join(programs, "stayput-controller") }

func startLab(t *testing.T, programs string) *lab.Lab {
	t.Helper()

	root, err := tools.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}

	list, err := os.ReadFile(filepath.Join(root, "hack", "lab", "packages.txt"))
	if err != nil {
		t.Fatal(err)
	}

	if err := tools.EnsurePackages(t.Context(), tools.PackageList(list), t.Logf); err != nil {
		t.Fatal(err)
	}

	dir, id := labDir(t)

	running, err := lab.Start(t.Context(), lab.Options{
		ID: id, Dir: dir, Agent: filepath.Join(programs, "stayput-agent"), Management: true, Audit: true, Report: t.Logf,
	})
	if err != nil {
		t.Fatal(err)
	}

	buildImages(t, running)
	bootMachines(t, running)

	if err := e2e.StartWorkload(t.Context(), running); err != nil {
		showLogs(t, running, e2e.Machines())
		t.Fatal(err)
	}

	if _, err := running.StartController(t.Context(), controllerProgram(programs)); err != nil {
		t.Fatal(err)
	}

	return running
}

// labDir is where the lab goes; it is taken away at the end, unless it shall be kept for a look.
func labDir(t *testing.T) (string, string) {
	t.Helper()

	id := "e2e" + strings.ToLower(rand.Text()[:4])
	dir := filepath.Join(os.Getenv("STAYPUT_E2E_KEEP"), "lab")
	keep := os.Getenv("STAYPUT_E2E_KEEP") != ""

	if !keep {
		cache, err := tools.CacheDir() // not t.TempDir: machines' disks are too large for a memory file system
		if err != nil {
			t.Fatal(err)
		}

		dir = filepath.Join(cache, "run-"+id)
	}

	t.Cleanup(func() {
		if keep && t.Failed() {
			t.Logf("the lab is left running in %s", dir)

			return
		}

		if err := lab.Down(context.Background(), dir, id); err != nil {
			t.Error(err)
		}
	})

	return dir, id
}

// buildImages builds every OS before the machines need the processors.
func buildImages(t *testing.T, running *lab.Lab) {
	t.Helper()

	for _, scenario := range e2e.Scenarios() {
		if _, err := running.BuildImage(t.Context(), scenario.To); err != nil {
			t.Fatal(err)
		}
	}
}

// buildPrograms compiles the programs under test from this working copy.
func buildPrograms(t *testing.T) string {
	t.Helper()

	root, err := tools.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}

	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", out+"/", "./cmd/stayput-agent", "./cmd/stayput-controller")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")

	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the programs: %v\n%s", err, output)
	}

	return out
}

func bootMachines(t *testing.T, running *lab.Lab) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), readyWait)
	defer cancel()

	image, err := running.BuildImage(ctx, osbuild.Variant{Version: e2e.FirstVersion})
	if err != nil {
		t.Fatal(err)
	}

	disk, err := running.MakeDisk(ctx, image)
	if err != nil {
		t.Fatal(err)
	}

	group, grouped := errgroup.WithContext(ctx)

	for _, node := range e2e.Machines() {
		host, err := running.AddMachine(ctx, lab.MachineSpec{Node: node, Disk: disk})
		if err != nil {
			t.Fatal(err)
		}

		if err := host.Machine.PowerOn(ctx); err != nil {
			t.Fatal(err)
		}

		began := time.Now()

		group.Go(func() error {
			if err := running.WaitNodeReady(grouped, host.Node); err != nil {
				return err
			}

			t.Logf("%s: Ready %.0f s after power-on", host.Node, time.Since(began).Seconds())

			return nil
		})
	}

	if err := group.Wait(); err != nil {
		showLogs(t, running, e2e.Machines())
		t.Fatal(err)
	}
}

// showLogs shows the ends of the logs that tell most.
func showLogs(t *testing.T, running *lab.Lab, nodes []string) {
	t.Helper()

	const lines = 40

	if controller, err := running.Controller(); err == nil {
		t.Logf("the controller's log ends:\n%s", controller.Tail(lines))
	}

	for _, node := range nodes {
		machine, err := running.Machine(node)
		if err != nil {
			t.Error(err)

			continue
		}

		console, err := machine.Console(logTail)
		t.Logf("the console of %s ends (%v):\n%s", node, err, console)

		seen, err := machine.Inspect(context.WithoutCancel(t.Context()))
		t.Logf("QEMU says of %s (%v):\n%s", node, err, seen)
	}
}
