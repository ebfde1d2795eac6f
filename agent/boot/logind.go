package boot

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godbus/dbus/v5"
)

// RebootDeadline is how long logind may take to answer a call. A reboot that was accepted goes on after that.
const RebootDeadline = 30 * time.Second

// Rebooter restarts the machine through its firmware.
type Rebooter interface {
	// Reboot asks for the reboot and returns once it was accepted; the caller will be stopped. Asking twice is fine.
	Reboot(ctx context.Context) error
}

// Logind reboots through systemd-logind, so that services are stopped in order and file systems are unmounted.
type Logind struct {
	// Connect opens the bus; nil is the system bus. The connection is closed after each call.
	Connect func(ctx context.Context) (*dbus.Conn, error)
}

var _ Rebooter = Logind{}

// Reboot calls org.freedesktop.login1.Manager.RebootWithFlags with flags 0: a full reboot, no kexec and no soft-reboot,
// and, as the caller is root, in spite of inhibitors: the node was drained for it.
func (l Logind) Reboot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, RebootDeadline)
	defer cancel()

	conn, err := connect(ctx, l.Connect)
	if err != nil {
		return fmt.Errorf("rebooting through logind: %w", err)
	}
	defer func() { _ = conn.Close() }() // nothing is left to flush

	const fullReboot = uint64(0)

	call := conn.Object("org.freedesktop.login1", "/org/freedesktop/login1").
		CallWithContext(ctx, "org.freedesktop.login1.Manager.RebootWithFlags", 0, fullReboot)
	if call.Err != nil {
		// The connection ends with the context; then the cause is the context.
		return fmt.Errorf("rebooting through logind (is systemd-logind running?): %w", errors.Join(ctx.Err(), call.Err))
	}

	return nil
}

func connect(ctx context.Context, open func(context.Context) (*dbus.Conn, error)) (*dbus.Conn, error) {
	if open == nil {
		open = func(ctx context.Context) (*dbus.Conn, error) { return dbus.ConnectSystemBus(dbus.WithContext(ctx)) }
	}

	conn, err := open(ctx)
	if err != nil {
		return nil, fmt.Errorf("connecting to the system bus: %w", errors.Join(ctx.Err(), err))
	}

	return conn, nil
}
