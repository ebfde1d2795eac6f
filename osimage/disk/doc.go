// Package disk makes the disk for a machine's first provisioning from an OS image: a GPT with the EFI system
// partition, both slots, and the persistent root file system. It needs neither root nor mounts nor other programs, and
// the same image and options give the same bytes.
//
// The disk holds the image in slot a, and boots it without a boot counter: there is nothing to fall back to yet. It
// has no default boot entry, because a default makes systemd-boot ignore boot counters.
//
// The file is raw or QCOW2, for drives with sectors of 512 or of 4096 bytes. Publish puts disks, also those of vendors,
// beside the images that their machines update to, in one OCI index.
//
// It refuses sizes that leave no room for the next update, contents that cannot be read from the sectors, and images of
// schemes whose disks come from their vendors. It writes only regular files: putting the result on a disk is up to
// whoever provisions the machine.
package disk
