package ipmi

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"k8s.io/utils/clock"

	"github.com/stayput-dev/stayput/bmc"
)

type machine struct {
	options bmc.Options
	// tool is the path of ipmitool.
	tool  string
	clock clock.Clock
	// device is what the BMC says of itself.
	device device
	// ended is when the last run of ipmitool ended.
	ended time.Time
	// loggedIn tells that the BMC has accepted the credentials.
	loggedIn bool
	// lacks are the actions that the BMC does not know.
	lacks []bmc.Action
}

var _ bmc.Machine = (*machine)(nil)

// The greatest lengths, in bytes, of the names and keys of IPMI 2.0 (22.28 and 22.30).
const (
	maxUsername = 16
	maxPassword = 20
)

// Open finds ipmitool, logs in once, so that wrong credentials show here, and checks that the machine is the expected
// one. It sends no action and keeps no session. It blocks for one run of ipmitool or two; ctx ends it at once.
func Open(ctx context.Context, options bmc.Options) (bmc.Machine, error) {
	return open(ctx, options, clock.RealClock{})
}

func open(ctx context.Context, options bmc.Options, now clock.Clock) (bmc.Machine, error) {
	const op = "opening"
	m := &machine{options: options.WithDefaults(), clock: now}
	if options.Address.Protocol != bmc.IPMI {
		return nil, m.fail(bmc.Unsupported, op, "the address is not one of IPMI; use ipmi://HOST", nil)
	}
	if err := options.Check(); err != nil {
		return nil, err
	}
	if len(options.Credentials.Username) > maxUsername || len(options.Credentials.Password) > maxPassword {
		return nil, m.fail(bmc.Auth, op, fmt.Sprintf(
			"IPMI has user names of up to %d bytes and passwords of up to %d; give the account shorter ones",
			maxUsername, maxPassword), nil)
	}
	if m.options.Address.Privilege == "" {
		m.options.Address.Privilege = "ADMINISTRATOR"
	}
	var err error
	if m.tool, err = exec.LookPath("ipmitool"); err != nil {
		return nil, m.fail(bmc.Unsupported, op, "ipmitool is not installed; install it", err)
	}
	if m.device, err = m.readDevice(ctx, "logging in"); err != nil {
		return nil, err
	}
	if options.UUID != "" {
		if _, err := m.uuid(ctx, "checking which machine answers"); err != nil {
			return nil, err
		}
	}

	return m, nil
}

// IPMI 2.0, 28.2 and 28.3.
const (
	netFnChassis   = 0x00
	chassisStatus  = 0x01
	chassisControl = 0x02

	powerOnBit = 0x01
)

// Power implements bmc.Machine.
func (m *machine) Power(ctx context.Context) (bmc.Power, error) {
	status, err := m.read(ctx, "reading the power", 1, netFnChassis, chassisStatus)
	switch {
	case err != nil:
		return bmc.PowerUnknown, err
	case status[0]&powerOnBit != 0:
		return bmc.PowerOn, nil
	default:
		return bmc.PowerOff, nil
	}
}

// control is the byte of Chassis Control for an action.
func control(action bmc.Action) (code byte, known bool) {
	switch action {
	case bmc.ActionForceOff:
		return 0x00, true
	case bmc.ActionOn:
		return 0x01, true
	case bmc.ActionPowerCycle:
		return 0x02, true
	case bmc.ActionForceRestart:
		return 0x03, true
	case bmc.ActionShutdown:
		return 0x05, true
	default:
		return 0, false
	}
}

// Actions implements bmc.Machine. IPMI cannot say what a BMC offers: one that has refused an action as unknown to it does
// not offer it any more.
func (m *machine) Actions(context.Context) ([]bmc.Action, error) {
	all := []bmc.Action{
		bmc.ActionOn, bmc.ActionForceOff, bmc.ActionShutdown, bmc.ActionForceRestart, bmc.ActionPowerCycle,
	}

	return slices.DeleteFunc(all, func(each bmc.Action) bool { return slices.Contains(m.lacks, each) }), nil
}

// Do implements bmc.Machine.
func (m *machine) Do(ctx context.Context, action bmc.Action) error {
	op := "sending " + string(action)
	code, known := control(action)
	if !known {
		return m.fail(bmc.Unsupported, op, "IPMI has no such action; reboot in the operating system, or use ForceRestart", nil)
	}
	if err := m.isExpected(ctx, op); err != nil {
		return err
	}
	_, err := m.raw(ctx, true, op, netFnChassis, chassisControl, code)
	if bmc.KindOf(err) == bmc.Unsupported {
		m.lacks = append(m.lacks, action)
	}

	return err
}

// Media implements bmc.Machine.
func (m *machine) Media(context.Context) ([]bmc.MediaSlot, error) {
	return nil, m.noMedia("listing virtual media")
}

// Insert implements bmc.Machine.
func (m *machine) Insert(context.Context, string, string) error {
	return m.noMedia("inserting virtual media")
}

// Eject implements bmc.Machine.
func (m *machine) Eject(context.Context, string) error { return m.noMedia("ejecting virtual media") }

func (m *machine) noMedia(op string) error {
	return m.fail(bmc.Unsupported, op, "IPMI has no virtual media; use the BMC's redfish:// address, or boot from the network", nil)
}

// Close implements bmc.Machine. There is no session to end.
func (*machine) Close(context.Context) error { return nil }
