// Package trust decides whether an OCI artifact is signed by a key that is trusted. It reads the signatures that cosign
// makes with key pairs: the tag "sha256-….sig" with simple-signing payloads, and sigstore bundles that refer to the
// artifact (OCI 1.1 referrers, or their fallback tag). It asks nobody but the store that holds the signatures: there are
// no certificates, no transparency log, no trust root to fetch, and so it works without a network beside the registry.
//
// What is signed is a digest, so whoever relies on a signature must go on with exactly the bytes of that digest. The name
// that a signature claims for the artifact is not compared: mirrors and air-gapped copies have other names.
//
// It refuses RSA keys below 2048 bits, private keys where public ones belong, attestations about an artifact (an SBOM is
// no approval), and stores that return more than was agreed or bytes of another digest. A store that fails is an error of
// its own, never "not signed". Nothing a store returns makes it panic, or read more than a few MiB.
//
// Signatures are made by the package sign.
package trust
