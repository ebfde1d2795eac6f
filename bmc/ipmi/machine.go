package ipmi

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/stayput-dev/stayput/bmc"
)

type machine struct {
	options bmc.Options
	tool    string
}

var _ bmc.Machine = (*machine)(nil)

// Open finds ipmitool and reads the power once, so that wrong credentials show here. It keeps no session.
func Open(ctx context.Context, options bmc.Options) (bmc.Machine, error) {
	options = options.WithDefaults()
	m := &machine{options: options}
	if options.Address.Protocol != bmc.IPMI {
		return nil, m.fail(bmc.Unsupported, "opening", "the address is not one of IPMI; use ipmi://HOST", nil)
	}
	if err := options.Check(); err != nil {
		return nil, err
	}
	var err error
	if m.tool, err = exec.LookPath("ipmitool"); err != nil {
		return nil, m.fail(bmc.Unsupported, "opening", "ipmitool is not installed; install it", err)
	}
	if _, err := m.Power(ctx); err != nil {
		return nil, err
	}

	return m, nil
}

// Power implements bmc.Machine.
func (m *machine) Power(ctx context.Context) (bmc.Power, error) {
	// Without -v ipmitool does not say that it was the password.
	text, err := m.read(ctx, "reading the power", "-v", "chassis", "power", "status")
	switch {
	case err != nil:
		return bmc.PowerUnknown, err
	case strings.Contains(text, "Chassis Power is on"):
		return bmc.PowerOn, nil
	case strings.Contains(text, "Chassis Power is off"):
		return bmc.PowerOff, nil
	default:
		return bmc.PowerUnknown, nil
	}
}

// Actions implements bmc.Machine. IPMI cannot say what a BMC offers: one that lacks an action refuses it.
func (*machine) Actions(context.Context) ([]bmc.Action, error) {
	return []bmc.Action{
		bmc.ActionOn, bmc.ActionForceOff, bmc.ActionShutdown, bmc.ActionForceRestart, bmc.ActionPowerCycle,
	}, nil
}

// Do implements bmc.Machine.
func (m *machine) Do(ctx context.Context, action bmc.Action) error {
	op := "sending " + string(action)
	word := map[bmc.Action]string{
		bmc.ActionOn: "on", bmc.ActionForceOff: "off", bmc.ActionShutdown: "soft",
		bmc.ActionForceRestart: "reset", bmc.ActionPowerCycle: "cycle",
	}[action]
	if word == "" {
		return m.fail(bmc.Unsupported, op, "IPMI has no such action; reboot in the operating system, or use ForceRestart", nil)
	}
	text, err := m.write(ctx, op, "chassis", "power", word)
	if err != nil {
		return err
	}
	if !strings.Contains(text, "Chassis Power Control: ") {
		return m.fail(bmc.Unknown, op, fmt.Sprintf("ipmitool says %q", oneLine(text)), nil)
	}

	return nil
}

// Identity implements bmc.Machine. A BMC without a GUID or a FRU has none: those parts are empty.
func (m *machine) Identity(ctx context.Context) (bmc.Identity, error) {
	const op = "reading the identity"
	info, err := m.read(ctx, op, "mc", "info")
	if err != nil {
		return bmc.Identity{}, err
	}
	guid, err := m.optional(ctx, op, "mc", "guid")
	if err != nil {
		return bmc.Identity{}, err
	}
	fru, err := m.optional(ctx, op, "fru", "print", "0")
	if err != nil {
		return bmc.Identity{}, err
	}

	return bmc.Identity{
		UUID: strings.ToLower(field(guid, "System GUID")), Serial: field(fru, "Product Serial"),
		Model: field(fru, "Product Name"), Manufacturer: field(fru, "Product Manufacturer"),
		BMCFirmware: field(info, "Firmware Revision"),
	}, nil
}

// optional reads what a BMC may lack. One that has it and could not answer is an error: an identity that is empty by
// accident would pass every check.
func (m *machine) optional(ctx context.Context, op string, command ...string) (string, error) {
	text, err := m.read(ctx, op, command...)
	if bmc.KindOf(err) == bmc.Unsupported {
		return "", nil
	}

	return text, err
}

// field finds "name : value" in ipmitool's table.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		key, value, found := strings.Cut(line, ":")
		if found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}

	return ""
}

// Log implements bmc.Machine: the system event log.
func (m *machine) Log(ctx context.Context, limit int) ([]bmc.LogEntry, error) {
	if limit <= 0 {
		return nil, nil
	}
	text, err := m.read(ctx, "reading the log", "sel", "list", "last", fmt.Sprint(limit))
	if err != nil {
		return nil, err
	}
	var entries []bmc.LogEntry
	for line := range strings.Lines(text) {
		if entry, ok := logEntry(line); ok {
			entries = append(entries, entry)
		}
	}
	slices.Reverse(entries)

	return entries, nil
}

// logEntry reads "ID | date | time | sensor | event | direction".
func logEntry(line string) (bmc.LogEntry, bool) {
	const before = 3 // columns before the message
	columns := strings.Split(line, "|")
	if len(columns) <= before {
		return bmc.LogEntry{}, false
	}
	for i := range columns {
		columns[i] = strings.TrimSpace(columns[i])
	}
	entry := bmc.LogEntry{Message: strings.Join(columns[before:], ", ")}
	stamp := columns[1] + " " + strings.TrimSuffix(columns[2], " UTC")
	for _, layout := range []string{"01/02/2006 15:04:05", "01/02/06 15:04:05"} {
		if at, err := time.Parse(layout, stamp); err == nil {
			entry.At = at
		}
	}

	return entry, true
}

// Media implements bmc.Machine.
func (m *machine) Media(context.Context) ([]bmc.MediaSlot, error) { return nil, m.noMedia() }

// Insert implements bmc.Machine.
func (m *machine) Insert(context.Context, string, string) error { return m.noMedia() }

// Eject implements bmc.Machine.
func (m *machine) Eject(context.Context, string) error { return m.noMedia() }

func (m *machine) noMedia() error {
	return m.fail(bmc.Unsupported, "virtual media",
		"IPMI has none; boot from the network, or use the BMC's Redfish address", nil)
}

// Close implements bmc.Machine. There is no session to end.
func (*machine) Close(context.Context) error { return nil }
