package connect

import (
	"context"
	"fmt"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/redfish"
)

// Open connects to a machine by its address, as redfish.Open does. Close the Machine where err is nil. Its error is of
// kind Unsupported, and nothing is sent, when no driver knows the address's scheme.
func Open(ctx context.Context, options bmc.Options) (bmc.Machine, error) {
	switch options.Address.Scheme {
	case "http", "https":
		return redfish.Open(ctx, options)
	default:
		return nil, &bmc.Error{
			Kind: bmc.Unsupported, Op: "opening", BMC: options.Address.HostPort(),
			Detail: fmt.Sprintf("no driver knows scheme %q; use a redfish:// address", options.Address.Scheme),
		}
	}
}
