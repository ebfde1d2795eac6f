// Package redfish is a bmc.Machine over Redfish, addressed by the system's path.
//
// It is built on gofish, and not on bmclib v2.3.5, for reasons that were measured: bmclib picks a system by its Name (of
// two systems with one Name a random one answers); its "reset" falls back to a soft shutdown and left 1 of 12 machines
// off while reporting success; its "soft" reports failure on success and then tries the next provider; its requests
// ignore the caller's context; and errors of reads lose their HTTP status, so a wrong password cannot be told from a
// busy BMC.
//
// What is gofish's (v0.20.0): the connection and its service root, one request at a time, its error type with the
// BMC's messages, links, and the words of the schema (reset types, power states).
//
// What is our own, on gofish's requests, and why:
//   - the resources are read into small types: gofish's ComputerSystem fails as a whole on one property of another
//     type, and hides @Redfish.ActionInfo and the Settings resource's contents;
//   - Reset: gofish sends the system's ETag to the action, which newer Dell BMCs answer with 412, knows no ActionInfo,
//     and takes 202 for the end;
//   - SetBoot: gofish writes to the System resource always, and has one form of body and of ETag;
//   - InsertMedia and EjectMedia: gofish needs the actions to be there, sends no empty body, and has one form of body;
//   - logs, and the console that OpenBMC keeps as one: gofish reads whole collections, three entries at a time; here
//     pages are bounded, and one request at a time is under way;
//   - the session: gofish neither logs in again after 401, nor logs out when its context has ended.
//
// Requests are repeated where the BMC certainly has not acted, and only there: after 401 to a session that has ended
// (once a call, after logging in again), after 412 with another form of ETag, after 400 with another form of body, and,
// of an insert alone, after an error of the BMC's own once its drive was seen without the image for a while: a BMC that
// is still ejecting answers so.
package redfish
