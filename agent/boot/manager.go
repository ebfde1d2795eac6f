package boot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godbus/dbus/v5"
)

// ManagerDeadline is how long systemd may take to answer a call.
const ManagerDeadline = 10 * time.Second

// Manager is what is asked of systemd (org.freedesktop.systemd1).
type Manager interface {
	// RuntimeWatchdog is how long the hardware watchdog waits before it resets the machine; 0 is off.
	RuntimeWatchdog(ctx context.Context) (time.Duration, error)
	// SetRuntimeWatchdog changes it until the next boot.
	SetRuntimeWatchdog(ctx context.Context, timeout time.Duration) error
	// Requires returns the units that a unit requires, directly.
	Requires(ctx context.Context, unit string) ([]string, error)
	// UnitState returns a unit's load state, such as "loaded" or "not-found".
	UnitState(ctx context.Context, unit string) (string, error)
}

// Systemd is the Manager of the running system.
type Systemd struct {
	// Connect opens the bus; nil is the system bus. The connection is closed after each call.
	Connect func(ctx context.Context) (*dbus.Conn, error)
}

var _ Manager = Systemd{}

const (
	systemdName    = "org.freedesktop.systemd1"
	systemdPath    = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdManager = systemdName + ".Manager"
	watchdogName   = "RuntimeWatchdogUSec"
)

// RuntimeWatchdog reads the property RuntimeWatchdogUSec.
func (s Systemd) RuntimeWatchdog(ctx context.Context) (time.Duration, error) {
	var microseconds uint64

	err := s.property(ctx, systemdPath, systemdManager, watchdogName, &microseconds)

	return time.Duration(microseconds) * time.Microsecond, err
}

// SetRuntimeWatchdog writes the property RuntimeWatchdogUSec.
func (s Systemd) SetRuntimeWatchdog(ctx context.Context, timeout time.Duration) error {
	return s.call(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		value := dbus.MakeVariant(uint64(timeout.Microseconds())) //nolint:gosec // a duration of ours, positive
		call := conn.Object(systemdName, systemdPath).
			CallWithContext(ctx, "org.freedesktop.DBus.Properties.Set", 0, systemdManager, watchdogName, value)

		return call.Err
	})
}

// Requires reads the property Requires of a unit.
func (s Systemd) Requires(ctx context.Context, unit string) ([]string, error) {
	var units []string

	err := s.unitProperty(ctx, unit, "Requires", &units)

	return units, err
}

// UnitState reads the property LoadState of a unit.
func (s Systemd) UnitState(ctx context.Context, unit string) (string, error) {
	var state string

	err := s.unitProperty(ctx, unit, "LoadState", &state)

	return state, err
}

func (s Systemd) unitProperty(ctx context.Context, unit, name string, value any) error {
	var path dbus.ObjectPath

	err := s.call(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		return conn.Object(systemdName, systemdPath).
			CallWithContext(ctx, systemdManager+".LoadUnit", 0, unit).Store(&path)
	})
	if err != nil {
		return fmt.Errorf("looking up unit %s: %w", unit, err)
	}

	return s.property(ctx, path, systemdName+".Unit", name, value)
}

func (s Systemd) property(ctx context.Context, path dbus.ObjectPath, iface, name string, value any) error {
	err := s.call(ctx, func(ctx context.Context, conn *dbus.Conn) error {
		var variant dbus.Variant

		call := conn.Object(systemdName, path).
			CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, iface, name)
		if err := call.Store(&variant); err != nil {
			return err
		}

		return variant.Store(value)
	})
	if err != nil {
		return fmt.Errorf("reading systemd's property %s: %w", name, err)
	}

	return nil
}

func (s Systemd) call(ctx context.Context, do func(context.Context, *dbus.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, ManagerDeadline)
	defer cancel()

	conn, err := connect(ctx, s.Connect)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is left to flush

	if err := do(ctx, conn); err != nil {
		return fmt.Errorf("asking systemd: %w", errors.Join(ctx.Err(), err))
	}

	return nil
}
