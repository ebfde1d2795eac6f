// Package fault makes BMCs for tests, and breaks them in the ways in which real ones are reported to break.
//
//	b, err := fault.Start(fault.Options{
//		BMC: simulator.Options{Profile: simulator.IDRAC10(), Username: "admin", Password: "…", Clock: clock},
//		TLS: true,
//	})
//	defer b.Close()
//	b.Inject(fault.OnConflict)      // On is refused for 60 s of the clock after off
//	b.Address(b.IDs()[0])           // spec.bmc.address of a BareMetalHost
//	b.Simulator.Acts()              // what it was asked to do
//
// It has three parts, each of use alone:
//   - package simulator is a Redfish service with profiles of vendors and an injected clock;
//   - package proxy injects faults between a client and any Redfish service, such as sushy-tools' emulator;
//   - package endpoint breaks below HTTP: certificates, resets, and a port that refuses.
//
// This package is the catalogue: each Kind is one fault with a name. Those of layer Wire work in front of any service
// (Target with a Proxy only); the others need the simulator or the endpoint. All can be injected and healed while the
// BMC runs. Catalogue lists them; where a fault is a quirk that somebody reported, its comment names the report, and
// Fault.Quirk its number in this project's table of quirks.
//
// The tests of this package play every fault against every profile with the driver of package redfish, and run a soak.
// Each prints its figures, a line for each, beginning with "figure:":
//
//	go test ./bmc/fault -run TestScenarios -v
//	go test ./bmc/fault -run TestSoak -v -soak 10m -soak-bmcs 1000 -soak-operations 200 -timeout 20m
//
// The soak uses half a processor. It measures on the machine's own clock, so that it needs a machine that gives it that:
// at the lowest priority beside other work it measures the wait for the processor, which the last figure then shows.
package fault
