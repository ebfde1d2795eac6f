package bmc

// BootTarget is what a machine boots from while an override holds.
type BootTarget string

// The targets. A BMC offers some of them.
const (
	BootNone BootTarget = "None" // no override: the firmware's own order
	BootPXE  BootTarget = "PXE"
	BootDisk BootTarget = "Disk"
	BootCD   BootTarget = "CD" // a CD or DVD, also a virtual one
	BootUSB  BootTarget = "USB"
	BootHTTP BootTarget = "HTTP" // UEFI HTTP boot
	BootBIOS BootTarget = "BIOS" // the firmware's set-up screen
)

// BootTargets are all of them.
func BootTargets() []BootTarget {
	return []BootTarget{BootNone, BootPXE, BootDisk, BootCD, BootUSB, BootHTTP, BootBIOS}
}

// BootMode is how the firmware starts the target.
type BootMode string

// The modes.
const (
	ModeUnknown BootMode = "" // asked for: leave it as it is; read: the BMC does not say
	ModeUEFI    BootMode = "UEFI"
	ModeLegacy  BootMode = "Legacy"
)

// Boot is a boot override.
type Boot struct {
	// Target is what the next boot takes.
	Target BootTarget
	// Continuous tells that it holds until it is changed, not for one boot. A "once" is used up by the next boot,
	// whoever caused it; some BMCs offer nothing else, and IPMI ones forget it 60 seconds after it was set.
	Continuous bool
	// Mode is how it is started.
	Mode BootMode
}

// BootState is what a BMC says of its boot override.
type BootState struct {
	Boot

	// Offered are the targets that it can be set to; empty: the BMC does not say.
	Offered []BootTarget
}
