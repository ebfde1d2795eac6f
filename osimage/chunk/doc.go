// Package chunk finds out how little of a new content must be fetched when older contents are at hand.
//
// A content is cut into chunks where its own bytes say so (content-defined chunking), so that what moved is found again.
// The index of a content names its chunks and where the layer has them. A node cuts what it has in its slots with the
// same parameters, which the index carries, and so needs to remember nothing: Seeds collects what was found, NewPlan says
// for each byte of the new content where it comes from.
//
// The package is pure: it neither opens devices nor speaks to registries. It does not decide that a content is right
// either. An id is a fast hash of 64 bits, good for finding candidates; what counts is the signed SHA-256 of the whole raw
// content, read back from the medium. See ID for what that means against accidents and against an enemy.
//
// The cutting rule is part of the format: Cut must give the same lengths for ever, or else the two sides of an update by
// different versions share nothing. A golden test holds it.
package chunk
