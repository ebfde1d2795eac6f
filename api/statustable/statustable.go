package statustable

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// waitingForAgent stands for the reason of an attempt of which the agent has said nothing.
const waitingForAgent = "WaitingForAgent"

// Write writes the header and the table of a pool, and below it what the agents say of the nodes that do not go on by
// themselves. Of the updates, those whose door is another are left out; the rest keep their order. Deadlines are shown
// as time left at now.
func Write(out io.Writer, pool *v1alpha1.HostPool, updates []v1alpha1.NodeUpdate, now time.Time) error {
	WriteHeader(out, pool)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tPHASE\tSLOT\tRUNNING\tWANTED\tPROGRESS\tDEADLINE\tREASON")
	var below strings.Builder
	var rows int32
	for i := range updates {
		if door := updates[i].Spec.Door; door.Namespace == pool.Namespace && door.Name == pool.Name {
			writeNode(table, &updates[i], now)
			below.WriteString(obstacle(&updates[i], now))
			rows++
		}
	}
	if without := pool.Status.Nodes - rows; without > 0 {
		fmt.Fprintf(&below, "  %d more of the pool's nodes have not been offered the release\n", without)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("writing the table of HostPool %s: %w", pool.Name, err)
	}
	if _, err := io.WriteString(out, below.String()); err != nil {
		return fmt.Errorf("writing below the table of HostPool %s: %w", pool.Name, err)
	}

	return nil
}

// WriteHeader writes what stands above the table, for a pool whose nodes cannot be read.
func WriteHeader(out io.Writer, pool *v1alpha1.HostPool) {
	status := pool.Status
	release := pool.Spec.Release.OS.Image
	if status.Release != nil && status.Release.Image == release {
		release = status.Release.Version + " (" + release + ")"
	}
	fmt.Fprintf(out, "HostPool %s/%s: %s, %d of %d nodes updated, %d updating, %d failed\n",
		pool.Namespace, pool.Name, release, status.Updated, status.Nodes, status.Updating, status.Failed)
	for _, shown := range []struct {
		condition string
		when      bool // shown when the condition has this truth
	}{
		{v1alpha1.ConditionHalted, true},
		{v1alpha1.ConditionClusterReachable, false},
		{v1alpha1.ConditionReleaseResolved, false},
		{v1alpha1.ConditionHostsLinked, false},
		{v1alpha1.ConditionReady, false},
	} {
		found := meta.FindStatusCondition(status.Conditions, shown.condition)
		if found != nil && (found.Status == "True") == shown.when {
			fmt.Fprintf(out, "  %s=%s %s: %s\n", found.Type, found.Status, found.Reason, found.Message)
		}
	}
}

func writeNode(out io.Writer, update *v1alpha1.NodeUpdate, now time.Time) {
	status := update.Status
	phase, reason := whereIs(update, now)
	if bmc := status.OutOfBand; bmc != nil && bmc.Attempt == update.Spec.Attempt && !phase.Ended() {
		reason += fmt.Sprintf(" (BMC: %s, %s)", bmc.Phase, bmc.Reason)
	}
	fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", update.Name, phase, dash(status.Running.Name),
		dash(status.Running.Version), update.Spec.Release.OS.Version, progress(&status, now), deadline(update, now), reason)
}

// whereIs is the phase of the present attempt and its reason.
func whereIs(update *v1alpha1.NodeUpdate, now time.Time) (phase v1alpha1.Phase, reason string) {
	status := &update.Status
	switch {
	case status.Attempt == update.Spec.Attempt:
		return status.Phase, string(status.Reason)
	case update.NotTakenUp(now):
		return v1alpha1.PhaseIdle, string(status.Reason)
	default:
		return v1alpha1.PhaseIdle, waitingForAgent
	}
}

// obstacle is the line below the table for a node that does not go on by itself, "" for one that does.
func obstacle(update *v1alpha1.NodeUpdate, now time.Time) string {
	status := &update.Status
	about := status.Attempt == update.Spec.Attempt || update.NotTakenUp(now)
	message := status.Message
	if machine := update.SilentMachine(); machine != nil {
		message = machine.Message // the agent of a silent machine said good-bye; what is asked of a person comes from the BMC rung
	} else if !about || goesOn(status.Reason) {
		return ""
	}
	if message == "" {
		return ""
	}

	return fmt.Sprintf("  %s: %s\n", update.Name, strings.Join(strings.Fields(message), " "))
}

// goesOn tells whether a reason is one of those that every good attempt passes. All others say what stands in the way.
func goesOn(reason v1alpha1.Reason) bool {
	switch reason {
	case v1alpha1.ReasonNoAttempt, v1alpha1.ReasonUpToDate, v1alpha1.ReasonReadingSlots, v1alpha1.ReasonDownloading,
		v1alpha1.ReasonWaitingForReady, v1alpha1.ReasonWritingBootEntry, v1alpha1.ReasonWaitingForBoot,
		v1alpha1.ReasonWaitingForHealth, v1alpha1.ReasonWaitingForCommit, v1alpha1.ReasonDeletingPods, v1alpha1.ReasonCommitted,
		v1alpha1.ReasonAttemptSuperseded:
		return true
	default:
		return false
	}
}

func dash(text string) string {
	if text == "" {
		return "-"
	}

	return text
}

// progress is how far staging is: what was read to find out what need not be fetched, or what is written, what of it came
// over the network, and, while it goes on, the time that is left of it. It is as old as the agent's last write.
func progress(status *v1alpha1.NodeUpdateStatus, now time.Time) string {
	const mebibyte, percent = 1 << 20, 100
	p := status.Progress
	if p == nil || p.BytesTotal == 0 {
		return "-"
	}
	if status.Reason == v1alpha1.ReasonReadingSlots && p.BytesToRead > 0 {
		return fmt.Sprintf("reading what is there, %d%%", p.BytesRead*percent/p.BytesToRead)
	}
	text := fmt.Sprintf("%d/%d MiB", p.BytesDone/mebibyte, p.BytesTotal/mebibyte)
	if p.BytesToFetch > 0 {
		text += fmt.Sprintf(", %.1f/%.1f fetched", float64(p.BytesFetched)/mebibyte, float64(p.BytesToFetch)/mebibyte)
	}
	if p.EstimatedEnd != nil && p.EstimatedEnd.After(now) && status.Reason == v1alpha1.ReasonDownloading {
		text += fmt.Sprintf(", %s left", p.EstimatedEnd.Sub(now).Round(time.Second))
	}

	return text
}

// deadline is the time that is left of the present wait.
func deadline(update *v1alpha1.NodeUpdate, now time.Time) string {
	if update.Status.Deadline == nil || update.Status.Phase.Ended() {
		return "-"
	}
	left := update.Status.Deadline.Sub(now).Round(time.Second)
	if left < 0 {
		return "passed " + (-left).String() + " ago"
	}

	return "in " + left.String()
}
