// Package ipmi is a bmc.Machine over IPMI 2.0 (RMCP+), by running ipmitool 1.8.19 or newer, which must be installed
// (Debian: ipmitool). Every run is a session of its own.
//
// bmclib/v2's provider ipmitool (v2.3.5) was measured for it and is not used:
//   - it leaves ipmitool its default of 4 tries, and these are new requests to a BMC, not copies that it could know: with
//     the answers lost, one "reset" of bmclib's resets OpenIPMI's ipmi_sim four times;
//   - its "soft" is done, it says, at a BMC that does not answer, or that refuses the password;
//   - its "off" acts on a power state that it could not read;
//   - without -v ipmitool does not tell a refused password from a BMC with no session to spare, and bmclib does not say -v;
//   - it asks for ADMINISTRATOR always.
//
// What it does well is done here alike: one cipher suite that is given, so that no command is run again with another;
// the password in the environment, never in the arguments; and a context that ends the process.
//
// Which of ipmitool's commands an operation is, and why:
//   - Power, Do, Boot, SetBoot, and the UUID and firmware of Identity are its "raw" ones. They give the BMC's completion
//     code. The worded ones do not: "chassis bootdev" can fail with exit code 0, and "mc reset" succeed at a refusal. And
//     with -v "raw" says when it sends, so that a run that was cut off before is known not to have acted.
//   - Do and SetBoot send once (-R 1). A lost answer is kind Unknown. Reads are sent up to three times.
//   - SetBoot writes boot option 3 first, else BMCs forget the flags after 60 s; those that lack it (OpenBMC) are let be.
//   - The rest of Identity is "fru print 0", and Log is "sel list last N". The forms without a number, and "sel elist",
//     first read the sensors' records, and at ipmi_sim ipmitool erased those that it could not read.
//
// An ipmitool that is killed, because a context has ended, leaves its session to the BMC's idle timeout (60 s, IPMI 2.0,
// 6.12.15).
//
// What IPMI has no notion of, virtual media, UEFI HTTP boot and a graceful restart, is of kind Unsupported.
package ipmi
