// Package machine makes virtual machines that stand for physical ones: libvirt domains with UEFI firmware, a serial
// console in a file, a hardware watchdog, and disks that are plain files.
//
// Libvirt is there so that a Redfish emulator can drive the power as a BMC does. Where systemd does not run, the
// package starts libvirtd itself. KVM is used only when a guest really runs under it; else the machines are emulated,
// about ten times slower.
//
// Every machine has three disks: the system disk; a config drive (ISO 9660, label config-2) with one file, files.tar,
// which the guest unpacks over its root at the first boot; and a data disk of random bytes that nobody mounts, by which
// a test proves that an update touches nothing else. The host's page cache outlives a machine's power, so a power cut
// here loses what the guest's kernel has not written, but nothing that it has.
//
// The guest's network is QEMU's user network: the guest sees the host's 127.0.0.1 at 10.0.2.2, and the host reaches
// the guest's SSH server at a port of its own.
package machine
