// Package registrytest has two registries for tests.
//
// Start runs a real one: Debian's docker-registry on a loopback port, with TLS from an authority of its own and a
// password. It refuses to do without: a test that needs it fails when the program docker-registry is not installed.
//
// StartFaulty runs one in the process of the test that misbehaves on request (statuses, cut and silent connections, no
// ranges, changed bytes, expired tokens and signed addresses) and remembers what it was asked, down to the bytes that it
// sent and the connections that were made.
package registrytest
