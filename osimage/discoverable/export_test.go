package discoverable

import (
	"github.com/stayput-dev/stayput/osimage/source"
	"github.com/stayput-dev/stayput/osimage/source/rawdisk"
)

// ReadDisk reads a disk that is in memory.
func ReadDisk(disk *rawdisk.Disk, options Options) (*source.Parts, error) {
	return readDisk(disk, options)
}
