package fault

import (
	"fmt"
	"net/http"

	"github.com/stayput-dev/stayput/bmc/fault/endpoint"
	"github.com/stayput-dev/stayput/bmc/fault/proxy"
	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

// Kind names a fault.
type Kind string

// Layer is where a fault is made.
type Layer string

// The layers.
const (
	// Wire: in the proxy, in front of any Redfish service.
	Wire Layer = "Wire"
	// Socket: in the endpoint, below HTTP.
	Socket Layer = "Socket"
	// Inside: in the simulator.
	Inside Layer = "Inside"
)

// Fault is an entry of the catalogue.
type Fault struct {
	Kind  Kind
	Layer Layer
	// Quirk is the number of the report in the project's table of quirks of BMCs; 0: no vendor's.
	Quirk int

	inject func(Target) error
}

// Catalogue lists all faults.
func Catalogue() []Fault {
	var all []Fault
	for _, part := range [][]Fault{
		wireFaults(), answerFaults(), socketFaults(), powerFaults(), bootFaults(), mediaFaults(), identityFaults(),
	} {
		all = append(all, part...)
	}

	return all
}

// Find gives the entry of a kind.
func Find(kind Kind) (Fault, bool) {
	for _, each := range Catalogue() {
		if each.Kind == kind {
			return each, true
		}
	}

	return Fault{}, false
}

// Target is what faults are injected into. The parts that the fault needs must be there.
type Target struct {
	// Proxy is in front of the service.
	Proxy *proxy.Proxy
	// Endpoint listens for the proxy.
	Endpoint *endpoint.Server
	// Simulator is the service.
	Simulator *simulator.BMC
	// Elsewhere is the URL, without a path, to which RedirectElsewhere sends; default http://127.0.0.1:1, where nobody
	// listens.
	Elsewhere string
}

// Inject injects a fault. Faults add up.
func (t Target) Inject(kind Kind) error {
	found, ok := Find(kind)
	if !ok {
		return fmt.Errorf("injecting fault %q: there is no such fault; Catalogue lists them", kind) //nolint:err113 // for a test's author
	}
	missing := map[Layer]bool{Wire: t.Proxy == nil, Socket: t.Endpoint == nil, Inside: t.Simulator == nil}
	if missing[found.Layer] {
		return fmt.Errorf("injecting fault %s: the target has nothing of layer %s", kind, found.Layer) //nolint:err113 // for a test's author
	}

	return found.inject(t)
}

// rules makes the fault of rules of the proxy.
func rules(of ...proxy.Rule) func(Target) error {
	return func(t Target) error {
		t.Proxy.Inject(of...)

		return nil
	}
}

// profile makes the fault of a change of the simulator's profile.
func profile(change func(*simulator.Profile)) func(Target) error {
	return func(t Target) error {
		t.Simulator.Configure(change)

		return nil
	}
}

// state makes the fault of a change of all systems' state.
func state(change func(*simulator.State)) func(Target) error {
	return func(t Target) error {
		for _, id := range t.Simulator.IDs() {
			t.Simulator.Change(id, change)
		}

		return nil
	}
}

// reads matches reads of a system itself.
func reads(rule proxy.Rule) proxy.Rule {
	rule.Method, rule.Path = http.MethodGet, "/Systems/"
	rule.Except = []string{"/Settings", "ActionInfo", "/VirtualMedia", "/LogServices", "/Actions"}

	return rule
}

// actions matches the action that changes power.
func actions(rule proxy.Rule) proxy.Rule {
	rule.Method, rule.Path = http.MethodPost, "ComputerSystem.Reset"

	return rule
}

// afterRoot matches everything that needs authentication.
func afterRoot(rule proxy.Rule) proxy.Rule {
	rule.Path = "/redfish/v1/"
	rule.Except = []string{"/SessionService"}

	return rule
}
