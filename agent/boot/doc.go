// Package boot is what the agent knows of firmware, boot loader and init system: EFI variables, boot assessment, boot
// and machine IDs, the kernel command line, unified kernel images, the reboot through logind, and whether the rungs of
// the fallback ladder that live in the operating system are there.
//
// An OS update always goes through the firmware. A kexec or a soft-reboot is not an assessed boot: the boot loader does
// not run, the counters stay as they are, and a LoaderBootCountPath left from an earlier boot would bless the wrong
// entry (systemd issues 43738 and 40386). So the package offers no such reboot.
//
// It refuses to set LoaderEntryDefault: an entry that is selected so is booted for ever, even when it is bad.
package boot
