package redfish_test

import (
	"net/http"
	"reflect"
	"slices"
	"testing"

	"github.com/stayput-dev/stayput/bmc"
)

const settingsPath = systemPath + "/Settings"

// override is property Boot; "" leaves a part out.
func override(target, enabled, mode string) object {
	boot := object{}
	for name, value := range map[string]string{"Target": target, "Enabled": enabled, "Mode": mode} {
		if value != "" {
			boot["BootSourceOverride"+name] = value
		}
	}

	return boot
}

func with(boot object, targets ...string) object {
	boot["BootSourceOverrideTarget@Redfish.AllowableValues"] = targets

	return boot
}

// settings gives the system a Settings resource that holds properties.
func (s *scripted) settings(properties object) {
	s.change(systemPath, object{"@Redfish.Settings": object{"SettingsObject": link(settingsPath)}})
	s.change(settingsPath, properties)
}

func TestBoot(t *testing.T) {
	t.Parallel()
	none := bmc.Boot{Target: bmc.BootNone}
	cases := map[string]struct {
		system, settings object
		want             bmc.Boot
		offered          []bmc.BootTarget
	}{
		"nothing said":   {nil, nil, none, nil},
		"disabled":       {override("Pxe", "Disabled", "UEFI"), nil, bmc.Boot{Target: bmc.BootNone, Mode: bmc.ModeUEFI}, nil},
		"once":           {override("Hdd", "Once", "Legacy"), nil, bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeLegacy}, nil},
		"continuous":     {override("Pxe", "Continuous", ""), nil, bmc.Boot{Target: bmc.BootPXE, Continuous: true}, nil},
		"virtual CD":     {override("UsbCd", "Once", ""), nil, bmc.Boot{Target: bmc.BootCD}, nil},
		"without a word": {override("UefiTarget", "Once", ""), nil, bmc.Boot{Target: "UefiTarget"}, nil},
		"once, of None":  {override("None", "Once", ""), nil, none, nil},
		"offered": {
			with(override("None", "Disabled", ""), "None", "Pxe", "Cd", "UsbCd", "Hdd", "Diags", "UefiHttp", "BiosSetup", "Usb"), nil, none,
			[]bmc.BootTarget{
				bmc.BootNone, bmc.BootPXE, bmc.BootCD, bmc.BootDisk, bmc.BootHTTP, bmc.BootBIOS, bmc.BootUSB,
			},
		},
		"offered in the settings only": {
			override("None", "Disabled", "UEFI"), with(object{}, "Pxe", "Hdd"),
			bmc.Boot{Target: bmc.BootNone, Mode: bmc.ModeUEFI},
			[]bmc.BootTarget{bmc.BootPXE, bmc.BootDisk},
		},
		"waiting in the settings": {
			override("None", "Disabled", "UEFI"), override("Pxe", "Once", ""), bmc.Boot{Target: bmc.BootPXE, Mode: bmc.ModeUEFI}, nil,
		},
		"settings without boot": {override("Pxe", "Once", ""), object{"BootOrder": []string{"1"}}, bmc.Boot{Target: bmc.BootPXE}, nil},
	}
	for name, c := range cases {
		s := script(t)
		if c.system != nil {
			s.change(systemPath, object{"Boot": c.system})
		}
		if c.settings != nil {
			s.settings(object{"Boot": c.settings})
		}
		got, err := s.open().Boot(t.Context())
		if err != nil || got.Boot != c.want || !slices.Equal(got.Offered, c.offered) {
			t.Errorf("%s: got %+v, %v, want %+v offering %v", name, got, err, c.want, c.offered)
		}
	}
	s := script(t)
	s.change(systemPath, object{"@Redfish.Settings": object{"SettingsObject": link(settingsPath)}})
	if got, err := s.open().Boot(t.Context()); err != nil || got.Boot != none {
		t.Errorf("settings that are missing: got %+v, %v", got, err)
	}
	s.on("GET "+settingsPath, reply{status: 503})
	_, err := s.open().Boot(t.Context())
	wantKind(t, err, bmc.Busy, "settings")
}

// patched is one PATCH of Boot.
type patched struct {
	path string
	boot object
	tag  string
}

