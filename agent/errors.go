package agent

import (
	"errors"

	"github.com/stayput-dev/stayput/agent/slots"
)

var (
	errNoConfig    = slots.ErrNotStaged
	errNotArmed    = errors.New("the spare slot was armed, but its boot entry is not there")
	errStatusFirst = errors.New("the NodeUpdate's status cannot be written, which comes first")
	errNoNode      = errors.New("the Node is not known")
)
