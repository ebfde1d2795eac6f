package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Acceleration is how a guest's instructions are run; the values are libvirt's domain types.
type Acceleration string

// The accelerations.
const (
	KVM       Acceleration = "kvm"
	Emulation Acceleration = "qemu"
)

const (
	qemuProgram = "/usr/bin/qemu-system-x86_64"

	probeWait = 20 * time.Second
	// probeExit is what QEMU ends with when the guest writes 0x10 to isa-debug-exit: (value << 1) | 1.
	probeExit = 0x10<<1 | 1

	sectorSize = 512
)

// probeCode is a boot sector that writes 0x10 to port 0xf4 and halts.
func probeCode() []byte {
	sector := make([]byte, sectorSize)
	copy(sector, []byte{
		0xb0, 0x10, // mov al, 0x10
		0xe6, 0xf4, // out 0xf4, al
		0xf4,       // hlt
		0xeb, 0xfd, // jmp to the hlt
	})
	copy(sector[sectorSize-2:], []byte{0x55, 0xaa}) // what makes it a boot sector

	return sector
}

// Detect tells which acceleration works here. It runs a guest: on some machines /dev/kvm opens, and guests stop at once.
func Detect(ctx context.Context) (Acceleration, error) {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return Emulation, nil //nolint:nilerr // without the device there is no acceleration, which is an answer
	}

	works, err := Probe(ctx, KVM)
	if err != nil || !works {
		return Emulation, err
	}

	return KVM, nil
}

// Probe tells whether a guest of one instruction runs to its end under the acceleration.
func Probe(ctx context.Context, acceleration Acceleration) (bool, error) {
	dir, err := os.MkdirTemp("", "stayput-lab-probe-")
	if err != nil {
		return false, fmt.Errorf("making a directory for the probe: %w", err)
	}
	defer os.RemoveAll(dir)

	disk := filepath.Join(dir, "boot.img")
	if err := os.WriteFile(disk, probeCode(), fileMode); err != nil {
		return false, fmt.Errorf("writing the probe: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()

	accelerator := map[Acceleration]string{KVM: "kvm", Emulation: "tcg"}[acceleration]

	err = exec.CommandContext(ctx, qemuProgram, "-accel", accelerator, "-cpu", "max", "-machine", "pc", "-m", "64",
		"-nodefaults", "-display", "none", "-no-reboot", "-device", "isa-debug-exit,iobase=0xf4,iosize=4",
		"-drive", "file="+disk+",format=raw,if=ide").Run()

	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode() == probeExit, nil // a guest that hangs is killed at the deadline: exit code -1
	}

	if err != nil {
		return false, fmt.Errorf("running the probe: %w; is the Debian package qemu-system-x86 installed?", err)
	}

	return false, nil
}
