//go:build tools

// Package bmo pins Metal3's baremetal-operator, which tests run beside Stayput's controllers, at the version of the API
// module in Stayput's own go.mod.
package bmo

import (
	_ "github.com/metal3-io/baremetal-operator"
)
