package bmc

import (
	"fmt"
	"strings"
)

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

// CheckBoot gives an error of kind NotFollowed when a BMC keeps another override than it accepted. The mode counts where one
// was asked for, and the BMC says one.
func CheckBoot(got BootState, want Boot) error {
	kept := got.Target == want.Target
	if want.Target != BootNone {
		kept = kept && got.Continuous == want.Continuous &&
			(want.Mode == ModeUnknown || got.Mode == ModeUnknown || got.Mode == want.Mode)
	}
	if kept {
		return nil
	}

	return &Error{
		Kind: NotFollowed, Op: "setting the boot override", Detail: fmt.Sprintf("the BMC accepted %s and keeps %s", want, got.Boot),
	}
}

// String is the override in words.
func (b Boot) String() string {
	switch {
	case b.Target == BootNone:
		return "no override"
	case b.Continuous:
		return strings.TrimSpace(fmt.Sprintf("%s until it is changed %s", b.Target, b.Mode))
	default:
		return strings.TrimSpace(fmt.Sprintf("%s once %s", b.Target, b.Mode))
	}
}

// BootState is what a BMC says of its boot override.
type BootState struct {
	Boot

	// Offered are the targets that it can be set to; empty: the BMC does not say.
	Offered []BootTarget
}
