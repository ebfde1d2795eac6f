package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/stayput-dev/stayput/osimage"
)

// headSize is what is read of a content to find its block size: all superblocks below are within it.
const headSize = 4096

// magic is how a format is recognized, and where it says the size of its blocks.
type magic struct {
	name  string
	at    int
	bytes string
	// block computes the block size from the head, in bytes.
	block func(head []byte) int64
	fix   string
}

// magics are the formats whose blocks can be smaller than a sector, in which case Linux does not mount them.
func magics() []magic {
	return []magic{
		{
			// https://docs.kernel.org/filesystems/ext4/super.html: s_magic, s_log_block_size.
			name: "ext4", at: 1024 + 0x38, bytes: "\x53\xef", fix: "make it with `mkfs.ext4 -b 4096`",
			block: func(head []byte) int64 { return shifted(1024, int64(binary.LittleEndian.Uint32(head[1024+0x18:]))) },
		},
		{
			// XFS Algorithms & Data Structures, "Superblocks": sb_magicnum, sb_sectsize.
			name: "XFS", at: 0, bytes: "XFSB", fix: "make it with `mkfs.xfs -s size=4096`",
			block: func(head []byte) int64 { return int64(binary.BigEndian.Uint16(head[102:])) },
		},
		{
			// https://docs.kernel.org/filesystems/erofs.html and fs/erofs/erofs_fs.h of Linux: magic, blkszbits.
			name: "EROFS", at: 1024, bytes: "\xe2\xe1\xf5\xe0", fix: "make it with `mkfs.erofs -b 4096`",
			block: func(head []byte) int64 { return shifted(1, int64(head[1024+12])) },
		},
		{
			// https://gitlab.com/cryptsetup/cryptsetup/-/wikis/DMVerity: signature, data and hash block sizes.
			name: "dm-verity", at: 0, bytes: "verity\x00\x00",
			fix: "make it with `veritysetup format --data-block-size=4096 --hash-block-size=4096`",
			block: func(head []byte) int64 {
				return int64(min(binary.LittleEndian.Uint32(head[64:]), binary.LittleEndian.Uint32(head[68:])))
			},
		},
	}
}

// shifted is a size that is written as an exponent; one that is no block size of any file system is 0.
func shifted(unit, exponent int64) int64 {
	const most = 20

	if exponent > most {
		return 0
	}

	return unit << exponent
}

// checkBlocks refuses contents that cannot be mounted from sectors of the size, because their blocks are smaller. What
// it does not know it lets pass.
func checkBlocks(ctx context.Context, source osimage.Source, sectorSize int64) error {
	if sectorSize == SectorSize512 {
		return nil
	}

	for _, content := range source.Config().Contents {
		if content.Role == osimage.RoleUKI || content.Role == osimage.RoleLoader {
			continue
		}

		head, err := headOf(ctx, source, content)
		if err != nil {
			return fmt.Errorf("looking at %s: %w", content.Role, err)
		}

		if err := checkHead(head, content.Role, sectorSize); err != nil {
			return err
		}
	}

	return nil
}

func checkHead(head []byte, role osimage.Role, sectorSize int64) error {
	for _, known := range magics() {
		if !bytes.HasPrefix(head[known.at:], []byte(known.bytes)) {
			continue
		}

		if got := known.block(head); got < sectorSize {
			return &osimage.Error{
				Kind: osimage.ErrInvalid, Subject: fmt.Sprintf("%s with --sector-size %d", role, sectorSize),
				Detail: fmt.Sprintf("its %s has blocks of %d bytes, which cannot be read from such sectors", known.name, got),
				Fix:    known.fix,
			}
		}
	}

	return nil
}

// headOf returns the first bytes of a content, with zeros behind one that is shorter.
func headOf(ctx context.Context, source osimage.Source, content osimage.Content) ([]byte, error) {
	body, err := source.Open(ctx, content.Role, 0)
	if err != nil {
		return nil, err
	}

	head := make([]byte, headSize)

	_, err = io.ReadFull(body, head[:min(headSize, content.RawSize)])
	if err := errors.Join(err, body.Close()); err != nil {
		return nil, err
	}

	return head, nil
}
