package disk

import (
	"fmt"
	"strings"

	"github.com/diskfs/go-diskfs/partition/gpt"
	"github.com/google/uuid"

	"github.com/stayput-dev/stayput/osimage"
)

const (
	mib = 1 << 20
	gib = 1 << 30

	// alignment is what partitions start at and are rounded to.
	alignment = mib
	// tableRoom is left free at the end for the backup GPT.
	tableRoom = mib

	// minESPSize and minESPSize4K keep the file system a FAT32, which needs 65525 clusters of at least one sector
	// (Microsoft FAT specification 1.03, section 3.5).
	minESPSize     = 64 * mib
	minESPSize4K   = 260 * mib
	defaultESPSize = 512 * mib
	// maxESPSize is far above what UKIs need, and below what the FAT driver can make.
	maxESPSize = 32 * gib
	// maxSize bounds the other sizes, so that sums of them cannot overflow; no file system has files that large.
	maxSize = 1 << 50
	// ukisOnESP is how many UKIs the ESP must hold: the known-good one, the one on trial, and one being written.
	ukisOnESP = 3
	// espOverhead is for FATs, directories, and the loader's random seed.
	espOverhead = 8 * mib
	// rootSpace is what the root file system can grow by when no disk size is given.
	rootSpace = gib
	// verityShare is the data size divided by the size of its hash tree: SHA-256 of 4 KiB blocks needs 1/127.
	verityShare = 120
)

// Labels of the partitions that no image names.
const (
	LabelESP   = "esp"
	LabelEmpty = "_empty"
	LabelRoot  = "root"
	LabelState = "state"
)

// GPT attribute bits (UAPI Discoverable Partitions Specification, "Partition Flags").
const (
	attributeReadOnly = 1 << 60
	attributeGrowFS   = 1 << 59
)

const typeLinuxData gpt.Type = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"

// types are the partition types of an architecture (UAPI Discoverable Partitions Specification).
type types struct {
	root, rootVerity, usr, usrVerity gpt.Type
}

func typesOf(architecture string) types {
	if architecture == "arm64" {
		return types{
			root:       "B921B045-1DF0-41C3-AF44-4C6F280D3FAE",
			rootVerity: "DF3300CE-D69F-4C92-978C-9BFB0F38D820",
			usr:        "B0E01050-EE5F-4390-949A-9101B17104E9",
			usrVerity:  "6E11A4E7-FBCA-4DED-B9E9-E1A512BB664E",
		}
	}

	return types{
		root:       "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709",
		rootVerity: "2C7357ED-EBD2-46D9-AEC1-23D437EC2BF5",
		usr:        "8484680C-9521-48C6-9C11-B0720656F69E",
		usrVerity:  "77FF5F63-E7B6-4633-ACF4-1565B864C0E6",
	}
}

// Sizes are in bytes; 0 means that a size is chosen from the image, with head room.
type Sizes struct {
	// Disk is the whole disk. Without it the root file system gets a GiB more than its first contents need.
	Disk int64
	// ESP is the EFI system partition.
	ESP int64
	// Slot and Verity are the two partitions of each slot.
	Slot, Verity int64
}

// check refuses sizes that no disk has.
func (s Sizes) check() error {
	for _, asked := range []struct {
		flag      string
		size, max int64
	}{
		{"--disk-size", s.Disk, maxSize},
		{"--esp-size", s.ESP, maxESPSize},
		{"--slot-size", s.Slot, maxSize},
		{"--verity-size", s.Verity, maxSize},
	} {
		if asked.size < 0 || asked.size > asked.max {
			return &osimage.Error{
				Kind: osimage.ErrInvalid, Subject: fmt.Sprintf("%s %d", asked.flag, asked.size), Detail: "no disk has that",
				Fix: fmt.Sprintf("use at most %d, which is %d GiB", asked.max, asked.max/gib),
			}
		}
	}

	return nil
}

// partition is one partition with what goes into it.
type partition struct {
	label      string
	kind       gpt.Type
	id         string
	attributes uint64
	start      int64
	size       int64
	// role is the content that fills it, "" when there is none or the ESP is made otherwise.
	role osimage.Role
}

// plan is the whole disk before it is written.
type plan struct {
	guid       string
	size       int64
	sectorSize int64
	partitions []partition
}

// newPlan decides all sizes and identities. The seed makes the random ones.
func newPlan(config osimage.Config, sizes Sizes, seed string, sectorSize int64) (*plan, error) {
	if err := sizes.check(); err != nil {
		return nil, err
	}

	data, verity, err := slotSizes(config, sizes)
	if err != nil {
		return nil, err
	}

	esp, err := espSize(config, sizes.ESP, sectorSize)
	if err != nil {
		return nil, err
	}

	ids := identities(seed)
	kinds := typesOf(config.Architecture)
	dataKind, verityKind, dataRole, verityRole := kinds.usr, kinds.usrVerity, osimage.RoleUSR, osimage.RoleUSRVerity
	last := partition{
		label: LabelRoot, kind: kinds.root, id: ids.of("root"), attributes: attributeGrowFS, role: osimage.RoleState,
	}

	if _, ok := config.Content(osimage.RoleRoot); ok {
		dataKind, verityKind, dataRole, verityRole = kinds.root, kinds.rootVerity, osimage.RoleRoot, osimage.RoleRootVerity
		// A second partition of the root type could be taken for the root by gpt-auto.
		last.label, last.kind = LabelState, typeLinuxData
	}

	result := &plan{guid: ids.of("disk"), sectorSize: sectorSize, partitions: []partition{
		{label: LabelESP, kind: gpt.EFISystemPartition, id: ids.of("esp"), size: esp},
		{
			label: config.Label(), kind: dataKind, id: uuidOf(config.RootHash[:32]), attributes: attributeReadOnly,
			size: data, role: dataRole,
		},
		{
			label: config.Label(), kind: verityKind, id: uuidOf(config.RootHash[32:]), attributes: attributeReadOnly,
			size: verity, role: verityRole,
		},
		{label: LabelEmpty, kind: dataKind, id: ids.of("b"), attributes: attributeReadOnly, size: data},
		{label: LabelEmpty, kind: verityKind, id: ids.of("b-verity"), attributes: attributeReadOnly, size: verity},
		last,
	}}

	return result, result.place(config, sizes.Disk)
}

