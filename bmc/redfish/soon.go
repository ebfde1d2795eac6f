package redfish

import (
	"context"
	"time"

	"github.com/stayput-dev/stayput/bmc"
)

func (m *machine) lacks(op string) error {
	return m.fail(bmc.Unsupported, op, "the Redfish driver does not do this; use the BMC's own tool")
}

// Boot implements Machine.
func (m *machine) Boot(context.Context) (bmc.BootState, error) {
	return bmc.BootState{}, m.lacks("reading the boot override")
}

// SetBoot implements Machine.
func (m *machine) SetBoot(context.Context, bmc.Boot) error { return m.lacks("setting the boot override") }

// Media implements Machine.
func (m *machine) Media(context.Context) ([]bmc.MediaSlot, error) {
	return nil, m.lacks("listing virtual media")
}

// Insert implements Machine.
func (m *machine) Insert(context.Context, string, string) error {
	return m.lacks("inserting virtual media")
}

// Eject implements Machine.
func (m *machine) Eject(context.Context, string) error { return m.lacks("ejecting virtual media") }

// Log implements Machine.
func (m *machine) Log(context.Context, int) ([]bmc.LogEntry, error) {
	return nil, m.lacks("reading the log")
}

func (m *machine) retryAfter() time.Duration {
	if m.transport.current == nil {
		return 0
	}

	return m.transport.current.retryAfter
}
