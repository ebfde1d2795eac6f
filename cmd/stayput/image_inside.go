package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source/filesystem"
	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/osimage/uki"
)

const (
	// blockSize is how much of a content is fetched at once, and maxBlocks how many blocks are kept, so that a look inside
	// stays small whatever the content says of itself.
	insideBlockSize = 256 << 10
	maxInsideBlocks = 64
	// maxOSRelease bounds an os-release file; real ones have 1 KiB.
	maxOSRelease = 64 << 10
)

// inside is what an image's operating system says of itself.
type inside struct {
	// System is its PRETTY_NAME, and SystemVersion what the boot loader takes for its version.
	System        string `json:"system,omitempty"`
	SystemVersion string `json:"systemVersion,omitempty"`
	// Flavour is Garden Linux's canonical name.
	Flavour string `json:"flavour,omitempty"`
	// Kernel is its release, such as "6.12.38-amd64".
	Kernel string `json:"kernel,omitempty"`
	// SecureBoot is "signed" or "not signed", for UKIs.
	SecureBoot string `json:"secureBoot,omitempty"`
	// CommandLine is the kernel's.
	CommandLine string `json:"commandLine,omitempty"`
	// Problem tells what could not be read.
	Problem string `json:"problem,omitempty"`
}

// lookInside reads the few blocks of an image that tell what is in it.
func lookInside(ctx context.Context, image *osimage.Image) inside {
	if _, ok := image.Config().Content(osimage.RoleUKI); ok {
		return insideUKI(ctx, image)
	}

	return insideFlatcar(ctx, image)
}

func insideUKI(ctx context.Context, image *osimage.Image) inside {
	found, err := uki.Read(newContentAt(ctx, image, osimage.RoleUKI))
	if err != nil {
		return inside{Problem: err.Error()}
	}

	result := inside{
		Kernel: found.KernelRelease, SecureBoot: "not signed", CommandLine: string(found.CommandLine),
	}
	result.says(found.OSRelease)

	if found.Signed {
		result.SecureBoot = "signed"
	}

	return result
}

// insideFlatcar reads the os-release file in the /usr file system, and the kernel's header.
func insideFlatcar(ctx context.Context, image *osimage.Image) inside {
	var result inside

	text, err := filesystem.ReadFile(newContentAt(ctx, image, osimage.RoleUSR), "/lib/os-release", maxOSRelease)
	if err != nil {
		result.Problem = "os-release in /usr: " + err.Error()
	} else {
		result.says(uki.ParseOSRelease(string(text)))
	}

	result.Kernel = kernelRelease(newContentAt(ctx, image, osimage.RoleKernel))

	return result
}

func (i *inside) says(release map[string]string) {
	i.System = cmp.Or(release["PRETTY_NAME"], release["NAME"], release["ID"])
	i.SystemVersion = uki.Version(release)
	i.Flavour = release["GARDENLINUX_CNAME"]
}

// kernelRelease reads the release that the setup header of an x86 kernel points to, "" where there is none (Linux,
// Documentation/arch/x86/boot.rst, fields header and kernel_version).
func kernelRelease(kernel io.ReaderAt) string {
	const (
		magicAt, versionAt, base = 0x202, 0x20e, 0x200
		maxRelease               = 128
	)

	header := make([]byte, versionAt+2)
	if _, err := kernel.ReadAt(header, 0); err != nil || string(header[magicAt:magicAt+4]) != "HdrS" {
		return ""
	}

	text := make([]byte, maxRelease)
	at := int64(binary.LittleEndian.Uint16(header[versionAt:])) + base

	count, err := kernel.ReadAt(text, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}

	text, _, _ = bytes.Cut(text[:count], []byte{0})
	// The date of the build and who did it follow.
	text, _, _ = bytes.Cut(text, []byte{' '})

	return string(text)
}

