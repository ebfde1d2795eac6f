package simulator

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

func itoa(n int) string { return strconv.Itoa(n) }

func (b *BMC) root() *answer {
	root := object{
		"@odata.id": rootPath + "/", "@odata.type": "#ServiceRoot.v1_11_0.ServiceRoot", "Id": "RootService",
		"Name": "Root Service", "RedfishVersion": "1.15.0", "Vendor": b.profile.Manufacturer,
		"Systems": link(systemsPath), "Managers": link(managersPath), "Tasks": link(rootPath + "/TaskService"),
	}
	if b.profile.Session.Offered {
		root["SessionService"] = link(rootPath + "/SessionService")
		root["Links"] = object{"Sessions": link(sessionsPath)}
	}

	return show(root)
}

func (b *BMC) systemArea(r *http.Request, rest []string) *answer {
	if len(rest) == 0 {
		members := make([]any, 0, len(b.systems))
		for _, s := range b.systems {
			members = append(members, link(Path(s.id)))
		}

		return b.only(r, http.MethodGet, func() *answer { return show(collection(systemsPath, members)) })
	}
	s := b.system(rest[0])
	if s == nil {
		return b.missing()
	}
	s.settle(b.clock.Now())
	if s.Status != 0 {
		return b.refuse(s.Status, "Base.1.12.InternalError", "The request failed due to an internal error.")
	}
	if len(rest) == 1 {
		return b.serveSystem(r, s)
	}

	return b.serveBelow(r, s, rest[1:])
}

// serveBelow answers what is below a system.
func (b *BMC) serveBelow(r *http.Request, s *system, rest []string) *answer {
	switch path := strings.Join(rest, "/"); {
	case path == "Actions/ComputerSystem.Reset":
		return b.only(r, http.MethodPost, func() *answer { return b.reset(r, s) })
	case path == "ResetActionInfo" && b.profile.Reset.TypesAt == ActionInfo:
		return b.only(r, http.MethodGet, func() *answer { return show(b.actionInfo(s)) })
	case path == "Settings" && b.profile.Boot.Settings:
		return b.serveSettings(r, s)
	case rest[0] == "VirtualMedia" && b.profile.Media.Under != AtManager:
		return b.mediaArea(r, s, Path(s.id), rest[1:])
	case rest[0] == "LogServices" && len(b.logServices(AtSystem)) > 0:
		return b.logArea(r, AtSystem, Path(s.id), rest[1:])
	default:
		return b.missing()
	}
}

// only answers one method.
func (b *BMC) only(r *http.Request, method string, serve func() *answer) *answer {
	if r.Method != method {
		return b.notAllowed()
	}

	return serve()
}

func (b *BMC) serveSystem(r *http.Request, s *system) *answer {
	switch r.Method {
	case http.MethodGet:
		a := show(b.describe(s))
		b.tag(a, s)

		return a
	case http.MethodPatch:
		return b.patchBoot(r, s, AtSystem)
	default:
		return b.notAllowed()
	}
}

// describe is the ComputerSystem.
func (b *BMC) describe(s *system) object {
	path := Path(s.id)
	body := object{
		"@odata.id": path, "@odata.type": "#ComputerSystem.v1_16_0.ComputerSystem", "Id": s.id, "Name": s.Name,
		"SystemType": "Physical", "UUID": s.UUID, "SerialNumber": s.Serial, "Model": b.profile.Model,
		"Manufacturer": b.profile.Manufacturer, "Status": object{"State": "Enabled", "Health": "OK"},
		"Links": object{"Chassis": []any{}},
	}
	if s.board {
		return body
	}
	if !s.NoPower {
		body["PowerState"] = s.shown(b.profile.Reset, b.clock.Now())
	}
	if !b.profile.NoManagedBy {
		body["Links"] = object{"ManagedBy": []any{link(b.managerPath(s))}}
	}
	if !b.profile.Reset.Absent {
		body["Actions"] = object{"#ComputerSystem.Reset": b.describeReset(path)}
	}
	body["Boot"] = b.describeBoot(s.Boot, b.profile.Boot.TargetsAt == AtSystem)
	if b.profile.Boot.Settings {
		body["@Redfish.Settings"] = object{
			"@odata.type": "#Settings.v1_3_5.Settings", "SettingsObject": link(path + "/Settings"),
			"SupportedApplyTimes": []any{"Immediate", "OnReset"},
		}
	}
	if b.profile.Media.Under != AtManager {
		body["VirtualMedia"] = link(path + "/VirtualMedia")
	}
	if len(b.logServices(AtSystem)) > 0 {
		body["LogServices"] = link(path + "/LogServices")
	}

	return body
}

