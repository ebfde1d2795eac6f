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

// Likeness is what the identity that a BMC tells says about another one.
type Likeness string

// The likenesses.
const (
	// LikenessOther: it is another machine.
	LikenessOther Likeness = "Other"
	// LikenessSame: all that is expected is told, and equal.
	LikenessSame Likeness = "Same"
	// LikenessUnknown: nothing that is told speaks against it, and something that is expected is not told.
	LikenessUnknown Likeness = "Unknown"
	// LikenessNone: nothing is expected.
	LikenessNone Likeness = "None"
)

// CompareIdentity compares UUID and Serial. why says in words what differs, or what the BMC does not tell; it is empty
// with LikenessSame and LikenessNone. What is expected and is no UUID at all, is never the same.
func CompareIdentity(got, want Identity) (likeness Likeness, why string) {
	told, expected := strings.TrimSpace(got.Serial), strings.TrimSpace(want.Serial)
	var untold []string
	switch {
	case want.UUID == "":
	case !SameUUID(want.UUID, got.UUID):
		return LikenessOther, fmt.Sprintf("it has UUID %q, not %q", got.UUID, want.UUID)
	case uuidOf(want.UUID) == nil:
		untold = append(untold, fmt.Sprintf("%q is no UUID that a machine can have", want.UUID))
	case uuidOf(got.UUID) == nil:
		untold = append(untold, fmt.Sprintf("the BMC tells no UUID, and %q is expected", want.UUID))
	}
	switch {
	case expected == "":
	case told == "":
		untold = append(untold, fmt.Sprintf("the BMC tells no serial number, and %q is expected", expected))
	case !strings.EqualFold(told, expected):
		return LikenessOther, fmt.Sprintf("it has serial number %q, not %q", got.Serial, want.Serial)
	}
	switch {
	case len(untold) > 0:
		return LikenessUnknown, strings.Join(untold, "; ")
	case want.UUID == "" && expected == "":
		return LikenessNone, ""
	default:
		return LikenessSame, ""
	}
}

const opIdentity = "checking which machine answers"

// CheckIdentity gives an error of kind Mismatch when got is another machine than want. UUID and Serial count, where both
// sides have one. It is for what was learned of the machine, such as from its BareMetalHost; see RequireIdentity.
func CheckIdentity(got, want Identity) error {
	if likeness, why := CompareIdentity(got, want); likeness == LikenessOther {
		return &Error{Kind: Mismatch, Op: opIdentity, Detail: why}
	}

	return nil
}

// RequireIdentity is CheckIdentity for what a person asked for: it refuses with kind Mismatch, too, what cannot be shown,
// since the BMC does not tell it.
func RequireIdentity(got, want Identity) error {
	switch likeness, why := CompareIdentity(got, want); likeness {
	case LikenessOther:
		return &Error{Kind: Mismatch, Op: opIdentity, Detail: why}
	case LikenessUnknown:
		return &Error{
			Kind: Mismatch, Op: opIdentity,
			Detail: why + "; it cannot be shown that it is the expected machine: do not ask for it, or look at the machine itself",
		}
	case LikenessSame, LikenessNone:
	}

	return nil
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
