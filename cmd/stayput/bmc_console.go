package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/bmc"
)

func newBMCConsoleCommand(out outside) *cobra.Command {
	var lines int
	command := &cobra.Command{
		Use: "console TARGET", Short: "Show the last lines of the machine's serial console", Args: takes(cobra.ExactArgs(1)),
		Long: "Show the last lines of the machine's serial console that its BMC keeps, oldest first. Few BMCs keep it; OpenBMC does. " +
			"A machine may have printed secrets of its own: think of it before you pass them on.\n\n" + targetHelp,
	}
	flags := newBMCFlags(command, out)
	const defaultLines = 40
	command.Flags().IntVar(&lines, "lines", defaultLines, fmt.Sprintf("how many lines, at most %d", bmc.MaxConsoleLines))
	command.RunE = func(cmd *cobra.Command, args []string) error {
		if lines <= 0 || lines > bmc.MaxConsoleLines {
			return fmt.Errorf("%w: --lines %d; use a number from 1 to %d", errUnknownWord, lines, bmc.MaxConsoleLines)
		}

		return flags.with(cmd, args[0], func(ctx context.Context, target bmcTarget, machine bmc.Machine) error {
			console, ok := machine.(bmc.Console)
			if !ok {
				return &bmc.Error{
					Kind: bmc.Unsupported, Op: "reading the console", BMC: target.options.Address.HostPort(),
					Detail: "IPMI keeps none; connect to it with ipmitool sol activate before the machine boots",
				}
			}
			tail, err := console.ConsoleTail(ctx, lines)
			if err != nil {
				return err
			}
			rows := make([][]string, 0, len(tail))
			for _, line := range tail {
				rows = append(rows, []string{line})
			}

			return flags.output.print(cmd.OutOrStdout(), listed(tail), rows)
		})
	}

	return command
}
