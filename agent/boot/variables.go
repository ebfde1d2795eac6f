package boot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf16"

	"golang.org/x/sys/unix"
)

// EFIVariablesDir is where Linux mounts efivarfs.
const EFIVariablesDir = "/sys/firmware/efi/efivars"

// The variables of the Boot Loader Interface (systemd.io/BOOT_LOADER_INTERFACE) that are of use here.
const (
	LoaderBootCountPath  = "LoaderBootCountPath"
	LoaderDevicePartUUID = "LoaderDevicePartUUID"
	LoaderEntryDefault   = "LoaderEntryDefault"
	LoaderEntryOneShot   = "LoaderEntryOneShot"
	LoaderEntryPreferred = "LoaderEntryPreferred"
	LoaderEntrySelected  = "LoaderEntrySelected"
	LoaderFeatures       = "LoaderFeatures"
	LoaderInfo           = "LoaderInfo"
)

// FeatureBootCounting is the bit of LoaderFeatures that says that the loader counts boots.
const FeatureBootCounting uint64 = 1 << 4

const (
	loaderVendor   = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
	attributeBytes = 4
	utf16Bytes     = 2
	featureBytes   = 8
	// Non-volatile, visible to boot services and at run time (UEFI specification, GetVariable).
	attributesPersistent uint32 = 0x1 | 0x2 | 0x4
	variableMode                = 0o644
	// FS_IMMUTABLE_FL of linux/fs.h.
	flagImmutable = 0x10
)

var (
	errFormat   = errors.New("unexpected format")
	errOutranks = errors.New("refused, it makes the boot loader ignore boot counters")
)

// ErrNoVariable is returned when a variable does not exist. It is what firmware without systemd-boot looks like.
var ErrNoVariable = errors.New("no such EFI variable")

// Variables are the boot loader's EFI variables, read from a directory in the format of efivarfs: a file for each
// variable, 4 bytes of attributes and then the value, text in UTF-16LE with a NUL at its end.
type Variables struct {
	dir string
}

// NewVariables reads the variables of a directory; "" is EFIVariablesDir.
func NewVariables(dir string) Variables {
	if dir == "" {
		dir = EFIVariablesDir
	}

	return Variables{dir: dir}
}

// Bytes returns a variable's value without its attributes, or ErrNoVariable.
func (v Variables) Bytes(name string) ([]byte, error) {
	content, err := os.ReadFile(v.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading EFI variable %s: %w", name, ErrNoVariable)
	}

	if err != nil {
		return nil, fmt.Errorf("reading EFI variable %s: %w", name, err)
	}

	if len(content) < attributeBytes {
		return nil, fmt.Errorf("reading EFI variable %s: %w: %d bytes are too short for its attributes", name, errFormat, len(content))
	}

	return content[attributeBytes:], nil
}

// Text returns a variable that holds text, or ErrNoVariable.
func (v Variables) Text(name string) (string, error) {
	value, err := v.Bytes(name)
	if err != nil {
		return "", err
	}

	if len(value)%utf16Bytes != 0 {
		return "", fmt.Errorf("reading EFI variable %s: %w: %d bytes are no UTF-16 text", name, errFormat, len(value))
	}

	units := make([]uint16, 0, len(value)/utf16Bytes)
	for i := 0; i < len(value); i += utf16Bytes {
		units = append(units, binary.LittleEndian.Uint16(value[i:]))
	}

	text, _, _ := strings.Cut(string(utf16.Decode(units)), "\x00")

	return text, nil
}

// Features returns LoaderFeatures, or ErrNoVariable.
func (v Variables) Features() (uint64, error) {
	value, err := v.Bytes(LoaderFeatures)
	if err != nil {
		return 0, err
	}

	if len(value) != featureBytes {
		return 0, fmt.Errorf("reading EFI variable %s: %w: %d bytes instead of %d", LoaderFeatures, errFormat, len(value),
			featureBytes)
	}

	return binary.LittleEndian.Uint64(value), nil
}

// SetText writes a variable that holds text; it outlives a power cut. It is safe to repeat.
func (v Variables) SetText(name, text string) error {
	if name == LoaderEntryDefault {
		return fmt.Errorf("setting EFI variable %s: %w", name, errOutranks)
	}

	content := binary.LittleEndian.AppendUint32(nil, attributesPersistent)
	for _, unit := range append(utf16.Encode([]rune(text)), 0) {
		content = binary.LittleEndian.AppendUint16(content, unit)
	}

	if err := v.mutable(name); err != nil {
		return fmt.Errorf("setting EFI variable %s: %w", name, err)
	}

	// The kernel takes attributes and value in one write.
	if err := os.WriteFile(v.path(name), content, variableMode); err != nil {
		return fmt.Errorf("setting EFI variable %s: %w", name, err)
	}

	return nil
}

// Delete removes a variable. One that does not exist is fine.
func (v Variables) Delete(name string) error {
	if err := v.mutable(name); err != nil {
		return fmt.Errorf("deleting EFI variable %s: %w", name, err)
	}

	if err := os.Remove(v.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("deleting EFI variable %s: %w", name, err)
	}

	return nil
}

func (v Variables) path(name string) string {
	return filepath.Join(v.dir, name+"-"+loaderVendor)
}

// mutable clears the immutable flag, which efivarfs sets on every variable that it does not know.
func (v Variables) mutable(name string) error {
	file, err := os.Open(v.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return fmt.Errorf("opening it: %w", err)
	}
	defer func() { _ = file.Close() }() // opened for reading only

	flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // a file system without such flags
	}

	if err != nil {
		return fmt.Errorf("reading its flags: %w", err)
	}

	if flags&flagImmutable == 0 {
		return nil
	}

	if err := unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, flags&^flagImmutable); err != nil {
		return fmt.Errorf("clearing its immutable flag: %w", err)
	}

	return nil
}
