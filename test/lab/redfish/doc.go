// Package redfish runs sushy-tools' Redfish emulator as the BMC of the lab's machines: over TLS with Basic
// authentication, on loopback, with either its fake driver (power only, no machine) or libvirt.
//
//	emulator, err := redfish.Start(ctx, redfish.Options{
//		StateDir: dir, Username: "admin", Password: "…",
//		Fake: []redfish.FakeSystem{{UUID: "…", Name: "node-1", PoweredOn: true}},
//	})
//	defer emulator.Stop() // in a test, StartFake does both
//	emulator.Address(uuid) // for a BareMetalHost's spec.bmc.address
//	emulator.CA()          // verifies it
//	emulator.Resets(uuid)  // how many power actions were accepted, from its access log
//
// The emulator is installed once into the lab's cache, from PyPI, into a virtual environment of Debian's Python that
// sees Debian's python3-libvirt. Needed on the machine: python3-venv; for libvirt also python3-libvirt.
//
// Traps of the fake driver (sushy-tools 2.2.0): a change of power shows 1 to 11 s after it was accepted; a restart
// shows as Off and then On; an On that comes within the delay of a ForceOff is lost; its state is kept in StateDir and
// wins over Options.Fake. It has no fault injection: package fault of bmc is for that. It offers no sessions.
package redfish
