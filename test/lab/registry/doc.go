// Package registry runs Debian's docker-registry for the lab: TLS, a password, and a log of every request that tests
// read to prove what was fetched when.
//
// It listens on the loopback interface. Guests reach it under the same address, 127.0.0.1 and the same port, through a
// forwarder inside the guest (ForwarderUnits), so that one image reference is good on the host and in every guest.
package registry
