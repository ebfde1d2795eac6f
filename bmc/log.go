package bmc

import "time"

// LogEntry is one entry of a BMC's log of its machine.
type LogEntry struct {
	// At is when it was made, by the BMC's clock; zero when it does not say.
	At time.Time
	// Severity is OK, Warning or Critical; "" when the BMC does not say.
	Severity string
	// Message is what happened, in one line.
	Message string
}
