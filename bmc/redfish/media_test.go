package redfish_test

import (
	"maps"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/bmc"
)

const (
	drives        = systemPath + "/VirtualMedia"
	managerDrives = managerPath + "/VirtualMedia"
	image         = "http://images.example/rescue.iso"
)

// drive is a VirtualMedia with both actions.
func drive(path string, more object) object {
	found := object{
		"Id": path[strings.LastIndex(path, "/")+1:], "MediaTypes": []string{"CD", "DVD"}, "Image": nil, "Inserted": false,
		"Actions": object{
			"#VirtualMedia.InsertMedia": object{"target": path + "/Insert"},
			"#VirtualMedia.EjectMedia":  object{"target": path + "/Eject"},
		},
	}
	maps.Copy(found, more)

	return found
}

// withDrives puts drives below a system or manager.
func (s *scripted) withDrives(owner string, all map[string]object) {
	collection := owner + "/VirtualMedia"
	paths := make([]string, 0, len(all))
	for _, id := range []string{"Cd", "Usb", "1", "2"} {
		if each, ok := all[id]; ok {
			paths = append(paths, collection+"/"+id)
			s.change(collection+"/"+id, each)
		}
	}
	s.change(collection, object{"Members": links(paths...)})
	s.change(owner, object{"VirtualMedia": link(collection)})
}

