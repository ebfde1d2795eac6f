package flatcar

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source"
	"github.com/stayput-dev/stayput/osimage/source/filesystem"
	"github.com/stayput-dev/stayput/osimage/source/packed"
)

// The header of a payload (delta_metadata.cc): magic, then version and size of the manifest, both big-endian.
const (
	payloadMagic = "CrAU"
	versionAt    = 4
	manifestAt   = 12
	headerSize   = 20

	payloadVersion = 1
)

// payload is a container with its manifest.
type payload struct {
	*packed.File
	*manifest

	// blobs is where the blobs begin: behind the manifest.
	blobs int64

	call        func(done, total int64)
	done, total int64
}

// ReadPayload reads flatcar_production_update.gz, also with a real gzip or bzip2 around it, or the unsigned
// flatcar_production_update.bin, which is USR-A itself and needs Options.Kernel. The caller closes the parts.
//
// Of a payload, the signature and the hash of each operation's data are checked now, the hashes of what they make when
// the inputs are read to their ends.
func ReadPayload(ctx context.Context, path string, options Options) (*source.Parts, error) {
	file, err := packed.Open(ctx, path, options.unpacking(maxUpdate))
	if err != nil {
		return nil, err
	}

	parts, err := readPayload(ctx, file, options)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}

	closing := parts.Close
	parts.Close = func() error {
		if closing != nil {
			return errors.Join(closing(), file.Close())
		}

		return file.Close()
	}

	return parts, nil
}

func readPayload(ctx context.Context, file *packed.File, options Options) (*source.Parts, error) {
	magic := make([]byte, len(payloadMagic))
	if _, err := file.ReadAt(magic, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("reading %s: %w", file.Name, err)
	}

	if string(magic) == payloadMagic {
		return readContainer(ctx, file, options)
	}

	if _, _, err := filesystem.Identify(file); err != nil {
		return nil, &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: file.Name, Err: err, Fix: "give flatcar_production_update.gz or .bin",
			Detail: fmt.Sprintf("offset 0: it begins with %q, want %q, or the file system of /usr", magic, payloadMagic),
		}
	}

	return readPartition(ctx, file, options)
}

// readPartition reads what is the partition itself.
func readPartition(ctx context.Context, file *packed.File, options Options) (*source.Parts, error) {
	switch {
	case len(options.Keys) > 0:
		return nil, refuse(file.Name, "it is a bare partition and has no signature", "give flatcar_production_update.gz")
	case file.Size > slotSize:
		return nil, &osimage.Error{
			Kind: osimage.ErrTooLarge, Subject: file.Name, Detail: fmt.Sprintf("it has %d bytes, a slot has %d", file.Size, int64(slotSize)),
			Fix: "give flatcar_production_update.bin",
		}
	}

	data := usr{name: file.Name, size: file.Size, reader: func() io.ReaderAt { return file }}

	parts, err := withKernelFile(ctx, data, options)
	if err != nil {
		return nil, err
	}

	parts.Inputs[osimage.RoleUSR] = opened(data.name, data.size, file)
	parts.Notes = append(parts.Notes, "a bare partition has no signature inside: "+unsigned)

	return parts, nil
}

// withKernelFile takes the kernel from a file of its own.
func withKernelFile(ctx context.Context, data usr, options Options) (*source.Parts, error) {
	if options.Kernel == "" {
		return nil, refuse(data.name, "there is no kernel in it", "give flatcar_production_image.vmlinuz of the same release with --kernel")
	}

	file, err := os.Open(options.Kernel)
	if err != nil {
		return nil, fmt.Errorf("reading the kernel: %w", err)
	}

	parts, err := kernelFile(ctx, data, file, options)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}

	parts.Close = file.Close

	return parts, nil
}

func kernelFile(ctx context.Context, data usr, file *os.File, options Options) (*source.Parts, error) {
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("finding the size of %s: %w", options.Kernel, err)
	}

	if size > maxKernel {
		return nil, &osimage.Error{
			Kind: osimage.ErrTooLarge, Subject: options.Kernel, Detail: fmt.Sprintf("it has %d bytes, a kernel at most %d", size, maxKernel),
			Fix: "give flatcar_production_image.vmlinuz",
		}
	}

	boot, err := readKernel(file, options.Kernel)
	if err != nil {
		return nil, err
	}

	parts, err := assemble(ctx, data, boot, options)
	if err != nil {
		return nil, err
	}

	parts.Inputs = map[osimage.Role]osimage.Input{osimage.RoleKernel: opened(options.Kernel, size, file)}

	return parts, nil
}

// readContainer reads a payload.
func readContainer(ctx context.Context, file *packed.File, options Options) (*source.Parts, error) {
	container, err := openPayload(file, options)
	if err != nil {
		return nil, err
	}

	signature, err := container.checkSignature(ctx, options)
	if err != nil {
		return nil, err
	}

	partition, err := newContent(container, "/usr", container.operations, container.info, slotSize)
	if err != nil {
		return nil, err
	}

	if err := partition.verify(ctx, container); err != nil {
		return nil, err
	}

	data := usr{name: partition.name, size: partition.size, reader: func() io.ReaderAt { return partition.reader() }}

	parts, err := container.withKernel(ctx, data, options)
	if err != nil {
		return nil, err
	}

	parts.Inputs[osimage.RoleUSR] = partition.input()
	parts.Notes = append(parts.Notes, signature...)

	return parts, nil
}

