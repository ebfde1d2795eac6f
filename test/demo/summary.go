package demo

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// WriteSummary says what was updated, what fell back and why, how long each node was out of service, how often a BMC
// acted, and how long it all took.
func WriteSummary(out io.Writer, story []Chapter, told []Told, wall time.Duration) error {
	fmt.Fprintf(out, "\n== Summary (%s in all)\n", wall.Round(time.Second))

	var resets int32

	for index := range story {
		chapter := &story[index]

		if index >= len(told) {
			fmt.Fprintf(out, "\n%s\n  not reached\n", chapter.Name)

			continue
		}

		seen := told[index] //nolint:gosec // the index was compared above
		if err := writeChapter(out, seen); err != nil {
			return err
		}

		for _, outcome := range seen.Record.Outcomes(chapter.Scenario.To.Version) {
			resets += outcome.Resets
		}
	}

	fmt.Fprintf(out, "\nOUTAGE is from the cordon until the node took pods again, REBOOT the part of it from the order to reboot until\n"+
		"the Node was Ready in another boot. Resets through BMCs in all: %d.\n", resets)

	return nil
}

func writeChapter(out io.Writer, told Told) error {
	verdict := "yes: " + told.Chapter.Lesson
	if err := Verdict([]Chapter{*told.Chapter}, []Told{told}); err != nil {
		verdict = "NO: it did not happen as promised; the error is below"
	}

	fmt.Fprintf(out, "\n%s\n  %s\n", told.Chapter.Name, verdict)

	outcomes := told.Record.Outcomes(told.Chapter.Scenario.To.Version)
	if len(outcomes) == 0 {
		return nil
	}

	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  NODE\tTRIED\tENDED\tRUNS\tOUTAGE\tREBOOT\tRESETS")

	for _, outcome := range outcomes {
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\t%s\t%d\n", outcome.Node, outcome.Attempt.Version,
			ending(outcome.Attempt.Phase, outcome.Attempt.Reason, outcome.Attempt.Rung), outcome.Runs,
			measured(outcome.Outage), measured(outcome.Down), outcome.Resets)
	}

	if err := table.Flush(); err != nil {
		return fmt.Errorf("writing the summary: %w", err)
	}

	writeReasons(out, told, outcomes)

	return nil
}

// writeReasons says why nodes fell back, and why the rollout halted.
func writeReasons(out io.Writer, told Told, outcomes []Outcome) {
	for _, outcome := range outcomes {
		if outcome.Attempt.Phase != v1alpha1.PhaseSucceeded && outcome.Attempt.Message != "" {
			fmt.Fprintf(out, "  %s: %s\n", outcome.Node, outcome.Attempt.Message)
		}
	}

	halted := meta.FindStatusCondition(told.Record.Last.Pool.Status.Conditions, v1alpha1.ConditionHalted)
	if halted != nil && halted.Status == "True" {
		fmt.Fprintf(out, "  halted: %s\n", strings.TrimSpace(halted.Message))
	}
}

func measured(d time.Duration) string {
	if d <= 0 {
		return "-"
	}

	return seconds(d)
}
