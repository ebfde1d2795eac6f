// Package interop tests against the programs of other projects that take too long to build for every change: `make
// interop` runs them. The tests have the build tag interop.
package interop
