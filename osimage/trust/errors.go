package trust

import (
	"errors"
	"strings"
)

// What can be wrong, to be tested with errors.Is. When signatures of several kinds were found, the error is the first of
// ErrWrongDigest, ErrWrongType, ErrWrongKey and ErrMalformed that occurs, and its detail counts them all.
var (
	// ErrUnsigned is returned when there is no signature at all.
	ErrUnsigned = errors.New("not signed")
	// ErrWrongKey is returned when no trusted key made a signature. An altered signature looks the same.
	ErrWrongKey = errors.New("not signed by a trusted key")
	// ErrWrongDigest is returned when a trusted key signed, but another artifact.
	ErrWrongDigest = errors.New("the signature is for another digest")
	// ErrWrongType is returned when a trusted key signed a statement that is no approval of the artifact.
	ErrWrongType = errors.New("the signature is of another type")
	// ErrMalformed is returned when what is there is no signature that can be read, or one that was altered.
	ErrMalformed = errors.New("the signature is broken")
	// ErrUnavailable is returned when the store could not be asked. The cause tells whether to try again.
	ErrUnavailable = errors.New("the signatures cannot be read")
	// ErrKey is returned for a key, or a folder of keys, that cannot be used.
	ErrKey = errors.New("no key to trust")
	// ErrPolicy is returned for a policy that cannot be kept.
	ErrPolicy = errors.New("the policy cannot be kept")
	// ErrNotFound is what a Store returns, wrapped or not, for what it does not have.
	ErrNotFound = errors.New("not in the store")
)

// Error is what a person is shown.
type Error struct {
	// Kind is one of the errors above.
	Kind error
	// Subject names the thing: a digest or a file.
	Subject string
	// Detail says what was found and what was expected.
	Detail string
	// Fix is the next action.
	Fix string
	// Err is the cause, nil when there is none.
	Err error
}

// Error returns everything in one line.
func (e *Error) Error() string {
	text := e.Subject + ": " + e.Brief()

	if e.Fix != "" {
		text += " (" + e.Fix + ")"
	}

	return text
}

// Brief returns what was wrong, without the subject and the next action.
func (e *Error) Brief() string {
	parts := []string{e.Kind.Error()}

	if e.Detail != "" {
		parts = append(parts, e.Detail)
	}

	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}

	return strings.Join(parts, ": ")
}

// Unwrap makes errors.Is work for the kind and for the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}

	return []error{e.Kind, e.Err}
}
