// Package registrytest runs a real OCI registry for tests: Debian's docker-registry on a loopback port, with TLS from
// an authority of its own and a password. It refuses to do without: a test that needs it fails when the program
// docker-registry is not installed.
package registrytest