func (s *scripted) patches() []patched {
	writes := s.writes()
	if len(writes) == 0 {
		return nil
	}
	all := make([]patched, 0, len(writes))
	for _, each := range writes {
		boot, _ := each.body["Boot"].(object)
		all = append(all, patched{each.path, boot, each.ifMatch})
	}

	return all
}

func TestSetBoot(t *testing.T) {
	t.Parallel()
	const system, settings = "PATCH " + systemPath, "PATCH " + settingsPath
	ok := reply{status: 204}
	no := reply{status: 400, body: complaint("Base.1.8.PropertyValueError", "no")}
	readOnly := reply{status: 400, body: complaint("Base.1.8.PropertyNotWritable", "read-only", "BootSourceOverrideTarget")}
	disk, once := bmc.Boot{Target: bmc.BootDisk}, override("Hdd", "Once", "")
	cases := map[string]struct {
		setUp func(*scripted)
		boot  bmc.Boot
		want  []patched
		kind  bmc.Kind
		text  string
	}{
		"minimal": {func(s *scripted) { s.on(system, ok) }, disk, []patched{{systemPath, once, ""}}, "", ""},
		"continuous": {
			func(s *scripted) { s.on(system, ok) },
			bmc.Boot{Target: bmc.BootPXE, Continuous: true},
			[]patched{{systemPath, override("Pxe", "Continuous", ""), ""}},
			"", "",
		},
		"none": {
			func(s *scripted) { s.on(system, ok) },
			bmc.Boot{Target: bmc.BootNone, Continuous: true, Mode: bmc.ModeUEFI},
			[]patched{{systemPath, override("None", "Disabled", ""), ""}},
			"", "",
		},
		"none, without that target": {
			func(s *scripted) { s.on(system, no, ok) },
			bmc.Boot{Target: bmc.BootNone},
			[]patched{{systemPath, override("None", "Disabled", ""), ""}, {systemPath, override("", "Disabled", ""), ""}},
			"", "",
		},
		"mode that is so already": {
			func(s *scripted) {
				s.change(systemPath, object{"Boot": override("None", "Disabled", "UEFI")})
				s.on(system, ok)
			},
			bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeUEFI},
			[]patched{{systemPath, once, ""}},
			"", "",
		},
		"mode that differs": {
			func(s *scripted) {
				s.change(systemPath, object{"Boot": override("None", "Disabled", "Legacy")})
				s.on(system, ok)
			},
			bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeUEFI},
			[]patched{{systemPath, override("Hdd", "Once", "UEFI"), ""}},
			"", "",
		},
		"mode that is not told": {
			func(s *scripted) { s.on(system, ok) },
			bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeUEFI},
			[]patched{{systemPath, override("Hdd", "Once", "UEFI"), ""}},
			"", "",
		},
		"mode that is read-only": {
			func(s *scripted) {
				s.on(system, reply{status: 400, body: complaint("Base.1.8.PropertyNotWritable", "read-only", "BootSourceOverrideMode")})
			},
			bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeUEFI},
			[]patched{{systemPath, override("Hdd", "Once", "UEFI"), ""}},
			bmc.Unsupported, "leave the boot mode out",
		},
		"full body": {
			func(s *scripted) {
				s.change(systemPath, object{"Boot": override("None", "Disabled", "UEFI")})
				s.on(system, no, ok)
			},
			disk,
			[]patched{{systemPath, once, ""}, {systemPath, override("Hdd", "Once", "UEFI"), ""}},
			"", "",
		},
		"Enabled that is so already": {
			func(s *scripted) {
				s.change(systemPath, object{"Boot": override("Pxe", "Once", "")})
				s.on(system, no, ok)
			},
			disk,
			[]patched{{systemPath, once, ""}, {systemPath, override("Hdd", "", ""), ""}},
			"", "",
		},
		"refused for good": {
			func(s *scripted) {
				s.change(systemPath, object{"Boot": override("None", "Disabled", "UEFI")})
				s.on(system, no, reply{status: 400, body: complaint("Base.1.8.PropertyUnknown", "the second form")})
			},
			disk,
			[]patched{{systemPath, once, ""}, {systemPath, override("Hdd", "Once", "UEFI"), ""}},
			bmc.Conflict, "no",
		},
		"continuous refused": {
			func(s *scripted) { s.on(system, no) },
			bmc.Boot{Target: bmc.BootPXE, Continuous: true},
			[]patched{{systemPath, override("Pxe", "Continuous", ""), ""}},
			bmc.Unsupported, "set it for one boot",
		},
		"continuous not offered": {
			func(s *scripted) {
				s.change(systemPath, object{"Boot": object{
					"BootSourceOverrideEnabled@Redfish.AllowableValues": []string{"Disabled", "Once"},
				}})
			}, bmc.Boot{Target: bmc.BootPXE, Continuous: true}, nil, bmc.Unsupported, "set it for one boot",
		},
		"continuous disk of a Lenovo": {
			func(s *scripted) { s.change(systemPath, object{"Manufacturer": "Lenovo"}) },
			bmc.Boot{Target: bmc.BootDisk, Continuous: true},
			nil, bmc.Unsupported, "boot in a loop",
		},
		"target not offered": {
			func(s *scripted) { s.change(systemPath, object{"Boot": with(object{}, "Pxe", "Hdd")}) },
			bmc.Boot{Target: bmc.BootHTTP},
			nil, bmc.Unsupported, "offers only Pxe, Hdd",
		},
		"no such target": {func(*scripted) {}, bmc.Boot{Target: "Floppy"}, nil, bmc.Unsupported, "no such target"},
		"virtual CD of a Supermicro": {
			func(s *scripted) {
				s.change(systemPath, object{"Manufacturer": "Supermicro", "Boot": with(object{}, "Pxe", "Cd", "UsbCd")})
				s.on(system, ok)
			}, bmc.Boot{Target: bmc.BootCD}, []patched{{systemPath, override("UsbCd", "Once", ""), ""}}, "", "",
		},
		"virtual CD of another Supermicro": {
			func(s *scripted) {
				s.change(systemPath, object{"Manufacturer": "Supermicro", "Boot": with(object{}, "Pxe", "Cd")})
				s.on(system, ok)
			}, bmc.Boot{Target: bmc.BootCD}, []patched{{systemPath, override("Cd", "Once", ""), ""}}, "", "",
		},
		"none, which is not offered": {
			func(s *scripted) {
				s.change(systemPath, object{"Boot": with(object{}, "Pxe", "Hdd")})
				s.on(system, ok)
			},
			bmc.Boot{Target: bmc.BootNone},
			[]patched{{systemPath, override("None", "Disabled", ""), ""}},
			"", "",
		},
		"in the settings, with the system's mode": {
			func(s *scripted) {
				s.change(systemPath, object{"Boot": override("None", "Disabled", "UEFI")})
				s.settings(object{"Boot": with(object{}, "Hdd")})
				s.on(settings, ok)
			},
			bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeUEFI},
			[]patched{{settingsPath, once, ""}},
			"", "",
		},
		"in the settings": {
			func(s *scripted) { s.settings(object{"Boot": with(object{}, "Hdd")}); s.on(settings, ok) },
			disk,
			[]patched{{settingsPath, once, ""}},
			"", "",
		},
		"settings without boot": {
			func(s *scripted) { s.settings(object{"Boot": object{"BootOrder": []string{}}}); s.on(system, ok) },
			disk,
			[]patched{{systemPath, once, ""}},
			"", "",
		},
		"settings that are read-only": {
			func(s *scripted) {
				s.settings(object{"Boot": override("None", "", "")})
				s.on(settings, readOnly)
				s.on(system, ok)
			},
			disk,
			[]patched{{settingsPath, once, ""}, {systemPath, once, ""}},
			"", "",
		},
		"settings without PATCH": {
			func(s *scripted) {
				s.settings(object{"Boot": override("None", "", "")})
				s.on(settings, reply{status: 405})
				s.on(system, ok)
			},
			disk,
			[]patched{{settingsPath, once, ""}, {systemPath, once, ""}},
			"", "",
		},
		"in POST": {
			func(s *scripted) {
				s.change(systemPath, object{"Boot": override("None", "Disabled", "UEFI")})
				s.on(system, reply{status: 400, body: complaint("iLO.2.14.UnableToModifyDuringSystemPOST", "in POST")})
			}, disk, []patched{{systemPath, once, ""}}, bmc.Busy, "in POST",
		},
		"conflict": {
			func(s *scripted) { s.on(system, reply{status: 409}) }, disk, []patched{{systemPath, once, ""}}, bmc.Conflict, "409",
		},
		"as a task": {
			func(s *scripted) {
				s.on(system, reply{status: 202, header: map[string]string{"Location": monitorPath}})
				s.on("GET "+monitorPath, reply{status: 200, body: object{"TaskState": "Exception"}})
			}, disk, []patched{{systemPath, once, ""}}, bmc.Unknown, "Exception",
		},
		"sick": {
			func(s *scripted) { s.on(system, reply{status: 500}) }, disk, []patched{{systemPath, once, ""}}, bmc.Unknown, "500",
		},
	}
	for name, c := range cases {
		s := script(t)
		c.setUp(s)
		err := s.open().SetBoot(t.Context(), c.boot)
		if got := s.patches(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: sent %+v, want %+v", name, got, c.want)
		}
		if bmc.KindOf(err) != c.kind {
			t.Errorf("%s: got %v (kind %q), want kind %q", name, err, bmc.KindOf(err), c.kind)
		} else if err != nil {
			wantKind(t, err, c.kind, c.text, "setting the boot override")
		}
	}
}

