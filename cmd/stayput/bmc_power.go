package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/bmc"
)

const (
	defaultActWait = 5 * time.Minute
	// powerLimit and shutdownLimit are how long a machine, or its operating system, may take to follow, where --wait does
	// not give more. As bmc.Limits has them.
	powerLimit    = 2 * time.Minute
	shutdownLimit = 3 * time.Minute
)

var errWait = errors.New("nothing was sent")

// actFlags are those of commands that act.
type actFlags struct {
	dryRun bool
	wait   time.Duration
}

func (a *actFlags) add(command *cobra.Command) {
	command.Flags().BoolVar(&a.dryRun, "dry-run", false, "say what would be sent, and send nothing")
	command.Flags().DurationVar(&a.wait, "wait", defaultActWait, "how long to watch the machine in all")
}

// restarts tells whether the machine is switched off, or restarted, and shall be on in the end.
func restarts(intent bmc.Intent) bool {
	return intent == bmc.IntentRestart || intent == bmc.IntentSoftRestart || intent == bmc.IntentCycle
}

// check refuses a time that cannot hold what is asked for. Whether a restart has to switch off is known only later, by what
// the BMC offers; bmc.Run refuses it then.
func (a *actFlags) check(intent bmc.Intent) error {
	needs := bmc.Limits{Off: powerLimit}.Needs(bmc.ActionForceOff)
	switch {
	case a.wait <= 0:
		return fmt.Errorf("%w: --wait %s; use a time above 0, such as %s", errWait, a.wait, defaultActWait)
	case intent == bmc.IntentCycle && a.wait <= needs:
		return fmt.Errorf("%w: --wait %s is too short to switch a machine off, see it off, and switch it on again, which may take %s; "+
			"use %s or more", errWait, a.wait, needs, needs+time.Minute)
	default:
		return nil
	}
}

// limits let the machine take what --wait gives.
func (a *actFlags) limits(intent bmc.Intent) bmc.Limits {
	limits := bmc.Limits{Off: powerLimit, On: powerLimit, Shutdown: shutdownLimit}
	switch intent {
	case bmc.IntentOn:
		limits.On = max(limits.On, a.wait)
	case bmc.IntentOff:
		limits.Off = max(limits.Off, a.wait)
	case bmc.IntentShutdown:
		limits.Shutdown = max(limits.Shutdown, a.wait)
	case bmc.IntentSoftRestart:
		// The rest is for switching on.
		limits.Shutdown = max(limits.Shutdown, a.wait-powerLimit)
	case bmc.IntentRestart, bmc.IntentCycle:
		limits.Off, limits.On = max(limits.Off, a.wait/2), max(limits.On, a.wait/2)
	}

	return limits
}

// act carries out an intent and prints the report, also of one that did not succeed.
func (a *actFlags) act(cmd *cobra.Command, flags *bmcFlags, name string, intent bmc.Intent) error {
	if err := a.check(intent); err != nil {
		return err
	}
	// The watching is bound by --wait.
	flags.wait, flags.restarts = a.wait, restarts(intent)
	reach := flags.acting
	if a.dryRun {
		reach = flags.with
	}

	return reach(cmd, name, func(ctx context.Context, target bmcTarget, machine bmc.Machine) error {
		ctx, cancel := context.WithTimeout(ctx, a.wait)
		defer cancel()
		a.warn(cmd, target, intent)
		report, err := bmc.Run(ctx, machine, intent, bmc.RunOptions{
			Expected: target.expected, Required: flags.required(), KeepPowered: target.keepPowered(), DryRun: a.dryRun,
			Limits: a.limits(intent), Poll: flags.outside.poll,
			Progress: func(step bmc.Step) {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", strings.TrimSpace(fmt.Sprintf("%s %s", step.Verb, step.Action)), step.Why)
			},
		})
		if report.Before == "" {
			return err
		}
		unread := flags.output.print(cmd.OutOrStdout(), reportAnswerOf(target, report, a.dryRun), reportRows(target, report, a.dryRun))
		if err == nil && errors.Is(unread, syscall.EPIPE) && !a.dryRun {
			// A script would take an error for a machine that did not follow, and act again.
			fmt.Fprintf(cmd.ErrOrStderr(), "Note: the report was not read to its end. The result is %s: %s.\n", report.Verb, report.Why)
			unread = nil
		}

		return cmp.Or(err, unread)
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
			return fmt.Errorf("%w: %q; use on, off or shutdown", errUnknownWord, redacted(args[1]))
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
