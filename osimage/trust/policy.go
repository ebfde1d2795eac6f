package trust

import (
	"fmt"
	"slices"
)

// Mode says what happens to an artifact that no trusted key signed.
type Mode string

// The modes. The empty mode is ModeRequire when there are keys, and ModeOff when there are none.
const (
	// ModeRequire refuses it.
	ModeRequire Mode = "require"
	// ModeWarn lets it pass; the Result says why it would have been refused.
	ModeWarn Mode = "warn"
	// ModeOff does not look for signatures at all.
	ModeOff Mode = "off"
)

// Policy says which signatures an artifact needs. Its zero value verifies nothing.
type Policy struct {
	mode Mode
	keys []Key
}

// NewPolicy makes a policy: one signature by any of the keys suffices. Keys that occur twice count once. It is an error
// to ask for signatures without keys: nothing could be verified.
func NewPolicy(mode Mode, keys []Key) (Policy, error) {
	unique := make([]Key, 0, len(keys))

	for _, key := range keys {
		if !slices.ContainsFunc(unique, func(other Key) bool { return other.Fingerprint == key.Fingerprint }) {
			unique = append(unique, key)
		}
	}

	if mode == "" {
		mode = ModeOff
		if len(unique) > 0 {
			mode = ModeRequire
		}
	}

	subject := fmt.Sprintf("signature policy %q", mode)

	switch {
	case !slices.Contains([]Mode{ModeRequire, ModeWarn, ModeOff}, mode):
		return Policy{}, &Error{
			Kind: ErrPolicy, Subject: subject, Detail: "it is unknown",
			Fix: fmt.Sprintf("use %s, %s or %s", ModeRequire, ModeWarn, ModeOff),
		}
	case mode != ModeOff && len(unique) == 0:
		return Policy{}, &Error{
			Kind: ErrPolicy, Subject: subject, Detail: "there is no key to verify signatures with",
			Fix: "give the signers' public keys, or set it to " + string(ModeOff),
		}
	case len(unique) > maxKeys:
		return Policy{}, &Error{
			Kind: ErrPolicy, Subject: subject, Detail: fmt.Sprintf("there are %d keys, at most %d are tried", len(unique), maxKeys),
			Fix: "remove the keys that are used no more",
		}
	}

	return Policy{mode: mode, keys: unique}, nil
}

// Mode returns what happens to an artifact without a signature.
func (p Policy) Mode() Mode {
	if p.mode == "" {
		return ModeOff
	}

	return p.mode
}

// Keys returns the keys that are trusted.
func (p Policy) Keys() []Key {
	return slices.Clone(p.keys)
}

// signer finds the key that made the signature over the message.
func (p Policy) signer(message, sig []byte) (Key, bool) {
	for _, key := range p.keys {
		if key.verifies(message, sig) {
			return key, true
		}
	}

	return Key{}, false
}
