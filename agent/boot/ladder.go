package boot

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// The units of the boot gate's rung.
const (
	UnitBootGate     = "stayput-boot-gate.service"
	UnitBootComplete = "boot-complete.target"
	UnitBlessBoot    = "systemd-bless-boot.service"
)

// DefaultWatchdog is the watchdog timeout that is set where there is none: long enough for a loaded machine, short
// enough that a hung one comes back within the silence that the BMC rung allows.
const DefaultWatchdog = 60 * time.Second

// LadderInput is what the ladder check looks at.
type LadderInput struct {
	System    System
	Variables Variables
	Manager   Manager
	// StagedCommandLine is the .cmdline of the UKI in the spare slot, "" while nothing is staged.
	StagedCommandLine CommandLine
	// StagedUnread is why that command line cannot be read, nil when it can or nothing is staged.
	StagedUnread error
	// BootPartition is why the boot partition cannot be written, nil when it can.
	BootPartition error
}

// Ladder tells which rungs of the fallback ladder that live in the operating system are there: boot tries, boot gate and
// watchdog, in this order. It changes nothing; what cannot be found out counts as missing, with the reason.
func Ladder(ctx context.Context, in LadderInput) []v1alpha1.RungStatus {
	return []v1alpha1.RungStatus{
		rung(v1alpha1.RungBootTries, in.bootTries()),
		rung(v1alpha1.RungBootGate, in.bootGate(ctx)),
		rung(v1alpha1.RungWatchdog, in.watchdog(ctx)),
	}
}

// FallbackReady tells whether every rung is there.
func FallbackReady(rungs []v1alpha1.RungStatus) bool {
	return !slices.ContainsFunc(rungs, func(r v1alpha1.RungStatus) bool { return r.State != v1alpha1.RungReady })
}

// EnsureWatchdog switches systemd's hardware watchdog on when the machine has one and it is off. It lasts until the next
// boot; the new OS has to bring its own setting. Safe to repeat.
func EnsureWatchdog(ctx context.Context, system System, manager Manager) error {
	devices, err := system.watchdogDevices()
	if err != nil || len(devices) == 0 {
		return err
	}

	timeout, err := manager.RuntimeWatchdog(ctx)
	if err != nil || timeout > 0 {
		return err
	}

	if err := manager.SetRuntimeWatchdog(ctx, DefaultWatchdog); err != nil {
		return fmt.Errorf("switching the hardware watchdog on: %w", err)
	}

	return nil
}

func (in LadderInput) bootTries() []string {
	var missing []string

	features, err := in.Variables.Features()

	switch {
	case errors.Is(err, ErrNoVariable):
		missing = append(missing, "EFI variable LoaderFeatures is absent: the machine was not started by systemd-boot; "+
			"boot it in UEFI mode through systemd-boot")
	case err != nil:
		missing = append(missing, err.Error())
	case features&FeatureBootCounting == 0:
		missing = append(missing, fmt.Sprintf("LoaderFeatures %#x has no boot counting: update systemd-boot", features))
	}

	running, err := in.System.CommandLine()
	if err != nil {
		missing = append(missing, err.Error())
	} else if !panicReboots(running) {
		missing = append(missing, "the running kernel's command line has no panic=<seconds>, so a kernel panic hangs; "+
			"add panic=5 to the image's command line")
	}

	if in.StagedUnread != nil {
		missing = append(missing, fmt.Sprintf("the staged image's command line is not known: %v", in.StagedUnread))
	}

	if in.StagedCommandLine != "" && !panicReboots(in.StagedCommandLine) {
		missing = append(missing, "the staged image's command line has no panic=<seconds>, so a kernel panic hangs and "+
			"uses no try; add panic=5 to the image's command line")
	}

	if in.BootPartition != nil {
		missing = append(missing, fmt.Sprintf("the boot partition cannot be written: %v", in.BootPartition))
	}

	return missing
}

func (in LadderInput) bootGate(ctx context.Context) []string {
	var missing []string

	required, err := in.Manager.Requires(ctx, UnitBootComplete)

	switch {
	case err != nil:
		missing = append(missing, err.Error())
	case !slices.Contains(required, UnitBootGate):
		missing = append(missing, UnitBootComplete+" does not require "+UnitBootGate+
			", so a boot is blessed before the node is healthy; run `stayput node install`")
	}

	for unit, fix := range map[string]string{
		UnitBootGate:  "run `stayput node install`",
		UnitBlessBoot: "the OS needs systemd's boot assessment (package systemd-boot)",
	} {
		state, err := in.Manager.UnitState(ctx, unit)

		switch {
		case err != nil:
			missing = append(missing, err.Error())
		case state != "loaded":
			missing = append(missing, fmt.Sprintf("unit %s is %s; %s", unit, state, fix))
		}
	}

	slices.Sort(missing)

	return missing
}

func (in LadderInput) watchdog(ctx context.Context) []string {
	devices, err := in.System.watchdogDevices()
	if err != nil {
		return []string{err.Error()}
	}

	if len(devices) == 0 {
		return []string{"the kernel has no /dev/watchdog*; load the driver of the board's watchdog (iTCO_wdt, ipmi_watchdog)"}
	}

	timeout, err := in.Manager.RuntimeWatchdog(ctx)
	if err != nil {
		return []string{err.Error()}
	}

	if timeout <= 0 {
		return []string{"systemd's RuntimeWatchdogSec is off; set RuntimeWatchdogSec=60s in /etc/systemd/system.conf.d"}
	}

	return nil
}

func (s System) watchdogDevices() ([]string, error) {
	devices, err := filepath.Glob(filepath.Join(s.Root, "/dev/watchdog*"))
	if err != nil {
		return nil, fmt.Errorf("looking for /dev/watchdog*: %w", err)
	}

	return devices, nil
}

// panicReboots tells whether a panic restarts the machine: panic= with a number other than 0 (negative: at once).
func panicReboots(line CommandLine) bool {
	value, found := line.Value("panic")
	if !found {
		return false
	}

	seconds, err := strconv.Atoi(value)

	return err == nil && seconds != 0
}

func rung(name v1alpha1.Rung, missing []string) v1alpha1.RungStatus {
	if len(missing) == 0 {
		return v1alpha1.RungStatus{Rung: name, State: v1alpha1.RungReady}
	}

	return v1alpha1.RungStatus{Rung: name, State: v1alpha1.RungMissing, Message: strings.Join(missing, "; ")}
}
