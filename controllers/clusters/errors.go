package clusters

import (
	"errors"
	"fmt"
)

// ErrorKind says what is wrong with a connection.
type ErrorKind string

// The kinds.
const (
	// Connecting: the first connection is being made; an event follows. Nothing is wrong yet.
	Connecting ErrorKind = "Connecting"
	// Unreachable: the cluster does not answer. It is tried again with back-off.
	Unreachable ErrorKind = "Unreachable"
	// KubeconfigInvalid: the Secret, or the kubeconfig in it, must be mended by a person.
	KubeconfigInvalid ErrorKind = "KubeconfigInvalid"
)

// Error says why there is no connection. Its text holds no credentials.
type Error struct {
	Kind ErrorKind
	Key  Key
	Err  error
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("cluster %s: %s: %v", e.Key, e.Kind, e.Err)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// KindOf is the kind of an *Error in err's chain, "" when there is none.
func KindOf(err error) ErrorKind {
	if clusterError, ok := errors.AsType[*Error](err); ok {
		return clusterError.Kind
	}

	return ""
}

var errConnecting = errors.New("the first connection is being made")