// withKernel takes the kernel from the payload, or from a file when the payload has none.
func (p *payload) withKernel(ctx context.Context, data usr, options Options) (*source.Parts, error) {
	var (
		kernels []procedure
		notes   []string
	)

	for _, procedure := range p.procedures {
		switch procedure.kind {
		case procedureKernel:
			kernels = append(kernels, procedure)
		case procedurePCR:
			notes = append(notes, "the payload's policy for the TPM's registers was left out")
		default:
			notes = append(notes, "the payload has a procedure of a kind that is not known, it was left out")
		}
	}

	switch {
	case len(kernels) > 1:
		return nil, p.refuse(headerSize, fmt.Sprintf("the manifest has %d kernels", len(kernels)))
	case len(kernels) == 0:
		return withKernelFile(ctx, data, options)
	case options.Kernel != "":
		return nil, refuse(p.Name, "the payload brings its own kernel", "leave --kernel out")
	}

	image, err := newContent(p, "kernel", kernels[0].operations, kernels[0].info, maxKernel)
	if err != nil {
		return nil, err
	}

	if err := image.verify(ctx, p); err != nil {
		return nil, err
	}

	boot, err := readKernel(image.reader(), image.name)
	if err != nil {
		return nil, err
	}

	parts, err := assemble(ctx, data, boot, options)
	if err != nil {
		return nil, err
	}

	parts.Inputs = map[osimage.Role]osimage.Input{osimage.RoleKernel: image.input()}
	parts.Notes = append(parts.Notes, notes...)

	return parts, nil
}

// openPayload reads header and manifest.
func openPayload(file *packed.File, options Options) (*payload, error) {
	result := &payload{File: file, call: options.progress, total: file.Size}
	if len(options.Keys) > 0 {
		result.total += file.Size
	}

	header := make([]byte, headerSize)
	if count, err := file.ReadAt(header, 0); count < headerSize {
		if notEOF(err) != nil {
			return nil, fmt.Errorf("reading %s: %w", file.Name, err)
		}

		return nil, result.cut(headerSize, "header")
	}

	if version := binary.BigEndian.Uint64(header[versionAt:]); version != payloadVersion {
		return nil, result.refuse(versionAt, fmt.Sprintf("the payload's version is %d, want %d", version, payloadVersion))
	}

	length := binary.BigEndian.Uint64(header[manifestAt:])
	if length == 0 || length > maxManifest {
		return nil, result.refuse(manifestAt, fmt.Sprintf("the manifest has %d bytes, want 1 to %d", length, maxManifest))
	}

	result.blobs = headerSize + int64(length)
	if result.blobs > file.Size {
		return nil, result.cut(result.blobs, "manifest")
	}

	message := make([]byte, length)
	if _, err := file.ReadAt(message, headerSize); err != nil && notEOF(err) != nil {
		return nil, fmt.Errorf("reading %s: %w", file.Name, err)
	}

	parsed, err := parseManifest(message, headerSize)
	if err != nil {
		return nil, refuse(file.Name, "the payload's manifest, "+err.Error(), redownload)
	}

	if parsed.blockSize != blockSize {
		return nil, result.refuse(headerSize, fmt.Sprintf("block_size is %d, want %d", parsed.blockSize, blockSize))
	}

	result.manifest = parsed

	return result, result.checkEnd()
}

// checkEnd tells a cut payload before anything else is said of it: the signatures are its end, or the last blob.
func (p *payload) checkEnd() error {
	var end uint64

	reach := func(operations []operation) {
		for _, operation := range operations {
			end = max(end, min(operation.offset, maxUpdate)+min(operation.length, maxUpdate))
		}
	}

	reach(p.operations)

	for _, procedure := range p.procedures {
		reach(procedure.operations)
	}

	if p.signed {
		end = max(end, min(p.signaturesOffset, maxUpdate)+min(p.signaturesLen, maxUpdate))
	}

	if want := p.blobs + int64(end); want > p.Size { //nolint:gosec // At most 2^32.
		return p.cut(want, "data")
	}

	return nil
}

func (p *payload) refuse(offset int64, detail string) error {
	return refuse(p.Name, fmt.Sprintf("offset %d: %s", offset, detail), redownload)
}

func (p *payload) cut(want int64, what string) error {
	return &osimage.Error{
		Kind: osimage.ErrTruncated, Subject: p.Name, Detail: fmt.Sprintf("the payload's %s ends at %d, the file at %d", what, want, p.Size),
		Fix: redownload,
	}
}

// counted tells the progress of reading a part of the payload, and ends with the context. With keys all is read twice: for
// the signature, and for the hash of each operation's data.
func (p *payload) counted(ctx context.Context, from io.Reader) io.Reader {
	start := p.done

	return &counter{ctx: ctx, reader: from, total: p.total, call: func(done, total int64) {
		p.done = start + done
		p.call(min(p.done, total), total)
	}}
}
