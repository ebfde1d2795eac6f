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

// refuseBoot is nil for a write that is accepted.
func (b *BMC) refuseBoot(s *system, at Place, want wantedBoot) *answer {
	rules := b.profile.Boot
	target, enabled, mode := value(want.target), value(want.enabled), value(want.mode)
	for _, refusal := range []struct {
		applies      bool
		id, property string
	}{
		{rules.At != at, "PropertyNotWritable", "Boot"},
		{target == "" && enabled == "" && mode == "", "PropertyMissing", "Boot"},
		{target != "" && !slices.Contains(rules.Targets, target), "PropertyValueNotInList", "BootSourceOverrideTarget"},
		{mode != "" && rules.Mode == ModeReadOnly, "PropertyNotWritable", "BootSourceOverrideMode"},
		{mode != "" && rules.Mode == ModeAbsent, "PropertyUnknown", "BootSourceOverrideMode"},
		{rules.Full && (mode == "" || enabled == "" || target == ""), "PropertyMissing", "BootSourceOverrideMode"},
		{rules.Minimal && (mode != "" || want.others > 0), "PropertyNotWritable", "BootSourceOverrideMode"},
		{enabled == "Continuous" && !rules.Continuous, "PropertyValueNotInList", "BootSourceOverrideEnabled"},
		{rules.EqualRefused && enabled == s.Boot.Enabled, "PropertyValueConflict", "BootSourceOverrideEnabled"},
	} {
		if refusal.applies {
			return b.refuse(http.StatusBadRequest, "Base.1.12."+refusal.id, "The property "+refusal.property+" cannot be set so.")
		}
	}

	return nil
}

// value is "" for a property that was not sent.
func value(property *string) string {
	if property == nil {
		return ""
	}

	return *property
}

// keepBoot makes what was written true.
func (b *BMC) keepBoot(s *system, at Place, want wantedBoot) {
	rules := b.profile.Boot
	next := s.Boot
	set := func(property, sent *string) {
		if sent != nil {
			*property = *sent
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
