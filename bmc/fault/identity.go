package fault

import (
	"net/http"
	"strings"
	"time"

	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

// Faults of identity, sessions, clocks and logs.
const (
	// TwinName adds a second system with the same Name.
	TwinName Kind = "TwinName"
	// ExtraBoard adds a member HGX_Baseboard_0 without power (ironcore-dev/metal-operator 823).
	ExtraBoard Kind = "ExtraBoard"
	// MemberFails adds a member that answers 500.
	MemberFails Kind = "MemberFails"
	// WrongMachine changes the systems' UUIDs, as when a board was swapped or an address was given to another BMC.
	WrongMachine Kind = "WrongMachine"
	// OtherByteOrder tells UUIDs with the first three fields in the other byte order, in capitals (SMBIOS before 2.6).
	OtherByteOrder Kind = "OtherByteOrder"
	// ZeroUUID tells a UUID of zeros.
	ZeroUUID Kind = "ZeroUUID"
	// SystemGone answers 404 for all systems.
	SystemGone Kind = "SystemGone"
	// SessionsFull has no session left for anybody, as clients that died left them.
	SessionsFull Kind = "SessionsFull"
	// SessionLost forgets all sessions; a new login works.
	SessionLost Kind = "SessionLost"
	// SessionShort ends sessions that were not used for 10 s.
	SessionShort Kind = "SessionShort"
	// BasicOnly offers no sessions.
	BasicOnly Kind = "BasicOnly"
	// SessionsOnly refuses Basic authentication.
	SessionsOnly Kind = "SessionsOnly"
	// LogoutFails answers logouts with 500.
	LogoutFails Kind = "LogoutFails"
	// WrongPassword is a password that was changed at the BMC.
	WrongPassword Kind = "WrongPassword"
	// ClockOff puts the BMC's clock into the year 1970 or so: 50 years back.
	ClockOff Kind = "ClockOff"
	// LogPaged gives one log entry a page, oldest first.
	LogPaged Kind = "LogPaged"
	// NoLog has no log.
	NoLog Kind = "NoLog"
	// ConsoleHostile has a machine that prints what would take a terminal over, where the BMC keeps the console.
	ConsoleHostile Kind = "ConsoleHostile"
	// ConsoleGrows has a machine that prints 300 lines between any two reads of its console.
	ConsoleGrows Kind = "ConsoleGrows"
	// ConsoleWhole gives the console as a whole only, and refuses to be asked for a part with 501.
	ConsoleWhole Kind = "ConsoleWhole"
)

func identityFaults() []Fault {
	sessions := func(change func(*simulator.SessionRules)) func(Target) error {
		return profile(func(p *simulator.Profile) { change(&p.Session) })
	}
	add := func(system simulator.System) func(Target) error {
		return func(t Target) error {
			t.Simulator.Add(system)

			return nil
		}
	}

	return []Fault{
		{Kind: TwinName, Layer: Inside, inject: add(simulator.System{Power: "Off"})},
		{Kind: ExtraBoard, Layer: Inside, inject: add(simulator.System{ID: "HGX_Baseboard_0", Name: "HGX_Baseboard_0", Board: true})},
		{Kind: MemberFails, Layer: Inside, inject: add(simulator.System{Status: http.StatusInternalServerError})},
		{Kind: WrongMachine, Layer: Inside, inject: state(func(s *simulator.State) {
			s.UUID, s.Serial = "deadbeef-1111-4222-8333-444444444444", "SN-OTHER"
		})},
		{Kind: OtherByteOrder, Layer: Inside, inject: state(func(s *simulator.State) { s.UUID = strings.ToUpper(swapped(s.UUID)) })},
		{Kind: ZeroUUID, Layer: Inside, inject: state(func(s *simulator.State) { s.UUID = "00000000-0000-0000-0000-000000000000" })},
		{Kind: SystemGone, Layer: Inside, inject: state(func(s *simulator.State) { s.Status = http.StatusNotFound })},
		{Kind: SessionsFull, Layer: Inside, Quirk: 7, inject: func(t Target) error {
			t.Simulator.Configure(func(p *simulator.Profile) { p.Session.Limit = 4 })
			t.Simulator.Occupy(4)

			return nil
		}},
		{Kind: SessionLost, Layer: Inside, inject: func(t Target) error {
			t.Simulator.EndSessions()

			return nil
		}},
		{Kind: SessionShort, Layer: Inside, inject: sessions(func(s *simulator.SessionRules) { s.Life = 10 * time.Second })},
		{Kind: BasicOnly, Layer: Inside, inject: sessions(func(s *simulator.SessionRules) { s.Offered = false })},
		{Kind: SessionsOnly, Layer: Inside, inject: sessions(func(s *simulator.SessionRules) { s.Basic = false })},
		{Kind: LogoutFails, Layer: Inside, inject: sessions(func(s *simulator.SessionRules) {
			s.LogoutStatus = http.StatusInternalServerError
		})},
		{Kind: WrongPassword, Layer: Inside, inject: func(t Target) error {
			t.Simulator.SetPassword("changed-at-the-bmc")

			return nil
		}},
		{Kind: ClockOff, Layer: Inside, inject: func(t Target) error {
			t.Simulator.SetSkew(-50 * 365 * 24 * time.Hour)

			return nil
		}},
		{Kind: LogPaged, Layer: Inside, inject: profile(func(p *simulator.Profile) { p.Log.Page, p.Log.OldestFirst = 1, true })},
		{Kind: ConsoleHostile, Layer: Inside, inject: func(t Target) error {
			t.Simulator.Print("\x1b[2J\x1b[31mline 5\x1b[0m", "\x1b]0;owned\aline 6", "\u009b1mli\x00ne \u202e7\u202c\r")

			return nil
		}},
		{Kind: ConsoleGrows, Layer: Inside, inject: profile(func(p *simulator.Profile) { p.Log.ConsoleGrows = 300 })},
		{Kind: ConsoleWhole, Layer: Inside, inject: profile(func(p *simulator.Profile) { p.Log.ConsoleWhole = true })},
		{Kind: NoLog, Layer: Inside, inject: profile(func(p *simulator.Profile) { p.Log.Under = simulator.Nowhere })},
	}
}

// swapped reverses the bytes of the first three fields of a UUID in text.
func swapped(uuid string) string {
	fields := strings.Split(uuid, "-")
	for i := range min(3, len(fields)) {
		var reversed strings.Builder
		for j := len(fields[i]); j >= 2; j -= 2 {
			reversed.WriteString(fields[i][j-2 : j])
		}
		fields[i] = reversed.String()
	}

	return strings.Join(fields, "-")
}
