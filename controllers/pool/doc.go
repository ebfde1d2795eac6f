// Package pool brings the Nodes of a HostPool to its release, a bounded number at a time.
//
// Each pass observes the world (hosts, links, Nodes, NodeUpdates), decides in decide.go, which is pure, and acts in
// act.go, which is thin. A pass that would do more than go on with what is under way is decided again on a world read
// live from the API servers, so that a stale cache never spends the budget twice.
//
// What cannot be observed again is stored on the NodeUpdate, in the same server-side apply as its spec: when the
// attempt was offered, took the node out of service, and told it to go (AnnotationOfferedAt, AnnotationBegunAt,
// AnnotationToldAt), how it was closed (AnnotationClosedAs, AnnotationClosedAt), and that a person was told of a silent
// agent (AnnotationSilentSince). A new attempt drops them.
//
// # What ends an attempt, and what follows
//
//   - Succeeded: the node is released.
//   - RolledBack: the digest is poisoned and the rollout halts; the node is released.
//   - Refused for the image's sake (ImageInvalid, ImageUntrusted, ImageTooLarge, WrongArchitecture, VersionNotNewer,
//     SourceTooOld): as RolledBack, though no node was out of service. Every other node would refuse it, too, or, as a node
//     has keys of its own, a person has to find out which is right.
//   - Refused for the node's sake (NoSpareSlot, BootPartitionFull, StorageError, …): the node counts as failed and is
//     offered the release again after RetryDelay; the rollout goes on.
//   - NeedsHuman, from the agent or from the BMC rung: the digest is poisoned and the rollout halts. The node is left
//     as it is, cordoned, and goes on costing budget until it answers or the poison is lifted.
//   - DrainTimeout: the node is released and offered the release again after RetryDelay. Nothing is poisoned.
//   - Withdrawn: the host left the pool, the release changed, is not signed by a trusted key any more, or the rollout halted,
//     before the node was told to go; or the keys changed before the node had verified the image.
//
// But for that uncordon, nothing here takes it back once a node was told to go (ReadyForUpdate): the agent may be past the
// point of return.
//
// # Signatures
//
// A pool may name public keys. The release's digest is verified with them before anything is offered, and again when they
// change; each node verifies it once more with those that its NodeUpdate has. Keys that cannot be read, and a registry that
// does not answer, hold the rollout: nothing is begun, what was begun goes on. A refusal takes back what can be.
//
// # Silent agents
//
// An agent that owes an answer for longer than spec.reboot.silentAfter counts as silent: see silent.go. That is said, and
// nothing else follows from it, since the agent may be about to reboot; it is over when the agent answers. From Arming on
// package outofband watches the machine, and resets it when it shows no life. A machine that does, so that its Node is not
// Unknown, but whose agent does not go on, is told here; the two never speak of one machine at once.
//
// # Budget
//
// A node costs budget while it is not Ready, cordoned by anyone, or out of service for an attempt; a node counts once.
// A node may begin only when the set with it is no larger than maxUnavailable. In the manual strategy a person's label
// says which nodes may begin; the budget still says how many at a time.
//
// The package never writes BareMetalHosts, never removes a cordon that it did not set, and never touches a Node that
// another pool or another orchestrator holds.
package pool
