package faulty

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf16"

	"github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/slots/dps"
	"github.com/stayput-dev/stayput/osimage"
)

// The partitions of a machine's disk, by number.
const (
	PartitionESP = 1 + iota
	PartitionDataA
	PartitionVerityA
	PartitionDataB
	PartitionVerityB
	PartitionState
)

// ESPUUID is the part UUID of the boot partition.
const ESPUUID = "5E7A3F10-1111-4222-8333-944455556666"

const (
	diskSectors   = 1024
	firstSector   = 64
	dataSectors   = 64
	veritySectors = 16
	fatCapacity   = 4 << 20
	loaderVendor  = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
	variableMode  = 0o600
)

// Machine is a machine with two usr slots.
type Machine struct {
	Power *Power
	// RunningSlot is 0 for a and 1 for b; RunningHash is the root hash on its command line.
	RunningSlot int
	RunningHash string

	disk      *disk
	fat       *fat
	variables string
	images    map[string]*Image
}

var _ dps.Host = (*Machine)(nil)

// NewMachine makes a machine whose slots are empty. Its EFI variables are kept in a directory.
func NewMachine(variables string) (*Machine, error) {
	power := &Power{}
	m := &Machine{
		Power: power, variables: variables, images: map[string]*Image{},
		disk: newDisk(power, make([]byte, diskSectors*SectorSize)),
		fat:  &fat{power: power, capacity: fatCapacity, files: map[string]fatFile{}},
	}

	table := &gpt.Table{LogicalSectorSize: SectorSize, PhysicalSectorSize: SectorSize, ProtectiveMBR: true}
	next := uint64(firstSector)

	for _, p := range []struct {
		index   int
		kind    gpt.Type
		name    string
		guid    string
		sectors uint64
	}{
		{PartitionESP, "C12A7328-F81F-11D2-BA4B-00A0C93EC93B", "esp", ESPUUID, veritySectors},
		{PartitionDataA, "8484680C-9521-48C6-9C11-B0720656F69E", "_empty", "", dataSectors},
		{PartitionVerityA, "77FF5F63-E7B6-4633-ACF4-1565B864C0E6", "_empty", "", veritySectors},
		{PartitionDataB, "8484680C-9521-48C6-9C11-B0720656F69E", "_empty", "", dataSectors},
		{PartitionVerityB, "77FF5F63-E7B6-4633-ACF4-1565B864C0E6", "_empty", "", veritySectors},
		{PartitionState, "0FC63DAF-8483-4772-8E79-3D69D8477DE4", "state", "", dataSectors},
	} {
		table.Partitions = append(table.Partitions, &gpt.Partition{
			Index: p.index, Type: p.kind, Name: p.name, GUID: p.guid, Start: next, End: next + p.sectors - 1,
			Size: p.sectors * SectorSize, Attributes: 1 << 60,
		})
		next += p.sectors
	}

	err := table.Write(m.wholeDisk(), diskSectors*SectorSize)
	if err == nil {
		err = m.SetVariable(boot.LoaderDevicePartUUID, strings.ToLower(ESPUUID))
	}

	if err != nil {
		return nil, fmt.Errorf("making the machine: %w", err)
	}

	return m, nil
}

// Install puts an image into a slot, with a boot entry of that name unless it is "".
func (m *Machine) Install(image *Image, slot int, entry string) error {
	m.Know(image)

	table, err := m.table()
	if err != nil {
		return err
	}

	config := image.Config()

	for i, role := range []osimage.Role{osimage.RoleUSR, osimage.RoleUSRVerity} {
		partition := table.Partitions[PartitionDataA+2*slot+i-1]
		partition.Name = config.Label()
		partition.GUID = hashUUID(config.RootHash[i*32 : (i+1)*32])

		if _, err := m.disk.writeAt(image.Content(role), partition.GetStart()); err != nil {
			return err
		}
	}

	if err := table.Write(m.wholeDisk(), diskSectors*SectorSize); err != nil {
		return fmt.Errorf("installing %s: %w", config.Label(), err)
	}

	if entry != "" {
		m.PutFile("EFI/Linux/"+entry, image.Content(osimage.RoleUKI))
	}

	return nil
}

// Run makes a slot the one that runs.
func (m *Machine) Run(image *Image, slot int) {
	m.Know(image)
	m.RunningSlot, m.RunningHash = slot, image.Config().RootHash
}

// Know tells the judge what an image's bytes are.
func (m *Machine) Know(image *Image) { m.images[image.Config().RootHash] = image }

// Crash is the machine after its power went and came back; this machine stays as it is.
func (m *Machine) Crash(fate Fate) *Machine {
	m.fat.settle(fate)

	power := &Power{}
	crashed := *m
	crashed.Power = power
	crashed.fat = m.fat.clone(power)
	crashed.disk = newDisk(power, append([]byte(nil), m.disk.stable...))
	crashed.disk.cached = append([]byte(nil), m.disk.cached...)

	for sector := range m.disk.dirty {
		crashed.disk.dirty[sector] = true
	}

	crashed.disk.settle(fate)

	return &crashed
}

// PutFile puts a file on the boot partition.
func (m *Machine) PutFile(path string, content []byte) {
	m.fat.files[strings.ToLower(path)] = fatFile{name: path, data: &clusters{content: content, names: 1}}
}

