package simulator

import (
	"maps"
	"net/http"
	"slices"
	"time"
)

// System is a machine behind a BMC, as Options describe it.
type System struct {
	// ID is the last element of its path. Default: the profile's for the first, with "-2" and so on for others.
	ID string
	// Name, UUID and Serial are what the BMC says of it. Name is "System" by default; UUID and Serial are made from the
	// number of the system.
	Name, UUID, Serial string
	// Power is "On" or "Off". Default "On".
	Power string
	// Board is a member without a power action, as HGX_Baseboard_0 of GPU machines.
	Board bool
	// Status, when set, answers every request for it.
	Status int
}

// State is what is true of a system, and what the BMC tells in its place. A test may change all of it.
type State struct {
	// Power is "On" or "Off"; a change that is under way is not in it.
	Power string
	// Shown is what is told in place of Power; nil for the truth.
	Shown *string
	// NullPower tells null; NoPower leaves the property out.
	NullPower, NoPower bool
	// Name, UUID, Serial are told.
	Name, UUID, Serial string
	// Status, when set, answers every request for the system.
	Status int
	// Boot is the override.
	Boot Boot
	// Booted are the targets that the machine was started from, oldest first; "None" without an override.
	Booted []string
	// Images are the URLs in the slots, by slot.
	Images map[string]string
}

// Boot is a boot override in Redfish's words.
type Boot struct {
	Target, Enabled, Mode string
}

// Act is a request that would change something.
type Act struct {
	// System is its ID.
	System string
	// Type is the ResetType, or "Boot", "Insert" or "Eject".
	Type string
	// At is when it came, by the clock.
	At time.Time
	// Status is what was answered.
	Status int
	// Applied tells that it took effect, or will.
	Applied bool
}

// Accepted tells that the client was told so.
func (a Act) Accepted() bool { return a.Status < http.StatusMultipleChoices }

// change is a change of power to come.
type change struct {
	at   time.Time
	to   string
	boot bool
}

// system is one machine; the BMC's lock guards it.
type system struct {
	State

	id       string
	board    bool
	number   int
	pending  []change
	changed  time.Time // when Power changed last
	before   string    // what it was before
	offAt    time.Time
	bootAt   time.Time
	revision int
	settings *Boot // what waits at Settings
	ejected  map[string]time.Time
	stale    map[string]string // what an emptied slot still tells
}

// settle lets the changes come true whose time has come.
func (s *system) settle(now time.Time) {
	for len(s.pending) > 0 && !s.pending[0].at.After(now) {
		next := s.pending[0]
		s.pending = s.pending[1:]
		if s.Power != next.to {
			s.before, s.changed = s.Power, next.at
			if next.to == powerOff {
				s.offAt = next.at
			}
		}
		s.Power = next.to
		if next.boot {
			s.start(next.at)
		}
	}
}

// start boots the machine, which uses a Once up.
func (s *system) start(at time.Time) {
	s.bootAt = at
	if s.settings != nil {
		s.Boot, s.settings = *s.settings, nil
	}
	target := "None"
	if s.Boot.Enabled != disabled {
		target = s.Boot.Target
	}
	s.Booted = append(s.Booted, target)
	if s.Boot.Enabled == once {
		s.Boot.Enabled, s.Boot.Target = disabled, "None"
		s.revision++
	}
}

// shown is the PowerState that is told: nil for null.
func (s *system) shown(rules ResetRules, now time.Time) any {
	switch {
	case s.NullPower:
		return nil
	case s.Shown != nil:
		return *s.Shown
	case len(s.pending) > 0 && rules.Transitions:
		return "Powering" + s.pending[0].to
	case rules.Stale > 0 && !s.changed.IsZero() && now.Sub(s.changed) < rules.Stale:
		return s.before
	default:
		return s.Power
	}
}

func (s *system) copyState() State {
	state := s.State
	state.Booted = slices.Clone(state.Booted)
	state.Images = maps.Clone(state.Images)

	return state
}
