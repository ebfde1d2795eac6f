//go:build tools

// Package containerd pins the container runtime of the lab's machines: kubelet 1.36 needs
// containerd 2 (the CRI call RuntimeConfig), Debian 13 has 1.7.
package containerd

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
)
