package bmc

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind says what an error means for the caller.
type Kind string

// The kinds. "Not sent" means that the BMC has not acted; of what it refused, it says so.
const (
	// Auth: the BMC refuses the credentials. Do not hurry to try again: BMCs lock accounts.
	Auth Kind = "Auth"
	// Untrusted: the BMC's certificate cannot be verified. A person must mend it.
	Untrusted Kind = "Untrusted"
	// NotFound: there is no such system.
	NotFound Kind = "NotFound"
	// Unsupported: the address, or the action at this BMC, is not supported. Not sent, or refused.
	Unsupported Kind = "Unsupported"
	// Busy: the BMC refuses for now; see RetryAfter. It says that it has not acted.
	Busy Kind = "Busy"
	// Conflict: the BMC refuses in the machine's present state. It says that it has not acted; read the power state.
	Conflict Kind = "Conflict"
	// Transient: the request was not sent, or it was a read. Safe to try again.
	Transient Kind = "Transient"
	// Unknown: an action was sent and its answer lost. The BMC may have acted; read the power state.
	Unknown Kind = "Unknown"
	// Ambiguous: the BMC has several systems and the address names none.
	Ambiguous Kind = "Ambiguous"
	// Mismatch: another machine answers than the expected one.
	Mismatch Kind = "Mismatch"
	// NotFollowed: the BMC accepted the action, and the machine did not follow in time.
	NotFollowed Kind = "NotFollowed"
)

// Kinds are all of them.
func Kinds() []Kind {
	return []Kind{
		Auth, Untrusted, NotFound, Unsupported, Busy, Conflict, Transient, Unknown, Ambiguous, Mismatch, NotFollowed,
	}
}

// RetrySafe tells whether the same call can be made again without the danger of acting twice.
func (k Kind) RetrySafe() bool {
	switch k {
	case Unknown, NotFollowed:
		return false
	default:
		return true
	}
}

// Advice says what to do next, for a person.
func (k Kind) Advice() string {
	switch k {
	case Auth:
		return "correct the credentials before anything else: BMCs lock accounts that are refused too often"
	case Untrusted:
		return "give the BMC a certificate that can be verified, or name its CA"
	case NotFound:
		return "look whether the address names the right system; a BMC that is starting lists none"
	case Unsupported:
		return "use another way that this BMC offers"
	case Busy:
		return "try again later; the BMC says that it has not acted"
	case Conflict:
		return "read the power state; the BMC says that it has not acted"
	case Transient:
		return "try again; nothing was sent"
	case Unknown:
		return "read the power state before anything else; the BMC may have acted"
	case Ambiguous:
		return "name the system's path in the address"
	case Mismatch:
		return "do nothing to this machine; correct the address, or what is expected"
	case NotFollowed:
		return "look at the machine's console and at the BMC's log; then decide whether to act again"
	default:
		return ""
	}
}

// Error is every error of this package. Its text holds no credentials.
type Error struct {
	// Kind says what it means.
	Kind Kind
	// Op is what was being done, as a gerund.
	Op string
	// BMC is the BMC's host and port.
	BMC string
	// Detail is what was seen, and the fix when a person can mend it.
	Detail string
	// RetryAfter is what the BMC asks to wait; 0 when it does not say.
	RetryAfter time.Duration
	// Refused tells that the BMC answered the request of an action with a refusal. What BMCs say is not always what they
	// do: some carry out what they have refused. False when the action was certainly not sent.
	Refused bool
	// LeftOff tells that the machine was switched off, or may still go off, by actions that were to end with it on, and
	// that nobody switches it on now: the caller has to, or to tell a person.
	LeftOff bool
	// Err is the cause, nil when the BMC answered.
	Err error
}

// Advice says what to do next, for a person. What matters most comes first: a machine that is left off.
func (e *Error) Advice() string {
	if e.LeftOff {
		return "the machine was switched off, or may still go off, and nobody switches it on now: read its power, and switch it on"
	}

	return e.Kind.Advice()
}

// Error implements error.
func (e *Error) Error() string {
	var text strings.Builder
	text.WriteString(e.Op)
	if e.BMC != "" {
		fmt.Fprintf(&text, " at BMC %s", e.BMC)
	}
	text.WriteString(": ")
	text.WriteString(e.Detail)

	return text.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf is the kind of err, Transient for an error of another package, and "" for nil.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	if bmcError, ok := errors.AsType[*Error](err); ok {
		return bmcError.Kind
	}

	return Transient
}

// RetryAfter is how long the BMC asks to wait; 0 when it does not say.
func RetryAfter(err error) time.Duration {
	if bmcError, ok := errors.AsType[*Error](err); ok {
		return bmcError.RetryAfter
	}

	return 0
}
