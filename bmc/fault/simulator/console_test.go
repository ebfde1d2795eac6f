package simulator_test

import (
	"testing"

	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

func TestConsole(t *testing.T) {
	t.Parallel()
	const (
		services = system + "/LogServices"
		entries  = services + "/HostLogger/Entries"
	)
	b := newBench(t, func(p *simulator.Profile) { p.Log.Console = true })
	if got := b.want(200, "GET", system, "")["LogServices"]; got == nil {
		t.Error("the system has no logs")
	}
	if got, _ := b.want(200, "GET", services, "")["Members"].([]any); len(got) != 1 {
		t.Errorf("logs: %v", got)
	}
	b.want(200, "GET", services+"/HostLogger", "")
	b.want(404, "GET", services+"/SEL", "")
	b.want(405, "POST", entries, "{}")
	window := func(query, first string, count, total int, next any) {
		t.Helper()
		got := b.want(200, "GET", entries+query, "")
		members, _ := got["Members"].([]any)
		if len(members) != count || got["Members@odata.count"] != float64(total) || got["Members@odata.nextLink"] != next {
			t.Fatalf("%s: %d members, %v, %v", query, len(members), got["Members@odata.count"], got["Members@odata.nextLink"])
		}
		if count == 0 {
			return
		}
		entry, _ := members[0].(map[string]any)
		if _, told := entry["Created"]; entry["Message"] != first || told {
			t.Errorf("%s: %v, want %q", query, entry, first)
		}
	}
	began := b.Console()
	window("", began[0], len(began), len(began), nil)
	b.Print("one more")
	window("?$skip=4&$top=1", began[4], 1, len(began)+1, entries+"?$skip=5")
	window("?$skip=5", "one more", 1, len(began)+1, nil)
	window("?$skip=99", "", 0, len(began)+1, nil)
	b.want(400, "GET", entries+"?$top=1001", "")
	b.Print(make([]string, 1000)...)
	window("", began[0], 1000, 1006, entries+"?$skip=1000")
	b.Configure(func(p *simulator.Profile) { p.Log.ConsoleGrows = 2 })
	window("?$skip=1005", "", 1, 1006, nil)
	window("?$skip=1006", "line 1006", 2, 1008, nil)
	b.Configure(func(p *simulator.Profile) { p.Log.ConsoleWhole, p.Log.ConsoleGrows = true, 0 })
	b.want(501, "GET", entries+"?$top=1", "")
	window("", began[0], 1010, 1010, nil)
	b.Heal()
	b.Configure(func(p *simulator.Profile) { p.Log.Console = false })
	b.want(404, "GET", services, "")
}
