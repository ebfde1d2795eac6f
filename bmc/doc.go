// Package bmc drives the power of one physical machine through its baseboard management controller.
//
// A driver takes a BareMetalHost's BMC address and gives a Machine; Locks serialises the callers of one BMC; an Intent
// decides, without touching anything, what the next step towards a power state is.
//
// There are two ways to carry one out. A controller stores the step as its own intent, sends it, and looks again: what
// it needs never retries an action, never polls and never sleeps, so that a crash between two steps can be resumed from
// what was stored and what is seen. A program that may wait calls Run, which does all of it and reports what it saw.
//
// It refuses:
//   - to choose among several systems behind one BMC: the address names the system's path, or there is exactly one;
//   - to act on a machine whose UUID is not the expected one;
//   - to call an accepted request a result: after Do the power state must be read;
//   - to repeat a request whose answer was lost (kind Unknown);
//   - certificates it cannot verify, unless verification is switched off for the host;
//   - addresses with a user name or password in them.
//
// No error text holds a credential, even when a BMC echoes one.
//
// This package holds what all drivers share; they are the packages redfish and ipmi, and package connect chooses between
// them by the address. No driver tries another protocol after an action.
//
// Redfish goes through gofish's connection and error types, IPMI through the program ipmitool. Nothing goes through
// bmclib/v2 (v2.3.5), which is built on the same two: the docs of redfish and of ipmi tell, operation by operation, what it
// was measured to do, and what is done instead.
//
// The package knows nothing of Kubernetes.
package bmc
