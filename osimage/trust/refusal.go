package trust

import (
	"errors"
	"fmt"
	"strings"
)

// shownKeys is how many of the trusted keys an error names.
const shownKeys = 3

// refusal is the error when no signature is good: what was found, and what to do.
func (s *search) refusal(subject string) error {
	if len(s.refused) == 0 {
		return &Error{
			Kind: ErrUnsigned, Subject: subject, Detail: "there is neither a tag sha256-….sig nor a sigstore bundle for it",
			Fix: "sign it with `stayput image sign` or `cosign sign --key`, by " + s.trusted(),
		}
	}

	kinds := []struct {
		kind      error
		one, many string
		fix       string
	}{
		{
			ErrWrongDigest, "over another digest", "over another digest",
			"the signature belongs to another artifact: sign this one, or use that one",
		},
		{ErrWrongType, "of another type", "of another type", "an attestation is no approval: sign it with `stayput image sign`"},
		{
			ErrWrongKey, "by an unknown key, or altered", "by unknown keys, or altered",
			"if the signer is to be trusted, add its public key; else have it signed by " + s.trusted(),
		},
		{ErrMalformed, "broken", "broken", "remove the broken signatures and sign it again"},
	}

	var (
		result *Error
		parts  []string
	)

	for _, k := range kinds {
		count, detail := s.count(k.kind)
		if count == 0 {
			continue
		}

		if result == nil {
			result = &Error{Kind: k.kind, Subject: subject, Fix: k.fix}
		}

		text := fmt.Sprintf("%d %s", count, plural(count, k.one, k.many))
		if detail != "" {
			text += " (" + detail + ")"
		}

		parts = append(parts, text)
	}

	result.Detail = fmt.Sprintf("%d %s found: %s", len(s.refused), plural(len(s.refused), "signature", "signatures"),
		strings.Join(parts, ", "))

	if s.cut {
		result.Detail += fmt.Sprintf("; only the first %d were looked at", MaxSignatures)
	}

	return result
}

// count returns how many signatures were refused for a kind of reason, and what is known of the first.
func (s *search) count(kind error) (count int, detail string) {
	for _, refused := range s.refused {
		if !errors.Is(refused.kind, kind) {
			continue
		}

		if count++; detail == "" {
			detail = refused.detail
		}
	}

	return count, detail
}

// trusted names the keys whose signatures count.
func (s *search) trusted() string {
	var names []string

	for _, key := range s.policy.keys[:min(shownKeys, len(s.policy.keys))] {
		names = append(names, "the "+key.String())
	}

	if more := len(s.policy.keys) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d others", more))
	}

	return strings.Join(names, ", or ")
}

func plural(count int, one, many string) string {
	if count == 1 {
		return one
	}

	return many
}
