package main

import (
	"context"
	_ "embed"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/stayput-dev/stayput/test/lab"
	"github.com/stayput-dev/stayput/test/lab/osbuild"
	"github.com/stayput-dev/stayput/test/lab/tools"
)

//go:embed packages.txt
var packages []byte

const (
	firstVersion = "1.0.0"

	// readyWait bounds a machine's way from power-on to a Ready Node. Emulated beside another one on two cores it
	// takes three to five minutes.
	readyWait = 20 * time.Minute
)

// upFlags are those of `lab up`.
type upFlags struct {
	nodes      int
	agent      string
	controller string
	management bool
	audit      bool
}

func newUpCommand(shared *flags) *cobra.Command {
	var up upFlags

	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the lab up and leave it running",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runUp(cmd, shared, up)
		},
	}
	cmd.Flags().IntVar(&up.nodes, "nodes", 2, "number of machines") //nolint:mnd // the default
	cmd.Flags().StringVar(&up.agent, "agent", "", "program of the node agent to install on the machines")
	cmd.Flags().StringVar(&up.controller, "controller", "", "program of the controller to start on this host")
	cmd.Flags().BoolVar(&up.management, "management", false, "give hosts and pools a cluster of their own")
	cmd.Flags().BoolVar(&up.audit, "audit", false, "keep the API server's audit log")

	return cmd
}

func runUp(cmd *cobra.Command, shared *flags, up upFlags) error {
	ctx := cmd.Context()
	report := reporter(cmd.OutOrStdout())

	dir, err := shared.dir()
	if err != nil {
		return err
	}

	if _, err := lab.Open(ctx, dir, report); err == nil {
		return fmt.Errorf("lab %q is up already in %s; `go run ./hack/lab down` takes it away", shared.id, dir) //nolint:err113 // shown only
	}

	if err := tools.EnsurePackages(ctx, tools.PackageList(packages), report); err != nil {
		return err
	}

	running, err := lab.Start(ctx, lab.Options{
		ID: shared.id, Dir: dir, Agent: up.agent, Management: up.management, Audit: up.audit, Report: report,
	})
	if err != nil {
		return err
	}

	if err := addMachines(ctx, running, up.nodes, report); err != nil {
		return fmt.Errorf("%w\nthe lab is left as it is, for a look; `go run ./hack/lab down` takes it away", err)
	}

	if up.controller != "" {
		program, err := filepath.Abs(up.controller)
		if err != nil {
			return fmt.Errorf("looking for the controller: %w", err)
		}

		if _, err := running.StartController(ctx, program); err != nil {
			return err
		}
	}

	return printStatus(ctx, cmd.OutOrStdout(), running)
}

// addMachines makes the machines, starts them and waits until their Nodes are Ready.
func addMachines(ctx context.Context, running *lab.Lab, count int, report tools.Report) error {
	image, err := running.BuildImage(ctx, osbuild.Variant{Version: firstVersion})
	if err != nil {
		return err
	}

	disk, err := running.MakeDisk(ctx, image)
	if err != nil {
		return err
	}

	report("disk of OS %s: ready", firstVersion)

	return startMachines(ctx, running, disk, count, report)
}

// startMachines makes machines with a disk, starts them and waits until their Nodes are Ready.
func startMachines(ctx context.Context, running *lab.Lab, disk string, count int, report tools.Report) error {
	waits, waiting := errgroup.WithContext(ctx)

	for index := range count {
		node := fmt.Sprintf("node-%d", index+1)

		host, err := running.AddMachine(ctx, lab.MachineSpec{Node: node, Disk: disk})
		if err != nil {
			return err
		}

		if err := host.Machine.PowerOn(ctx); err != nil {
			return err
		}

		report("%s: power on (console: %s)", node, host.Machine.ConsoleFile())

		began := time.Now()

		waits.Go(func() error {
			ctx, cancel := context.WithTimeout(waiting, readyWait)
			defer cancel()

			if err := running.WaitNodeReady(ctx, node); err != nil {
				return err
			}

			report("%s: Ready (%.0f s after power-on)", node, time.Since(began).Seconds())

			return nil
		})
	}

	return waits.Wait() //nolint:wrapcheck // the error names the node
}
