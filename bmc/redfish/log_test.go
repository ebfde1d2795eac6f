package redfish_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc"
)

const (
	logs    = systemPath + "/LogServices"
	entries = logs + "/Sel/Entries"
)

func logTime(n int) time.Time { return time.Date(2026, 1, 1, 0, n, 0, 0, time.UTC) }

func logObject(n int) object {
	return object{
		"@odata.id": entries + "/" + strconv.Itoa(n), "Id": strconv.Itoa(n), "Created": logTime(n).Format(time.RFC3339),
		"Severity": "OK", "Message": fmt.Sprintf("entry %d", n),
	}
}

// withLog gives an owner one log.
func (s *scripted) withLog(owner, name string) string {
	services := owner + "/LogServices"
	s.change(owner, object{"LogServices": link(services)})
	members, _ := s.resources[services]["Members"].([]object)
	s.change(services, object{"Members": append(members, link(services+"/"+name))})
	s.change(services+"/"+name, object{"Entries": link(services + "/" + name + "/Entries")})

	return services + "/" + name + "/Entries"
}

// pages puts entries into pages of a log; with skip the BMC knows $skip.
func (s *scripted) pages(uri string, all []object, size int, skip bool) {
	for begin := 0; begin < len(all); begin += size {
		page := object{"Members": all[begin:min(begin+size, len(all))], "Members@odata.count": len(all)}
		if begin+size < len(all) {
			page["Members@odata.nextLink"] = fmt.Sprintf("%s?$skip=%d", uri, begin+size)
		}
		path := uri
		if begin > 0 {
			path = fmt.Sprintf("%s?$skip=%d", uri, begin)
		}
		s.change(path, page)
	}
	for limit := range 20 {
		path := fmt.Sprintf("%s?$skip=%d&$top=%d", uri, len(all)-limit, limit)
		switch {
		case len(all) < limit:
		case skip:
			s.change(path, object{"Members": all[len(all)-limit:], "Members@odata.count": len(all)})
		default:
			// It knows $top, and ignores $skip.
			s.change(path, object{"Members": all[:limit], "Members@odata.count": len(all)})
		}
	}
}

func numbers(from, to int) []object {
	var all []object
	for n := from; n <= to; n++ {
		all = append(all, logObject(n))
	}

	return all
}

func reversed(all []object) []object {
	all = slices.Clone(all)
	slices.Reverse(all)

	return all
}

// messages are the numbers in the messages.
func messages(t *testing.T, got []bmc.LogEntry) []int {
	t.Helper()
	all := make([]int, 0, len(got))
	for _, each := range got {
		n, err := strconv.Atoi(strings.TrimPrefix(each.Message, "entry "))
		if err != nil {
			t.Fatal(err)
		}
		if !each.At.Equal(logTime(n)) || each.Severity != "OK" {
			t.Errorf("got %+v, want the time %s", each, logTime(n))
		}
		all = append(all, n)
	}

	return all
}

