package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
)

var (
	errEmptyArgument  = errors.New("an argument is empty; is a variable of the shell unset?")
	errUnknownCommand = errors.New("unknown command")
	errOutput         = errors.New("use " + outputText + " or " + outputJSON)
	errTwice          = errors.New("it is given twice, and an image has one file for each role")
)

// takes checks arguments, and says how the command is called when they are wrong. Nothing takes an empty argument: that
// comes from "$VARIABLE" when there is none.
func takes(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil && slices.Contains(args, "") {
			err = errEmptyArgument
		}

		if err != nil {
			return fmt.Errorf("%w; usage: %s", err, cmd.UseLine())
		}

		return nil
	}
}

// group makes a command that only holds others. Cobra by itself prints the help of such a command whatever comes after
// it, and succeeds: a script would not notice a misspelt command.
func group(command *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	command.AddCommand(commands...)
	command.DisableFlagsInUseLine = true
	command.SuggestionsMinimumDistance = 2
	command.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}

		hint := ""
		if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
			hint = fmt.Sprintf("; did you mean %q?", strings.Join(similar, `" or "`))
		}

		return fmt.Errorf("%w %q for %q%s; see `%s --help`", errUnknownCommand, redacted(args[0]), cmd.CommandPath(), hint, cmd.CommandPath())
	}

	return command
}

// outputFormat is a flag that is checked before anything is done.
type outputFormat string

func (o *outputFormat) String() string { return string(*o) }

func (o *outputFormat) Type() string { return "string" }

func (o *outputFormat) Set(text string) error {
	if text != outputText && text != outputJSON {
		return errOutput
	}

	*o = outputFormat(text)

	return nil
}

// bytesIn reads a number of bytes with the suffixes of Kubernetes: k, M, G are powers of 1000, Ki, Mi, Gi of 1024. Less than
// a byte is refused, not rounded: there "50m" is 50 thousandths, and whoever writes it means millions.
func bytesIn(text string) (count int64, ok bool) {
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, false
	}

	count = quantity.Value()

	return count, quantity.CmpInt64(count) == 0
}

// roleFile is a flag that may be given once: the last of two would win in silence.
type roleFile string

func (r *roleFile) String() string { return string(*r) }

func (r *roleFile) Type() string { return "string" }

func (r *roleFile) Set(text string) error {
	if *r != "" {
		return fmt.Errorf("%w, %s and %s", errTwice, *r, text)
	}

	*r = roleFile(text)

	return nil
}
