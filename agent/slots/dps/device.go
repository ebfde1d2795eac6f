package dps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockDeadline is how long another program, such as udev or systemd-repart, may hold the disk's lock.
	lockDeadline = 30 * time.Second
	lockInterval = 100 * time.Millisecond
)

// device is a Medium that is a device node, or a plain file.
type device struct {
	*os.File
}

var _ Medium = device{}

func openDisk(ctx context.Context, node string, write bool) (Medium, error) {
	if !write {
		return openDevice(node, os.O_RDONLY)
	}

	// No O_EXCL: the running system has partitions of this disk mounted.
	disk, err := openDevice(node, os.O_RDWR)
	if err != nil {
		return nil, err
	}

	if err := disk.lock(ctx); err != nil {
		return nil, errors.Join(err, disk.Close())
	}

	return disk, nil
}

func openPartition(node string, write bool) (Medium, error) {
	if !write {
		return openDevice(node, os.O_RDONLY)
	}

	return openDevice(node, os.O_RDWR|unix.O_EXCL)
}

func openDevice(node string, flags int) (device, error) {
	file, err := os.OpenFile(node, flags, 0)
	if err != nil {
		return device{}, fmt.Errorf("opening device: %w", err)
	}

	return device{file}, nil
}

// lock takes the lock that udev heeds, so that it does not read a table that is half written. udev reads the table again
// when the device is closed, and then its links have the new UUIDs; the kernel keeps the old ones until the next boot.
func (d device) lock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lockDeadline)
	defer cancel()

	ticker := time.NewTicker(lockInterval)
	defer ticker.Stop()

	for {
		err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			if err != nil {
				return fmt.Errorf("locking %s: %w", d.Name(), err)
			}

			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("locking %s, which another program holds: %w", d.Name(), ctx.Err())
		case <-ticker.C:
		}
	}
}

// DropCache drops the kernel's cached pages of the device.
func (d device) DropCache() error {
	info, err := d.Stat()
	if err != nil {
		return fmt.Errorf("dropping the cache: %w", err)
	}

	if info.Mode()&os.ModeDevice != 0 {
		if _, err := unix.IoctlRetInt(int(d.Fd()), unix.BLKFLSBUF); err != nil {
			return fmt.Errorf("dropping the cache of %s: %w", d.Name(), err)
		}
	}

	return dropPages(d.File)
}

// dropPages drops the clean pages of an open file.
func dropPages(file *os.File) error {
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("dropping the cache of %s: %w", file.Name(), err)
	}

	return nil
}
