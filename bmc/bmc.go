package bmc

import (
	"context"
)

// Power is what a BMC says of its machine.
type Power string

// The power states.
const (
	PowerOn         Power = "On"
	PowerOff        Power = "Off"
	PowerTransition Power = "Transition" // PoweringOn, PoweringOff
	PowerUnknown    Power = "Unknown"
)

// Action is a power action.
type Action string

// The actions.
const (
	ActionOn           Action = "On"
	ActionForceOff     Action = "ForceOff"
	ActionForceRestart Action = "ForceRestart"
	// ActionShutdown asks the OS to shut down; the machine is off when it has done so, if it does.
	ActionShutdown Action = "GracefulShutdown"
	// ActionSoftRestart asks the OS to reboot. Its power stays on, so that the BMC cannot show that it happened.
	ActionSoftRestart Action = "GracefulRestart"
	// ActionPowerCycle takes the power away and gives it back, in one request.
	ActionPowerCycle Action = "PowerCycle"
)

// Machine is one machine behind one BMC. Calls for one BMC must not overlap; see Locks.
//
// Errors are *Error: its Kind says whether a retry is safe.
type Machine interface {
	// Identity tells which machine answers.
	Identity(ctx context.Context) (Identity, error)
	// Power reads the power state.
	Power(ctx context.Context) (Power, error)
	// Actions lists the actions that this BMC offers.
	Actions(ctx context.Context) ([]Action, error)
	// Do sends an action. When it returns nil the BMC accepted the action; what the machine does must be observed.
	// An error of kind Unknown means that the BMC may have acted: read the power state before anything else.
	Do(ctx context.Context, action Action) error
	// Close ends the session with the BMC.
	Close(ctx context.Context) error
}

// Identity is what a BMC says its machine is.
type Identity struct {
	// UUID is the SMBIOS UUID, lower-case.
	UUID string
	// Serial, Model and Manufacturer as the BMC gives them.
	Serial, Model, Manufacturer string
}
