// Package discoverable reads the raw disk image of a system that follows the Discoverable Partitions Specification, as
// mkosi and systemd-repart make it: a root or /usr file system with its dm-verity hash tree in partitions of their own, and
// a unified kernel image on the ESP whose command line has the root hash.
//
// Which partitions and which UKI belong together is told by the root hash alone: its first 128 bits are the data
// partition's UUID, its last 128 bits the hash partition's. The hash tree is compared with it, and the data with the hash
// tree while it is read.
package discoverable
