package redfish_test

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/stayput-dev/stayput/bmc"
)

func TestEveryAction(t *testing.T) {
	t.Parallel()
	for action, want := range map[bmc.Action]string{
		bmc.ActionOn: "On", bmc.ActionForceOff: "ForceOff", bmc.ActionForceRestart: "ForceRestart",
		bmc.ActionShutdown: "GracefulShutdown", bmc.ActionSoftRestart: "GracefulRestart", bmc.ActionPowerCycle: "PowerCycle",
	} {
		s := script(t)
		s.etags[systemPath] = `"7"`
		s.on("POST "+resetPath, reply{status: 204})
		if err := s.open().Do(t.Context(), action); err != nil {
			t.Errorf("%s: %v", action, err)
		}
		writes := s.writes()
		if len(writes) != 1 || !reflect.DeepEqual(writes[0].body, object{"ResetType": want}) || writes[0].ifMatch != "" {
			t.Errorf("%s: got %+v, want one POST of %s without If-Match", action, writes, want)
		}
	}
}

// An action is never replaced by a harder one, or by one of another meaning.
func TestNoActionStandsInForAnother(t *testing.T) {
	t.Parallel()
	for _, missing := range allActions() {
		s := script(t)
		types := []string{"Nmi", "PushPowerButton"}
		for _, each := range allActions() {
			if each != missing {
				types = append(types, string(each))
			}
		}
		s.change(systemPath, object{"Actions": object{"#ComputerSystem.Reset": object{
			"target": resetPath, "ResetType@Redfish.AllowableValues": types,
		}}})
		m := s.open()
		offered, err := m.Actions(t.Context())
		if err != nil || slices.Contains(offered, missing) || len(offered) != len(allActions())-1 {
			t.Errorf("without %s: got %v, %v", missing, offered, err)
		}
		wantKind(t, m.Do(t.Context(), missing), bmc.Unsupported, "offers only Nmi")
		if writes := s.writes(); len(writes) != 0 {
			t.Errorf("without %s: sent %+v", missing, writes)
		}
	}
}

// The ActionInfo that a BMC names and lacks says nothing; an inline list wins.
func TestActionInfo(t *testing.T) {
	t.Parallel()
	info := systemPath + "/ResetActionInfo"
	reset := object{"target": resetPath, "@Redfish.ActionInfo": info}
	for name, c := range map[string]struct {
		info   object
		inline []string
		want   []bmc.Action
	}{
		"missing": {nil, nil, allActions()},
		"told": {object{"Parameters": []object{
			{"Name": "Other", "AllowableValues": []string{"On"}},
			{"Name": "ResetType", "AllowableValues": []string{"PowerCycle", "GracefulRestart"}},
		}}, nil, []bmc.Action{bmc.ActionSoftRestart, bmc.ActionPowerCycle}},
		"inline": {
			object{"Parameters": []object{{"Name": "ResetType", "AllowableValues": []string{"On"}}}},
			[]string{"ForceOff"},
			[]bmc.Action{bmc.ActionForceOff},
		},
	} {
		s := script(t)
		action := maps.Clone(reset)
		if c.inline != nil {
			action["ResetType@Redfish.AllowableValues"] = c.inline
		}
		s.change(systemPath, object{"Actions": object{"#ComputerSystem.Reset": action}})
		if c.info != nil {
			s.change(info, c.info)
		}
		if got, err := s.open().Actions(t.Context()); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, c.want)
		}
	}
}

func TestNoResetMeansNoActions(t *testing.T) {
	t.Parallel()
	s := script(t)
	s.change(systemPath, object{"Actions": object{}})
	if got, err := s.open().Actions(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v, want none", got, err)
	}
}