// contentAt reads a content of an image at any place, in blocks that it keeps.
type contentAt struct {
	ctx    context.Context //nolint:containedctx // io.ReaderAt has none, and one call uses this.
	image  *osimage.Image
	role   osimage.Role
	size   int64
	blocks map[int64][]byte
}

func newContentAt(ctx context.Context, image *osimage.Image, role osimage.Role) *contentAt {
	content, _ := image.Config().Content(role)

	return &contentAt{ctx: ctx, image: image, role: role, size: content.RawSize, blocks: map[int64][]byte{}}
}

var errTooManyBlocks = errors.New("too much of it would have to be read")

// ReadAt implements io.ReaderAt.
func (c *contentAt) ReadAt(buffer []byte, offset int64) (int, error) {
	count := 0

	for count < len(buffer) && offset < c.size {
		block, err := c.block(offset / insideBlockSize)
		if err != nil {
			return count, err
		}

		copied := copy(buffer[count:], block[offset%insideBlockSize:])
		count += copied
		offset += int64(copied)
	}

	if count < len(buffer) {
		return count, io.EOF
	}

	return count, nil
}

func (c *contentAt) block(index int64) ([]byte, error) {
	if block, ok := c.blocks[index]; ok {
		return block, nil
	}

	if len(c.blocks) >= maxInsideBlocks {
		return nil, errTooManyBlocks
	}

	body, err := c.image.Open(c.ctx, c.role, index*insideBlockSize)
	if err != nil {
		return nil, err
	}

	block := make([]byte, min(insideBlockSize, c.size-index*insideBlockSize))

	_, err = io.ReadFull(body, block)
	if err := errors.Join(err, body.Close()); err != nil {
		return nil, fmt.Errorf("reading %s: %w", c.role, err)
	}

	c.blocks[index] = block

	return block, nil
}

// signatureCount tells how many signatures are there.
type signatureCount struct {
	// Tag counts those under the tag sha256-….sig, Bundles those that refer to the image.
	Tag     int `json:"tag"`
	Bundles int `json:"bundles"`
	// Problem tells why they cannot be counted.
	Problem string `json:"problem,omitempty"`
}

func (s signatureCount) String() string {
	switch {
	case s.Problem != "":
		return "cannot be told: " + s.Problem
	case s == signatureCount{}:
		return "none"
	}

	return fmt.Sprintf("%d with a tag, %d as bundles (not verified)", s.Tag, s.Bundles)
}

// countSignatures asks once: whoever only looks at an image need not wait for a registry that has just this missing.
func countSignatures(ctx context.Context, store trust.Store, digest string) signatureCount {
	var count signatureCount

	manifest, err := store.Manifest(ctx, trust.SignatureTag(digest))
	if err == nil {
		if parsed, parseErr := v1.ParseManifest(bytes.NewReader(manifest.Bytes)); parseErr == nil {
			count.Tag = len(parsed.Layers)
		}
	} else if !errors.Is(err, trust.ErrNotFound) {
		return signatureCount{Problem: withoutFix(err).Error()}
	}

	referrers, err := store.Referrers(ctx, digest)
	if errors.Is(err, trust.ErrNotFound) {
		referrers, err = listedReferrers(ctx, store, digest)
	}

	if err != nil && !errors.Is(err, trust.ErrNotFound) {
		return signatureCount{Problem: withoutFix(err).Error()}
	}

	for _, referrer := range referrers {
		if trust.IsBundleType(referrer.ArtifactType) {
			count.Bundles++
		}
	}

	return count
}

// listedReferrers reads the list that clients keep where a registry keeps none.
func listedReferrers(ctx context.Context, store trust.Store, digest string) ([]v1.Descriptor, error) {
	manifest, err := store.Manifest(ctx, trust.ReferrersTag(digest))
	if err != nil {
		return nil, err
	}

	index, err := v1.ParseIndexManifest(bytes.NewReader(manifest.Bytes))
	if err != nil {
		return nil, nil //nolint:nilerr // It is no list of referrers, so it names none.
	}

	return index.Manifests, nil
}
