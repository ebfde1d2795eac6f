package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/bmc"
)

func newBMCCommand(out outside) *cobra.Command {
	command := group(&cobra.Command{
		Use:   "bmc COMMAND",
		Short: "Look at one machine through its BMC, and act on it",
		Long: `Look at one machine through its BMC, and act on it, over Redfish or IPMI.

An action is sent once, and then the machine is watched until it has followed or the time is up. What is told is what was
read afterwards, not that the BMC said yes.

` + targetHelp,
	}, newBMCStatusCommand(out), newBMCPowerCommand(out), newBMCResetCommand(out), newBMCBootCommand(out), newBMCMediaCommand(out),
		newBMCLogCommand(out), newBMCConsoleCommand(out), newBMCIdentifyCommand(out), newBMCDoctorCommand(out))
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return redactedError(err) })

	return command
}

// identityAnswer is a machine's identity, as it is printed.
type identityAnswer struct {
	Target       string `json:"target"`
	UUID         string `json:"uuid"`
	Serial       string `json:"serial"`
	Model        string `json:"model"`
	Manufacturer string `json:"manufacturer"`
	BMCFirmware  string `json:"bmcFirmware"`
}

func identityOf(target bmcTarget, identity bmc.Identity) identityAnswer {
	return identityAnswer{
		Target: target.name, UUID: identity.UUID, Serial: identity.Serial, Model: identity.Model,
		Manufacturer: identity.Manufacturer, BMCFirmware: identity.BMCFirmware,
	}
}

func newBMCIdentifyCommand(out outside) *cobra.Command {
	command := &cobra.Command{
		Use: "identify TARGET", Short: "Show which machine answers", Long: "Show which machine answers.\n\n" + targetHelp,
		Args: takes(cobra.ExactArgs(1)),
	}
	flags := newBMCFlags(command, out)
	command.RunE = func(cmd *cobra.Command, args []string) error {
		return flags.with(cmd, args[0], func(ctx context.Context, target bmcTarget, machine bmc.Machine) error {
			identity, err := machine.Identity(ctx)
			if err != nil {
				return err
			}
			answer := identityOf(target, identity)

			return flags.output.print(cmd.OutOrStdout(), answer, [][]string{
				{"UUID", answer.UUID},
				{"SERIAL", answer.Serial},
				{"MODEL", answer.Model},
				{"MANUFACTURER", answer.Manufacturer},
				{"BMC FIRMWARE", answer.BMCFirmware},
			})
		})
	}

	return command
}

func newBMCLogCommand(out outside) *cobra.Command {
	var lines int
	command := &cobra.Command{
		Use: "log TARGET", Short: "Show the newest entries of the machine's log", Args: takes(cobra.ExactArgs(1)),
		Long: "Show the newest entries of the machine's log at its BMC, newest first. Times are of the BMC's clock.\n\n" + targetHelp,
	}
	flags := newBMCFlags(command, out)
	const defaultLines = 20
	command.Flags().IntVar(&lines, "lines", defaultLines, "how many entries")
	command.RunE = func(cmd *cobra.Command, args []string) error {
		if lines <= 0 {
			return fmt.Errorf("%w: --lines %d; use a number above 0", errUnknownWord, lines)
		}

		return flags.with(cmd, args[0], func(ctx context.Context, _ bmcTarget, machine bmc.Machine) error {
			entries, err := machine.Log(ctx, lines)
			if err != nil {
				return err
			}
			rows := [][]string{{"TIME", "SEVERITY", "MESSAGE"}}
			answer := make([]logAnswer, 0, len(entries))
			for _, entry := range entries {
				each := logAnswer{Severity: entry.Severity, Message: entry.Message}
				if !entry.At.IsZero() {
					each.Time = entry.At.UTC().Format(time.RFC3339)
				}
				answer = append(answer, each)
				rows = append(rows, []string{orDash(each.Time), orDash(each.Severity), each.Message})
			}

			return flags.output.print(cmd.OutOrStdout(), answer, rows)
		})
	}

	return command
}

type logAnswer struct {
	Time     string `json:"time,omitempty"`
	Severity string `json:"severity,omitempty"`
	Message  string `json:"message"`
}
