// Package slots says what the agent needs from a machine's way to keep two operating systems: look, check, stage, arm,
// and mark bad. It holds the contract, the words and the typed refusals; each way to keep two systems is a Scheme in a
// package of its own.
//
// It refuses, in every scheme, to write the running slot or the known-good slot, and to make anything bootable before
// its bytes were read back from the medium and match the digest of the image.
package slots
