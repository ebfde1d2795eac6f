package faulty

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/stayput-dev/stayput/osimage"
)

// ErrBroken is what a source returns whose transfer breaks.
var ErrBroken = errors.New("the connection broke")

// Image is an OS image in memory; it is a slots.Source.
type Image struct {
	config   osimage.Config
	contents map[osimage.Role][]byte
	// BreakAfter is how many bytes each reader gives before it breaks; 0 is never.
	BreakAfter int
	// Opened are the offsets at which contents were opened.
	Opened []Opened
}

// Opened is a call of Open.
type Opened struct {
	Role   osimage.Role
	Offset int64
}

// Sizes of an image's contents, in bytes. No size is a multiple of a sector, so that ends are odd.
const (
	dataBytes   = 20_123
	verityBytes = 4_321
	padBytes    = 9_000
)

// NewImage makes an image for a machine with usr slots. Its root hash is the SHA-256 of its file system.
func NewImage(name, version string) *Image {
	data, verity := pattern(name+version+"data", dataBytes), pattern(name+version+"verity", verityBytes)
	sum := sha256.Sum256(append(bytes.Clone(data), verity...))
	rootHash := hex.EncodeToString(sum[:])

	return MakeImage(name, version, rootHash, map[osimage.Role][]byte{
		osimage.RoleUSR: data, osimage.RoleUSRVerity: verity,
		osimage.RoleUKI: UKI(name, version, "usrhash="+rootHash+" panic=5"),
	})
}

// MakeImage makes an image of any contents; its config is right about them.
func MakeImage(name, version, rootHash string, contents map[osimage.Role][]byte) *Image {
	image := &Image{contents: contents, config: osimage.Config{
		Name: name, Version: version, Architecture: "amd64", Scheme: osimage.SchemeDPS, RootHash: rootHash,
	}}

	for _, role := range []osimage.Role{
		osimage.RoleRoot, osimage.RoleRootVerity, osimage.RoleUSR, osimage.RoleUSRVerity, osimage.RoleUKI,
	} {
		content, ok := contents[role]
		if !ok {
			continue
		}

		digest := digestOf(content)
		image.config.Contents = append(image.config.Contents, osimage.Content{
			Role: role, Digest: digest, Size: int64(len(content)), RawDigest: digest, RawSize: int64(len(content)),
		})
	}

	return image
}

// Config is the image's config.
func (i *Image) Config() osimage.Config { return i.config }

// WithConfig is the same image with another config.
func (i *Image) WithConfig(config osimage.Config) *Image {
	return &Image{config: config, contents: i.contents}
}

// Content is the raw bytes of a content; changing them makes the source a liar.
func (i *Image) Content(role osimage.Role) []byte { return i.contents[role] }

// Open opens a content. Like osimage's, a reader from 0 on fails at its end when the bytes are not those of the config.
func (i *Image) Open(_ context.Context, role osimage.Role, offset int64) (io.ReadCloser, error) {
	i.Opened = append(i.Opened, Opened{role, offset})
	content := i.contents[role][offset:]

	if i.BreakAfter > 0 && i.BreakAfter < len(content) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(content[:i.BreakAfter]), failingReader{ErrBroken})), nil
	}

	reader := io.Reader(bytes.NewReader(content))
	if configured, _ := i.config.Content(role); offset == 0 && configured.RawDigest != digestOf(content) {
		reader = io.MultiReader(reader, failingReader{osimage.ErrWrongDigest})
	}

	return io.NopCloser(reader), nil
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)

	return "sha256:" + hex.EncodeToString(sum[:])
}

// failingReader fails.
type failingReader struct{ err error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.err }

// pattern is bytes that do not repeat, the same for the same seed.
func pattern(seed string, size int) []byte {
	content := make([]byte, size)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(seed))).Read(content) // never fails

	return content
}

// UKI makes the smallest file that passes for a unified kernel image: a PE header and the sections .osrel, .cmdline and
// .linux, which is padding.
func UKI(name, version, commandLine string) []byte {
	osrel := fmt.Sprintf("ID=lab\nIMAGE_ID=%s\nIMAGE_VERSION=%s\n", name, version)

	return PE(map[string][]byte{
		".osrel": []byte(osrel), ".cmdline": []byte(commandLine), ".linux": pattern(name+version, padBytes),
	}, ".osrel", ".cmdline", ".linux")
}

// PE makes a PE file of sections in an order (Microsoft PE format: DOS header, signature, COFF header, section table).
func PE(sections map[string][]byte, order ...string) []byte {
	const (
		dosBytes, signatureAt, headerBytes, sectionBytes = 64, 60, 20, 40
		amd64                                            = 0x8664
	)

	file := append([]byte("MZ"), make([]byte, dosBytes-2)...)
	binary.LittleEndian.PutUint32(file[signatureAt:], dosBytes)

	file = append(file, 'P', 'E', 0, 0)
	file = binary.LittleEndian.AppendUint16(file, amd64)
	file = binary.LittleEndian.AppendUint16(file, uint16(len(order))) //nolint:gosec // a few
	file = append(file, make([]byte, headerBytes-4)...)

	offset := len(file) + sectionBytes*len(order)

	for _, name := range order {
		size := uint32(len(sections[name])) //nolint:gosec // small
		header := make([]byte, sectionBytes)
		copy(header, name)
		binary.LittleEndian.PutUint32(header[8:], size)
		binary.LittleEndian.PutUint32(header[16:], size)
		binary.LittleEndian.PutUint32(header[20:], uint32(offset)) //nolint:gosec // small

		file = append(file, header...)
		offset += len(sections[name])
	}

	for _, name := range order {
		file = append(file, sections[name]...)
	}

	return file
}
