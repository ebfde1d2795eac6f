package slots

import (
	"errors"
	"fmt"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// ErrNotStaged is returned by Arm when the spare slot does not hold the image: it has to be staged again.
var ErrNotStaged = errors.New("the spare slot does not hold the image; stage it again")

// Refusal is an error that a retry cannot mend: the image does not fit the machine, or the machine is in a state in
// which going on would write the running or the known-good slot. Nothing that runs or boots was changed.
type Refusal struct { //nolint:errname // the word of the contract
	// Reason is the reason for NodeUpdate status.
	Reason v1alpha1.Reason
	// Message says what was found, with values, and what a person can do about it.
	Message string
}

// Refuse makes a Refusal. The message names the thing, its value, and the fix.
func Refuse(reason v1alpha1.Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Error is the message.
func (r *Refusal) Error() string { return r.Message }

// AsRefusal returns the refusal in an error's chain, if there is one.
func AsRefusal(err error) (*Refusal, bool) {
	var refusal *Refusal
	ok := errors.As(err, &refusal)

	return refusal, ok
}
