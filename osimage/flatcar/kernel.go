package flatcar

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/stayput-dev/stayput/osimage"
)

// The machine types of the PE format (Microsoft PE/COFF specification, "Machine Types"), and where Flatcar's build and
// its GRUB put the root hash of /usr (verity_offset in build_image_util.sh; add-verity-hash.patch of GRUB): into the
// kernel's unused DOS stub on amd64, into its PE header's padding on arm64.
const (
	machineAMD64 = 0x8664
	machineARM64 = 0xaa64

	hashAtAMD64 = 0x40
	hashAtARM64 = 0x200
	hashDigits  = 64

	// peOffsetAt is where the offset of the PE header is; it is looked for in the first page.
	peOffsetAt = 0x3c
	maxPEStart = 4096 - 6
)

// kernel is what a kernel says of the image that it belongs to.
type kernel struct {
	architecture, rootHash string
}

func readKernel(reader io.ReaderAt, name string) (kernel, error) {
	head := make([]byte, 4096)
	if count, err := reader.ReadAt(head, 0); count < len(head) {
		return kernel{}, &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: name, Detail: fmt.Sprintf("the kernel has %d bytes", count), Fix: redownload, Err: notEOF(err),
		}
	}

	start := binary.LittleEndian.Uint32(head[peOffsetAt:])

	switch {
	case head[0] != 'M' || head[1] != 'Z':
		return kernel{}, refuse(name, fmt.Sprintf("offset 0: the kernel begins with %q, want \"MZ\"", head[:2]), redownload)
	case start > maxPEStart || string(head[start:start+4]) != "PE\x00\x00":
		return kernel{}, refuse(name, fmt.Sprintf("offset %#x: the kernel has no PE header at %#x", peOffsetAt, start), redownload)
	}

	var (
		found kernel
		at    int
	)

	switch machine := binary.LittleEndian.Uint16(head[start+4:]); machine {
	case machineAMD64:
		found.architecture, at = "amd64", hashAtAMD64
	case machineARM64:
		found.architecture, at = "arm64", hashAtARM64
	default:
		return kernel{}, refuse(name, fmt.Sprintf("offset %#x: the kernel is for the machine %#04x, want %#x (amd64) or %#x (arm64)",
			start+4, machine, machineAMD64, machineARM64), "give an image for one of these")
	}

	found.rootHash = string(head[at : at+hashDigits])

	for _, digit := range head[at : at+hashDigits] {
		if (digit < '0' || digit > '9') && (digit < 'a' || digit > 'f') {
			return kernel{}, refuse(name, fmt.Sprintf("offset %#x: the kernel holds %q, want the root hash of /usr, %d digits",
				at, found.rootHash[:16], hashDigits), "give the kernel of the release, not one that was built alone")
		}
	}

	return found, nil
}
