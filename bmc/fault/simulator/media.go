package simulator

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
)

func (b *BMC) mediaArea(r *http.Request, s *system, owner string, rest []string) *answer {
	base := owner + "/VirtualMedia"
	if len(rest) == 0 {
		members := make([]any, 0, len(b.profile.Media.Slots))
		for _, slot := range b.profile.Media.Slots {
			members = append(members, link(base+"/"+slot.ID))
		}

		return b.only(r, http.MethodGet, func() *answer { return show(collection(base, members)) })
	}
	at := slices.IndexFunc(b.profile.Media.Slots, func(slot Slot) bool { return slot.ID == rest[0] })
	if at < 0 {
		return b.missing()
	}

	return b.serveSlot(r, s, b.profile.Media.Slots[at], base+"/"+rest[0], strings.Join(rest[1:], "/"))
}

func (b *BMC) serveSlot(r *http.Request, s *system, slot Slot, self, path string) *answer {
	switch call := r.Method + " " + path; {
	case call == "GET ":
		a := show(b.describeSlot(s, slot, self))
		b.tag(a, s)

		return a
	case call == "PATCH " && slot.Insert == ByPatch:
		return b.patchSlot(r, s, slot)
	case call == "POST Actions/VirtualMedia.InsertMedia" && slot.hasActions():
		return b.insert(r, s, slot)
	case call == "POST Actions/VirtualMedia.EjectMedia" && slot.hasActions():
		return b.eject(r, s, slot)
	default:
		return b.notAllowed()
	}
}

func (s Slot) hasActions() bool { return s.Insert != ByPatch && s.Insert != NoInsert }

func (b *BMC) describeSlot(s *system, slot Slot, path string) object {
	rules := b.profile.Media
	image, inserted := s.Images[slot.ID]
	body := object{
		"@odata.id": path, "@odata.type": "#VirtualMedia.v1_5_0.VirtualMedia", "Id": slot.ID, "Name": "Virtual Media",
		"MediaTypes": slot.Types, "Image": nil, "ImageName": nil, "Inserted": inserted, "ConnectedVia": "NotConnected",
		"WriteProtected": true,
	}
	switch ejected, once := s.ejected[slot.ID]; {
	case inserted:
		body["Image"], body["ImageName"], body["ConnectedVia"] = image, image[strings.LastIndex(image, "/")+1:], "URI"
	case once && b.clock.Since(ejected) < rules.StaleInserted:
		body["Inserted"], body["Image"], body["ConnectedVia"] = true, s.stale[slot.ID], "URI"
	case once && rules.StaleImage:
		body["Image"] = s.stale[slot.ID]
		body["ImageName"] = s.stale[slot.ID]
	}
	if slot.hasActions() {
		actions := object{"#VirtualMedia.EjectMedia": object{"target": path + "/Actions/VirtualMedia.EjectMedia"}}
		insert := object{"target": path + "/Actions/VirtualMedia.InsertMedia"}
		if rules.TransferProtocol {
			insert["TransferProtocolType@Redfish.AllowableValues"] = []any{"CIFS", "NFS", "HTTP", "HTTPS"}
		}
		actions["#VirtualMedia.InsertMedia"] = insert
		body["Actions"] = actions
	}

	return body
}

func (b *BMC) insert(r *http.Request, s *system, slot Slot) *answer {
	body, _ := decode(r)
	act := b.record(s, "Insert")
	image, _ := body["Image"].(string)
	if refused := b.refuseInsert(s, slot, body); refused != nil {
		return refused
	}
	s.Images[slot.ID] = image
	act.Applied = true

	return done(http.StatusNoContent)
}

// refuseInsert is nil for an insert that is accepted.
func (b *BMC) refuseInsert(s *system, slot Slot, body object) *answer {
	rules := b.profile.Media
	_, occupied := s.Images[slot.ID]
	lacks := func(name string) bool { return body[name] == nil }
	parameter := func(name string) string { return "The parameter " + name + " is missing or not allowed." }
	const missing, unknown = "Base.1.12.ActionParameterMissing", "Base.1.12.ActionParameterUnknown"
	for _, refusal := range []struct {
		applies     bool
		status      int
		id, message string
	}{
		{slot.Insert == Refused405, http.StatusMethodNotAllowed, "Base.1.12.OperationNotAllowed", "The HTTP method is not allowed."},
		{slot.Insert == Refused400, http.StatusBadRequest, "Base.1.12.GeneralError", "The slot is used by the console."},
		{lacks("Image"), http.StatusBadRequest, missing, parameter("Image")},
		{
			rules.ReadOnlyFlags && (!lacks("Inserted") || !lacks("WriteProtected")),
			http.StatusBadRequest, unknown, parameter("Inserted"),
		},
		{rules.TransferProtocol && lacks("TransferProtocolType"), http.StatusBadRequest, missing, parameter("TransferProtocolType")},
		{rules.Credentials && lacks("UserName"), http.StatusBadRequest, missing, parameter("UserName")},
		{rules.Credentials && lacks("Password"), http.StatusBadRequest, missing, parameter("Password")},
		{occupied && rules.Occupied != 0, rules.Occupied, b.profile.Prefix + "VRM0012", "The virtual media is connected already."},
	} {
		if refusal.applies {
			return b.refuse(refusal.status, refusal.id, refusal.message)
		}
	}

	return b.refuseWhileEjecting(s, slot)
}

// refuseWhileEjecting is nil when no eject is under way.
func (b *BMC) refuseWhileEjecting(s *system, slot Slot) *answer {
	rules := b.profile.Media
	if ejected, was := s.ejected[slot.ID]; !was || b.clock.Since(ejected) >= rules.Ejecting {
		return nil
	}

	return b.refuse(http.StatusInternalServerError, cmp.Or(rules.EjectingMessage, b.profile.Prefix+"VRM0021"),
		"The virtual media is being disconnected.")
}

func (b *BMC) eject(r *http.Request, s *system, slot Slot) *answer {
	body, isObject := decode(r)
	act := b.record(s, "Eject")
	switch {
	case slot.Insert == Refused405:
		return b.notAllowed()
	case b.profile.Media.EjectBody && (!isObject || len(body) > 0):
		return b.refuse(http.StatusBadRequest, "Base.1.12.MalformedJSON", "The body must be an empty JSON object.")
	}
	b.empty(s, slot)
	act.Applied = true

	return done(http.StatusNoContent)
}

// empty takes the image out of a slot.
func (b *BMC) empty(s *system, slot Slot) {
	if image, inserted := s.Images[slot.ID]; inserted {
		s.ejected[slot.ID], s.stale[slot.ID] = b.clock.Now(), image
		delete(s.Images, slot.ID)
	}
}

// patchSlot inserts or ejects at a BMC that has no actions for it; an insert must say Inserted.
func (b *BMC) patchSlot(r *http.Request, s *system, slot Slot) *answer {
	body, _ := decode(r)
	image, _ := body["Image"].(string)
	what := "Insert"
	if image == "" {
		what = "Eject"
	}
	act := b.record(s, what)
	if refused := b.refuseMatch(r, s); refused != nil {
		return refused
	}
	if image == "" {
		b.empty(s, slot)
		act.Applied = true

		return done(http.StatusNoContent)
	}
	if body["Inserted"] != true {
		return b.refuse(http.StatusBadRequest, "Base.1.12.PropertyMissing", "The property Inserted is missing.")
	}
	if refused := b.refuseWhileEjecting(s, slot); refused != nil {
		return refused
	}
	s.Images[slot.ID] = image
	s.revision++
	act.Applied = true

	return done(http.StatusNoContent)
}
