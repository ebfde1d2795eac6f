// Package ipmi is a bmc.Machine over IPMI 2.0 (RMCP+), by running ipmitool 1.8.19 or newer, which must be installed
// (Debian: ipmitool). Every run is a session of its own.
//
// # Who does what, and why
//
// bmclib/v2's provider ipmitool (v2.3.5) runs the same program. Each of its operations was measured at OpenIPMI's ipmi_sim
// and at a BMC on pyghmi's server (package test/lab/ipmi); none does what bmc.Machine promises, so that it is not used.
//
//	operation       who        why, as input → what bmclib v2.3.5 did
//	Power           "raw"      wrong password → "Unable to establish IPMI v2 / RMCP+ session", as of a dead port; answer
//	                           lost → asked 4 times, 26 s; nobody listens → 52 s; caller cancels → "signal: killed",
//	                           which is not context.Canceled
//	Log             "sel list  entries unreadable (answer lost, or code C5h or FFh) → no entry and no error; the second of
//	                last N"    two unreadable → the first, and no error; a maker's own record → left out; host's zone is
//	                           Berlin's → times of it, "15:04:05 CET"; always the whole log is read
//	Identity        "raw" and  it has none
//	                "fru"
//	Boot            "raw"      it has none
//	SetBoot         "raw"      "chassis bootdev", without option 3: BMCs forget it after 60 s
//	Do, restart     "raw"      "reset", answers lost → 4 resets, as each try is a new request to a BMC
//	Do, shutdown    "raw"      "soft", nobody listens → done; wrong password → done
//	Do, off         "raw"      "off", power unreadable → sent all the same
//	all                        always ADMINISTRATOR: an account that may be OPERATOR only → refused, where a BMC checks it
//	                           (ipmi_sim does not); address ::1 → no address is given to ipmitool, [::1] works; tries and
//	                           waiting times → cannot be set (4, from 5 s on); no cipher suite → after each failure, also
//	                           of an action, once more with 17 instead of 3, and only that one's error is told
//
// That was true of it too: the power and the log of a BMC that answers; a refused cipher suite, "no session to spare" and
// the completion codes, which it passes on as ipmitool's words; the port and the cipher suite that are given; a context of
// 1 s, which ends the call in 1 s and the process with it, at a dead port, at a silent BMC, and at a lost answer; and the
// password, in the environment, and in no argument and no error. This package does those alike.
//
// For bmclib's drivers of Redfish see package redfish.
//
// # Which of ipmitool's commands an operation is, and why
//
//   - Power, Do, Boot, SetBoot, and the UUID and firmware of Identity are its "raw" ones. They give the BMC's completion
//     code. The worded ones do not: "chassis bootdev" can fail with exit code 0, and "mc reset" succeed at a refusal. And
//     with -v "raw" says when it sends, so that a run that was cut off before is known not to have acted.
//   - With -v ipmitool tells a refused password from a BMC that is not there.
//   - Do and SetBoot send once (-R 1). A lost answer is kind Unknown. Reads are sent up to three times.
//   - SetBoot writes boot option 3 first, else BMCs forget the flags after 60 s; those that lack it (OpenBMC) are let be.
//   - The rest of Identity is "fru print 0", and Log is "sel list last N". "fru print" and "sel elist" first read the
//     records of all sensors.
//   - These two end with exit code 0 also when the BMC did not let them read all of it, and say so on the way. Log is an
//     error then, and Identity is one when it has no serial number: of a machine that is another one, an identity with no
//     serial number would be taken for the expected one's.
//
// An ipmitool that is killed, because a context has ended, leaves its session to the BMC's idle timeout (60 s, IPMI 2.0,
// 6.12.15).
//
// What IPMI has no notion of, virtual media, UEFI HTTP boot and a graceful restart, is of kind Unsupported.
package ipmi