// One property of another type must not hide the others; gofish's own type fails on this one.
func TestOddProperty(t *testing.T) {
	t.Parallel()
	s := script(t)
	s.change(systemPath, object{"Redundancy@odata.count": 0, "SerialNumber": 17, "PowerState": "Off"})
	m := s.open()
	if power, err := m.Power(t.Context()); err != nil || power != bmc.PowerOff {
		t.Errorf("power: got %s, %v", power, err)
	}
	identity, err := m.Identity(t.Context())
	want := bmc.Identity{UUID: uuidOne, Model: "M", Manufacturer: "Stayput", BMCFirmware: "7.10.30"}
	if err != nil || identity != want {
		t.Errorf("identity: got %+v, %v, want %+v", identity, err, want)
	}
	for _, body := range []any{[]string{"no", "system"}, "<html>", "null", nil} {
		s.answers["GET "+systemPath] = nil
		s.on("GET "+systemPath, reply{status: 200, body: body})
		if power, err := m.Power(t.Context()); bmc.KindOf(err) != bmc.Transient || power != bmc.PowerUnknown {
			t.Errorf("answer %v: got %s, %v", body, power, err)
		}
	}
}

func TestFirmwareOfTheBMC(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*scripted)
		want   string
	}{
		"named": {func(s *scripted) {
			s.change("/redfish/v1/Managers", object{"Members": links("/redfish/v1/Managers/0", managerPath)})
		}, "7.10.30"},
		"not named, one": {func(s *scripted) { s.change(systemPath, object{"Links": object{}}) }, "7.10.30"},
		"not named, many": {func(s *scripted) {
			s.change(systemPath, object{"Links": object{}})
			s.change("/redfish/v1/Managers", object{"Members": links(managerPath, managerPath+"0")})
		}, ""},
		"none":   {func(s *scripted) { delete(s.resources, managerPath) }, ""},
		"hidden": {func(s *scripted) { s.on("GET "+managerPath, reply{status: 403}) }, ""},
	} {
		s := script(t)
		c.change(s)
		identity, err := s.open().Identity(t.Context())
		if err != nil || identity.BMCFirmware != c.want || identity.UUID != uuidOne {
			t.Errorf("%s: got %+v, %v, want firmware %q", name, identity, err, c.want)
		}
	}
}

// Whatever path a BMC gives, requests go to the BMC.
func TestForeignPaths(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]bool{
		"https://192.0.2.1" + resetPath: true, "//192.0.2.1" + resetPath: true,
		"@192.0.2.1" + resetPath: false, "reset": false, ".example.com" + resetPath: false,
	} {
		s := script(t)
		s.change(systemPath, object{"Actions": object{"#ComputerSystem.Reset": object{"target": target}}})
		s.on("POST "+resetPath, reply{status: 204})
		err := s.open().Do(t.Context(), bmc.ActionOn)
		if want && err != nil || len(s.writes()) > 0 != want {
			t.Errorf("%s: %v, sent %+v", target, err, s.writes())
		}
		if !want {
			wantKind(t, err, bmc.Unsupported, "where a path is due")
		}
	}
}

// The ActionInfo is read once in a session, and not kept when it said nothing.
func TestActionInfoIsReadOnce(t *testing.T) {
	t.Parallel()
	s := script(t).withSessions()
	info := systemPath + "/ResetActionInfo"
	s.change(systemPath, object{"Actions": object{"#ComputerSystem.Reset": object{"target": resetPath, "@Redfish.ActionInfo": info}}})
	s.on("POST "+resetPath, reply{status: 204})
	m := s.open()
	offers := func(reads int, want ...bmc.Action) {
		t.Helper()
		if got, err := m.Actions(t.Context()); err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
		if got := s.count("GET " + info); got != reads {
			t.Errorf("the ActionInfo was read %d times, want %d", got, reads)
		}
	}
	offers(1, allActions()...)
	s.change(info, object{"Parameters": []object{{"Name": "ResetType", "AllowableValues": []string{"On", "ForceOff"}}}})
	offers(2, noRestart()...)
	offers(2, noRestart()...)
	if err := m.Do(t.Context(), bmc.ActionForceOff); err != nil {
		t.Error(err)
	}
	offers(2, noRestart()...)
	s.mu.Lock()
	clear(s.tokens)
	s.mu.Unlock()
	s.change(info, object{"Parameters": []object{{"Name": "ResetType", "AllowableValues": []string{"On"}}}})
	offers(3, bmc.ActionOn)
}