func TestLog(t *testing.T) {
	t.Parallel()
	linked := func(s *scripted, all []object) []object {
		bare := make([]object, 0, len(all))
		for _, each := range all {
			path, _ := each["@odata.id"].(string)
			s.change(path, each)
			bare = append(bare, link(path))
		}

		return bare
	}
	cases := map[string]struct {
		setUp func(*scripted)
		limit int
		want  []int
		// reads is how many requests to the log's entries are allowed.
		reads int
	}{
		"oldest first":  {func(s *scripted) { s.pages(s.withLog(systemPath, "Sel"), numbers(1, 5), 9, false) }, 3, []int{5, 4, 3}, 1},
		"newest first":  {func(s *scripted) { s.pages(s.withLog(systemPath, "Sel"), reversed(numbers(1, 5)), 9, false) }, 3, []int{5, 4, 3}, 1},
		"fewer":         {func(s *scripted) { s.pages(s.withLog(systemPath, "Sel"), numbers(1, 2), 9, false) }, 3, []int{2, 1}, 1},
		"none":          {func(s *scripted) { s.change(s.withLog(systemPath, "Sel"), object{"Members": []object{}}) }, 3, []int{}, 1},
		"limit of none": {func(s *scripted) { s.pages(s.withLog(systemPath, "Sel"), numbers(1, 2), 9, false) }, 0, []int{}, 0},
		"newest first, paged": {
			func(s *scripted) { s.pages(s.withLog(systemPath, "Sel"), reversed(numbers(1, 50)), 10, false) }, 3, []int{50, 49, 48}, 1,
		},
		"newest first, more than a page": {
			func(s *scripted) { s.pages(s.withLog(systemPath, "Sel"), reversed(numbers(1, 50)), 2, false) }, 3, []int{50, 49, 48}, 2,
		},
		"oldest first, with $skip": {
			func(s *scripted) { s.pages(s.withLog(systemPath, "Sel"), numbers(1, 50), 2, true) }, 3, []int{50, 49, 48}, 2,
		},
		"oldest first, without $skip": {
			func(s *scripted) { s.pages(s.withLog(systemPath, "Sel"), numbers(1, 20), 2, false) }, 3, []int{20, 19, 18}, 11,
		},
		"links only, oldest first": {
			func(s *scripted) { s.pages(s.withLog(systemPath, "Sel"), linked(s, numbers(1, 9)), 9, false) }, 3, []int{9, 8, 7}, 6,
		},
		"links only, newest first": {
			func(s *scripted) { s.pages(s.withLog(systemPath, "Sel"), linked(s, reversed(numbers(1, 9))), 9, false) },
			3,
			[]int{9, 8, 7},
			6,
		},
		"two logs": {
			func(s *scripted) {
				s.pages(s.withLog(systemPath, "Sel"), []object{logObject(1), logObject(4)}, 9, false)
				s.pages(s.withLog(systemPath, "Other"), []object{logObject(3), logObject(2)}, 9, false)
			}, 3, []int{4, 3, 2}, 1,
		},
		"no dumps": {
			func(s *scripted) {
				s.pages(s.withLog(systemPath, "PostCodes"), numbers(7, 9), 9, false)
				s.pages(s.withLog(systemPath, "Sel"), numbers(1, 2), 9, false)
			}, 3, []int{2, 1}, 1,
		},
		"of the manager": {
			func(s *scripted) { s.pages(s.withLog(managerPath, "Lclog"), numbers(1, 2), 9, false) }, 3, []int{2, 1}, 0,
		},
		"of the system first": {
			func(s *scripted) {
				s.pages(s.withLog(managerPath, "Lclog"), numbers(7, 9), 9, false)
				s.pages(s.withLog(systemPath, "Sel"), numbers(1, 2), 9, false)
			}, 3, []int{2, 1}, 1,
		},
	}
	for name, c := range cases {
		s := script(t)
		c.setUp(s)
		got, err := s.open().Log(t.Context(), c.limit)
		if err != nil || !slices.Equal(messages(t, got), c.want) {
			t.Errorf("%s: got %+v, %v, want %v", name, got, err, c.want)
		}
		reads := 0
		for _, each := range s.requests {
			if strings.HasPrefix(each.path, entries) {
				reads++
			}
		}
		if reads > c.reads {
			t.Errorf("%s: %d requests to the entries, want at most %d", name, reads, c.reads)
		}
	}
}

func TestNoLog(t *testing.T) {
	t.Parallel()
	s := script(t)
	_, err := s.open().Log(t.Context(), 3)
	wantKind(t, err, bmc.Unsupported, "no log", "web interface")

	s.pages(s.withLog(systemPath, "Sel"), numbers(1, 300), 2, false)
	_, err = s.open().Log(t.Context(), 3)
	wantKind(t, err, bmc.Unsupported, "more than 20 pages")

	s.on("GET "+entries, reply{status: 503})
	_, err = s.open().Log(t.Context(), 3)
	wantKind(t, err, bmc.Busy)
}

// Odd entries are given as far as they go, on one line and without secrets.
func TestOddEntries(t *testing.T) {
	t.Parallel()
	s := script(t)
	s.change(s.withLog(systemPath, "Sel"), object{"Members": []object{
		{"Created": "yesterday", "Severity": nil, "Message": "two\nlines " + password},
		{"Created": logTime(1).Format(time.RFC3339), "MessageId": "Base.1.8.Success"},
	}})
	got, err := s.open().Log(t.Context(), 5)
	want := []bmc.LogEntry{{At: logTime(1), Message: "Base.1.8.Success"}, {Message: "two lines <redacted>"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}
