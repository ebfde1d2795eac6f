package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/bmc"
)

func newBMCCommand(out outside) *cobra.Command {
	return group(&cobra.Command{
		Use:   "bmc COMMAND",
		Short: "Look at one machine through its BMC, and act on it",
		Long: `Look at one machine through its BMC, and act on it, over Redfish or IPMI.

An action is sent once, and then the machine is watched until it has followed or the time is up. What is told is what was
read afterwards, not that the BMC said yes.

` + targetHelp,
	}, newBMCStatusCommand(out), newBMCPowerCommand(out), newBMCResetCommand(out), newBMCBootCommand(out), newBMCMediaCommand(out),
		newBMCLogCommand(out), newBMCConsoleCommand(out), newBMCIdentifyCommand(out), newBMCDoctorCommand(out))
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

// statusAnswer is what `bmc status` prints.
type statusAnswer struct {
	identityAnswer `json:",inline"`

	Power   bmc.Power    `json:"power"`
	Actions []bmc.Action `json:"actions"`
	Boot    bootAnswer   `json:"boot"`
}

type bootAnswer struct {
	Target     bmc.BootTarget   `json:"target"`
	Continuous bool             `json:"continuous"`
	Mode       bmc.BootMode     `json:"mode"`
	Offered    []bmc.BootTarget `json:"offered"`
}

func bootOf(state bmc.BootState) bootAnswer {
	return bootAnswer{Target: state.Target, Continuous: state.Continuous, Mode: state.Mode, Offered: state.Offered}
}

// words says an override in words.
func (b bootAnswer) words() string {
	if b.Target == bmc.BootNone {
		return "no override"
	}
	lasts := "for one boot"
	if b.Continuous {
		lasts = "until it is changed"
	}
	what := strings.TrimSpace(fmt.Sprintf("%s %s", b.Target, b.Mode))

	return what + ", " + lasts
}

func newBMCStatusCommand(out outside) *cobra.Command {
	command := &cobra.Command{
		Use: "status TARGET", Short: "Show power, offered actions and boot override", Args: takes(cobra.ExactArgs(1)),
		Long: "Show power, offered actions and boot override. Nothing is changed.\n\n" + targetHelp,
	}
	flags := newBMCFlags(command, out)
	command.RunE = func(cmd *cobra.Command, args []string) error {
		return flags.with(cmd, args[0], func(ctx context.Context, target bmcTarget, machine bmc.Machine) error {
			identity, err := machine.Identity(ctx)
			if err != nil {
				return err
			}
			power, err := machine.Power(ctx)
			if err != nil {
				return err
			}
			actions, err := machine.Actions(ctx)
			if err != nil {
				return err
			}
			boot, err := machine.Boot(ctx)
			if err != nil {
				return err
			}
			answer := statusAnswer{
				identityAnswer: identityOf(target, identity), Power: power, Actions: actions, Boot: bootOf(boot),
			}

			return flags.output.print(cmd.OutOrStdout(), answer, [][]string{
				{"TARGET", "POWER", "BOOT", "SERIAL", "ACTIONS"},
				{target.name, string(power), answer.Boot.words(), identity.Serial, joined(actions)},
			})
		})
	}

	return command
}

func joined[T ~string](list []T) string {
	words := make([]string, 0, len(list))
	for _, each := range list {
		words = append(words, string(each))
	}

	return strings.Join(words, ",")
}

// actFlags are those of commands that act.
type actFlags struct {
	dryRun bool
	wait   time.Duration
}

const defaultActWait = 5 * time.Minute

func (a *actFlags) add(command *cobra.Command) {
	command.Flags().BoolVar(&a.dryRun, "dry-run", false, "say what would be sent, and send nothing")
	command.Flags().DurationVar(&a.wait, "wait", defaultActWait, "how long to watch the machine in all")
}

// act carries out an intent and prints the report, also of one that did not succeed.
func (a *actFlags) act(cmd *cobra.Command, flags *bmcFlags, name string, intent bmc.Intent) error {
	// The watching is bound by --wait.
	flags.wait = a.wait
	reach := flags.acting
	if a.dryRun {
		reach = flags.with
	}

	return reach(cmd, name, func(ctx context.Context, target bmcTarget, machine bmc.Machine) error {
		ctx, cancel := context.WithTimeout(ctx, a.wait)
		defer cancel()
		a.warn(cmd, target, intent)
		report, err := bmc.Run(ctx, machine, intent, bmc.RunOptions{
			Expected: target.expected, KeepPowered: target.keepPowered(), DryRun: a.dryRun,
			Progress: func(step bmc.Step) {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", strings.TrimSpace(fmt.Sprintf("%s %s", step.Verb, step.Action)), step.Why)
			},
		})
		if report.Before == "" {
			return err
		}
		answer, rows := reportAnswerOf(target, report, a.dryRun), reportRows(target, report, a.dryRun)

		return cmp.Or(err, flags.output.print(cmd.OutOrStdout(), answer, rows))
	})
}

// warn tells who else may act on the machine.
func (a *actFlags) warn(cmd *cobra.Command, target bmcTarget, intent bmc.Intent) {
	off := intent == bmc.IntentOff || intent == bmc.IntentShutdown
	if target.host != nil && off && target.host.Spec.Online {
		fmt.Fprintf(cmd.ErrOrStderr(), "Note: BareMetalHost %s/%s has spec.online true; Metal3 switches it on again within minutes.\n",
			target.host.Namespace, target.host.Name)
	}
}

type reportAnswer struct {
	Target   string       `json:"target"`
	Intent   bmc.Intent   `json:"intent"`
	DryRun   bool         `json:"dryRun"`
	Before   bmc.Power    `json:"before"`
	Sent     []bmc.Action `json:"sent"`
	Accepted bool         `json:"accepted"`
	Observed bmc.Power    `json:"observed"`
	Result   string       `json:"result"`
	Why      string       `json:"why"`
	Seconds  float64      `json:"seconds"`
}

func reportAnswerOf(target bmcTarget, report bmc.Report, dryRun bool) reportAnswer {
	return reportAnswer{
		Target: target.name, Intent: report.Intent, DryRun: dryRun, Before: report.Before, Sent: report.Actions(),
		Accepted: report.Accepted, Observed: report.Observed, Result: string(report.Verb), Why: report.Why,
		Seconds: report.Elapsed.Seconds(),
	}
}

func reportRows(target bmcTarget, report bmc.Report, dryRun bool) [][]string {
	sent := "SENT"
	if dryRun {
		sent = "WOULD SEND"
	}

	return [][]string{
		{"TARGET", "INTENT", "BEFORE", sent, "NOW", "RESULT", "TOOK"},
		{
			target.name, string(report.Intent), string(report.Before), orDash(joined(report.Actions())), string(report.Observed),
			string(report.Verb), report.Elapsed.Round(time.Second).String(),
		},
	}
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}

	return text
}

