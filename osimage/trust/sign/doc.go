// Package sign makes the signatures that the package trust verifies, as cosign makes them with a key pair: a simple-signing
// payload at the tag "sha256-….sig", or a sigstore bundle that refers to the artifact. It changes nothing: it reads what is
// there and returns what is to be added.
//
// It refuses private keys that trust would refuse as public ones, and replaces no signature of others. It is apart from
// trust because nodes verify and never sign: the decryption of private keys is not in their program.
package sign
