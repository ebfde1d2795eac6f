package faulty

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/stayput-dev/stayput/agent/slots/dps"
)

// SectorSize is that of the disk, in bytes.
const SectorSize = 512

// disk is a disk with a volatile cache.
type disk struct {
	power *Power
	// cached is what reads give, stable what outlives a power cut; they differ in the dirty sectors only.
	cached, stable []byte
	dirty          map[int64]bool
	// flip is the offset of a byte that reads give wrongly, -1 for none.
	flip int64
}

func newDisk(power *Power, content []byte) *disk {
	return &disk{power: power, cached: content, stable: bytes.Clone(content), dirty: map[int64]bool{}, flip: -1}
}

func (d *disk) readAt(buffer []byte, offset int64) (int, error) {
	if d.power.Off() {
		return 0, ErrPowerCut
	}

	if offset >= int64(len(d.cached)) {
		return 0, io.EOF
	}

	n := copy(buffer, d.cached[offset:])
	if d.flip >= offset && d.flip < offset+int64(n) {
		buffer[d.flip-offset] ^= 0xff
	}

	if n < len(buffer) {
		return n, io.EOF
	}

	return n, nil
}

func (d *disk) writeAt(content []byte, offset int64) (int, error) {
	if d.power.Off() {
		return 0, ErrPowerCut
	}

	if offset+int64(len(content)) > int64(len(d.cached)) {
		return 0, fmt.Errorf("writing %d bytes at %d: %w", len(content), offset, io.ErrShortWrite)
	}

	copy(d.cached[offset:], content)

	for sector := offset / SectorSize; sector*SectorSize < offset+int64(len(content)); sector++ {
		d.dirty[sector] = true
	}

	return len(content), d.power.step()
}

func (d *disk) sync() error {
	if d.power.Off() {
		return ErrPowerCut
	}

	if err := d.power.step(); err != nil {
		return err
	}

	d.settle(KeepEverything)

	return nil
}

// settle decides for each dirty sector whether it gets to the medium.
func (d *disk) settle(fate Fate) {
	for _, sector := range slices.Sorted(maps.Keys(d.dirty)) {
		from, to := d.cached, d.stable
		if fate(2) == 0 {
			from, to = d.stable, d.cached
		}

		copy(to[sector*SectorSize:(sector+1)*SectorSize], from[sector*SectorSize:(sector+1)*SectorSize])
	}

	clear(d.dirty)
}

// medium is a part of a disk that is open.
type medium struct {
	disk        *disk
	start, size int64
}

var _ dps.Medium = medium{}

// ReadAt reads.
func (m medium) ReadAt(buffer []byte, offset int64) (int, error) {
	if offset >= m.size {
		return 0, io.EOF
	}

	room := min(int64(len(buffer)), m.size-offset)

	n, err := m.disk.readAt(buffer[:room], m.start+offset)
	if err == nil && n < len(buffer) {
		err = io.EOF
	}

	return n, err
}

// WriteAt writes into the cache.
func (m medium) WriteAt(content []byte, offset int64) (int, error) {
	if offset+int64(len(content)) > m.size {
		return 0, fmt.Errorf("writing past the end of the partition: %w", io.ErrShortWrite)
	}

	return m.disk.writeAt(content, m.start+offset)
}

// Sync writes the cache out.
func (m medium) Sync() error { return m.disk.sync() }

// DropCache does nothing: reads give what the medium would.
func (m medium) DropCache() error { return nil }

// Close does nothing.
func (m medium) Close() error { return nil }
