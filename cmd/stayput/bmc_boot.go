package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/bmc"
)

func newBMCBootCommand(out outside) *cobra.Command {
	var (
		continuous, dryRun bool
		mode               string
	)
	command := &cobra.Command{
		Use: "boot TARGET [" + strings.ToLower(strings.Join(bootWords(), "|")) + "]", Short: "Show or set what a machine boots next",
		Long: `Show what a machine boots next, or set it, and read it back. It holds for one boot, whoever causes that one.

` + actHelp,
		Args: takes(cobra.RangeArgs(1, 2)),
	}
	flags := newBMCFlags(command, out)
	command.Flags().BoolVar(&continuous, "continuous", false, "until it is changed, not for one boot")
	command.Flags().StringVar(&mode, "mode", "", "UEFI or Legacy; default as it is")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be set, and set nothing")
	command.RunE = func(cmd *cobra.Command, args []string) error {
		wanted, err := wantedBoot(args[1:], mode, continuous)
		if err != nil {
			return err
		}

		reach := flags.with
		if wanted != nil && !dryRun {
			reach = flags.acting
		}

		return reach(cmd, args[0], func(ctx context.Context, target bmcTarget, machine bmc.Machine) error {
			return setBoot(ctx, cmd, flags, target, machine, wanted, dryRun)
		})
	}

	return command
}

func bootWords() []string {
	words := make([]string, 0, len(bmc.BootTargets()))
	for _, each := range bmc.BootTargets() {
		words = append(words, string(each))
	}

	return words
}

// wantedBoot is nil when nothing shall be set.
func wantedBoot(words []string, mode string, continuous bool) (*bmc.Boot, error) {
	modes := []string{"", string(bmc.ModeUEFI), string(bmc.ModeLegacy)}
	index := slices.IndexFunc(modes, func(each string) bool { return strings.EqualFold(each, mode) })
	if index < 0 {
		return nil, fmt.Errorf("%w: --mode %q; use UEFI or Legacy", errUnknownWord, redacted(mode))
	}
	if len(words) == 0 {
		if continuous || mode != "" {
			return nil, fmt.Errorf("%w: --continuous and --mode belong to a target to set; name one of %s",
				errUnknownWord, strings.ToLower(strings.Join(bootWords(), ", ")))
		}

		return nil, nil //nolint:nilnil // "nothing" is an answer.
	}
	for _, each := range bmc.BootTargets() {
		if strings.EqualFold(string(each), words[0]) {
			return &bmc.Boot{Target: each, Continuous: continuous, Mode: bmc.BootMode(modes[index])}, nil
		}
	}

	return nil, fmt.Errorf("%w: %q; use one of %s", errUnknownWord, redacted(words[0]), strings.ToLower(strings.Join(bootWords(), ", ")))
}

// setBoot sets an override if there is one to set, and prints what holds then.
func setBoot(
	ctx context.Context, cmd *cobra.Command, flags *bmcFlags, target bmcTarget, machine bmc.Machine, wanted *bmc.Boot, dryRun bool,
) error {
	if err := flags.checkExpected(ctx, target, machine, wanted != nil); err != nil {
		return err
	}
	if wanted != nil && dryRun {
		fmt.Fprintf(cmd.ErrOrStderr(), "Would set: %s\n", bootOf(bmc.BootState{Boot: *wanted}).words())
	}
	if wanted != nil && !dryRun {
		if err := machine.SetBoot(ctx, *wanted); err != nil {
			return err
		}
	}
	state, err := machine.Boot(ctx)
	if err != nil {
		return err
	}
	answer := bootOf(state)
	rows := [][]string{{"TARGET", "BOOT", "OFFERED"}, {target.name, answer.words(), orDash(joined(state.Offered))}}
	if err := flags.output.print(cmd.OutOrStdout(), answer, rows); err != nil {
		return err
	}
	if wanted == nil || dryRun {
		return nil
	}
	if state.Target != wanted.Target || (wanted.Target != bmc.BootNone && state.Continuous != wanted.Continuous) {
		return &bmc.Error{
			Kind: bmc.NotFollowed, Op: "setting the boot override",
			Detail: fmt.Sprintf("the BMC accepted %s and keeps %s", bootOf(bmc.BootState{Boot: *wanted}).words(), answer.words()),
		}
	}

	return nil
}

// checkExpected refuses another machine than the one that is meant; and before anything is changed also one that cannot be
// shown to be it.
func (f *bmcFlags) checkExpected(ctx context.Context, target bmcTarget, machine bmc.Machine, changes bool) error {
	identity, err := machine.Identity(ctx)
	if err != nil {
		return err
	}
	if err := bmc.CheckIdentity(identity, target.expected); err != nil || !changes {
		return err
	}

	return bmc.RequireIdentity(identity, f.required())
}

