// Package agent is the node daemon: it takes its node through one attempt after another, from staging to the report.
//
// Each pass reads the world (journal, slots, boot ID, the boot gate's record, the NodeUpdate and the Node), decides the
// next step in pure functions (see phaseOf and the table of handlers), and acts in one thin effect. An effect is safe
// to repeat: a crash between any two lines ends in the same step being decided again. What cannot be observed again is
// stored in the journal before the effect that makes it matter.
//
// After ReadyForUpdate nothing is downloaded and no slot byte is written; an API server that is away holds up reports,
// never a step that was already allowed; and success is only reported after what runs was compared with what was asked
// for. The package refuses to touch the slot that runs, to commit a trial boot (that is the boot gate's), and to know
// how a slot is written (agent/slots), how an image is fetched (osimage) or how the API is spoken to (agent/cluster).
//
// # What happens in the odd cases
//
//   - The boot ID did not change since the reboot was asked for (the agent died in between): the reboot is asked for
//     again; nothing is reported.
//   - The machine went down between deciding to arm and asking for the reboot: arming is repeated.
//   - The old slot came back while the new one still has all its tries: the boot loader was passed by (a one-time
//     choice, a person at the menu). The machine is rebooted once more; the second time the attempt ends.
//   - The old slot came back with some tries used but some left: a person chose it, or the gate could not mark the slot
//     bad. The attempt ends and the spare slot is disarmed, so that no later reboot tries it without a drain.
//   - A newer attempt is asked for: before arming the old one is dropped, after arming it is brought to its end first.
//   - The journal is lost: the trial file, the slots and the NodeUpdate say where the attempt was. Only a bad spare slot
//     that nothing attributes to an attempt ends in StateLost.
package agent