func (b *BMC) describeReset(path string) object {
	action := object{"target": path + "/Actions/ComputerSystem.Reset"}
	switch b.profile.Reset.TypesAt {
	case Inline:
		action["ResetType@Redfish.AllowableValues"] = b.profile.Reset.Types
	case ActionInfo:
		action["@Redfish.ActionInfo"] = path + "/ResetActionInfo"
	default:
	}

	return action
}

func (b *BMC) actionInfo(s *system) object {
	return object{
		"@odata.id": Path(s.id) + "/ResetActionInfo", "Id": "ResetActionInfo", "Name": "Reset Action Info",
		"Parameters": []any{object{
			"Name": "ResetType", "Required": true, "DataType": "String", "AllowableValues": b.profile.Reset.Types,
		}},
	}
}

// managerPath is the path of the manager of a system: one BMC, and for more than one system, as blade chassis have it,
// one manager each.
func (b *BMC) managerPath(s *system) string {
	path := managersPath + "/" + b.profile.ManagerID
	if s.number > 1 {
		path += "-" + itoa(s.number)
	}

	return path
}

func (b *BMC) managerArea(r *http.Request, rest []string) *answer {
	if len(rest) == 0 {
		members := []any{}
		for _, s := range b.systems {
			if !s.board {
				members = append(members, link(b.managerPath(s)))
			}
		}

		return show(collection(managersPath, members))
	}
	for _, s := range b.systems {
		if s.board || b.managerPath(s) != managersPath+"/"+rest[0] {
			continue
		}
		s.settle(b.clock.Now())
		switch {
		case len(rest) == 1:
			return b.only(r, http.MethodGet, func() *answer { return show(b.describeManager(s)) })
		case rest[1] == "VirtualMedia" && b.profile.Media.Under != AtSystem:
			return b.mediaArea(r, s, b.managerPath(s), rest[2:])
		case rest[1] == "LogServices" && b.profile.Log.Under == AtManager:
			return b.logArea(r, AtManager, b.managerPath(s), rest[2:])
		}
	}

	return b.missing()
}

func (b *BMC) describeManager(s *system) object {
	path := b.managerPath(s)
	body := object{
		"@odata.id": path, "@odata.type": "#Manager.v1_14_0.Manager", "Id": b.profile.ManagerID, "Name": "Manager",
		"ManagerType": "BMC", "FirmwareVersion": b.profile.Firmware, "Model": b.profile.Model,
		"DateTime":            b.clock.Now().Add(b.options.Skew).Format("2006-01-02T15:04:05-07:00"),
		"DateTimeLocalOffset": b.clock.Now().Format("-07:00"),
		"Links":               object{"ManagerForServers": []any{link(Path(s.id))}},
	}
	if b.profile.Media.Under != AtSystem {
		body["VirtualMedia"] = link(path + "/VirtualMedia")
	}
	if b.profile.Log.Under == AtManager {
		body["LogServices"] = link(path + "/LogServices")
	}

	return body
}

// etag is the entity tag of a system or its Settings.
func (s *system) etag() string { return fmt.Sprintf(`"%s-%d"`, s.id, s.revision) }

// tag adds the ETag to an answer.
func (b *BMC) tag(a *answer, s *system) {
	switch b.profile.ETag {
	case ETagNone:
	case ETagWeak:
		a.header = map[string]string{"ETag": "W/" + s.etag()}
	case ETagEmpty:
		a.header = map[string]string{"ETag": ""}
	default:
		a.header = map[string]string{"ETag": s.etag()}
	}
}

// refuseMatch checks the If-Match of a PATCH; nil is a pass.
func (b *BMC) refuseMatch(r *http.Request, s *system) *answer {
	sent, present := r.Header["If-Match"]
	switch {
	case b.profile.ETag == ETagNone:
		return nil
	case !present && b.profile.ETag == ETagRequired:
		return b.refuse(http.StatusPreconditionRequired, "Base.1.12.PreconditionHeaderMissing", "If-Match is missing.")
	case !present:
		return nil
	case sent[0] == s.etag() && b.profile.ETag != ETagRefused && b.profile.ETag != ETagEmpty, sent[0] == "*" && b.profile.ETag == ETagChecked:
		return nil
	default:
		return b.refuse(http.StatusPreconditionFailed, "Base.1.12.PreconditionFailed", "The ETag does not match.")
	}
}
