package flatcar

import (
	"bytes"
	"context"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source"
)

const (
	// slotSize is how much of USR-A an update brings (extract_blocks of disk_layout.json): the whole partition of disks
	// that were installed before October 2025. Those never grow, so nothing behind it may be used.
	slotSize = 1 << 30
	// maxKernel bounds a kernel with its initrd; real ones have 40 to 90 MiB.
	maxKernel = 256 << 20
	// blockSize is that of the file system, the hash tree and the payload's extents.
	blockSize = 4096
	// pieceSize is how much is read at once.
	pieceSize = 1 << 20
)

// Options change how an artifact is read. The zero value reads what it can, and checks all but the whole hash tree.
type Options struct {
	// Name and Version are those of the image. "" takes them from the os-release file in /usr.
	Name, Version string
	// Kernel is the file with the kernel (flatcar_production_image.vmlinuz), for an update that has none.
	Kernel string
	// Keys are the public keys that a payload may be signed with; with none the signature is not looked at.
	Keys []*rsa.PublicKey
	// Full compares all of /usr with the hash tree, not only the tree's top with the kernel. It reads 1 GiB.
	Full bool
	// TempDir is the folder for what a compressed artifact unpacks to, up to 2 GiB; "" is the system's. Nothing remains
	// there, not even after a crash.
	TempDir string
	// Progress, when set, is called with how many bytes of the artifact are read.
	Progress func(done, total int64)
}

func (o Options) progress(done, total int64) {
	if o.Progress != nil {
		o.Progress(done, total)
	}
}

// Read reads a disk image or an update, whichever the file is. The caller closes the parts.
func Read(ctx context.Context, path string, options Options) (*source.Parts, error) {
	head, err := peek(path)
	if err != nil {
		return nil, err
	}

	for _, sector := range []int{512, 4096} {
		if len(head) >= sector && bytes.HasPrefix(head[sector:], []byte("EFI PART")) {
			return ReadDisk(ctx, path, options)
		}
	}

	return ReadPayload(ctx, path, options)
}

// peek gives the first bytes of what a file holds, unpacked.
func peek(path string) (head []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the artifact: %w", err)
	}

	defer func() { err = errors.Join(err, file.Close()) }()

	plain, _, err := unpacked(file, file)
	if err != nil {
		return nil, refuse(path, "it cannot be unpacked: "+err.Error(), redownload)
	}

	head = make([]byte, 2*blockSize)

	count, err := io.ReadFull(plain, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, refuse(path, "it cannot be unpacked: "+err.Error(), redownload)
	}

	return head[:count], nil
}

const (
	redownload = "download it again and compare its checksum"
	unsigned   = "compare the file with its .DIGESTS or .sig before you trust it"
)

func refuse(subject, detail, fix string) error {
	return &osimage.Error{Kind: osimage.ErrInvalid, Subject: subject, Detail: detail, Fix: fix}
}

// opened makes an input of what can be read anywhere.
func opened(name string, size int64, reader io.ReaderAt) osimage.Input {
	return osimage.Input{Name: name, Size: size, Open: func(context.Context) (io.ReadCloser, error) {
		return io.NopCloser(io.NewSectionReader(reader, 0, size)), nil
	}}
}
