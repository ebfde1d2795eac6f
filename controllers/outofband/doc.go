// Package outofband is the BMC rung of the fallback ladder: a machine that is about to reboot, was told to, or is back
// from it and not done, and is silent is looked at, and then reset, through its BMC. Each reset costs one try of the
// boot counter, so the boot loader's own fallback finishes the job.
//
// It watches NodeUpdates whose agent says Arming, Rebooting, Proving or Reporting: until the agent is done, the machine must go
// on showing life. The silence counts from the newest sign of life: a write of the agent (in Proving and Reporting it
// writes at least once a minute) or of the kubelet, and a Node that counts as alive while Ready is not Unknown, that is
// while the Lease is renewed. In Rebooting the kubelet and the Lease count only with another boot ID than the agent's.
// While a power action waits for a sign that is newer than itself the Lease counts for nothing, since a machine that was
// reset stays Ready for up to 50 s. Without a node controller no Lease ends: of the machines that were back, or whose new
// boot's kubelet has written, none is reset.
//
// The allowed silence is spec.reboot.silentAfter; in Arming 10 minutes more, in Proving the longest deadline of
// spec.health more, and in Reporting at least as long as the agent may pause.
//
// The times of writes are the API server's, where it names the writer; the wait begins when this controller first sees
// the phase, by its own clock, so that a node's wrong clock neither shortens nor stretches it. The deadline is stored, and
// moved on when it has come.
//
// One reset is: store the intent (NodeUpdate status.outOfBand, compare-and-swap on the resource version), look again
// at the node, the host and the power, send, store that it was sent. An intent that is found without a time of sending
// may have been sent: it counts as a reset and gets its full wait. So a crash between any two steps costs at most some
// minutes, and never a second action. An intent that was certainly not sent is taken back and not counted.
//
// The resets of an attempt are a ladder (rungOf): the operating system is asked, where it answers on the network, or the
// machine restarted; then its power is taken away and given back; and the last time its firmware is asked for the disk. A
// machine that we have switched off is always switched on again. After the last reset a person is asked, with what was
// seen of the power, what was sent, and what the BMC can tell.
//
// It refuses to act on a host that another is busy with (see hostBusy), on one whose power another has (package
// powerlease: the CLI, or a controller that does not know yet that it was followed), on one that is not of the
// NodeUpdate's pool, on a machine whose BMC tells another UUID than the Node, more often than spec.outOfBand.maxResets,
// more often in a minute than all machines may be together, and while so many Nodes of the pool are silent that it is
// rather the network (brake).
//
// With spec.outOfBand.powerVia Metal3 the power is baremetal-operator's (metal3Machine): ForceOff sets our key, the
// annotation reboot.metal3.io/stayput, and On takes it off. That is all that is ever written of a BareMetalHost. While the
// key is there the machine is kept off, so a second controller (releaser) takes it off every host on which no reset that
// is under way needs it (World.holds). A key that has vanished was removed by baremetal-operator or a person: what the
// power is then is read, not concluded. A detached host is not Metal3's, and is driven through its BMC.
//
// Decide holds every decision and touches nothing; pass carries it out.
package outofband
