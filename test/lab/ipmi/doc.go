// Package ipmi runs real IPMI 2.0 BMCs without machines, on loopback, for tests: OpenIPMI's ipmi_sim, and one on
// pyghmi's server that takes faults and tells which requests it got.
//
//	machine, err := ipmi.StartPyghmi(ctx, ipmi.Options{StateDir: dir, Username: "admin", Password: "…"})
//	defer machine.Stop()
//	machine.Address()                                   // for a BareMetalHost's spec.bmc.address
//	machine.SetFaults(map[string]string{"0002": "lost"}) // the next chassis control acts, and its answer is lost
//	machine.Requests()                                  // such as "0002 03": chassis control, reset
//
// Needed on the machine: openipmi, python3-pyghmi.
//
// Traps. ipmi_sim (2.0.33) has cipher suite 3 only; knows power cycle and the event log, whose entries it stamps with its
// own clock; keeps neither the UEFI bit of a boot override nor that it is valid; and answers an ADMINISTRATOR's session to
// an operator's account. Debian's pyghmi (1.5.34) answers every cipher suite with 3, does not answer an unknown user,
// has neither cycle nor log, and does not recognise a repeated request.
package ipmi
