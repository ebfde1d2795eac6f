// Package endpoint serves an http.Handler on a free port of 127.0.0.1, as a BMC would, and can break below HTTP: a
// certificate that does not verify, connections that are reset before a byte was read, plain text where TLS is
// expected, and a port that refuses connections for a while, as while a BMC restarts.
//
// It is for tests. The port stays reserved while it refuses, so that nobody else can take it.
package endpoint
