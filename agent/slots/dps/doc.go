// Package dps is the slot scheme of machines with two pairs of partitions, a root or usr file system and its dm-verity
// hash tree each, typed by the Discoverable Partitions Specification, and one unified kernel image (UKI) for each pair
// on the EFI system partition, started and counted by systemd-boot.
//
// A pair and its UKI belong together by the root hash: it is on the UKI's command line, and its two halves are the part
// UUIDs of the pair. So a slot is made unbootable by taking its UKI away and giving the pair random part UUIDs, and it
// is armed by setting the UUIDs and renaming a UKI that lies ready on the boot partition. Nothing else is written then.
//
// The pair that runs is found from the device under the running file system, never by label or UUID: another disk may
// carry the same ones. Everything else is looked for on that disk only, and the boot partition has to be the one that
// the firmware started from.
//
// The package refuses to write a pair that runs or that is the only committed one, to make anything bootable that was
// not read back, to go on when something outranks boot counting (a default entry), and to write a partition table whose
// two copies it cannot both account for.
package dps
