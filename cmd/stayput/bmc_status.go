package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/bmc"
)

// statusAnswer is what `bmc status` prints.
type statusAnswer struct {
	identityAnswer `json:",inline"`

	Power   bmc.Power    `json:"power"`
	Actions []bmc.Action `json:"actions"`
	Boot    bootAnswer   `json:"boot"`
	// Errors are of the parts that could not be read, which are empty then.
	Errors []partError `json:"errors"`
}

// partError says why one part of an answer is missing.
type partError struct {
	Part  string `json:"part"`
	Error string `json:"error"`
}

type bootAnswer struct {
	Target     bmc.BootTarget   `json:"target"`
	Continuous bool             `json:"continuous"`
	Mode       bmc.BootMode     `json:"mode"`
	Offered    []bmc.BootTarget `json:"offered"`
}

func bootOf(state bmc.BootState) bootAnswer {
	return bootAnswer{Target: state.Target, Continuous: state.Continuous, Mode: state.Mode, Offered: listed(state.Offered)}
}

// words says an override in words.
func (b bootAnswer) words() string {
	switch b.Target {
	case bmc.BootNone:
		return "no override"
	case "":
		return "not told"
	default:
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
		Long: `Show power, offered actions and boot override. Nothing is changed. What could not be read has a line of its own with the
reason; the exit code is 1 only when the power could not be read.

` + targetHelp,
	}
	flags := newBMCFlags(command, out)
	command.RunE = func(cmd *cobra.Command, args []string) error {
		return flags.with(cmd, args[0], func(ctx context.Context, target bmcTarget, machine bmc.Machine) error {
			return flags.status(ctx, cmd, target, machine)
		})
	}

	return command
}

// statusReader reads one part after the other, and goes on after an error where that makes sense.
type statusReader struct {
	answer statusAnswer
	// boot and actions are in words.
	boot, actions string
	// power is why that could not be read, ended why nothing further can be.
	power, ended error
}

const (
	partPower = "power"
	// missing stands in the table where nothing could be read.
	missing = "?"
)

func (f *bmcFlags) status(ctx context.Context, cmd *cobra.Command, target bmcTarget, machine bmc.Machine) error {
	r := statusReader{boot: missing, actions: missing, answer: statusAnswer{
		identityAnswer: identityAnswer{Target: target.name}, Actions: []bmc.Action{}, Errors: []partError{}, Boot: bootOf(bmc.BootState{}),
	}}
	// What is asked for most comes first: later parts may end with the time.
	r.part(ctx, partPower, func() (err error) {
		r.answer.Power, err = machine.Power(ctx)

		return err
	})
	r.part(ctx, "identity", func() error {
		identity, err := machine.Identity(ctx)
		r.answer.identityAnswer = identityOf(target, identity)

		return err
	})
	r.part(ctx, "actions", func() error {
		actions, err := machine.Actions(ctx)
		if err == nil {
			r.answer.Actions, r.actions = listed(actions), orDash(joined(actions))
		}

		return err
	})
	r.part(ctx, "boot override", func() error {
		state, err := machine.Boot(ctx)
		if err == nil {
			r.answer.Boot = bootOf(state)
			r.boot = r.answer.Boot.words()
		}

		return err
	})
	if r.ended != nil {
		return r.ended
	}
	if err := f.output.print(cmd.OutOrStdout(), r.answer, r.rows()); err != nil {
		return err
	}

	return r.power
}

// part reads one part. Another machine, a refused login and the end of the command concern all parts alike.
func (r *statusReader) part(ctx context.Context, name string, read func() error) {
	if r.ended != nil {
		return
	}
	err := read()
	kind := bmc.KindOf(err)
	switch {
	case err == nil:
		return
	case ctx.Err() != nil && name == partPower, kind == bmc.Mismatch, kind == bmc.Auth && name == partPower:
		r.ended = err

		return
	case name == partPower:
		r.answer.Power, r.power = "", err
	}
	r.answer.Errors = append(r.answer.Errors, partError{Part: name, Error: err.Error()})
}

func (r *statusReader) rows() [][]string {
	rows := append(make([][]string, 0, 2+len(r.answer.Errors)),
		[]string{"TARGET", "POWER", "BOOT", "SERIAL", "ACTIONS"},
		[]string{r.answer.Target, cmp.Or(string(r.answer.Power), missing), r.boot, r.answer.Serial, r.actions})
	for _, each := range r.answer.Errors {
		rows = append(rows, []string{"Not read: " + each.Part + ": " + each.Error})
	}

	return rows
}

// listed is the list, and an empty one for nil: JSON has null for that, which programs trip over.
func listed[T any](list []T) []T {
	if list == nil {
		return []T{}
	}

	return list
}

func joined[T ~string](list []T) string {
	words := make([]string, 0, len(list))
	for _, each := range list {
		words = append(words, string(each))
	}

	return strings.Join(words, ",")
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}

	return text
}
