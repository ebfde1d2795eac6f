// Package verity reads dm-verity hash trees (the kernel's Documentation/admin-guide/device-mapper/verity.rst, with the
// superblock of cryptsetup's on-disk format) and checks data against them while it is read. It needs no device mapper
// and makes no trees.
package verity