// LinkFile gives a file of the boot partition a second name for the same clusters, as a rename that was cut off may.
func (m *Machine) LinkFile(path, second string) {
	file := m.fat.files[strings.ToLower(path)]
	file.data.names++
	m.fat.files[strings.ToLower(second)] = fatFile{name: second, data: file.data}
}

// RemoveFile takes a file away from the boot partition.
func (m *Machine) RemoveFile(path string) { delete(m.fat.files, strings.ToLower(path)) }

// Files are the paths on the boot partition.
func (m *Machine) Files() []string {
	names := make([]string, 0, len(m.fat.files))
	for _, file := range m.fat.files {
		names = append(names, file.name)
	}

	return names
}

// FillBoot leaves that many bytes free on the boot partition.
func (m *Machine) FillBoot(free int64) {
	m.fat.capacity = free
	for _, file := range m.fat.files {
		m.fat.capacity += int64(len(file.data.content))
	}
}

// LieOnRename makes renames on the boot partition succeed without doing anything.
func (m *Machine) LieOnRename(lie bool) { m.fat.renameLies = lie }

// FlipByte makes a byte of a partition read wrongly; a partition of 0 ends that.
func (m *Machine) FlipByte(partition int, offset int64) error {
	m.disk.flip = -1
	if partition == 0 {
		return nil
	}

	table, err := m.table()
	if err != nil {
		return err
	}

	m.disk.flip = table.Partitions[partition-1].GetStart() + offset

	return nil
}

// Scribble changes bytes of the whole disk, as a program that knows nothing of slots would.
func (m *Machine) Scribble(offset int64, content []byte) {
	copy(m.disk.cached[offset:], content)
	copy(m.disk.stable[offset:], content)
}

// SetVariable sets a text variable of the boot loader; "" removes it.
func (m *Machine) SetVariable(name, value string) error {
	path := filepath.Join(m.variables, name+"-"+loaderVendor)
	if value == "" {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing variable %s: %w", name, err)
		}

		return nil
	}

	content := []byte{6, 0, 0, 0}
	for _, unit := range append(utf16.Encode([]rune(value)), 0) {
		content = binary.LittleEndian.AppendUint16(content, unit)
	}

	if err := os.WriteFile(path, content, variableMode); err != nil {
		return fmt.Errorf("setting variable %s: %w", name, err)
	}

	return nil
}

// Find is what /proc and /sys would say.
func (m *Machine) Find(context.Context) (dps.Place, error) {
	place := dps.Place{
		Disk: "/dev/fake", Size: diskSectors * SectorSize, SectorSize: SectorSize, Role: osimage.RoleUSR,
		Running:  []int{PartitionVerityA + 2*m.RunningSlot, PartitionDataA + 2*m.RunningSlot},
		RootHash: m.RunningHash, Kernel: map[int]dps.Extent{},
	}

	next := int64(firstSector)
	for number, sectors := range []int64{
		0, veritySectors, dataSectors, veritySectors, dataSectors, veritySectors, dataSectors,
	} {
		place.Kernel[number] = dps.Extent{Start: next * SectorSize, Size: sectors * SectorSize}
		next += sectors
	}

	return place, nil
}

// OpenDisk opens the disk.
func (m *Machine) OpenDisk(context.Context, bool) (dps.Medium, error) {
	return medium{disk: m.disk, size: diskSectors * SectorSize}, nil
}

// OpenPartition opens a partition. Those that run are refused for writing, as the kernel does.
func (m *Machine) OpenPartition(ctx context.Context, number int, write bool) (dps.Medium, error) {
	place, err := m.Find(ctx)
	if err != nil {
		return nil, err
	}

	if write && (number == place.Running[0] || number == place.Running[1]) {
		return nil, fmt.Errorf("opening partition %d: %w", number, errBusy)
	}

	return medium{disk: m.disk, start: place.Kernel[number].Start, size: place.Kernel[number].Size}, nil
}

var errBusy = errors.New("device or resource busy")

// OpenBoot opens the boot partition.
func (m *Machine) OpenBoot(_ context.Context, number int) (dps.BootFiles, error) {
	if number != PartitionESP {
		return nil, fmt.Errorf("opening partition %d, which is no boot partition: %w", number, errBusy)
	}

	return m.fat, nil
}

// table reads the partition table as firmware does.
func (m *Machine) table() (*gpt.Table, error) {
	table, err := gpt.Read(m.wholeDisk(), SectorSize, SectorSize)
	if err != nil {
		return nil, fmt.Errorf("reading the partition table: %w", err)
	}

	return table, nil
}

func (m *Machine) wholeDisk() *tableFile {
	return &tableFile{medium: medium{disk: m.disk, size: diskSectors * SectorSize}}
}

// tableFile is a disk as go-diskfs wants it.
type tableFile struct {
	medium

	offset int64
}

// Stat is not needed.
func (t *tableFile) Stat() (fs.FileInfo, error) { return nil, errors.ErrUnsupported }

// Read reads on.
func (t *tableFile) Read(buffer []byte) (int, error) {
	n, err := t.ReadAt(buffer, t.offset)
	t.offset += int64(n)

	return n, err
}

// Seek sets the offset.
func (t *tableFile) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += t.offset
	case io.SeekEnd:
		offset += t.size
	}

	t.offset = offset

	return offset, nil
}

func hashUUID(hex string) string {
	return strings.ToUpper(hex[:8] + "-" + hex[8:12] + "-" + hex[12:16] + "-" + hex[16:20] + "-" + hex[20:])
}
