// Package hosts reads the registry configuration that containerd keeps for each registry: hosts.toml files below a
// folder such as /etc/containerd/certs.d. A node's operating system is then fetched from the same mirrors, with the same
// certificates, as its containers.
//
// It only reads: it speaks to no host, and knows nothing of credentials. What it returns is bounded by the file's size,
// which is at most 1 MiB. containerd's own parser is not used, since it comes with its snapshotters, its client and its
// gRPC interfaces; the format is described in https://github.com/containerd/containerd/blob/main/docs/hosts.md.
package hosts
