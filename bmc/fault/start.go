package fault

import (
	"net/http"

	"k8s.io/utils/clock"

	"github.com/stayput-dev/stayput/bmc/fault/endpoint"
	"github.com/stayput-dev/stayput/bmc/fault/proxy"
	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

// Options of a BMC.
type Options struct {
	// BMC is what is simulated.
	BMC simulator.Options
	// TLS makes it speak HTTPS.
	TLS bool
	// Clock measures how long the endpoint is down; BMC.Clock all else. Default: the machine's.
	Clock clock.WithDelayedExecution
	// Elsewhere is that of Target.
	Elsewhere string
	// Around, when set, wraps what answers: it sees every request before the faults.
	Around func(http.Handler) http.Handler
}

// BMC is a simulated BMC that listens, with the faults' places in front of it.
type BMC struct {
	Target
}

// Start starts a BMC on a free port of 127.0.0.1. Close it.
func Start(options Options) (*BMC, error) {
	machine := simulator.New(options.BMC)
	front := proxy.New(machine)
	var handler http.Handler = front
	if options.Around != nil {
		handler = options.Around(front)
	}
	server, err := endpoint.Start(endpoint.Options{Handler: handler, TLS: options.TLS, Clock: options.Clock})
	if err != nil {
		return nil, err
	}

	return &BMC{Target: Target{Proxy: front, Endpoint: server, Simulator: machine, Elsewhere: options.Elsewhere}}, nil
}

// Close ends the BMC. It is safe to call twice.
func (b *BMC) Close() {
	b.Proxy.Close()
	b.Endpoint.Close()
}

// IDs are the systems' IDs.
func (b *BMC) IDs() []string { return b.Simulator.IDs() }

// Address is the address of a system as a BareMetalHost has it; an empty id leaves the system's path out.
func (b *BMC) Address(id string) string {
	scheme := "redfish+http://"
	if b.Endpoint.CA() != nil {
		scheme = "redfish://"
	}
	if id == "" {
		return scheme + b.Endpoint.Host()
	}

	return scheme + b.Endpoint.Host() + simulator.Path(id)
}

// Heal takes all faults away, but what they changed in the systems' state and accounts.
func (b *BMC) Heal() error {
	b.Proxy.Heal()
	b.Simulator.Heal()
	b.Endpoint.ResetNext(0)
	b.Endpoint.PlainText(false)
	if err := b.Endpoint.Show(endpoint.Valid); err != nil {
		return err
	}

	return b.Endpoint.Up()
}
