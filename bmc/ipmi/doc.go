// Package ipmi drives a machine through an IPMI 2.0 BMC with ipmitool, which must be installed (Debian: ipmitool).
//
// Every operation is its own run of ipmitool: RMCP+ with cipher suite 3, and the password in the environment of the
// process, never in its arguments. A read is repeated by ipmitool; a write is sent once, so that a lost answer cannot
// make a machine cycle twice.
//
// bmclib/v2's providers/ipmitool was read for this at 63cb571e5597. It passes the password in the same way, obeys
// contexts, and with a fixed cipher suite runs a command once. It is not used, because it cannot be told how often
// ipmitool repeats a request (the default repeats writes), reads the power before "on" and "off" and goes on when
// "off" could not read it, reports "soft" as done by a BMC that does not answer, and merges what ipmitool says of the
// session and of the command into one text.
//
// What IPMI has no notion of, virtual media, UEFI HTTP boot and a graceful restart, is of kind Unsupported.
package ipmi
