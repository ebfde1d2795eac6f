package discoverable

import (
	"strings"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source/rawdisk"
)

// Partition types that do not depend on the architecture (UAPI Discoverable Partitions Specification).
const (
	typeESP      = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"
	typeXBOOTLDR = "bc13c2ff-59e6-4262-a352-b275fd6f7172"
)

// labelEmpty is the label of a slot that holds nothing (sysupdate.d(5)); the prefixes are those of slots that are being
// filled ("Partition Names" of the specification).
const (
	labelEmpty   = "_empty"
	labelPartial = "PRT#"
	labelPending = "PND#"
)

// kind is what a partition type stands for.
type kind struct {
	architecture string
	// data is the role of the file system, for a hash tree that of the file system that it belongs to.
	data osimage.Role
	// verity and signature tell that it holds the hash tree, or the signature of its root hash.
	verity, signature bool
}

// kindOf finds out what a type stands for (UAPI Discoverable Partitions Specification).
func kindOf(partitionType string) (kind, bool) {
	found, ok := map[string]kind{
		"4f68bce3-e8cd-4db1-96e7-fbcaf984b709": {"amd64", osimage.RoleRoot, false, false},
		"2c7357ed-ebd2-46d9-aec1-23d437ec2bf5": {"amd64", osimage.RoleRoot, true, false},
		"41092b05-9fc8-4523-994f-2def0408b176": {"amd64", osimage.RoleRoot, false, true},
		"8484680c-9521-48c6-9c11-b0720656f69e": {"amd64", osimage.RoleUSR, false, false},
		"77ff5f63-e7b6-4633-acf4-1565b864c0e6": {"amd64", osimage.RoleUSR, true, false},
		"e7bb33fb-06cf-4e81-8273-e543b413e2e2": {"amd64", osimage.RoleUSR, false, true},
		"b921b045-1df0-41c3-af44-4c6f280d3fae": {"arm64", osimage.RoleRoot, false, false},
		"df3300ce-d69f-4c92-978c-9bfb0f38d820": {"arm64", osimage.RoleRoot, true, false},
		"6db69de6-29f4-4758-a7a5-962190f00ce3": {"arm64", osimage.RoleRoot, false, true},
		"b0e01050-ee5f-4390-949a-9101b17104e9": {"arm64", osimage.RoleUSR, false, false},
		"6e11a4e7-fbca-4ded-b9e9-e1a512bb664e": {"arm64", osimage.RoleUSR, true, false},
		"c23ce4ff-44bd-4b00-b2d4-b41b3419e02a": {"arm64", osimage.RoleUSR, false, true},
	}[partitionType]

	return found, ok
}

// Recognises tells whether a disk has the partitions that this package reads.
func Recognises(disk *rawdisk.Disk) bool {
	for _, partition := range disk.Partitions {
		if found, ok := kindOf(partition.Type); ok && found.verity {
			return true
		}
	}

	return false
}

// inUse tells whether a slot holds something whole.
func inUse(label string) bool {
	return label != labelEmpty && !strings.HasPrefix(label, labelPartial) && !strings.HasPrefix(label, labelPending)
}

// uuidOf turns 32 hexadecimal digits into the text form of a UUID.
func uuidOf(digits string) string {
	return digits[:8] + "-" + digits[8:12] + "-" + digits[12:16] + "-" + digits[16:20] + "-" + digits[20:]
}

// loaderNames are where the boot loader is, the path that firmware looks at first (UEFI 2.10, section 3.5.1.1).
func loaderNames(architecture string) []string {
	if architecture == "arm64" {
		return []string{"/EFI/BOOT/BOOTAA64.EFI", "/EFI/systemd/systemd-bootaa64.efi"}
	}

	return []string{"/EFI/BOOT/BOOTX64.EFI", "/EFI/systemd/systemd-bootx64.efi"}
}
