package machine

import (
	"bytes"
	"context"
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

	// probeWait is more than the firmware needs under emulation, on a busy machine.
	probeWait = 2 * time.Minute
	probePoll = 100 * time.Millisecond
	// firmwareLine is in what the firmware writes when it has set up the machine and looks for something to boot.
	firmwareLine = "BdsDxe"
	// guestStopped is what QEMU says when KVM cannot go on with a guest. It then keeps the guest for whoever looks into it.
	guestStopped = "KVM internal error"
)

// Detect tells which acceleration works here. It runs a guest: on some machines /dev/kvm opens, and guests stop at once, or
// as soon as the firmware does what a nested hypervisor cannot emulate.
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

// Probe tells whether the machines' firmware comes up under the acceleration.
func Probe(ctx context.Context, acceleration Acceleration) (bool, error) {
	dir, err := os.MkdirTemp("", "stayput-lab-probe-")
	if err != nil {
		return false, fmt.Errorf("making a directory for the probe: %w", err)
	}
	defer os.RemoveAll(dir)

	variables, err := os.ReadFile(firmwareVars)
	if err != nil {
		return false, fmt.Errorf("reading the firmware's variables: %w; is the Debian package ovmf installed?", err)
	}

	ours, console := filepath.Join(dir, "vars.fd"), filepath.Join(dir, "console.log")
	if err := os.WriteFile(ours, variables, fileMode); err != nil { //nolint:gosec // in a new folder of our own
		return false, fmt.Errorf("writing the firmware's variables: %w", err)
	}

	messages, err := os.Create(filepath.Join(dir, "qemu.log"))
	if err != nil {
		return false, fmt.Errorf("making a log for the probe: %w", err)
	}
	defer messages.Close()

	limited, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()

	accelerator := map[Acceleration]string{KVM: "kvm", Emulation: "tcg"}[acceleration]
	command := exec.CommandContext(limited, qemuProgram, "-accel", accelerator, "-cpu", "max", "-machine", "q35", "-m", "256",
		"-nodefaults", "-display", "none", "-serial", "file:"+console,
		"-drive", "if=pflash,format=raw,readonly=on,file="+firmwareCode, "-drive", "if=pflash,format=raw,file="+ours)
	command.Stderr = messages

	if err := command.Start(); err != nil {
		return false, fmt.Errorf("running the probe: %w; is the Debian package qemu-system-x86 installed?", err)
	}

	ended := make(chan struct{})

	go func() {
		defer close(ended)

		_ = command.Wait() // it is killed, or could not run: what it has written tells
	}()

	defer func() {
		cancel()
		<-ended
	}()

	return cameUp(ctx, ended, console, messages.Name())
}

// cameUp waits until the firmware has written its line, or QEMU has given up.
func cameUp(ctx context.Context, ended <-chan struct{}, console, messages string) (bool, error) {
	for {
		if written, err := os.ReadFile(console); err == nil && bytes.Contains(written, []byte(firmwareLine)) {
			return true, nil
		}

		if said, err := os.ReadFile(messages); err == nil && bytes.Contains(said, []byte(guestStopped)) {
			return false, nil
		}

		select {
		case <-ended: // also at the deadline
			return false, ctx.Err()
		case <-time.After(probePoll):
		}
	}
}