func TestMedia(t *testing.T) {
	t.Parallel()
	types := []string{"CD", "DVD"}
	noActions := object{"Actions": object{}}
	cases := map[string]struct {
		setUp func(*scripted)
		want  []bmc.MediaSlot
	}{
		"none": {func(*scripted) {}, nil},
		"of the system": {
			func(s *scripted) {
				s.withDrives(systemPath, map[string]object{
					"Cd":  drive(drives+"/Cd", object{"Image": "https://u:" + password + "@h/x.iso?a=1", "Inserted": true}),
					"Usb": drive(drives+"/Usb", object{"MediaTypes": []string{"USBStick"}}),
				})
				s.withDrives(managerPath, map[string]object{"1": drive(managerDrives+"/1", nil)})
			},
			[]bmc.MediaSlot{
				{ID: "Cd", Types: types, Image: "https://h/x.iso?a=1", Inserted: true, Insertable: true},
				{ID: "Usb", Types: []string{"USBStick"}, Insertable: true},
			},
		},
		"of the manager": {
			func(s *scripted) { s.withDrives(managerPath, map[string]object{"1": drive(managerDrives+"/1", nil)}) },
			[]bmc.MediaSlot{{ID: "1", Types: types, Insertable: true}},
		},
		"of the only manager, not named": {
			func(s *scripted) {
				s.change(systemPath, object{"Links": object{}})
				s.withDrives(managerPath, map[string]object{"1": drive(managerDrives+"/1", nil)})
			},
			[]bmc.MediaSlot{{ID: "1", Types: types, Insertable: true}},
		},
		"the system's take nothing": {
			func(s *scripted) {
				s.withDrives(systemPath, map[string]object{
					"1": drive(drives+"/1", object{"Actions": object{"#VirtualMedia.EjectMedia": object{"target": "/x"}}}),
				})
				s.withDrives(managerPath, map[string]object{"1": drive(managerDrives+"/1", nil)})
			},
			[]bmc.MediaSlot{{ID: drives + "/1", Types: types}, {ID: managerDrives + "/1", Types: types, Insertable: true}},
		},
		"one collection for both": {
			func(s *scripted) {
				s.withDrives(systemPath, map[string]object{"1": drive(drives+"/1", noActions)})
				s.headers[drives+"/1"] = http.Header{"Allow": {"GET, HEAD"}}
				s.change(managerPath, object{"VirtualMedia": link(drives)})
			},
			[]bmc.MediaSlot{{ID: "1", Types: types}},
		},
		"without actions": {
			func(s *scripted) {
				s.withDrives(systemPath, map[string]object{"1": drive(drives+"/1", noActions)})
				s.headers[drives+"/1"] = http.Header{"Allow": {"GET, HEAD, PATCH"}}
			},
			[]bmc.MediaSlot{{ID: "1", Types: types, Insertable: true}},
		},
		"odd ways to be empty, and full": {
			func(s *scripted) {
				s.withDrives(systemPath, map[string]object{
					"Cd":  drive(drives+"/Cd", object{"Image": image, "Inserted": true, "ConnectedVia": "NotConnected"}),
					"Usb": drive(drives+"/Usb", object{"Image": image, "Inserted": nil}),
					"1":   drive(drives+"/1", object{"Image": image, "Inserted": false, "ConnectedVia": "URI"}),
				})
			},
			[]bmc.MediaSlot{
				{ID: "Cd", Types: types, Insertable: true},
				{ID: "Usb", Types: types, Image: image, Inserted: true, Insertable: true},
				{ID: "1", Types: types, Insertable: true},
			},
		},
	}
	for name, c := range cases {
		s := script(t)
		c.setUp(s)
		got, err := s.open().Media(t.Context())
		if err != nil || len(got)+len(c.want) > 0 && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

// sent is one write to a drive, by the end of its path.
type sent struct {
	what string
	body object
}

func (s *scripted) sent() []sent {
	writes := s.writes()
	if len(writes) == 0 {
		return nil
	}
	all := make([]sent, 0, len(writes))
	for _, each := range writes {
		all = append(all, sent{each.method + " " + each.path[strings.LastIndex(each.path, "/")+1:], each.body})
	}

	return all
}

// takesImage lets a drive accept an image, by a request, and show it.
func (s *scripted) takesImage(key, path string) {
	s.does(key, func(got received) reply {
		s.change(path, object{"Image": got.body["Image"], "Inserted": true})

		return reply{status: 204}
	})
}

func (s *scripted) ejects(key, path string) {
	s.does(key, func(received) reply {
		s.change(path, object{"Image": nil, "Inserted": false})

		return reply{status: 204}
	})
}

func TestEject(t *testing.T) {
	t.Parallel()
	const path = drives + "/Cd"
	in := object{"Image": image, "Inserted": true}
	cases := map[string]struct {
		drive object
		want  []sent
	}{
		"full":  {in, []sent{{"POST Eject", object{}}}},
		"empty": {nil, nil},
		"by PATCH": {
			object{"Image": image, "Inserted": true, "Actions": object{}},
			[]sent{{"PATCH Cd", object{"Image": nil, "Inserted": false}}},
		},
	}
	for name, c := range cases {
		s := script(t)
		s.withDrives(systemPath, map[string]object{"Cd": drive(path, c.drive)})
		empties := func(status int) func(received) reply {
			return func(received) reply {
				s.change(path, object{"Image": nil, "Inserted": false})

				return reply{status: status, body: object{}}
			}
		}
		s.does("POST "+path+"/Eject", empties(200))
		s.does("PATCH "+path, empties(200))
		if err := s.open().Eject(t.Context(), "Cd"); err != nil || !reflect.DeepEqual(s.sent(), c.want) {
			t.Errorf("%s: %v, sent %+v, want %+v", name, err, s.sent(), c.want)
		}
		for _, each := range s.writes() {
			if each.method == http.MethodPost && each.raw != "{}" {
				t.Errorf("%s: the body is %q, want {}", name, each.raw)
			}
		}
	}
	s := script(t)
	s.withDrives(systemPath, map[string]object{"Cd": drive(path, in)})
	s.on("POST "+path+"/Eject", reply{status: 409, body: complaint("x", "in use")})
	wantKind(t, s.open().Eject(t.Context(), "Cd"), bmc.Conflict, "in use")
	s = script(t)
	s.withDrives(systemPath, map[string]object{"Cd": drive(path, in)})
	s.on("POST "+path+"/Eject", reply{status: 204})
	wantKind(t, s.open().Eject(t.Context(), "Cd"), bmc.NotFollowed, "still shows the image")
}