// The ladder of ETags: each 412 leads to the next form, and any other answer ends it.
func TestETags(t *testing.T) {
	t.Parallel()
	const weak, strong = `W/"5"`, `"5"`
	failed := reply{status: http.StatusPreconditionFailed}
	missing := reply{status: http.StatusPreconditionRequired, body: complaint("Base.1.8.PreconditionRequired", "tag")}
	missing400 := reply{status: 400, body: complaint("Base.1.8.PreconditionHeaderMissing", "tag")}
	missing412 := reply{status: 412, body: complaint("Base.1.8.PreconditionHeaderMissing", "tag")}
	ok := reply{status: 204}
	cases := map[string]struct {
		tag     string
		answers []reply
		want    []string
		kind    bmc.Kind
	}{
		"strong":               {strong, []reply{ok}, []string{strong}, ""},
		"none":                 {"", []reply{ok}, []string{""}, ""},
		"empty":                {`""`, []reply{ok}, []string{""}, ""},
		"strong fails":         {strong, []reply{failed, ok}, []string{strong, ""}, ""},
		"weak fails":           {weak, []reply{failed, ok}, []string{weak, strong}, ""},
		"all but none fail":    {weak, []reply{failed, failed, ok}, []string{weak, strong, ""}, ""},
		"all fail":             {weak, []reply{failed}, []string{weak, strong, ""}, bmc.Conflict},
		"one is wanted, 428":   {"", []reply{missing, ok}, []string{"", weak}, ""},
		"one is wanted, 400":   {"", []reply{missing400, ok}, []string{"", weak}, ""},
		"a strong one, 412":    {"", []reply{missing412, failed, ok}, []string{"", weak, strong}, ""},
		"none will do":         {strong, []reply{failed, missing412, failed}, []string{strong, "", weak, strong}, bmc.Conflict},
		"another kind of fail": {weak, []reply{failed, {status: 500}}, []string{weak, strong}, bmc.Unknown},
	}
	for name, c := range cases {
		s := script(t)
		s.etags[systemPath] = c.tag
		m := s.open()
		for _, each := range c.answers {
			s.does("PATCH "+systemPath, func(received) reply {
				s.mu.Lock()
				defer s.mu.Unlock()
				if each.status == missing.status || each.body != nil {
					// Only a fresh read gives it.
					s.etags[systemPath] = weak
				}

				return each
			})
		}
		err := m.SetBoot(t.Context(), bmc.Boot{Target: bmc.BootDisk})
		patches := s.patches()
		got := make([]string, 0, len(patches))
		for _, each := range patches {
			got = append(got, each.tag)
		}
		if !slices.Equal(got, c.want) || bmc.KindOf(err) != c.kind {
			t.Errorf("%s: sent %q, %v, want %q, kind %q", name, got, err, c.want, c.kind)
		}
	}
}
