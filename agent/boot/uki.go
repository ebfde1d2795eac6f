package boot

import (
	"debug/pe"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxSectionBytes bounds what is read of a UKI's text sections. The kernel takes 4 KiB of command line at most.
const maxSectionBytes = 64 << 10

// ErrNotUKI is returned for a file that systemd-boot would not list: no PE image, or one without an .osrel section.
var ErrNotUKI = errors.New("not a unified kernel image")

// UKI is what a unified kernel image says of itself.
type UKI struct {
	// OSRelease is its .osrel section.
	OSRelease map[string]string
	// CommandLine is its .cmdline section.
	CommandLine CommandLine
}

// ReadUKI reads the text sections of a unified kernel image; the rest of the file is not read.
func ReadUKI(file io.ReaderAt) (UKI, error) {
	image, err := pe.NewFile(file)
	if err != nil {
		return UKI{}, fmt.Errorf("%w: %w", ErrNotUKI, err)
	}
	defer func() { _ = image.Close() }() // closes nothing: the file is the caller's

	osrel, err := sectionText(image, ".osrel")
	if err != nil {
		return UKI{}, err
	}

	if osrel == "" {
		return UKI{}, fmt.Errorf("%w: it has no .osrel section", ErrNotUKI)
	}

	cmdline, err := sectionText(image, ".cmdline")
	if err != nil {
		return UKI{}, err
	}

	return UKI{OSRelease: ParseOSRelease(osrel), CommandLine: CommandLine(strings.TrimSpace(cmdline))}, nil
}

// SortKey is what systemd-boot sorts the image by first: IMAGE_ID, else ID.
func (u UKI) SortKey() string {
	return firstOf(u.OSRelease, "IMAGE_ID", "ID")
}

// Version is what systemd-boot sorts images of the same key by: the first of IMAGE_VERSION, VERSION, VERSION_ID and
// BUILD_ID.
func (u UKI) Version() string {
	return firstOf(u.OSRelease, "IMAGE_VERSION", "VERSION", "VERSION_ID", "BUILD_ID")
}

// RootHash is the dm-verity root hash that the image starts with, in lower case, "" when there is none.
func (u UKI) RootHash() string { return u.CommandLine.RootHash() }

// RootHash is the dm-verity root hash on a command line (systemd-veritysetup-generator(8)), in lower case.
func (c CommandLine) RootHash() string {
	for _, key := range []string{"usrhash", "roothash"} {
		if hash, found := c.Value(key); found {
			return strings.ToLower(hash)
		}
	}

	return ""
}

func firstOf(values map[string]string, keys ...string) string {
	for _, key := range keys {
		if values[key] != "" {
			return values[key]
		}
	}

	return ""
}

func sectionText(image *pe.File, name string) (string, error) {
	section := image.Section(name)
	if section == nil {
		return "", nil
	}

	// The file holds the section padded to the file alignment; its virtual size is the length of the text.
	size := min(int64(section.Size), maxSectionBytes)
	if section.VirtualSize > 0 {
		size = min(size, int64(section.VirtualSize))
	}

	text, err := io.ReadAll(io.NewSectionReader(section.ReaderAt, 0, size))
	if err != nil {
		return "", fmt.Errorf("%w: reading its section %s: %w", ErrNotUKI, name, err)
	}

	return strings.TrimRight(string(text), "\x00"), nil
}
