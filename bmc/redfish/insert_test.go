package redfish_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/redfish"
)

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
		"sick": {
			nil, func(s *scripted) { s.on(insert, reply{status: 500}) },
			[]sent{{"POST Insert", full}, {"POST Insert", full}, {"POST Insert", full}, {"POST Insert", full}},
			bmc.Busy, "offered the image 4 times",
		},
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

// What comes of an insert that is not answered with success is seen at the drive, and nothing is sent twice but what was
// refused.
func TestInsertWhoseAnswerTellsNothing(t *testing.T) {
	t.Parallel()
	const path, insert, eject = drives + "/Cd", "POST " + drives + "/Cd/Insert", "POST " + drives + "/Cd/Eject"
	old := object{"Image": "http://images.example/old.iso", "Inserted": true}
	same := object{"Image": image, "Inserted": true}
	sick := reply{status: 500, body: complaint("Base.1.8.InternalError", "internal")}
	taken := func(status int, id string) reply {
		return reply{status: status, body: complaint("IDRAC.2.8."+id, "in use")}
	}
	cases := map[string]struct {
		drive   object
		answers []reply
		// does tells that the last answer is given after the image was inserted, stays that no eject is followed.
		does, stays bool
		inserts     int
		kind        bmc.Kind
		text        string
	}{
		"500 while it ejects":        {old, []reply{sick, sick, {status: 204}}, true, false, 3, "", ""},
		"VRM0021 while it ejects":    {old, []reply{taken(500, "VRM0021"), {status: 204}}, true, false, 2, "", ""},
		"VRM0012 with 400":           {old, []reply{taken(400, "VRM0012"), {status: 204}}, true, false, 2, "", ""},
		"500 of an empty drive":      {nil, []reply{sick, {status: 204}}, true, false, 2, "", ""},
		"500 though done":            {nil, []reply{sick}, true, false, 1, "", ""},
		"502 though done":            {nil, []reply{{status: 502}}, true, false, 1, "", ""},
		"500, then taken":            {nil, []reply{sick, taken(500, "VRM0012")}, true, false, 2, "", ""},
		"for ever":                   {old, []reply{sick}, false, false, 4, bmc.Busy, "offered the image 4 times"},
		"taken for ever":             {old, []reply{taken(500, "VRM0021")}, false, false, 4, bmc.Busy, "in use"},
		"502":                        {nil, []reply{{status: 502}}, false, false, 1, bmc.Unknown, "502"},
		"504":                        {nil, []reply{{status: 504}}, false, false, 1, bmc.Unknown, "504"},
		"busy":                       {nil, []reply{{status: 503}}, false, false, 1, bmc.Busy, "503"},
		"500, the old one is shown":  {old, []reply{sick}, false, true, 4, bmc.Busy, "offered the image 4 times"},
		"500, the same is shown":     {same, []reply{sick}, false, true, 1, bmc.Unknown, "500"},
		"taken, the same is shown":   {same, []reply{taken(500, "VRM0021"), {status: 204}}, false, true, 2, "", ""},
		"500, the same came back":    {same, []reply{sick}, true, false, 1, "", ""},
		"500, the old one, at last":  {old, []reply{sick, {status: 204}}, true, true, 2, "", ""},
		"refused for another reason": {nil, []reply{{status: 409}}, false, false, 1, bmc.Conflict, "409"},
	}
	for name, c := range cases {
		s := script(t)
		s.withDrives(systemPath, map[string]object{"Cd": drive(path, c.drive)})
		s.does(eject, func(received) reply {
			if !c.stays {
				s.change(path, object{"Image": nil, "Inserted": false})
			}

			return reply{status: 204}
		})
		for i, answer := range c.answers {
			s.does(insert, func(received) reply {
				if c.does && i == len(c.answers)-1 {
					s.change(path, same)
				}

				return answer
			})
		}
		err := s.open().Insert(t.Context(), "Cd", image)
		if got := s.count(insert); got != c.inserts {
			t.Errorf("%s: offered %d times, want %d", name, got, c.inserts)
		}
		if bmc.KindOf(err) != c.kind {
			t.Errorf("%s: got %v (kind %q), want kind %q", name, err, bmc.KindOf(err), c.kind)
		} else if err != nil {
			wantKind(t, err, c.kind, c.text, "inserting virtual media into Cd")
		}
	}
}

// An insert that waits for a slow eject ends with its context, and says what is known by then.
func TestInsertEndsWithItsContext(t *testing.T) {
	t.Parallel()
	const path, insert = drives + "/Cd", "POST " + drives + "/Cd/Insert"
	for name, c := range map[string]struct {
		answer reply
		kind   bmc.Kind
	}{
		"it refuses":   {reply{status: 500, body: complaint("IDRAC.2.8.VRM0021", "in use")}, bmc.Busy},
		"nobody knows": {reply{status: 500}, bmc.Unknown},
	} {
		s := script(t)
		s.withDrives(systemPath, map[string]object{"Cd": drive(path, nil)})
		s.on(insert, c.answer)
		m := s.open()
		ctx, cancel := context.WithCancel(t.Context())
		redfish.SetWait(m, func(ctx context.Context, _ time.Duration) error {
			cancel()

			return ctx.Err()
		})
		err := m.Insert(ctx, "Cd", image)
		wantKind(t, err, c.kind, "could not be looked at")
		if !errors.Is(err, context.Canceled) || s.count(insert) != 1 {
			t.Errorf("%s: %v after %d inserts, want one, and an error that is context.Canceled", name, err, s.count(insert))
		}
	}
}
