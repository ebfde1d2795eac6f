package discoverable_test

import (
	"bytes"
	"io"
	"os"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/discoverable"
	"github.com/stayput-dev/stayput/osimage/source/rawdisk"
)

// FuzzReadDisk changes two places of a good disk. The partition table is left alone: its checksum would end every try there.
func FuzzReadDisk(f *testing.F) {
	r := newRelease("1.1.0", "amd64", "usrhash")

	// The ESP comes first, so that most changes hit what is parsed.
	good, err := os.ReadFile(write(f, 512, append([]place{esp(f, map[string][]byte{
		"/EFI/BOOT/BOOTX64.EFI": []byte("MZ boot loader"), "/EFI/Linux/labos_1.1.0+3.efi": r.uki, "/EFI/Linux/b.efi": r.uki,
	})}, r.usr()...)...))
	if err != nil {
		f.Fatal(err)
	}

	disk, err := rawdisk.Read(bytes.NewReader(good), int64(len(good)), "disk.raw")
	if err != nil {
		f.Fatal(err)
	}

	uki := uint32(bytes.Index(good, []byte("PE\x00\x00")) - mib)
	tree := uint32(bytes.Index(good, []byte("verity\x00\x00")) - mib)

	f.Add(uint32(0), []byte{}, uint32(0), []byte{})
	f.Add(uint32(11), []byte{0, 8}, uint32(13), []byte{1})                 // the boot sector
	f.Add(uint32(512), []byte{0xff, 0xff, 2, 0}, uint32(900), []byte{0})   // the allocation table
	f.Add(uki+4, []byte{0x64, 0xaa}, uki+6, []byte{0xff, 0xff})            // the UKI's headers
	f.Add(uki+264, []byte(".osrel\x00\x00\xff"), uki+500, []byte("ID=a=")) // its sections
	f.Add(tree+64, []byte{0, 2}, tree+72, []byte{1, 0, 0, 0, 1})           // the hash tree's superblock

	f.Fuzz(func(t *testing.T, first uint32, one []byte, second uint32, two []byte) {
		changed := bytes.Clone(good)
		behindTable := changed[mib:]

		copy(behindTable[int(first)%len(behindTable):], one)
		copy(behindTable[int(second)%len(behindTable):], two)

		parts, err := discoverable.ReadDisk(disk.On(bytes.NewReader(changed)), discoverable.Options{})
		if err != nil {
			return
		}

		for role, input := range parts.Inputs {
			body, err := input.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}

			length, err := io.Copy(io.Discard, body)
			if err == nil && length != input.Size || input.Size > int64(len(good)) {
				t.Errorf("%s has %d bytes, announced were %d", role, length, input.Size)
			}

			if role == osimage.RoleUSR && err == nil && parts.RootHash != r.hash {
				t.Errorf("data that a root hash of %s vouches for", parts.RootHash)
			}
		}
	})
}
