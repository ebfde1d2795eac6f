// Package controlplane runs a Kubernetes control plane for the lab: etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler, as plain processes on the loopback interface.
//
// The API server is set up as a careful operator would: node and RBAC authorizers, NodeRestriction, service account
// keys of its own, TLS everywhere but to etcd. Virtual machines with QEMU's user network reach it at GuestHost, which
// that network maps to the host's loopback. Any number of clusters run side by side, each in its own directory.
//
// What it is not: durable (etcd does not sync to disk) or highly available.
package controlplane