// place gives every partition its start, and the last one the rest of the disk.
func (p *plan) place(config osimage.Config, disk int64) error {
	next := int64(alignment)

	for index := range p.partitions {
		p.partitions[index].start = next
		next += p.partitions[index].size
	}

	last := &p.partitions[len(p.partitions)-1]
	least := int64(alignment)

	if state, ok := config.Content(osimage.RoleState); ok {
		least = roundUp(state.RawSize)
	}

	p.size = disk
	if disk == 0 {
		p.size = next + least + rootSpace + tableRoom
	}

	last.size = roundDown(p.size-tableRoom) - last.start
	if last.size < least {
		return tooSmall("--disk-size", disk, next+least+tableRoom, "both slots, the ESP and the root file system")
	}

	if p.size%alignment != 0 {
		return &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: fmt.Sprintf("--disk-size %d", disk), Detail: "it is not a multiple of 1 MiB",
			Fix: fmt.Sprintf("use %d", roundUp(disk)),
		}
	}

	return nil
}

func slotSizes(config osimage.Config, sizes Sizes) (data, verity int64, err error) {
	dataContent, _ := config.Data()
	verityContent, _ := config.Verity()

	data = sizes.Slot
	if data == 0 {
		// Half as much again: the next versions must fit too, and slots cannot grow later.
		data = dataContent.RawSize + dataContent.RawSize/2
	}

	data = roundUp(data)
	if data < dataContent.RawSize {
		return 0, 0, tooSmall("--slot-size", sizes.Slot, roundUp(dataContent.RawSize), string(dataContent.Role))
	}

	verity = sizes.Verity
	if verity == 0 {
		verity = max(data/verityShare, verityContent.RawSize)
	}

	verity = roundUp(verity)
	if verity < verityContent.RawSize {
		return 0, 0, tooSmall("--verity-size", sizes.Verity, roundUp(verityContent.RawSize), string(verityContent.Role))
	}

	return data, verity, nil
}

func espSize(config osimage.Config, size, sectorSize int64) (int64, error) {
	uki, _ := config.Content(osimage.RoleUKI)
	loader, _ := config.Content(osimage.RoleLoader)
	smallest := int64(minESPSize)

	if sectorSize > SectorSize512 {
		smallest = minESPSize4K
	}

	least := max(roundUp(ukisOnESP*uki.RawSize+2*loader.RawSize+espOverhead), smallest)

	if size == 0 {
		// One UKI of head room, since those grow from version to version.
		size = max(defaultESPSize, least+roundUp(uki.RawSize))
	}

	if least > maxESPSize {
		return 0, &osimage.Error{
			Kind: osimage.ErrTooLarge, Subject: string(osimage.RoleUKI),
			Detail: fmt.Sprintf("%d of them need an ESP of %d MiB", ukisOnESP, least/mib),
			Fix:    fmt.Sprintf("use a smaller UKI: an ESP has at most %d GiB", maxESPSize/gib),
		}
	}

	size = min(roundUp(size), maxESPSize)
	if size < least {
		return 0, tooSmall("--esp-size", size, least,
			fmt.Sprintf("%d UKIs and the loader on sectors of %d bytes", ukisOnESP, sectorSize))
	}

	return size, nil
}

func tooSmall(flag string, got, want int64, what string) error {
	return &osimage.Error{
		Kind: osimage.ErrTooLarge, Subject: what, Detail: fmt.Sprintf("%s %d is too small", flag, got),
		Fix: fmt.Sprintf("use at least %d, which is %d MiB", want, want/mib),
	}
}

func roundUp(size int64) int64 {
	return roundDown(size + alignment - 1)
}

func roundDown(size int64) int64 {
	return size / alignment * alignment
}

// identities derives UUIDs from a seed, so that the same seed makes the same disk.
type identities string

func (i identities) of(what string) string {
	return strings.ToUpper(uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://stayput.dev/disk/"+string(i)+"/"+what)).String())
}

// volumeID is the serial number of the ESP's file system.
func (i identities) volumeID() []byte {
	id := uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://stayput.dev/disk/"+string(i)+"/volume"))

	return id[:4]
}

// uuidOf writes 32 hexadecimal digits as a UUID. The halves of a verity root hash are the part UUIDs of the data and
// hash partitions (systemd-veritysetup-generator(8)).
func uuidOf(hex string) string {
	return strings.ToUpper(hex[:8] + "-" + hex[8:12] + "-" + hex[12:16] + "-" + hex[16:20] + "-" + hex[20:])
}
