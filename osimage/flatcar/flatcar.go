package flatcar

import (
	"bytes"
	"context"
	"crypto/rsa"
	"errors"
	"io"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source"
	"github.com/stayput-dev/stayput/osimage/source/packed"
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
	// maxDisk bounds what a compressed disk image may unpack to, up to the end of what is needed of it.
	maxDisk = 1 << 40
	// maxUpdate bounds what a compressed update may unpack to: a payload is hardly larger than the slot that it fills.
	maxUpdate = 2 << 30
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

func (o Options) unpacking(limit int64) packed.Options {
	return packed.Options{TempDir: o.TempDir, Limit: limit, Progress: o.Progress}
}

// Read reads a disk image or an update, whichever the file is. The caller closes the parts.
func Read(ctx context.Context, path string, options Options) (*source.Parts, error) {
	//nolint:contextcheck // It reads one piece.
	head, _, err := packed.Head(path, 2*blockSize)
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

// counter passes data on, tells how much it was, and ends with the context.
type counter struct {
	ctx         context.Context //nolint:containedctx // A reader's context is that of the call that made it.
	reader      io.Reader
	done, total int64
	call        func(done, total int64)
}

func (c *counter) Read(buffer []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}

	count, err := c.reader.Read(buffer)
	c.done += int64(count)
	c.call(c.done, c.total)

	return count, err
}

// notEOF keeps an end that is told by a count from being told twice.
func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}

	return err
}
