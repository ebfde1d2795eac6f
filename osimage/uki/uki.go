package uki

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxTextBytes bounds what is read of a text section. The kernel takes 4 KiB of command line at most.
const maxTextBytes = 64 << 10

// ErrNotUKI is returned for a file that systemd-boot would not list: no PE image, or one without an .osrel section.
var ErrNotUKI = errors.New("not a unified kernel image")

// Image is what a unified kernel image says of itself.
type Image struct {
	// OSRelease is its .osrel section.
	OSRelease map[string]string
	// CommandLine is its .cmdline section.
	CommandLine CommandLine
	// KernelRelease is its .uname section, such as "6.12.38-amd64"; "" when there is none.
	KernelRelease string
	// Architecture is the GOARCH that it is made for, "" for one that images cannot have.
	Architecture string
	// Signed tells that there is a signature for Secure Boot. It is not verified.
	Signed bool
	// HasKernel tells that there is a .linux section.
	HasKernel bool
	// Size is the number of bytes that its headers tell of; a shorter file is not all of it.
	Size int64
}

// Read reads the headers and the text sections; the rest of the file is not read.
func Read(file io.ReaderAt) (Image, error) {
	headers, err := readHeaders(file)
	if err != nil {
		return Image{}, fmt.Errorf("%w: %w", ErrNotUKI, err)
	}

	image := Image{Architecture: headers.architecture(), Signed: headers.signed(), Size: headers.size()}
	texts := map[string]string{}

	for _, section := range headers.sections {
		// What follows belongs to other profiles of a multi-profile image.
		if section.name == ".profile" {
			break
		}

		image.HasKernel = image.HasKernel || section.name == ".linux"

		switch _, seen := texts[section.name]; {
		case seen: // the boot loader takes the first one
		case section.name == ".osrel", section.name == ".cmdline", section.name == ".uname":
			if texts[section.name], err = section.text(file); err != nil {
				return Image{}, fmt.Errorf("%w: reading its section %s: %w", ErrNotUKI, section.name, err)
			}
		}
	}

	if texts[".osrel"] == "" {
		return Image{}, fmt.Errorf("%w: it has no .osrel section", ErrNotUKI)
	}

	image.OSRelease = ParseOSRelease(texts[".osrel"])
	image.CommandLine = CommandLine(strings.TrimSpace(texts[".cmdline"]))
	image.KernelRelease = strings.TrimSpace(texts[".uname"])

	return image, nil
}

// SortKey is what systemd-boot sorts the image by first: IMAGE_ID, else ID.
func (i Image) SortKey() string { return SortKey(i.OSRelease) }

// Version is what systemd-boot sorts images of the same key by: the first of IMAGE_VERSION, VERSION, VERSION_ID and
// BUILD_ID.
func (i Image) Version() string { return Version(i.OSRelease) }

// RootHash is the dm-verity root hash that the image starts with, in lower case, "" when there is none.
func (i Image) RootHash() string { return i.CommandLine.RootHash() }
