package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/utils/clock"

	"github.com/stayput-dev/stayput/test/demo"
	"github.com/stayput-dev/stayput/test/lab"
	"github.com/stayput-dev/stayput/test/lab/tools"
)

const (
	// downWait bounds the tearing down, which goes on when the demonstration was interrupted.
	downWait = 3 * time.Minute
	// timesFile keeps how long each part took, in the cache.
	timesFile = "demo-times.json"
	// logLines and logBytes are how much of the controller's log and of each console a failure shows.
	logLines = 30
	logBytes = 2 << 10

	defaultColumns = 80
)

var errLabUp = errors.New("a lab is up already; `make lab-down` takes it away")

// demoFlags are those of `lab demo`.
type demoFlags struct {
	agent, controller string
	keep              bool
}

func newDemoCommand(shared *flags) *cobra.Command {
	var options demoFlags

	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Tell what Stayput does on two machines: an update, a release that falls back, a silent machine that is reset",
		Long: `Tell what Stayput does on two machines: an update, a release that falls back, a silent machine that is reset.

Brings a lab up, tells the story with a live table of the nodes, ends with a summary, and takes the lab away again, also
when it fails or is interrupted. The exit code is 0 only when everything of the story was seen in the objects.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDemo(cmd.Context(), shared, options)
		},
	}
	cmd.Flags().StringVar(&options.agent, "agent", "bin/stayput-agent", "program of the node agent")
	cmd.Flags().StringVar(&options.controller, "controller", "bin/stayput-controller", "program of the controller")
	cmd.Flags().BoolVar(&options.keep, "keep", false, "leave the lab running at the end, for a look")

	return cmd
}

// demonstration is one run of the demonstration.
type demonstration struct {
	*demo.Show

	options demoFlags
	id, dir string
	running *lab.Lab
}

func runDemo(ctx context.Context, shared *flags, options demoFlags) (err error) {
	// A closed terminal ends the demonstration as an interrupt does, so that nothing is left running. A closed pipe does
	// not end it at once, for the same reason: asked for and never read, the signal leaves an error of the write.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	d, err := newDemonstration(shared, options)
	if err != nil {
		return err
	}

	began := time.Now()

	defer func() { err = errors.Join(err, d.end(ctx, err)) }()

	if err := d.setUp(ctx); err != nil {
		return err
	}

	story := demo.Story(demo.PaceOf(d.running.Accelerated()))
	told := make([]demo.Told, 0, len(story))

	for index := range story {
		told = append(told, d.Tell(ctx, d.running, &story[index]))
		if told[index].Err != nil {
			break // the next chapter counts on how this one ends
		}
	}

	return errors.Join(demo.WriteSummary(os.Stdout, story, told, time.Since(began)), demo.Verdict(story, told))
}

// newDemonstration refuses what would fail only after minutes.
func newDemonstration(shared *flags, options demoFlags) (*demonstration, error) {
	dir, err := shared.dir()
	if err != nil {
		return nil, err
	}

	if _, err := os.Stat(dir); err == nil {
		return nil, fmt.Errorf("%w (%s)", errLabUp, dir)
	}

	for _, program := range []*string{&options.agent, &options.controller} {
		if _, err := os.Stat(*program); err != nil {
			return nil, fmt.Errorf("looking for the program: %w; `make build` makes it", err)
		}

		if *program, err = filepath.Abs(*program); err != nil {
			return nil, fmt.Errorf("looking for the program: %w", err)
		}
	}

	cache, err := tools.CacheDir()
	if err != nil {
		return nil, err
	}

	var columns func() int
	if term.IsTerminal(int(os.Stdout.Fd())) {
		columns = terminalColumns
	}

	return &demonstration{
		options: options, id: shared.id, dir: dir,
		Show: &demo.Show{
			Screen: demo.NewScreen(os.Stdout, columns, clock.RealClock{}), Clock: clock.RealClock{},
			Times: demo.LoadTimes(filepath.Join(cache, timesFile)),
		},
	}, nil
}

func terminalColumns() int {
	columns, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || columns <= 0 {
		return defaultColumns
	}

	return columns
}

// end takes the lab away, whatever has happened, after it has shown what a failure leaves in the logs.
func (d *demonstration) end(ctx context.Context, failure error) error {
	if failure != nil && ctx.Err() == nil {
		d.showLogs()
	}

	if d.options.keep {
		d.Screen.Text("\nThe lab is left running: `make lab-ssh NODE=node-1` enters a machine, `make lab-down` takes it away.")

		return nil
	}

	d.Screen.Text("\nTaking the lab away …")

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downWait)
	defer cancel()

	if err := lab.Down(ctx, d.dir, d.id); err != nil {
		return fmt.Errorf("taking the lab away: %w; `make lab-down` tries it again", err)
	}

	return nil
}

// showLogs shows the ends of the logs that tell most; they go with the lab.
func (d *demonstration) showLogs() {
	if d.running == nil {
		return
	}

	if controller, err := d.running.Controller(); err == nil {
		d.Screen.Text("\nThe controller's log ends:\n" + controller.Tail(logLines))
	}

	for _, node := range demo.Machines() {
		machine, err := d.running.Machine(node)
		if err != nil {
			continue // it was never made
		}

		if console, err := machine.Console(logBytes); err == nil {
			d.Screen.Text(fmt.Sprintf("\nThe console of %s ends:\n%s", node, console))
		}
	}
}
