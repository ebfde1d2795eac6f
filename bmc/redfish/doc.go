// Package redfish is a bmc.Machine over Redfish, addressed by the system's path.
//
// It is built on gofish, and not on bmclib v2.3.5, for reasons that were measured: bmclib picks a system by its Name (of
// two systems with one Name a random one answers); its "reset" falls back to a soft shutdown and left 1 of 12 machines
// off while reporting success; its "soft" reports failure on success and then tries the next provider; its requests
// ignore the caller's context; and errors of reads lose their HTTP status, so a wrong password cannot be told from a
// busy BMC.
package redfish
