package ipmi

import (
	"context"

	"k8s.io/utils/clock"

	"github.com/stayput-dev/stayput/bmc"
)

// OpenAt is Open with another clock.
func OpenAt(ctx context.Context, options bmc.Options, now clock.Clock) (bmc.Machine, error) {
	return open(ctx, options, now)
}
