package bmc

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
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
	swapped := slices.Clone(first)
	for _, field := range [][]byte{swapped[0:4], swapped[4:6], swapped[6:8]} {
		slices.Reverse(field)
	}

	return string(first) == string(second) || string(swapped) == string(second)
}

// CheckIdentity gives an error of kind Mismatch when got is another machine than want. UUID and Serial count, where both
// sides have one.
func CheckIdentity(got, want Identity) error {
	mismatch := func(what, got, want string) error {
		return &Error{Kind: Mismatch, Op: "checking which machine answers", Detail: fmt.Sprintf("it has %s %q, not %q", what, got, want)}
	}
	first, second := strings.TrimSpace(got.Serial), strings.TrimSpace(want.Serial)
	switch {
	case !SameUUID(want.UUID, got.UUID):
		return mismatch("UUID", got.UUID, want.UUID)
	case first != "" && second != "" && !strings.EqualFold(first, second):
		return mismatch("serial number", got.Serial, want.Serial)
	default:
		return nil
	}
}

func uuidOf(text string) []byte {
	raw, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(text), "-", ""))
	if err != nil || len(raw) != uuidBytes {
		return nil
	}
	for _, filler := range []byte{0x00, 0xff} {
		if bytes.Count(raw, []byte{filler}) == uuidBytes {
			return nil
		}
	}

	return raw
}
