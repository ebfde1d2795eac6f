package ipmi

import (
	"context"
	"fmt"

	"github.com/stayput-dev/stayput/bmc"
)

// IPMI 2.0, 28.12 and 28.13: set and get system boot options, and its table 28-14.
const (
	setBootOption, getBootOption = 0x08, 0x09

	optionValidClearing, optionFlags = 0x03, 0x05
	// keepAfterTimeout: the flags hold also when no reset comes within 60 s.
	keepAfterTimeout = 0x08

	flagValid, flagPersistent, flagUEFI = 0x80, 0x40, 0x20
	// deviceBits are bits 5 to 2 of the second byte.
	deviceBits = 0x3c

	// optionLocked, in an answer's second byte, tells that the option holds nothing.
	optionLocked = 0x80
	// flagsAt is where the flags begin in an answer, after the version and the option's number.
	flagsAt, flagsEnd = 2, 4

	// supermicro is Supermicro's IANA enterprise number. With UEFI its BMCs take another byte for the disk (Ironic,
	// drivers/modules/ipmitool.py).
	supermicro     = 10876
	supermicroDisk = 0x24
)

func targets() []bmc.BootTarget {
	return []bmc.BootTarget{bmc.BootNone, bmc.BootPXE, bmc.BootDisk, bmc.BootCD, bmc.BootUSB, bmc.BootBIOS}
}

// deviceOf is the byte that stands for a target. USB is "primary removable media".
func (m *machine) deviceOf(boot bmc.Boot) (code byte, known bool) {
	switch boot.Target {
	case bmc.BootNone:
		return 0x00, true
	case bmc.BootPXE:
		return 0x04, true
	case bmc.BootDisk:
		if m.device.manufacturer == supermicro && boot.Mode == bmc.ModeUEFI {
			return supermicroDisk, true
		}

		return 0x08, true
	case bmc.BootCD:
		return 0x14, true
	case bmc.BootBIOS:
		return 0x18, true
	case bmc.BootUSB:
		return 0x3c, true
	default:
		return 0, false
	}
}

// The targets of table 28-14 that bmc has no word for, and that SetBoot does not set.
const (
	diagnosticPartition bmc.BootTarget = "Diagnostics"
	primaryRemoteMedia  bmc.BootTarget = "RemoteMedia"
)

// targetOf is the target of a byte, also of those that SetBoot does not use: disk in safe mode, the diagnostic partition,
// and remote media. A byte that the table reserves is named by its value.
func (m *machine) targetOf(code byte) bmc.BootTarget {
	switch code & deviceBits {
	case 0x00:
		return bmc.BootNone
	case 0x04:
		return bmc.BootPXE
	case 0x08, 0x0c, 0x2c:
		return bmc.BootDisk
	case 0x10:
		return diagnosticPartition
	case 0x14, 0x20:
		return bmc.BootCD
	case 0x18:
		return bmc.BootBIOS
	case 0x1c, 0x3c:
		return bmc.BootUSB
	case supermicroDisk:
		if m.device.manufacturer == supermicro {
			return bmc.BootDisk
		}

		return primaryRemoteMedia
	default:
		return bmc.BootTarget(fmt.Sprintf("unknown (%#02x)", code&deviceBits))
	}
}

// Boot implements bmc.Machine. IPMI does not say which targets a BMC offers; these are those that it has words for.
func (m *machine) Boot(ctx context.Context) (bmc.BootState, error) {
	const op = "reading the boot override"
	state := bmc.BootState{Boot: bmc.Boot{Target: bmc.BootNone}, Offered: targets()}
	answer, err := m.read(ctx, op, flagsEnd, netFnChassis, getBootOption, optionFlags, 0, 0)
	if err != nil {
		return bmc.BootState{}, err
	}
	flags, device := answer[flagsAt], answer[flagsAt+1]
	if answer[1]&optionLocked != 0 || flags&flagValid == 0 || device&deviceBits == 0 {
		return state, nil
	}
	state.Boot = bmc.Boot{Target: m.targetOf(device), Continuous: flags&flagPersistent != 0, Mode: bmc.ModeLegacy}
	if flags&flagUEFI != 0 {
		state.Mode = bmc.ModeUEFI
	}

	return state, nil
}

// SetBoot implements bmc.Machine. When no mode is asked for it is that of the present override, and UEFI, which is a
// BareMetalHost's default, when there is none.
func (m *machine) SetBoot(ctx context.Context, boot bmc.Boot) error {
	const op = "setting the boot override"
	if _, known := m.deviceOf(boot); !known {
		return m.fail(bmc.Unsupported, op, fmt.Sprintf("IPMI cannot boot from %s; use one of %v", boot.Target, targets()), nil)
	}
	if boot.Mode == bmc.ModeUnknown && boot.Target != bmc.BootNone {
		boot.Mode = bmc.ModeUEFI
		now, err := m.Boot(ctx)
		if err != nil && bmc.KindOf(err) != bmc.Unsupported {
			return err
		}
		if now.Mode != bmc.ModeUnknown {
			boot.Mode = now.Mode
		}
	}
	if err := m.isExpected(ctx, op); err != nil {
		return err
	}
	_, err := m.raw(ctx, true, op, netFnChassis, setBootOption, optionValidClearing, keepAfterTimeout)
	if err != nil && bmc.KindOf(err) != bmc.Unsupported {
		return err
	}
	device, _ := m.deviceOf(boot)
	_, err = m.raw(ctx, true, op, netFnChassis, setBootOption, optionFlags, flagsOf(boot), device, 0, 0, 0)

	return err
}

func flagsOf(boot bmc.Boot) byte {
	if boot.Target == bmc.BootNone {
		return 0
	}
	flags := byte(flagValid)
	if boot.Continuous {
		flags |= flagPersistent
	}
	if boot.Mode == bmc.ModeUEFI {
		flags |= flagUEFI
	}

	return flags
}
