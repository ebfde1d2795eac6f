// Package buildinfo tells which build of Stayput a binary is.
package buildinfo

import (
	"fmt"
	"runtime"
)

// Version and Commit are set by the linker (see the Makefile); a plain `go build` leaves the defaults.
var (
	Version = "v0.0.0-dev" //nolint:gochecknoglobals // the linker can set nothing but variables
	Commit  = "unknown"    //nolint:gochecknoglobals // the linker can set nothing but variables
)

// String is the version line of a program.
func String(program string) string {
	return fmt.Sprintf("%s %s (commit %s, %s, %s/%s)", program, Version, Commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
