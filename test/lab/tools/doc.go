// Package tools makes the programs that a lab needs: Kubernetes, etcd and containerd, built from the pinned nested
// modules under hack/, and Debian packages.
//
// What was built is kept in the user's cache folder, one directory for each version, and is shared by every clone of
// the repository. A directory appears under its final name only when everything in it is there, and a lock keeps two
// builds from doing the same work. The first build takes about ten minutes on two cores; later calls take no time.
package tools
