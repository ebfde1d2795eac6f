package powerlease

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// HeldError says that another acts on the host's power. Nothing was done; it is safe to try again.
type HeldError struct {
	Host types.NamespacedName
	// Holder tells a person who it is.
	Holder string
	// Since is when the other took the lease, by the other's clock; zero when it is not known.
	Since time.Time
	// Left is after how long the lease can be taken over if it does not change until then.
	Left time.Duration
}

func (e *HeldError) Error() string {
	since := ""
	if !e.Since.IsZero() {
		since = " since " + e.Since.UTC().Format(time.RFC3339)
	}

	return fmt.Sprintf("acting on the power of host %s: %s does so%s; wait until that is done, or, if it was killed, %s",
		e.Host, e.Holder, since, max(e.Left, 0).Round(time.Second))
}

// LostError says that the lease was lost while it was used. What was under way may have been done: look at the host
// before trying again.
type LostError struct {
	Host types.NamespacedName
	// Why says how.
	Why string
	// Err is what the use returned; nil in a context's cause.
	Err error
}

func (e *LostError) Error() string {
	text := fmt.Sprintf("acting on the power of host %s: the right to do so (Lease %s) was lost: %s; read the power before you try again",
		e.Host, Name(e.Host.Name), e.Why)
	if e.Err != nil {
		return text + ": " + e.Err.Error()
	}

	return text
}

// Unwrap gives what the use returned.
func (e *LostError) Unwrap() error { return e.Err }
