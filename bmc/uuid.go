package bmc

import (
	"encoding/hex"
	"strings"
)

const uuidBytes = 16

// SameUUID tells whether two UUIDs can be those of one machine: equal, or equal with the first three fields in the
// other byte order, since SMBIOS before 2.6 did not fix it (SMBIOS 3.x, 7.2.1) and BMC and kernel may disagree. An
// empty or meaningless UUID (all zero, all ones, no UUID at all) is evidence of nothing and passes.
func SameUUID(a, b string) bool {
	first, second := uuidOf(a), uuidOf(b)
	if first == nil || second == nil {
		return true
	}
	swapped := []byte{
		first[3], first[2], first[1], first[0], first[5], first[4], first[7], first[6],
	}
	swapped = append(swapped, first[8:]...)

	return string(first) == string(second) || string(swapped) == string(second)
}

func uuidOf(text string) []byte {
	raw, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(text), "-", ""))
	if err != nil || len(raw) != uuidBytes {
		return nil
	}
	if strings.Trim(string(raw), "\x00") == "" || strings.Trim(string(raw), "\xff") == "" {
		return nil
	}

	return raw
}
