package simulator

import (
	"net/http"
	"slices"
	"time"
)

// Place is where a BMC keeps something.
type Place string

// The places.
const (
	Inline     Place = "Inline"     // beside the action
	ActionInfo Place = "ActionInfo" // in the ActionInfo resource
	Nowhere    Place = "Nowhere"
	AtSystem   Place = "System"
	AtManager  Place = "Manager"
	AtBoth     Place = "Both"
	AtSettings Place = "Settings" // in the resource that @Redfish.Settings of the system names
)

// Profile is how a BMC behaves. Durations are those of the clock.
type Profile struct {
	// Name is the profile's; Manufacturer, Model and Firmware are what the BMC says.
	Name, Manufacturer, Model, Firmware string
	// Prefix starts the vendor's own message IDs, such as "IDRAC.2.8.".
	Prefix string
	// SystemID and ManagerID are the last elements of their paths.
	SystemID, ManagerID string
	// NoManagedBy leaves Links.ManagedBy of the system out.
	NoManagedBy bool

	Session SessionRules
	Reset   ResetRules
	Boot    BootRules
	ETag    ETagRule
	Media   MediaRules
	Log     LogRules
}

// SessionRules say how a client logs in.
type SessionRules struct {
	// Offered tells whether there is a SessionService; Basic whether Basic authentication works.
	Offered, Basic bool
	// Limit is how many sessions may be open; 0: as many as wanted.
	Limit int
	// FullStatus and FullMessage answer a login beyond the limit.
	FullStatus  int
	FullMessage string
	// Life ends a session so long after its last use; 0: never.
	Life time.Duration
	// LogoutStatus, when set, answers a logout instead of doing it.
	LogoutStatus int
}

// ResetRules say what the action ComputerSystem.Reset does.
type ResetRules struct {
	// Types are the ResetTypes that work, and TypesAt where they are told.
	Types   []string
	TypesAt Place
	// Absent leaves the action out.
	Absent bool
	// Unwired are types that are told and then refused with 500.
	Unwired []string
	// Status answers an accepted request: 200, 202 or 204. 202 makes a task.
	Status int
	Task   TaskRules
	// Latency is how long a change of power takes to be true.
	Latency time.Duration
	// Stale is how long the old power state is told after that.
	Stale time.Duration
	// Transitions tells PoweringOn and PoweringOff during Latency.
	Transitions bool
	// Stuck makes changes never come true; Transitions tells then what they try, for ever.
	Stuck bool
	// Ignore accepts requests without following them.
	Ignore bool
	// IgnoreInTransition does so while a change is under way.
	IgnoreInTransition bool
	// OnConflict refuses On with 409 for so long after the machine went off.
	OnConflict time.Duration
	// PostBusy refuses requests for so long after the machine was started.
	PostBusy time.Duration
	// BusyStatus and BusyMessage do so.
	BusyStatus  int
	BusyMessage string
	// Already is the status of a request for the power that is; 0 accepts it. AlreadyMessage goes with it.
	Already        int
	AlreadyMessage string
	// NoIfMatch refuses the action with 412 when an If-Match comes with it.
	NoIfMatch bool
	// DeafOS ignores GracefulShutdown and GracefulRestart, which need the operating system.
	DeafOS bool
	// RestartStaysOff leaves the machine off after ForceRestart and PowerCycle.
	RestartStaysOff bool
}

// TaskRules say what becomes of a task that an action made.
type TaskRules struct {
	// Runs is how long it runs.
	Runs time.Duration
	// Stuck: it never ends. Fails: it ends with Exception, and nothing was done. Vanishes: its monitor is gone at once.
	Stuck, Fails, Vanishes bool
}

// ModeRule says what a BMC does with BootSourceOverrideMode.
type ModeRule string

// The mode rules.
const (
	ModeWritable ModeRule = ""
	ModeReadOnly ModeRule = "ReadOnly" // told; 400 PropertyNotWritable when sent
	ModeAbsent   ModeRule = "Absent"   // not told; 400 PropertyUnknown when sent
)

// BootRules say how the boot override is set.
type BootRules struct {
	// At is where it is written: AtSystem or AtSettings. Elsewhere a write is refused with PropertyNotWritable.
	At Place
	// Settings tells of a Settings resource; when At is AtSystem it has no Boot property.
	Settings bool
	// Pending shows what was written at Settings there only, until the machine is started.
	Pending bool
	// Targets are what it takes, and TargetsAt where they are told: AtSystem, AtSettings or Nowhere.
	Targets   []string
	TargetsAt Place
	// Mode says whether the mode can be written.
	Mode ModeRule
	// Continuous tells whether the override may hold for longer than one boot.
	Continuous bool
	// Full refuses a body that lacks Mode, Enabled or Target; Minimal one that has more than Enabled and Target.
	Full, Minimal bool
	// EqualRefused refuses Enabled when it is equal to what is.
	EqualRefused bool
	// RevertsToOnce makes a write without Enabled set Once.
	RevertsToOnce bool
	// ModeFlips sets Legacy whenever a target is written without a mode.
	ModeFlips bool
	// Ignore accepts writes without keeping them.
	Ignore bool
	// LyingStatus, when set, answers a write that was kept.
	LyingStatus int
	// UsedUp consumes a Once as soon as it is set, as another's reset would.
	UsedUp bool
}