func newBMCMediaCommand(out outside) *cobra.Command {
	var (
		slot   string
		dryRun bool
	)
	command := &cobra.Command{
		Use: "media TARGET [insert URL|eject]", Short: "List virtual drives, insert an image, or eject it",
		Long: `List the virtual drives of a machine, insert an image from a URL that the BMC can reach, or eject it. Without --slot
the first drive that takes an image is used, or the only one that holds one.

` + actHelp,
		Args: takes(cobra.RangeArgs(1, 3)), //nolint:mnd // target, verb, URL
	}
	flags := newBMCFlags(command, out)
	command.Flags().StringVar(&slot, "slot", "", "which drive, as the list names it")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and do nothing")
	command.RunE = func(cmd *cobra.Command, args []string) error {
		change, err := mediaChangeOf(args[1:], slot)
		if err != nil {
			return err
		}

		reach := flags.with
		if change.changes() && !dryRun {
			reach = flags.acting
		}

		return reach(cmd, args[0], func(ctx context.Context, target bmcTarget, machine bmc.Machine) error {
			return changeMedia(ctx, cmd, flags, target, machine, change, dryRun)
		})
	}

	return command
}

// mediaChange is what shall be done; its zero value is nothing.
type mediaChange struct {
	insert string
	eject  bool
	slot   string
}

func (c mediaChange) changes() bool { return c.eject || c.insert != "" }

func mediaChangeOf(words []string, slot string) (mediaChange, error) {
	switch {
	case len(words) == 0 && slot == "":
		return mediaChange{}, nil
	case len(words) == 2 && words[0] == "insert":
		return mediaChange{insert: words[1], slot: slot}, nil
	case len(words) == 1 && words[0] == "eject":
		return mediaChange{eject: true, slot: slot}, nil
	case len(words) == 0:
		return mediaChange{}, fmt.Errorf("%w: --slot %q belongs to insert URL or eject; add one of them, or leave the flag out "+
			"to list the drives", errUnknownWord, slot)
	default:
		return mediaChange{}, fmt.Errorf("%w: %q; use insert URL, eject, or nothing to list the drives", errUnknownWord, redactedWords(words))
	}
}

// choose picks the drive to use.
func (c mediaChange) choose(slots []bmc.MediaSlot) (string, error) {
	if c.slot != "" {
		return c.slot, hasSlot(slots, c.slot)
	}
	var fitting []string
	for _, each := range slots {
		if (c.eject && each.Inserted) || (!c.eject && each.Insertable) {
			fitting = append(fitting, each.ID)
		}
	}
	switch {
	case len(fitting) == 0 && c.eject:
		return "", nil
	case len(fitting) == 0:
		return "", &bmc.Error{Kind: bmc.Unsupported, Op: "choosing a virtual drive", Detail: "the BMC has none that takes an image"}
	case len(fitting) > 1 && c.eject:
		return "", fmt.Errorf("%w: several drives hold an image: %s; choose with --slot", errUnknownWord, strings.Join(fitting, ", "))
	default:
		return fitting[0], nil
	}
}

// hasSlot refuses a drive that is not there.
func hasSlot(slots []bmc.MediaSlot, wanted string) error {
	ids := make([]string, 0, len(slots))
	for _, each := range slots {
		if each.ID == wanted {
			return nil
		}
		ids = append(ids, each.ID)
	}
	if len(ids) == 0 {
		return fmt.Errorf("%w: --slot %q; the BMC has no virtual drive", errUnknownWord, wanted)
	}

	return fmt.Errorf("%w: --slot %q; the BMC has %s", errUnknownWord, wanted, strings.Join(ids, ", "))
}

func changeMedia(
	ctx context.Context, cmd *cobra.Command, flags *bmcFlags, target bmcTarget, machine bmc.Machine, change mediaChange, dryRun bool,
) error {
	slots, err := machine.Media(ctx)
	if err != nil {
		return err
	}
	if change.changes() {
		if err := flags.checkExpected(ctx, target, machine, true); err != nil {
			return err
		}
		slot, err := change.choose(slots)
		switch {
		case err != nil:
			return err
		case dryRun:
			fmt.Fprintf(cmd.ErrOrStderr(), "Would use drive %s\n", orDash(slot))
		case change.eject && slot != "":
			err = machine.Eject(ctx, slot)
		case change.insert != "":
			err = machine.Insert(ctx, slot, change.insert)
		}
		if err != nil {
			return err
		}
		if slots, err = machine.Media(ctx); err != nil {
			return err
		}
	}
	rows := [][]string{{"SLOT", "TYPES", "INSERTED", "INSERTABLE", "IMAGE"}}
	answer := make([]mediaAnswer, 0, len(slots))
	for _, each := range slots {
		each.Types = listed(each.Types)
		answer = append(answer, mediaAnswer(each))
		rows = append(rows, []string{
			each.ID, strings.Join(each.Types, ","), strconv.FormatBool(each.Inserted), strconv.FormatBool(each.Insertable), orDash(each.Image),
		})
	}

	return flags.output.print(cmd.OutOrStdout(), answer, rows)
}

type mediaAnswer struct {
	ID         string   `json:"slot"`
	Types      []string `json:"types"`
	Image      string   `json:"image"`
	Inserted   bool     `json:"inserted"`
	Insertable bool     `json:"insertable"`
}
