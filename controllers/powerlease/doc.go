// Package powerlease lets one actor at a time switch one host's power: the controllers, also an old leader that does not
// know yet that it was followed, and everyone who runs the command. Each BareMetalHost has a coordination.k8s.io/v1 Lease
// in its namespace (Name), which is taken for one operation, renewed while it lasts, and given back when it ends: the
// holder's name is cleared, so that the next need not wait. The Lease is owned by the host and goes with it.
//
// # What it promises
//
// No two uses run at one time whose contexts are alive. A holder counts from before it asked the API server; others count
// from after they have seen what it wrote, and each uses only its own clock, so nothing depends on clocks that agree. A
// use's context ends a sixth of the lease's duration before others may take over; with the default of a minute, 50 s after
// the last renewal that the API server took. Every write is a compare-and-swap on the resource version.
//
// # What it does not promise
//
//   - A BMC knows nothing of leases. A request that is on its way when the lease ends is still carried out, as is one of
//     a use that does not end with its context. Call Check right before each act.
//   - A process that was stopped notices when it runs again, at the latest a second later; so does one whose machine
//     slept, when the machine's time of day is right again. A virtual machine whose clocks stood still does not notice
//     before its next renewal.
//   - Whoever deletes the Lease of an operation that is under way lets a second one begin. The first is stopped by its
//     next renewal, 10 s later at most.
//
// # Why not client-go's tools/leaderelection
//
// Its LeaderElector (read at v0.36.3) is made for a process that exits when it is no longer leader. Here it would do harm:
//
//   - release reads the Lease anew but goes by what it had seen before: a holder that slept, and was followed, clears
//     its follower's name, and a third may act beside the follower.
//   - When a renewal fails for too long, release runs while the callback may still be running.
//   - A Lease that names the own identity is taken as the own: two commands of one user on one machine would both hold it.
//   - What was seen of another holder is known to one Run only, so that trying without waiting could never take over.
//   - It sets no owner on the Lease, cannot be given a clock, and compares monotonic time only, which stands still while
//     the machine sleeps.
//
// # Rights
//
// In the namespace of the hosts: get, create and update of leases in the group coordination.k8s.io. Nothing is listed or
// watched.
package powerlease
