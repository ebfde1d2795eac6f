package simulator_test

import (
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

func TestLog(t *testing.T) {
	t.Parallel()
	const entries = "/redfish/v1/Managers/1/LogServices/SEL/Entries"
	b := newBench(t, func(p *simulator.Profile) { p.Log.Page, p.Log.OldestFirst = 2, true })
	b.SetSkew(24 * time.Hour)
	b.want(200, "GET", "/redfish/v1/Managers/1/LogServices", "")
	b.want(200, "GET", "/redfish/v1/Managers/1/LogServices/SEL", "")
	first := b.want(200, "GET", entries, "")
	next, _ := first["Members@odata.nextLink"].(string)
	if members, _ := first["Members"].([]any); len(members) != 2 || next != entries+"?$skip=2" {
		t.Fatalf("the first page: %v", first)
	}
	last := b.want(200, "GET", next, "")
	members, _ := last["Members"].([]any)
	entry, _ := members[0].(map[string]any)
	if len(members) != 1 || last["Members@odata.nextLink"] != nil || entry["Created"] != "2026-07-02T11:59:00Z" {
		t.Errorf("the last page: %v", last)
	}
	manager := b.want(200, "GET", "/redfish/v1/Managers/1", "")
	if manager["DateTime"] != "2026-07-02T12:00:00+00:00" {
		t.Errorf("the BMC's clock: %v", manager["DateTime"])
	}
	b.Configure(func(p *simulator.Profile) { p.Log.Page, p.Log.OldestFirst = 0, false })
	newest, _ := b.want(200, "GET", entries+"?$top=1", "")["Members"].([]any)
	entry, _ = newest[0].(map[string]any)
	if len(newest) != 1 || entry["Severity"] != "Critical" {
		t.Errorf("the newest: %v", newest)
	}
}
