package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/agent"
	"github.com/stayput-dev/stayput/agent/config"
	"github.com/stayput-dev/stayput/agent/install"
	"github.com/stayput-dev/stayput/agent/slots/dps"
)

const (
	liveRoot = "/"
	// systemdRuns is a directory that is there only while systemd is the init system (sd_booted(3)).
	systemdRuns = "/run/systemd/system"
)

// nodeOptions are the flags of `stayput node`.
type nodeOptions struct {
	root, agent string
	output      outputFormat
	purge       bool
}

// nodeReport is what `stayput node install` and `uninstall` print.
type nodeReport struct {
	Changes  []install.Change  `json:"changes"`
	Findings []install.Finding `json:"findings,omitempty"`
}

func newNodeCommand() *cobra.Command {
	options := &nodeOptions{}
	node := &cobra.Command{
		Use:   "node",
		Short: "Prepare this machine, or the root directory of an image, for updates in place",
	}
	node.PersistentFlags().StringVar(&options.root, "root", liveRoot, "root directory to work on; / is this machine")
	addOutputFlag(node.PersistentFlags(), &options.output)

	return group(node, newNodeInstallCommand(options), newNodeUninstallCommand(options))
}

func newNodeInstallCommand(options *nodeOptions) *cobra.Command {
	command := &cobra.Command{
		Use:   "install",
		Short: "Install the agent and the boot gate, and say what the machine has and what it misses",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := options.checkRoot(); err != nil {
				return err
			}

			program, err := options.openAgent()
			if err != nil {
				return err
			}
			defer func() { _ = program.Close() }() // only read

			changes, err := options.installer().Install(cmd.Context(), program)
			if err != nil {
				return err
			}

			var live *install.Live
			if options.isLive() {
				scheme := dps.New(dps.Options{StateDir: config.DefaultStateDir})
				live = &install.Live{Scheme: scheme, Rungs: agent.NewHost(config.DefaultStateDir, config.DefaultKubeconfig, scheme).Rungs}
			}

			report := nodeReport{Changes: changes, Findings: install.Inspect(cmd.Context(), options.root, live)}

			return printAs(cmd.OutOrStdout(), options.output, report, report.text)
		},
	}
	command.Flags().StringVar(&options.agent, "agent", "", "the agent's program (default: stayput-agent beside this program)")

	return command
}

func newNodeUninstallCommand(options *nodeOptions) *cobra.Command {
	command := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove what install has put in place; state and configuration stay unless purged",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := options.checkRoot(); err != nil {
				return err
			}

			changes, err := options.installer().Uninstall(cmd.Context(), options.purge)
			if err != nil {
				return err
			}

			report := nodeReport{Changes: changes}

			return printAs(cmd.OutOrStdout(), options.output, report, report.text)
		},
	}
	command.Flags().BoolVar(&options.purge, "purge", false, "also remove /var/lib/stayput and /etc/stayput")

	return command
}

// isLive tells whether the root is that of a machine whose systemd runs, and not a container's or an image's.
func (o *nodeOptions) isLive() bool {
	_, err := os.Stat(systemdRuns)

	return filepath.Clean(o.root) == liveRoot && err == nil
}

func (o *nodeOptions) installer() install.Installer {
	installer := install.Installer{Root: o.root}
	if o.isLive() {
		installer.Systemd = install.Manager{}
	}

	return installer
}

// checkRoot refuses a root that is not there: what a misspelt name, or an empty variable of the shell, would do is nothing
// that anyone wants.
func (o *nodeOptions) checkRoot() error {
	const fix = "use / for this machine, or the root directory of an image"

	if o.root == "" {
		return mistake(`--root ""`, "it is empty; is a variable of the shell unset?", fix)
	}

	if info, err := os.Stat(o.root); err != nil || !info.IsDir() {
		return mistake("--root "+o.root, "it is not a directory", fix)
	}

	return nil
}

// openAgent opens the agent's program, and refuses a file that is no whole program: it would be started at once, and its
// boot gate with the next boot.
func (o *nodeOptions) openAgent() (*os.File, error) {
	path, err := o.agentPath()
	if err != nil {
		return nil, err
	}

	program, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the agent's program: %w; name it with --agent", err)
	}

	if err := checkProgram(program); err != nil {
		return nil, errors.Join(
			mistake("--agent "+path, err.Error(), "name a whole stayput-agent, built for the machine's architecture"), program.Close())
	}

	return program, nil
}

var errCut = errors.New("it is cut off or empty")

// checkProgram looks at the parts that are loaded (elf(5)).
func checkProgram(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}

	program, err := elf.NewFile(file)

	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: it has %d bytes", errCut, info.Size())
	case err != nil:
		return fmt.Errorf("it is no program for Linux: %w", err)
	}

	for _, part := range program.Progs {
		if part.Off+part.Filesz > uint64(info.Size()) { //nolint:gosec // A size is never negative.
			return fmt.Errorf("%w: it has %d bytes, its parts need %d", errCut, info.Size(), part.Off+part.Filesz)
		}
	}

	return nil
}

func (o *nodeOptions) agentPath() (string, error) {
	if o.agent != "" {
		return o.agent, nil
	}

	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding the agent's program: %w; name it with --agent", err)
	}

	return filepath.Join(filepath.Dir(self), "stayput-agent"), nil
}

func (r nodeReport) text(out io.Writer) {
	for _, change := range r.Changes {
		fmt.Fprintf(out, "%s\t%s\n", change.Action, change.Path)
	}

	for _, finding := range r.Findings {
		mark := "ok"
		if !finding.OK {
			mark = "MISSING"
		}

		fmt.Fprintf(out, "%s\t%s: %s\n", mark, finding.Subject, finding.Found)

		if finding.Fix != "" {
			fmt.Fprintf(out, "\t-> %s\n", finding.Fix)
		}
	}
}
