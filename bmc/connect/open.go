package connect

import (
	"context"
	"fmt"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/ipmi"
	"github.com/stayput-dev/stayput/bmc/redfish"
)

// Open connects to a machine by the protocol of its address, as redfish.Open and ipmi.Open do. It never tries another
// protocol. Close the Machine where err is nil. Its error is of kind Unsupported, and nothing is sent, when no driver knows
// the address's scheme.
func Open(ctx context.Context, options bmc.Options) (bmc.Machine, error) {
	scheme := options.Address.Scheme
	switch {
	case options.Address.Protocol == bmc.IPMI:
		return ipmi.Open(ctx, options)
	case options.Address.Protocol == bmc.Redfish && (scheme == "http" || scheme == "https"):
		return redfish.Open(ctx, options)
	default:
		return nil, &bmc.Error{
			Kind: bmc.Unsupported, Op: "opening", BMC: options.Address.HostPort(),
			Detail: fmt.Sprintf("no driver knows scheme %q; use a redfish:// or ipmi:// address", scheme),
		}
	}
}
