// Package protocol speaks Gardener's in-place node update protocol: it reads the state of a Node and builds the
// patches that move it on, for the orchestrator's side and for the agent's side. All functions are pure.
//
// There are two dialects. Shipped is what machine-controller-manager v0.60 and gardener-node-agent v1.130 do: labels
// for candidate and selected, the node condition InPlaceUpdate whose reason ReadyForUpdate says "drained, go", and the
// label update-result for the answer. GEP0031 is the text of Gardener's enhancement proposal 31: ready and the result
// are labels, too. An agent answers in the dialect in which it was asked.
//
// The protocol names no target. Two annotations of our own carry it, which other implementations ignore: Attempt,
// written with the candidate label, and ResultAttempt, written with the result. A result without the attempt's ID
// never completes the attempt, so that an old "successful" cannot end a newer round. The message of the condition
// carries the attempt, too, so that an old ReadyForUpdate lets nobody go.
//
// The package refuses to touch what is not its own: a cordon, a scale-down annotation or a round of somebody else
// stays as it is. Read says how it takes what the protocol does not foresee.
//
// The package imports nothing else of Stayput.
package protocol
