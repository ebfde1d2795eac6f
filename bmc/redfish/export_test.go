package redfish

import (
	"context"
	"time"

	"github.com/stayput-dev/stayput/bmc"
)

// SetWait replaces the pauses of a machine.
func SetWait(m bmc.Machine, wait func(context.Context, time.Duration) error) {
	m.(*machine).wait = wait //nolint:forcetypeassert // Open gives nothing else
}
