package simulator

import (
	"net/http"
	"slices"
)

// describeBoot is the property Boot.
func (b *BMC) describeBoot(boot Boot, targets bool) object {
	body := object{
		"BootSourceOverrideTarget": boot.Target, "BootSourceOverrideEnabled": boot.Enabled,
		"BootOrder": []any{"Boot0001", "Boot0002"},
	}
	if targets {
		body["BootSourceOverrideTarget@Redfish.AllowableValues"] = b.profile.Boot.Targets
	}
	if b.profile.Boot.Mode != ModeAbsent {
		body["BootSourceOverrideMode"] = boot.Mode
	}

	return body
}

func (b *BMC) serveSettings(r *http.Request, s *system) *answer {
	switch r.Method {
	case http.MethodGet:
		body := object{
			"@odata.id": Path(s.id) + "/Settings", "@odata.type": "#ComputerSystem.v1_16_0.ComputerSystem",
			"Id": "Settings", "Name": "Pending settings",
		}
		if b.profile.Boot.At == AtSettings {
			waiting := s.Boot
			if s.settings != nil {
				waiting = *s.settings
			}
			body["Boot"] = b.describeBoot(waiting, b.profile.Boot.TargetsAt == AtSettings)
		}
		a := show(body)
		b.tag(a, s)

		return a
	case http.MethodPatch:
		return b.patchBoot(r, s, AtSettings)
	default:
		return b.notAllowed()
	}
}

// wantedBoot is what a PATCH has of Boot; nil where it says nothing.
type wantedBoot struct {
	target, enabled, mode *string
	others                int
}

func wanted(body object) wantedBoot {
	boot, _ := body["Boot"].(object)
	known := 0
	text := func(name string) *string {
		value, ok := boot[name].(string)
		if !ok {
			return nil
		}
		known++

		return &value
	}
	w := wantedBoot{
		target: text("BootSourceOverrideTarget"), enabled: text("BootSourceOverrideEnabled"), mode: text("BootSourceOverrideMode"),
	}
	w.others = len(boot) - known

	return w
}

// patchBoot answers a PATCH of Boot at the system or at its Settings.
func (b *BMC) patchBoot(r *http.Request, s *system, at Place) *answer {
	body, _ := decode(r)
	act := b.record(s, "Boot")
	if refused := b.refuseMatch(r, s); refused != nil {
		return refused
	}
	want := wanted(body)
	if refused := b.refuseBoot(s, at, want); refused != nil {
		return refused
	}
	rules := b.profile.Boot
	act.Applied = !rules.Ignore
	if act.Applied {
		b.keepBoot(s, at, want)
	}
	if rules.LyingStatus != 0 {
		return b.refuse(rules.LyingStatus, "Base.1.12.GeneralError", "The request failed.")
	}
	if b.profile.Reset.Status == http.StatusOK {
		return &answer{status: http.StatusOK, body: object{"@Message.ExtendedInfo": []any{object{"MessageId": "Base.1.12.Success"}}}}
	}

	return done(http.StatusNoContent)
}

func (b *BMC) refuseBoot(s *system, at Place, want wantedBoot) *answer {
	rules := b.profile.Boot
	bad := func(id, property string) *answer {
		return b.refuse(http.StatusBadRequest, id, "The property "+property+" cannot be set so.")
	}
	switch {
	case rules.At != at:
		return bad("Base.1.12.PropertyNotWritable", "Boot")
	case want.target == nil && want.enabled == nil && want.mode == nil:
		return bad("Base.1.12.PropertyMissing", "Boot")
	case want.target != nil && !slices.Contains(rules.Targets, *want.target):
		return bad("Base.1.12.PropertyValueNotInList", "BootSourceOverrideTarget")
	case want.mode != nil && rules.Mode == ModeReadOnly:
		return bad("Base.1.12.PropertyNotWritable", "BootSourceOverrideMode")
	case want.mode != nil && rules.Mode == ModeAbsent:
		return bad("Base.1.12.PropertyUnknown", "BootSourceOverrideMode")
	case rules.Full && (want.mode == nil || want.enabled == nil || want.target == nil):
		return bad("Base.1.12.PropertyMissing", "BootSourceOverrideMode")
	case rules.Minimal && (want.mode != nil || want.others > 0):
		return bad("Base.1.12.PropertyNotWritable", "BootSourceOverrideMode")
	case want.enabled != nil && *want.enabled == "Continuous" && !rules.Continuous:
		return bad("Base.1.12.PropertyValueNotInList", "BootSourceOverrideEnabled")
	case want.enabled != nil && rules.EqualRefused && *want.enabled == s.Boot.Enabled:
		return bad("Base.1.12.PropertyValueConflict", "BootSourceOverrideEnabled")
	default:
		return nil
	}
}

// keepBoot makes what was written true.
func (b *BMC) keepBoot(s *system, at Place, want wantedBoot) {
	rules := b.profile.Boot
	next := s.Boot
	set := func(property *string, value *string) {
		if value != nil {
			*property = *value
		}
	}
	set(&next.Target, want.target)
	set(&next.Enabled, want.enabled)
	set(&next.Mode, want.mode)
	if want.enabled == nil && rules.RevertsToOnce {
		next.Enabled = once
	}
	if want.target != nil && want.mode == nil && rules.ModeFlips {
		next.Mode = "Legacy"
	}
	if rules.UsedUp && next.Enabled == once {
		next.Enabled, next.Target = disabled, "None"
	}
	s.revision++
	if rules.Pending && at == AtSettings {
		s.settings = &next

		return
	}
	s.Boot = next
}
