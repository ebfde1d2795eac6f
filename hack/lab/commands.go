package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/test/lab"
	"github.com/stayput-dev/stayput/test/lab/machine"
	"github.com/stayput-dev/stayput/test/lab/tools"
)

func newToolsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "tools",
		Short: "Build the pinned Kubernetes, containerd and Metal3 programs, unless they are in the cache",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root, err := tools.RepositoryRoot()
			if err != nil {
				return err
			}

			report := reporter(cmd.OutOrStdout())

			for _, set := range []tools.Set{tools.Kubernetes(), tools.Containerd(), tools.BareMetalOperator()} {
				if _, err := tools.Ensure(cmd.Context(), root, set, report); err != nil {
					return err
				}
			}

			return nil
		},
	}
}

func newDownCommand(shared *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Take the lab away, also what a crash has left",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := shared.dir()
			if err != nil {
				return err
			}

			return lab.Down(cmd.Context(), dir, shared.id)
		},
	}
}

func newStatusCommand(shared *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the lab's parts, and how to reach them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			running, err := open(cmd.Context(), shared)
			if err != nil {
				return err
			}

			return printStatus(cmd.Context(), cmd.OutOrStdout(), running)
		},
	}
}

func open(ctx context.Context, shared *flags) (*lab.Lab, error) {
	dir, err := shared.dir()
	if err != nil {
		return nil, err
	}

	return lab.Open(ctx, dir, reporter(os.Stderr))
}

func openMachine(ctx context.Context, shared *flags, node string) (*machine.Machine, error) {
	running, err := open(ctx, shared)
	if err != nil {
		return nil, err
	}

	return running.Machine(node)
}

func printStatus(ctx context.Context, out io.Writer, running *lab.Lab) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) //nolint:mnd // two blanks between columns
	row := func(cells ...any) { fmt.Fprintf(table, "%v\t%v\t%v\n", cells...) }

	row("PART", "STATE", "WHERE")
	row("control plane", health(running.Cluster.Healthy(ctx)), running.Cluster.URL())

	if running.Management != running.Cluster {
		row("management", health(running.Management.Healthy(ctx)), running.Management.URL())
	}

	registry := "down"
	if running.Registry.Alive() {
		registry = "up"
	}

	row("registry", registry, "https://"+running.Registry.Address())

	nodes, err := running.Nodes()
	if err != nil {
		return err
	}

	for _, name := range nodes {
		found, err := running.Machine(name)
		if err != nil {
			return err
		}

		row(name, power(ctx, found)+", "+nodeState(ctx, running, name), found.ConsoleFile())
	}

	fmt.Fprintf(table, "\nup since %s. For kubectl:\n  export KUBECONFIG=%s\n  export PATH=%s:$PATH\n",
		running.StartedAt().Format(time.DateTime), running.Cluster.KubeconfigFile(), running.Cluster.ProgramDir())

	if err := table.Flush(); err != nil {
		return fmt.Errorf("printing the status: %w", err)
	}

	return nil
}

func health(err error) string {
	if err != nil {
		return "sick: " + err.Error()
	}

	return "up"
}

func power(ctx context.Context, m *machine.Machine) string {
	on, err := m.Running(ctx)

	switch {
	case err != nil:
		return "power unknown"
	case on:
		return "on"
	default:
		return "off"
	}
}

func nodeState(ctx context.Context, running *lab.Lab, name string) string {
	var node corev1.Node
	if err := running.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return "no Node"
	}

	if ready, _ := lab.Ready(&node); !ready {
		return "not Ready"
	}

	return "Ready, " + node.Status.NodeInfo.OSImage
}

func newSSHCommand(shared *flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ssh NODE [COMMAND]...",
		Short: "Enter a machine, or run a command in it",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := openMachine(cmd.Context(), shared, args[0])
			if err != nil {
				return err
			}

			words, err := found.SSHArgs()
			if err != nil {
				return err
			}

			program, err := exec.LookPath("ssh")
			if err != nil {
				return fmt.Errorf("finding ssh: %w; install the Debian package openssh-client", err)
			}

			// Takes this process's place, so that the terminal and the exit code are ssh's.
			return fmt.Errorf("running ssh: %w", syscall.Exec(program, append(append([]string{"ssh"}, words...), args[1:]...), os.Environ()))
		},
	}

	// What follows the machine's name is the command's, flags too.
	cmd.Flags().SetInterspersed(false)

	return cmd
}

const followInterval = 200 * time.Millisecond

func newConsoleCommand(shared *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "console NODE",
		Short: "Print what a machine prints on its serial console, until interrupted",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := openMachine(cmd.Context(), shared, args[0])
			if err != nil {
				return err
			}

			return follow(cmd.Context(), found.ConsoleFile(), cmd.OutOrStdout())
		},
	}
}

func follow(ctx context.Context, path string, out io.Writer) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening the console: %w", err)
	}
	defer file.Close()

	for {
		if _, err := io.Copy(out, file); err != nil {
			return fmt.Errorf("printing the console: %w", err)
		}

		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followInterval):
		}
	}
}

var errAction = errors.New("want on or cut")

func newPowerCommand(shared *flags) *cobra.Command {
	return &cobra.Command{
		Use:   "power NODE on|cut",
		Short: "Switch a machine on, or pull its plug",
		Args:  cobra.ExactArgs(2), //nolint:mnd // as in Use
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := openMachine(cmd.Context(), shared, args[0])
			if err != nil {
				return err
			}

			switch args[1] {
			case "on":
				return found.PowerOn(cmd.Context())
			case "cut":
				return found.PowerCut(cmd.Context())
			default:
				return fmt.Errorf("power %q: %w", args[1], errAction)
			}
		},
	}
}
