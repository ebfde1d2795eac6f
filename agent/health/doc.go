// Package health decides whether a trial boot is good. It is the boot gate: the only thing that lets systemd commit a
// new OS, and what takes a sick one down.
//
// A few gates (API server, container runtime, kubelet, own Node) are polled side by side, each with a deadline of its
// own that counts from the start of the gate. When all have passed, the record says so and boot-complete.target is
// reached. When one passes its deadline, the record is stored, the slot is marked bad, and the machine reboots, in this
// order.
//
// The package works without the agent's process and without the agent's journal. It reads no clock to compare it with
// another machine's, because the clock of a machine that just booted may be wrong.
package health
