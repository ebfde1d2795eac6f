package install

import (
	"context"
	"errors"
	"fmt"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// errJob is wrapped when systemd ran a job and it did not end well.
var errJob = errors.New("systemd's job ended as")

const (
	jobMode       = "replace"
	jobDone       = "done"
	noSuchUnit    = "org.freedesktop.systemd1.NoSuchUnit"
	notLoadedUnit = "org.freedesktop.systemd1.UnitNotLoaded"
)

// Manager is the running systemd, over D-Bus.
type Manager struct{}

// Reload implements Systemd.
func (Manager) Reload(ctx context.Context) error {
	return connected(ctx, func(conn *systemd.Conn) error { return conn.ReloadContext(ctx) })
}

// Restart implements Systemd.
func (Manager) Restart(ctx context.Context, unit string) error {
	return connected(ctx, func(conn *systemd.Conn) error {
		return job(ctx, func(done chan<- string) (int, error) { return conn.RestartUnitContext(ctx, unit, jobMode, done) })
	})
}

// Stop implements Systemd.
func (Manager) Stop(ctx context.Context, unit string) error {
	return connected(ctx, func(conn *systemd.Conn) error {
		err := job(ctx, func(done chan<- string) (int, error) { return conn.StopUnitContext(ctx, unit, jobMode, done) })

		var refused dbus.Error
		if errors.As(err, &refused) && (refused.Name == noSuchUnit || refused.Name == notLoadedUnit) {
			return nil
		}

		return err
	})
}

func connected(ctx context.Context, act func(*systemd.Conn) error) error {
	conn, err := systemd.NewSystemConnectionContext(ctx)
	if err != nil {
		return fmt.Errorf("connecting to systemd: %w", err)
	}
	defer conn.Close()

	return act(conn)
}

func job(ctx context.Context, start func(chan<- string) (int, error)) error {
	done := make(chan string, 1)
	if _, err := start(done); err != nil {
		return err
	}

	select {
	case result := <-done:
		if result != jobDone {
			return fmt.Errorf("%w %s", errJob, result)
		}

		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
