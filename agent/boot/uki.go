package boot

import (
	"io"

	"github.com/stayput-dev/stayput/osimage/uki"
)

// ErrNotUKI is returned for a file that systemd-boot would not list: no PE image, or one without an .osrel section.
var ErrNotUKI = uki.ErrNotUKI

// UKI is what a unified kernel image says of itself.
type UKI = uki.Image

// CommandLine is a kernel command line.
type CommandLine = uki.CommandLine

// ReadUKI reads the text sections of a unified kernel image; the rest of the file is not read.
func ReadUKI(file io.ReaderAt) (UKI, error) { return uki.Read(file) }

// ParseOSRelease reads the text of an os-release file.
func ParseOSRelease(text string) map[string]string { return uki.ParseOSRelease(text) }
