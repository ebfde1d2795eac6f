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

// boots tells whether a machine that follows the action is on in the end.
func (a Action) boots() bool { return a != ActionForceOff && a != ActionShutdown }

// Machine is one machine behind one BMC. Calls for one BMC must not overlap; see Locks.
//
// Errors are *Error: its Kind says whether a retry is safe. What a protocol or a BMC lacks is of kind Unsupported, and
// the text says what to do instead. No method sends a request that changes something twice, unless the BMC refused the
// first one.
type Machine interface { //nolint:interfacebloat // what a BMC does for a machine is one thing: a caller has one session for all
	// Identity tells which machine answers.
	Identity(ctx context.Context) (Identity, error)
	// Power reads the power state.
	Power(ctx context.Context) (Power, error)
	// Actions lists the actions, of all of them, that this BMC offers.
	Actions(ctx context.Context) ([]Action, error)
	// Do sends an action. When it returns nil the BMC accepted the action; what the machine does must be observed.
	// An error of kind Unknown means that the BMC may have acted: read the power state before anything else.
	Do(ctx context.Context, action Action) error
	// Boot reads the boot override.
	Boot(ctx context.Context) (BootState, error)
	// SetBoot sets the boot override. When it returns nil the BMC accepted it; some keep something else, so read it back
	// with Boot. An error of kind Unknown means that it may be set.
	SetBoot(ctx context.Context, boot Boot) error
	// Media lists the virtual drives; none when the BMC has none.
	Media(ctx context.Context) ([]MediaSlot, error)
	// Insert puts the image at url into a slot of Media, in place of the one that is in it. The BMC fetches it: url must
	// hold no user name, password, or signed query that may not be logged.
	Insert(ctx context.Context, slot, url string) error
	// Eject empties a slot of Media; an empty one stays so. The operating system may run from it: look first.
	Eject(ctx context.Context, slot string) error
	// Log reads the newest entries of the log of the machine, or of the BMC where the machine has none, newest first, at
	// most limit.
	Log(ctx context.Context, limit int) ([]LogEntry, error)
	// Close ends the session with the BMC.
	Close(ctx context.Context) error
}

// Identity is what a BMC says its machine is.
type Identity struct {
	// UUID is the SMBIOS UUID, lower-case.
	UUID string
	// Serial, Model and Manufacturer as the BMC gives them.
	Serial, Model, Manufacturer string
	// BMCFirmware is the version of the BMC's own firmware; "" when the BMC does not say,
	// or could not be read: nothing is compared with it.
	BMCFirmware string
}