// ETagRule says what a BMC does with ETags of a system and its Settings in a PATCH.
type ETagRule string

// The ETag rules.
const (
	ETagNone     ETagRule = ""         // none sent, If-Match ignored
	ETagChecked  ETagRule = "Checked"  // may be sent, must then match
	ETagRequired ETagRule = "Required" // must be sent: 428 PreconditionHeaderMissing
	ETagWeak     ETagRule = "Weak"     // a weak one is told, and only the strong one matches
	ETagRefused  ETagRule = "Refused"  // told, and never matches
	ETagEmpty    ETagRule = "Empty"    // an empty one is told, and never matches
)

// InsertRule says how an image is inserted into a slot.
type InsertRule string

// The insert rules.
const (
	ByAction   InsertRule = ""
	ByPatch    InsertRule = "Patch"    // no actions: PATCH Image and Inserted
	NoInsert   InsertRule = "None"     // the action is left out
	Refused405 InsertRule = "405"      // the action is told and not allowed
	Refused400 InsertRule = "Internal" // the slot belongs to the BMC's console: 400
)

// Slot is a virtual drive.
type Slot struct {
	ID     string
	Types  []string
	Insert InsertRule
}

// MediaRules say how virtual media work.
type MediaRules struct {
	// Under is the resource that lists the slots.
	Under Place
	Slots []Slot
	// Occupied, when set, answers an insert into a slot that is not empty.
	Occupied int
	// Ejecting answers an insert with 500 for so long after an eject, with EjectingMessage; default the vendor's VRM0021.
	Ejecting        time.Duration
	EjectingMessage string
	// StaleInserted tells Inserted for so long after an eject.
	StaleInserted time.Duration
	// StaleImage leaves Image and ImageName after an eject; ConnectedVia tells the truth.
	StaleImage bool
	// TransferProtocol refuses an insert without TransferProtocolType; Credentials one without UserName and Password.
	TransferProtocol, Credentials bool
	// ReadOnlyFlags refuses an insert that has Inserted or WriteProtected.
	ReadOnlyFlags bool
	// EjectBody refuses an eject whose body is not {}.
	EjectBody bool
}

// LogRules say where the logs are.
type LogRules struct {
	// Under is AtManager or AtSystem; Nowhere for a BMC without.
	Under Place
	// Service is the LogService's ID.
	Service string
	// OldestFirst is the order of the entries.
	OldestFirst bool
	// Page is how many entries a page of the collection has; 0: all.
	Page int
	// Console keeps what the machine prints, in the system's LogService HostLogger.
	Console bool
	// ConsoleGrows is how many lines the machine prints between any two reads of it.
	ConsoleGrows int
	// ConsoleWhole refuses $skip and $top there with 501, and gives all lines at once.
	ConsoleWhole bool
}

// clone copies what Configure may change in place.
func (p Profile) clone() Profile {
	p.Reset.Types = slices.Clone(p.Reset.Types)
	p.Reset.Unwired = slices.Clone(p.Reset.Unwired)
	p.Boot.Targets = slices.Clone(p.Boot.Targets)
	p.Media.Slots = slices.Clone(p.Media.Slots)

	return p
}

// standard is the plainest BMC; the profiles change it.
func standard() Profile {
	return Profile{
		Name: "Standard", Manufacturer: "Contoso", Model: "S1", Firmware: "1.0", Prefix: "Base.1.12.",
		SystemID: "1", ManagerID: "1",
		Session: SessionRules{
			Offered: true, Basic: true, FullStatus: http.StatusServiceUnavailable, FullMessage: "SessionLimitExceeded",
		},
		Reset: ResetRules{
			Types: []string{
				"On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "PowerCycle", "Nmi",
			},
			TypesAt: Inline, Status: http.StatusNoContent, Latency: 2 * time.Second,
			BusyStatus: http.StatusBadRequest, BusyMessage: "InvalidOperationForSystemState",
			AlreadyMessage: "Base.1.12.GeneralError",
		},
		Boot: BootRules{
			At: AtSystem, TargetsAt: AtSystem, Targets: []string{"None", "Pxe", "Hdd", "Cd", "Usb", "BiosSetup", "UefiHttp"},
			Continuous: true,
		},
		Media: MediaRules{Under: AtManager, Slots: []Slot{
			{ID: "Floppy1", Types: []string{"Floppy", "USBStick"}}, {ID: "CD1", Types: []string{"CD", "DVD"}},
		}},
		Log: LogRules{Under: AtManager, Service: "SEL"},
	}
}
