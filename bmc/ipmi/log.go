package ipmi

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stayput-dev/stayput/bmc"
)

// Log implements bmc.Machine: the system event log.
func (m *machine) Log(ctx context.Context, limit int) ([]bmc.LogEntry, error) {
	const op = "reading the log"
	if limit <= 0 {
		return nil, nil
	}
	text, err := m.run(ctx, command{op: op, terse: true, words: []string{"sel", "list", "last", strconv.Itoa(limit)}})
	if err != nil && bmc.KindOf(err) == bmc.Transient && ctx.Err() == nil {
		// Without -v ipmitool does not say why there is no session.
		if _, why := m.readDevice(ctx, op); why != nil {
			return nil, why
		}
	}
	if err != nil {
		return nil, err
	}
	var entries []bmc.LogEntry
	redactor := bmc.NewRedactor(m.options.Credentials)
	for line := range strings.Lines(text) {
		if entry, ok := logEntry(line); ok {
			entry.Message = redactor.Line(entry.Message, maxDetail)
			entries = append(entries, entry)
		}
	}
	slices.Reverse(entries)

	return entries, nil
}

// logEntry reads "ID | date | time | sensor | event | direction", and "ID | OEM record e0 | bytes", which has no time. A
// time before the BMC's clock was set is "Pre-Init | seconds".
func logEntry(line string) (bmc.LogEntry, bool) {
	columns := strings.Split(line, "|")
	for i := range columns {
		columns[i] = strings.TrimSpace(columns[i])
	}
	if _, err := strconv.ParseUint(columns[0], 16, 16); err != nil || len(columns) < 3 {
		return bmc.LogEntry{}, false
	}
	at, timed := logTime(columns[1], columns[2])
	message := columns[1:]
	if timed || columns[1] == "Pre-Init" {
		message = columns[3:]
	}
	message = slices.DeleteFunc(slices.Clone(message), func(part string) bool { return part == "" })
	entry := bmc.LogEntry{At: at, Message: strings.Join(message, ", ")}
	entry.Severity = severity(entry.Message)

	return entry, entry.Message != ""
}

// logTime reads UTC. The year has two digits in 1.8.19, four in newer ones.
func logTime(date, clock string) (at time.Time, ok bool) {
	clock, _, _ = strings.Cut(clock, " ")
	for _, layout := range []string{"01/02/06 15:04:05", "01/02/2006 15:04:05"} {
		if at, err := time.Parse(layout, date+" "+clock); err == nil {
			return at, true
		}
	}

	return time.Time{}, false
}

// severity is that of thresholds and generic states, whose words IPMI fixes (2.0, table 42-2); other events have none.
func severity(message string) string {
	if strings.Contains(message, "Deasserted") {
		return ""
	}
	for _, each := range []struct{ words, severity string }{
		{"Non-critical", "Warning"}, {"Non-recoverable", "Critical"}, {"Critical", "Critical"},
	} {
		if strings.Contains(message, each.words) {
			return each.severity
		}
	}

	return ""
}
