package dps

import (
	"context"
	"io"

	"github.com/stayput-dev/stayput/osimage"
)

// Medium is an open disk or partition.
type Medium interface {
	io.ReaderAt
	io.WriterAt
	// Sync returns when everything written is on the medium.
	Sync() error
	// DropCache makes the reads that follow come from the medium. What was written has to be synced before.
	DropCache() error
	Close() error
}

// Extent is where a partition lies, in bytes.
type Extent struct {
	Start, Size int64
}

// Place says where the running system is.
type Place struct {
	// Disk names the disk in messages, such as "/dev/nvme0n1".
	Disk string
	// Size and SectorSize are the disk's, in bytes.
	Size, SectorSize int64
	// Role is RoleUSR or RoleRoot: which file system is the verity-protected one.
	Role osimage.Role
	// Running are the numbers of the partitions under it: file system and hash tree, in any order.
	Running []int
	// Kernel is where the kernel sees the partitions, by number.
	Kernel map[int]Extent
	// RootHash is the root hash on the running command line.
	RootHash string
}

// Host opens the parts of this machine.
type Host interface {
	// Find finds the disk of the running system. When the machine is not of this scheme the error is a *slots.Refusal.
	Find(ctx context.Context) (Place, error)
	// OpenDisk opens the whole disk. For writing it is locked, as systemd asks (BLOCK_DEVICE_LOCKING), until closed.
	OpenDisk(ctx context.Context, write bool) (Medium, error)
	// OpenPartition opens a partition. For writing it fails when anything uses the partition.
	OpenPartition(ctx context.Context, number int, write bool) (Medium, error)
	// OpenBoot opens the FAT file system of a partition for writing, mounting it when needed.
	OpenBoot(ctx context.Context, number int) (BootFiles, error)
}

// BootFile is an open file of the boot partition.
type BootFile interface {
	io.ReaderAt
	Size() int64
	Close() error
}

// FileInfo is an entry of a directory that is a file.
type FileInfo struct {
	Name string
	Size int64
}

// BootFiles is the file system of the boot partition. Paths have slashes and are relative to its root. FAT does not tell
// upper from lower case. What a method changed is on the medium when it returns nil.
type BootFiles interface {
	// List returns the files of a directory, none when there is no such directory.
	List(dir string) ([]FileInfo, error)
	// Open opens a file so that reads come from the medium. The error wraps fs.ErrNotExist when there is none.
	Open(path string) (BootFile, error)
	// Create writes a new file; it makes the directory. The error wraps fs.ErrExist when there is one of that name.
	Create(path string, content io.Reader) error
	// Rename renames a file; it never replaces one.
	Rename(from, to string) error
	// Remove removes a file; one that does not exist is fine.
	Remove(path string) error
	// Free is how many bytes new files may take.
	Free() (int64, error)
	Close() error
}
