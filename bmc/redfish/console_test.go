package redfish_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/fault"
	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

// keepsConsole lets a BMC keep the lines "line 0" and so on.
func keepsConsole(lines int, change func(*simulator.LogRules)) func(*simulator.Options) {
	return func(o *simulator.Options) {
		o.Console = consoleLines(0, lines)
		o.Profile.Log.Console = true
		if change != nil {
			change(&o.Profile.Log)
		}
	}
}

func consoleLines(from, to int) []string {
	lines := make([]string, 0, to-from)
	for n := from; n < to; n++ {
		lines = append(lines, fmt.Sprintf("line %d", n))
	}

	return lines
}

func tailOf(t *testing.T, m bmc.Machine, lines int) ([]string, error) {
	t.Helper()
	console, ok := m.(bmc.Console)
	if !ok {
		t.Fatal("what Open gives has no console")
	}

	return console.ConsoleTail(t.Context(), lines)
}

func TestConsoleTail(t *testing.T) {
	t.Parallel()
	type rules = simulator.LogRules
	whole := func(l *rules) { l.ConsoleWhole = true }
	grows := func(l *rules) { l.ConsoleGrows = 7 }
	cases := map[string]struct {
		kept   int
		change func(*rules)
		lines  int
		// from and to are the lines wanted.
		from, to int
		// reads is how many requests to the entries are allowed.
		reads int
	}{
		"some":          {30, nil, 20, 10, 30, 2},
		"all":           {30, nil, 40, 0, 30, 2},
		"as many":       {30, nil, 30, 0, 30, 2},
		"one":           {30, nil, 1, 29, 30, 2},
		"empty":         {0, nil, 20, 0, 0, 2},
		"no lines":      {30, nil, 0, 0, 0, 0},
		"fewer":         {30, nil, -1, 0, 0, 0},
		"of a long one": {5000, nil, 20, 4980, 5000, 2},
		"too many":      {5000, nil, 3000, 4000, 5000, 2},
		"no windows":    {3000, whole, 20, 2980, 3000, 2},
		// The lines that came after the question for the length are left out.
		"growing": {5000, grows, 20, 4980, 5000, 2},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := startBMC(t, keepsConsole(c.kept, c.change))
			got, err := tailOf(t, openMachine(t, b), c.lines)
			if err != nil || !slices.Equal(got, consoleLines(c.from, c.to)) {
				t.Errorf("got %d lines %q, %v", len(got), got, err)
			}
			if reads := readsOfConsole(b); reads > c.reads {
				t.Errorf("%d requests to the entries, want at most %d", reads, c.reads)
			}
			if n := len(b.Simulator.Acts()); n != 0 {
				t.Errorf("reading the console changed something: %v", b.Simulator.Acts())
			}
		})
	}
}

func readsOfConsole(b *fault.BMC) int {
	reads := 0
	for _, each := range b.Proxy.Requests() {
		if strings.HasSuffix(each, "/HostLogger/Entries") {
			reads++
		}
	}

	return reads
}

// What the machine prints does nothing to the terminal of who reads it, and shows no credential of the BMC.
func TestConsoleIsClean(t *testing.T) {
	t.Parallel()
	b := startBMC(t, keepsConsole(0, nil))
	b.Simulator.Print(
		"\x1b[2J\x1b[1;31mpanic\x1b[0m", "", "a\x1b]0;title\ab\x00", "two\nlines\r", "it is "+password, "it is correct-\x1b[mhorse-battery",
		strings.Repeat("x", 5000))
	got, err := tailOf(t, openMachine(t, b), 20)
	want := []string{
		"panic", "", "ab", "two", "lines", "it is <redacted>", "it is <redacted>", strings.Repeat("x", 1024) + "…",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestNoConsole(t *testing.T) {
	t.Parallel()
	b := startBMC(t, nil)
	_, err := tailOf(t, openMachine(t, b), 20)
	wantKind(t, err, bmc.Unsupported, "no console log", "Serial over LAN")

	s := script(t)
	_, err = tailOf(t, s.open(), 20)
	wantKind(t, err, bmc.Unsupported, "no console log")
	s.pages(s.withLog(systemPath, hostLogger), numbers(1, 300), 2, false)
	_, err = tailOf(t, s.open(), 20)
	wantKind(t, err, bmc.Unsupported, "more than 20 pages")
	s.on("GET "+systemPath+"/LogServices/"+hostLogger, reply{status: 503})
	_, err = tailOf(t, s.open(), 20)
	wantKind(t, err, bmc.Busy, "reading the console")
}

const hostLogger = "HostLogger"

// A BMC that ignores the windows, pages, and one that begins its log anew between two questions.
func TestConsoleOfOddBMCs(t *testing.T) {
	t.Parallel()
	s := script(t)
	uri := s.withLog(systemPath, hostLogger)
	page := func(from, to int, more object) object {
		body := object{"Members@odata.count": 6}
		members := []object{}
		for n := from; n < to; n++ {
			members = append(members, object{"Id": strconv.Itoa(n), "Message": fmt.Sprintf("line %d", n)})
		}
		body["Members"] = members
		maps.Copy(body, more)

		return body
	}
	for _, query := range []string{"", "?$skip=0&$top=1", "?$skip=4&$top=2"} {
		s.on("GET "+uri+query, reply{status: 200, body: page(0, 3, object{"Members@odata.nextLink": uri + "?page=2"})})
	}
	s.on("GET "+uri+"?page=2", reply{status: 200, body: page(3, 6, nil)})
	got, err := tailOf(t, s.open(), 2)
	if err != nil || !slices.Equal(got, []string{"line 4", "line 5"}) {
		t.Errorf("windows are ignored: %q, %v", got, err)
	}

	s = script(t)
	uri = s.withLog(systemPath, hostLogger)
	s.on("GET "+uri+"?$skip=0&$top=1", reply{status: 200, body: page(0, 1, nil)})
	s.on("GET "+uri+"?$skip=4&$top=2", reply{status: 200, body: object{"Members": []object{}, "Members@odata.count": 3}})
	s.on("GET "+uri, reply{status: 200, body: page(7, 10, nil)})
	got, err = tailOf(t, s.open(), 2)
	if err != nil || !slices.Equal(got, []string{"line 8", "line 9"}) {
		t.Errorf("the log began anew: %q, %v", got, err)
	}
}

func TestConsoleEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := startBMC(t, keepsConsole(30, nil))
	m := openMachine(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	console, _ := m.(bmc.Console)
	_, err := console.ConsoleTail(ctx, 20)
	wantKind(t, err, bmc.Transient)
}
