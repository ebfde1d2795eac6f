package redfish_test

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/redfish"
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

func TestInsert(t *testing.T) {
	t.Parallel()
	const path, insert, eject = drives + "/Cd", "POST " + drives + "/Cd/Insert", "POST " + drives + "/Cd/Eject"
	full := object{"Image": image, "Inserted": true, "WriteProtected": true}
	short := object{"Image": image, "Inserted": true}
	bare := object{"Image": image}
	typed := object{"Image": image, "Inserted": true, "WriteProtected": true, "TransferProtocolType": "HTTP"}
	no := reply{status: 400, body: complaint("Base.1.8.PropertyNotWritable", "read-only", "WriteProtected")}
	missing := func(id string) reply {
		return reply{status: 400, body: complaint(id, "the parameter TransferProtocolType is missing")}
	}
	in := object{"Image": "http://images.example/old.iso", "Inserted": true}
	noActions := object{"Actions": object{}}
	cases := map[string]struct {
		drive object
		setUp func(*scripted)
		want  []sent
		kind  bmc.Kind
		text  string
	}{
		"empty": {nil, func(s *scripted) { s.takesImage(insert, path) }, []sent{{"POST Insert", full}}, "", ""},
		"ejected first": {
			in, func(s *scripted) { s.ejects(eject, path); s.takesImage(insert, path) },
			[]sent{{"POST Eject", object{}}, {"POST Insert", full}},
			"", "",
		},
		"the same image is inserted anew": {
			object{"Image": image, "Inserted": true},
			func(s *scripted) { s.ejects(eject, path); s.takesImage(insert, path) },
			[]sent{{"POST Eject", object{}}, {"POST Insert", full}},
			"", "",
		},
		"an eject that is refused": {
			in, func(s *scripted) { s.on(eject, reply{status: 400}); s.takesImage(insert, path) },
			[]sent{{"POST Eject", object{}}, {"POST Insert", full}},
			"", "",
		},
		"an eject that is busy": {
			in, func(s *scripted) { s.on(eject, reply{status: 503}) }, []sent{{"POST Eject", object{}}}, bmc.Busy, "503",
		},
		"an eject that is lost": {
			in, func(s *scripted) { s.on(eject, reply{status: 500}) }, []sent{{"POST Eject", object{}}}, bmc.Unknown, "500",
		},
		"protocol missing": {
			nil, func(s *scripted) {
				s.on(insert, missing("Base.1.8.ActionParameterMissing"))
				s.takesImage(insert, path)
			},
			[]sent{{"POST Insert", full}, {"POST Insert", typed}},
			"", "",
		},
		"property missing": {
			nil, func(s *scripted) { s.on(insert, missing("Base.1.8.PropertyMissing")); s.takesImage(insert, path) },
			[]sent{{"POST Insert", full}, {"POST Insert", typed}},
			"", "",
		},
		"credentials missing": {
			nil,
			func(s *scripted) {
				for _, name := range []string{"UserName", "Password"} {
					s.on(insert, reply{status: 400, body: complaint("Base.1.8.ActionParameterMissing", "missing", name)})
				}
				s.takesImage(insert, path)
			},
			[]sent{
				{"POST Insert", full},
				{"POST Insert", object{"Image": image, "Inserted": true, "WriteProtected": true, "UserName": "none"}},
				{"POST Insert", object{
					"Image": image, "Inserted": true, "WriteProtected": true, "UserName": "none", "Password": "none",
				}},
			},
			"", "",
		},
		"missing for ever": {
			nil,
			func(s *scripted) { s.on(insert, missing("Base.1.8.PropertyMissing")) },
			[]sent{
				{"POST Insert", full},
				{"POST Insert", typed},
				{"POST Insert", object{"Image": image, "Inserted": true, "TransferProtocolType": "HTTP"}},
				{"POST Insert", object{"Image": image, "TransferProtocolType": "HTTP"}},
			},
			bmc.Conflict, "TransferProtocolType",
		},
		"only the image": {
			nil, func(s *scripted) { s.on(insert, no, no); s.takesImage(insert, path) },
			[]sent{{"POST Insert", full}, {"POST Insert", short}, {"POST Insert", bare}},
			"", "",
		},
		"refused": {
			nil, func(s *scripted) { s.on(insert, reply{status: 400, body: complaint("x", "cannot fetch "+image)}) },
			[]sent{{"POST Insert", full}, {"POST Insert", short}, {"POST Insert", bare}},
			bmc.Conflict, "cannot fetch",
		},
		"sick": {nil, func(s *scripted) { s.on(insert, reply{status: 500}) }, []sent{{"POST Insert", full}}, bmc.Unknown, "500"},
		"not shown": {
			nil, func(s *scripted) { s.on(insert, reply{status: 204}) },
			[]sent{{"POST Insert", full}},
			bmc.Unknown, "does not show it",
		},
		"another is shown": {
			nil, func(s *scripted) {
				s.does(insert, func(received) reply {
					s.change(path, in)

					return reply{status: 204}
				})
			}, []sent{{"POST Insert", full}}, bmc.Unknown, "does not show it",
		},
		"the name is shown": {
			nil, func(s *scripted) {
				s.does(insert, func(received) reply {
					s.change(path, object{"Image": "rescue.iso", "Inserted": true})

					return reply{status: 204}
				})
			}, []sent{{"POST Insert", full}}, "", "",
		},
		"the image is hidden": {
			nil, func(s *scripted) {
				s.does(insert, func(received) reply {
					s.change(path, object{"Inserted": true})

					return reply{status: 204}
				})
			}, []sent{{"POST Insert", full}}, "", "",
		},
		"by PATCH": {
			noActions, func(s *scripted) { s.takesImage("PATCH "+path, path) }, []sent{{"PATCH Cd", full}}, "", "",
		},
		"by PATCH, ejected first": {
			object{"Actions": object{}, "Image": "http://h/old.iso", "Inserted": true},
			func(s *scripted) {
				s.does("PATCH "+path, func(received) reply {
					s.change(path, object{"Image": nil, "Inserted": false})

					return reply{status: 204}
				})
				s.takesImage("PATCH "+path, path)
			},
			[]sent{{"PATCH Cd", object{"Image": nil, "Inserted": false}}, {"PATCH Cd", full}},
			"", "",
		},
		"by PATCH, without WriteProtected": {
			noActions, func(s *scripted) { s.on("PATCH "+path, no); s.takesImage("PATCH "+path, path) },
			[]sent{{"PATCH Cd", full}, {"PATCH Cd", short}},
			"", "",
		},
		"not insertable": {
			object{"Actions": object{"#VirtualMedia.EjectMedia": object{"target": "/x"}}},
			func(*scripted) {}, nil,
			bmc.Unsupported, "another slot",
		},
	}
	for name, c := range cases {
		s := script(t)
		s.withDrives(systemPath, map[string]object{"Cd": drive(path, c.drive)})
		c.setUp(s)
		err := s.open().Insert(t.Context(), "Cd", image)
		if got := s.sent(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: sent %+v, want %+v", name, got, c.want)
		}
		if bmc.KindOf(err) != c.kind {
			t.Errorf("%s: got %v (kind %q), want kind %q", name, err, bmc.KindOf(err), c.kind)
		} else if err != nil {
			wantKind(t, err, c.kind, c.text, "inserting virtual media into Cd")
		}
	}
}