func newBMCPowerCommand(out outside) *cobra.Command {
	words := map[string]bmc.Intent{"on": bmc.IntentOn, "off": bmc.IntentOff, "shutdown": bmc.IntentShutdown}
	command := &cobra.Command{
		Use: "power TARGET on|off|shutdown", Short: "Switch a machine on or off, and watch it follow",
		Long: `Switch a machine on or off, and watch it follow. "off" is at once, "shutdown" asks the operating system, and never
becomes "off" by itself. A machine that is as it shall be is left alone.

` + actHelp,
		Args: takes(cobra.ExactArgs(2)),
	}
	flags, act := newBMCFlags(command, out), &actFlags{}
	act.add(command)
	command.RunE = func(cmd *cobra.Command, args []string) error {
		intent, ok := words[args[1]]
		if !ok {
			return fmt.Errorf("%w: %q; use on, off or shutdown", errUnknownWord, args[1])
		}

		return act.act(cmd, flags, args[0], intent)
	}

	return command
}

func newBMCResetCommand(out outside) *cobra.Command {
	var soft, cycle bool
	command := &cobra.Command{
		Use: "reset TARGET", Short: "Restart a machine, and watch it come back on",
		Long: `Restart a machine at once, and watch that it is on afterwards. A machine that is off is switched on. With --soft the
operating system is asked; with --cycle the power is taken away, seen off, and given back. That it has booted the BMC
cannot tell: look at the Node.

` + actHelp,
		Args: takes(cobra.ExactArgs(1)),
	}
	flags, act := newBMCFlags(command, out), &actFlags{}
	act.add(command)
	command.Flags().BoolVar(&soft, "soft", false, "ask the operating system")
	command.Flags().BoolVar(&cycle, "cycle", false, "off, seen off, and on")
	command.MarkFlagsMutuallyExclusive("soft", "cycle")
	command.RunE = func(cmd *cobra.Command, args []string) error {
		intent := bmc.IntentRestart
		switch {
		case soft:
			intent = bmc.IntentSoftRestart
		case cycle:
			intent = bmc.IntentCycle
		}

		return act.act(cmd, flags, args[0], intent)
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
