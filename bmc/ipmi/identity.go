package ipmi

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/stayput-dev/stayput/bmc"
)

// IPMI 2.0, 20.1 and 22.14.
const (
	netFnApp = 0x06

	deviceID       = 0x01
	deviceIDLength = 9
	systemGUID     = 0x37
	guidLength     = 16
)

// device is what a BMC says of itself.
type device struct {
	// firmware is its version, such as "9.08".
	firmware string
	// manufacturer is an IANA enterprise number.
	manufacturer int
}

func (m *machine) readDevice(ctx context.Context, op string) (device, error) {
	answer, err := m.read(ctx, op, deviceIDLength, netFnApp, deviceID)
	if err != nil {
		return device{}, err
	}

	return device{
		// The highest bit tells of an update; the minor number is in BCD.
		firmware:     fmt.Sprintf("%d.%02x", answer[2]&0x7f, answer[3]),
		manufacturer: int(answer[6]) | int(answer[7])<<8 | int(answer[8]&0x0f)<<16,
	}, nil
}

// Identity implements bmc.Machine. A BMC without a GUID or a FRU has none: those parts are empty.
func (m *machine) Identity(ctx context.Context) (bmc.Identity, error) {
	const op = "reading the identity"
	now, err := m.readDevice(ctx, op)
	if err != nil {
		// What tells one machine from another is not the firmware, which was read at the login.
		now = m.device
	}
	uuid, err := m.uuid(ctx, op)
	if err != nil {
		return bmc.Identity{}, err
	}
	product, err := m.run(ctx, command{op: op, words: []string{"fru", "print", "0"}})
	serial := field(product, "Product Serial")
	// One that has it and could not answer is an error: an identity that is empty by accident would pass every check. With
	// the serial number all of the product was read, and other parts do not matter.
	if err != nil && bmc.KindOf(err) != bmc.Unsupported && serial == "" {
		return bmc.Identity{}, err
	}

	return bmc.Identity{
		UUID: uuid, Serial: serial, Model: field(product, "Product Name"),
		Manufacturer: field(product, "Product Manufacturer"), BMCFirmware: now.firmware,
	}, nil
}

// isExpected refuses another machine than the expected one, before it is acted on: each run of ipmitool is a session of its
// own, and may meet the machine that took the other's place.
func (m *machine) isExpected(ctx context.Context, op string) error {
	if m.options.UUID == "" {
		return nil
	}
	_, err := m.uuid(ctx, op)

	return err
}

// uuid reads the machine's UUID, and gives an error of kind Mismatch when it cannot be the expected one.
func (m *machine) uuid(ctx context.Context, op string) (string, error) {
	answer, err := m.read(ctx, op, guidLength, netFnApp, systemGUID)
	if bmc.KindOf(err) == bmc.Unsupported {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	readings := readGUID([guidLength]byte(answer))
	if m.options.UUID == "" {
		return readings[0], nil
	}
	for _, each := range readings {
		if bmc.SameUUID(m.options.UUID, each) {
			return each, nil
		}
	}

	return "", m.fail(bmc.Mismatch, op, fmt.Sprintf(
		"the machine's UUID is %s, not %s; another machine may have this address", readings[0], m.options.UUID), nil)
}

// readGUID gives the UUIDs that a GUID can stand for, the likeliest first. IPMI 2.0, 20.8, wants all bytes in reverse;
// BMCs also send those of SMBIOS, with three fields in reverse, or those of RFC 4122. Likely is one that has a version and
// the variant of RFC 4122.
func readGUID(raw [guidLength]byte) []string {
	reversed := slices.Clone(raw[:])
	slices.Reverse(reversed)
	smbios := slices.Clone(raw[:])
	for _, part := range [][]byte{smbios[0:4], smbios[4:6], smbios[6:8]} {
		slices.Reverse(part)
	}
	readings := [][]byte{reversed, smbios, raw[:]}
	slices.SortStableFunc(readings, func(a, b []byte) int {
		switch {
		case likely(a) == likely(b):
			return 0
		case likely(a):
			return -1
		default:
			return 1
		}
	})
	texts := make([]string, 0, len(readings))
	for _, each := range readings {
		text := hex.EncodeToString(each)
		texts = append(texts, strings.Join([]string{text[:8], text[8:12], text[12:16], text[16:20], text[20:]}, "-"))
	}

	return texts
}

func likely(uuid []byte) bool {
	const maxVersion = 8
	version := uuid[6] >> 4

	return version >= 1 && version <= maxVersion && uuid[8]&0xc0 == 0x80
}

// field finds "name : value" in ipmitool's table.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		key, value, found := strings.Cut(line, ":")
		if found && strings.TrimSpace(key) == name {
			return bmc.OneLine(value)
		}
	}

	return ""
}
