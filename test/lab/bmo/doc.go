// Package bmo runs Metal3's baremetal-operator itself for tests: its own program, in its test mode, in which it heeds
// hosts, annotations and power as it does in production and speaks to no Ironic. The power of the machines is then one
// switch in its memory that all hosts share, which is off at the start; what their BMCs say has nothing to do with it.
//
// The program is built once from hack/bmo into the user's cache.
package bmo
