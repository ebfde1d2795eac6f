package dps

import (
	"fmt"
	"slices"
	"strings"

	"github.com/diskfs/go-diskfs/partition/gpt"

	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// emptyLabel is the label of a partition that holds nothing (sysupdate.d(5)).
const emptyLabel = "_empty"

// Partition types that do not depend on the architecture.
const (
	typeESP      = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
	typeXBOOTLDR = "BC13C2FF-59E6-4262-A352-B275FD6F7172"
)

// pairTypes are the types of a file system and of its hash tree (Discoverable Partitions Specification).
type pairTypes struct{ data, verity gpt.Type }

func typesOf(architecture string, role osimage.Role) (pairTypes, bool) {
	types, ok := map[string]map[osimage.Role]pairTypes{
		"amd64": {
			osimage.RoleRoot: {"4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709", "2C7357ED-EBD2-46D9-AEC1-23D437EC2BF5"},
			osimage.RoleUSR:  {"8484680C-9521-48C6-9C11-B0720656F69E", "77FF5F63-E7B6-4633-ACF4-1565B864C0E6"},
		},
		"arm64": {
			osimage.RoleRoot: {"B921B045-1DF0-41C3-AF44-4C6F280D3FAE", "DF3300CE-D69F-4C92-978C-9BFB0F38D820"},
			osimage.RoleUSR:  {"B0E01050-EE5F-4390-949A-9101B17104E9", "6E11A4E7-FBCA-4DED-B9E9-E1A512BB664E"},
		},
	}[architecture][role]

	return types, ok
}

// pair is a slot's place on the disk.
type pair struct {
	name         string
	data, verity gpt.Partition
}

// rootHash is the root hash of what the pair holds, "" when it is marked empty.
func (p pair) rootHash() string {
	if p.data.Name == emptyLabel || p.verity.Name == emptyLabel {
		return ""
	}

	return hashOf(p.data.GUID, p.verity.GUID)
}

// labelVersion is the version in the pair's label, which is name and version with a '_' between.
func (p pair) labelVersion() string {
	if p.rootHash() == "" {
		return ""
	}

	return p.data.Name[strings.LastIndexByte(p.data.Name, '_')+1:]
}

// layout is the disk of a machine of this scheme.
type layout struct {
	table          partitions
	running, spare pair
	// esp is the EFI system partition that the firmware started from.
	esp gpt.Partition
}

// layoutOf finds the two pairs and the ESP in the table. espUUID is the part UUID that the boot loader was started from.
func layoutOf(table partitions, place Place, architecture, espUUID string) (layout, error) {
	types, ok := typesOf(architecture, place.Role)
	if !ok {
		return layout{}, slots.Refuse(v1alpha1.ReasonSchemeUnsupported, "no partition types are known for architecture %q",
			architecture)
	}

	data, verity := table.ofType(types.data), table.ofType(types.verity)
	if len(data) != 2 || len(verity) != 2 {
		return layout{}, slots.Refuse(v1alpha1.ReasonSchemeUnsupported, "disk %s has %d %s and %d hash partitions instead "+
			"of two of each; provision the machine with a disk from `stayput image disk`",
			place.Disk, len(data), place.Role, len(verity))
	}

	if xbootldr := table.ofType(typeXBOOTLDR); len(xbootldr) > 0 {
		return layout{}, slots.Refuse(v1alpha1.ReasonSchemeUnsupported, "partition %d of %s is an extended boot loader "+
			"partition, whose entries compete with ours; this release supports an ESP only", xbootldr[0].Index, place.Disk)
	}

	esp := slices.IndexFunc(table.Partitions, func(p *gpt.Partition) bool {
		return p.Type == typeESP && strings.EqualFold(p.GUID, espUUID)
	})
	if esp < 0 {
		return layout{}, slots.Refuse(v1alpha1.ReasonSchemeUnsupported, "the boot loader was started from partition %s, which "+
			"is no ESP of disk %s, the one that the system runs from; make the firmware boot from that disk",
			espUUID, place.Disk)
	}

	found := layout{table: table, esp: *table.Partitions[esp]}

	pairs, running, err := pairUp(data, verity, place)
	if err != nil {
		return layout{}, err
	}

	found.running, found.spare = pairs[running], pairs[1-running]

	return found, found.checkKernel(place)
}

// pairUp makes pairs of the partitions, in their order on the disk, and tells which one runs. What runs belongs together
// because it runs together; so what is left does too.
func pairUp(data, verity []gpt.Partition, place Place) (pairs [2]pair, running int, err error) {
	isRunning := func(p gpt.Partition) bool { return slices.Contains(place.Running, p.Index) }
	running = slices.IndexFunc(data, isRunning)
	runningVerity := slices.IndexFunc(verity, isRunning)

	if running < 0 || runningVerity < 0 || isRunning(data[1-running]) || isRunning(verity[1-runningVerity]) {
		return pairs, 0, slots.Refuse(v1alpha1.ReasonSchemeUnsupported, "the running %s is on partitions %v of %s, which are "+
			"not one file system partition with its hash partition", place.Role, place.Running, place.Disk)
	}

	for i := range pairs {
		pairs[i] = pair{name: string(rune('a' + i)), data: data[i], verity: verity[i]}
	}

	pairs[running].verity = verity[runningVerity]
	pairs[1-running].verity = verity[1-runningVerity]

	return pairs, running, nil
}

// checkKernel refuses a disk whose partition table is not the one that the kernel goes by.
func (l layout) checkKernel(place Place) error {
	for _, partition := range []gpt.Partition{
		l.running.data, l.running.verity, l.spare.data, l.spare.verity, l.esp,
	} {
		want := Extent{Start: int64(partition.Start) * place.SectorSize, Size: int64(partition.Size)} //nolint:gosec // within the disk
		if got := place.Kernel[partition.Index]; got != want {
			return slots.Refuse(v1alpha1.ReasonStorageError, "partition %d of %s is at byte %d with %d bytes, but the kernel "+
				"has it at %d with %d; reboot the machine, then try again",
				partition.Index, place.Disk, want.Start, want.Size, got.Start, got.Size)
		}
	}

	return nil
}

// ofType returns the partitions of a type in their order on the disk.
func (p partitions) ofType(kind gpt.Type) []gpt.Partition {
	var found []gpt.Partition

	for _, partition := range p.Partitions {
		if partition.Type == kind {
			found = append(found, *partition)
		}
	}

	slices.SortFunc(found, func(a, b gpt.Partition) int { return compareUint(a.Start, b.Start) })

	return found
}

// rename gives the spare pair a label and part UUIDs.
func (l layout) renameSpare(label, dataUUID, verityUUID string) error {
	for index, uuid := range map[int]string{l.spare.data.Index: dataUUID, l.spare.verity.Index: verityUUID} {
		partition := l.table.number(index)
		if partition == nil {
			return fmt.Errorf("naming the spare slot: partition %d: %w", index, errTableChanged)
		}

		partition.Name, partition.GUID = label, uuid
	}

	return nil
}