// A BMC that ejects and mounts slowly is waited for.
func TestInsertWaitsForTheDrive(t *testing.T) {
	t.Parallel()
	const path = drives + "/Cd"
	s := script(t)
	s.withDrives(systemPath, map[string]object{"Cd": drive(path, object{"Image": "http://h/old.iso", "Inserted": true})})
	s.on("POST "+path+"/Eject", reply{status: 204})
	m := s.open()
	pauses := 0
	redfish.SetWait(m, func(context.Context, time.Duration) error {
		switch pauses++; pauses {
		case 2:
			if s.count("POST "+path+"/Insert") != 0 {
				t.Error("inserted before the drive was empty")
			}
			s.change(path, object{"Image": nil, "Inserted": false})
		case 4:
			s.change(path, object{"Image": image, "Inserted": true})
		}

		return nil
	})
	s.on("POST "+path+"/Insert", reply{status: 204})
	if err := m.Insert(t.Context(), "Cd", image); err != nil || pauses != 4 {
		t.Errorf("got %v after %d pauses, want success after 4", err, pauses)
	}
	ctx, cancel := context.WithCancel(t.Context())
	redfish.SetWait(m, func(ctx context.Context, _ time.Duration) error {
		cancel()

		return ctx.Err()
	})
	err := m.Insert(ctx, "Cd", "http://images.example/other.iso")
	wantKind(t, err, bmc.Unknown, "was not seen to follow")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want an error that is context.Canceled", err)
	}
}

func TestInsertRefuses(t *testing.T) {
	t.Parallel()
	s := script(t)
	s.withDrives(systemPath, map[string]object{"Cd": drive(drives+"/Cd", nil)})
	m := s.open()
	for url, text := range map[string]string{
		"http://u:hunter2@images.example/x.iso":   "user name or password",
		"http://hunter2@images.example/x.iso":     "user name or password",
		"http://u:hunter2@images.example:x/x.iso": "not given as a URL",
		"rescue.iso?hunter2":                      "not given as a URL",
		"http://images.example?hunter2":           "not given as a URL",
		"file://host/hunter2":                     "http or https",
		"":                                        "not given as a URL",
	} {
		err := m.Insert(t.Context(), "Cd", url)
		wantKind(t, err, bmc.Unsupported, text)
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error quotes the URL: %v", err)
		}
	}
	wantKind(t, m.Insert(t.Context(), "Dvd", image), bmc.NotFound, "the BMC has Cd")
	wantKind(t, m.Eject(t.Context(), "Dvd"), bmc.NotFound, "the BMC has Cd")
	if got := s.sent(); len(got) != 0 {
		t.Errorf("sent %+v", got)
	}
	wantKind(t, script(t).open().Insert(t.Context(), "Cd", image), bmc.Unsupported, "offers no virtual media")
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
		s.on("POST "+path+"/Eject", reply{status: 204})
		s.on("PATCH "+path, reply{status: 200, body: object{}})
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
}
