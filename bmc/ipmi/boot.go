package ipmi

import (
	"context"
	"fmt"

	"github.com/stayput-dev/stayput/bmc"
)

// IPMI 2.0, 28.12 and 28.13: set and get system boot options, and its table 28-14.
const (
	netFnChassis, setBootOption, getBootOption = 0x00, 0x08, 0x09

	optionValidClearing, optionFlags = 0x03, 0x05
	// keepAfterTimeout: the flags hold also when no reset comes within 60 s.
	keepAfterTimeout = 0x08

	flagValid, flagPersistent, flagUEFI = 0x80, 0x40, 0x20
	// deviceBits are bits 5 to 2 of the second byte.
	deviceBits = 0x3c
	// flagsAt is where the flags begin in an answer, after the version and the option's number.
	flagsAt, flagsEnd = 2, 4
)

func devices() map[bmc.BootTarget]byte {
	return map[bmc.BootTarget]byte{
		bmc.BootNone: 0x00, bmc.BootPXE: 0x04, bmc.BootDisk: 0x08, bmc.BootCD: 0x14, bmc.BootBIOS: 0x18, bmc.BootUSB: 0x3c,
	}
}

// Boot implements bmc.Machine. The BMC does not say what it offers.
func (m *machine) Boot(ctx context.Context) (bmc.BootState, error) {
	const op = "reading the boot override"
	answer, err := m.raw(ctx, false, op, netFnChassis, getBootOption, optionFlags, 0, 0)
	if err != nil {
		return bmc.BootState{}, err
	}
	if len(answer) < flagsEnd {
		return bmc.BootState{}, m.fail(bmc.Transient, op, fmt.Sprintf("answer % x is too short", answer), nil)
	}
	flags, device := answer[flagsAt], answer[flagsAt+1]&deviceBits
	if flags&flagValid == 0 || device == 0 {
		return bmc.BootState{Boot: bmc.Boot{Target: bmc.BootNone}}, nil
	}
	boot := bmc.Boot{Continuous: flags&flagPersistent != 0, Mode: bmc.ModeLegacy}
	if flags&flagUEFI != 0 {
		boot.Mode = bmc.ModeUEFI
	}
	for target, each := range devices() {
		if each == device {
			boot.Target = target
		}
	}
	if boot.Target == "" {
		return bmc.BootState{}, m.fail(bmc.Unsupported, op, fmt.Sprintf("boot device 0x%02x is none that is known", device), nil)
	}

	return bmc.BootState{Boot: boot}, nil
}

// SetBoot implements bmc.Machine. IPMI cannot leave the mode as it is: UEFI is set when none is asked for.
func (m *machine) SetBoot(ctx context.Context, boot bmc.Boot) error {
	const op = "setting the boot override"
	device, known := devices()[boot.Target]
	if !known {
		return m.fail(bmc.Unsupported, op, fmt.Sprintf("IPMI cannot boot from %s; use PXE, Disk, CD, USB or BIOS", boot.Target), nil)
	}
	// Without it the BMC forgets the flags after 60 s. OpenBMC lacks it.
	_, err := m.raw(ctx, true, op, netFnChassis, setBootOption, optionValidClearing, keepAfterTimeout)
	if err != nil && bmc.KindOf(err) != bmc.Unsupported {
		return err
	}
	flags := byte(0)
	if boot.Target != bmc.BootNone {
		flags = flagValid
		if boot.Continuous {
			flags |= flagPersistent
		}
		if boot.Mode != bmc.ModeLegacy {
			flags |= flagUEFI
		}
	}
	_, err = m.raw(ctx, true, op, netFnChassis, setBootOption, optionFlags, flags, device, 0, 0, 0)

	return err
}
