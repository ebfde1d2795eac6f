package osimage

import (
	"errors"
	"strings"
)

// What can be wrong, to be tested with errors.Is. All but ErrTransient are refusals: trying again does not help.
var (
	// ErrNotAnImage is returned for an artifact that is not an OS image, or one with an invalid config.
	ErrNotAnImage = errors.New("not an OS image")
	// ErrNotFound is returned when the registry or layout does not have the reference or a blob of it.
	ErrNotFound = errors.New("not found")
	// ErrWrongDigest is returned when bytes do not match their digest, or are not valid zstd.
	ErrWrongDigest = errors.New("wrong digest")
	// ErrTruncated is returned when a layer or a content is shorter than its descriptor says.
	ErrTruncated = errors.New("truncated")
	// ErrTooLarge is returned when a content does not fit where it shall go, or is longer than its config says.
	ErrTooLarge = errors.New("too large")
	// ErrWrongArchitecture is returned when an image is made for another architecture than asked for.
	ErrWrongArchitecture = errors.New("wrong architecture")
	// ErrUnauthorized is returned when the registry refuses the credentials, or wants some and there are none.
	ErrUnauthorized = errors.New("unauthorized")
	// ErrUnknownCA is returned when no trusted authority vouches for the registry's certificate.
	ErrUnknownCA = errors.New("certificate not trusted")
	// ErrPlainHTTP is returned when a registry would be spoken to without TLS and that was not asked for.
	ErrPlainHTTP = errors.New("plain HTTP refused")
	// ErrInvalid is returned when what was asked for cannot be done: an option, a reference or a file that makes no sense.
	ErrInvalid = errors.New("cannot be used")
	// ErrBrokenMedium is returned when a medium gives back other bytes than were written to it.
	ErrBrokenMedium = errors.New("broken medium")
	// ErrTransient is returned when the network or the registry failed and all tries were used up. Try again later.
	ErrTransient = errors.New("transient failure")
)

// Error is what a person is shown: what was wrong with which thing, and what mends it.
type Error struct {
	// Kind is one of the errors above.
	Kind error
	// Subject names the thing: a reference, a role, a file.
	Subject string
	// Detail gives the value that was found and the one that was expected.
	Detail string
	// Fix is the next action.
	Fix string
	// Err is the cause, nil when there is none.
	Err error
}

// Error returns everything in one line.
func (e *Error) Error() string {
	var text strings.Builder

	text.WriteString(e.Subject + ": " + e.Kind.Error())

	if e.Detail != "" {
		text.WriteString(": " + e.Detail)
	}

	if e.Err != nil {
		text.WriteString(": " + e.Err.Error())
	}

	if e.Fix != "" {
		text.WriteString(" (" + e.Fix + ")")
	}

	return text.String()
}

func invalid(subject, detail, fix string) error {
	return &Error{Kind: ErrInvalid, Subject: subject, Detail: detail, Fix: fix}
}

// Unwrap makes errors.Is work for the kind and for the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}

	return []error{e.Kind, e.Err}
}

// IsTransient tells whether trying the same again later may succeed.
func IsTransient(err error) bool {
	return errors.Is(err, ErrTransient)
}
