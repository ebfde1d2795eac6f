package simulator_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

func TestManySystems(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	second := b.Add(simulator.System{Power: "Off"})
	b.Add(simulator.System{ID: "HGX_Baseboard_0", Board: true})
	b.Add(simulator.System{ID: "sick", Status: 500})
	if got := b.IDs(); !slices.Equal(got, []string{"1", "1-2", "HGX_Baseboard_0", "sick"}) {
		t.Errorf("systems: %v", got)
	}
	b.want(500, "GET", "/redfish/v1/Systems/sick", "")
	board := b.want(200, "GET", "/redfish/v1/Systems/HGX_Baseboard_0", "")
	if _, told := board["PowerState"]; told || board["Actions"] != nil {
		t.Errorf("a board has power: %v", board)
	}
	b.want(204, "POST", simulator.Path(second)+"/Actions/ComputerSystem.Reset", `{"ResetType":"On"}`)
	b.clock.Step(2 * time.Second)
	if b.State(second).Power != "On" || b.Accepted(second)["On"] != 1 || len(b.Accepted("1")) != 0 {
		t.Errorf("acts: %+v", b.Acts())
	}
	b.want(200, "GET", "/redfish/v1/Managers/1-2/VirtualMedia", "")
	b.want(404, "GET", "/redfish/v1/Managers/1-3/VirtualMedia", "")
	b.want(404, "GET", "/redfish/v1/Systems/none", "")
	b.want(405, "DELETE", "/redfish/v1/Systems", "")
}

func TestActsAndState(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	var hooked []simulator.Act
	b.OnAct(func(act simulator.Act) {
		hooked = append(hooked, act)
		// The hook may look at the BMC.
		_ = b.State("1")
	})
	b.reset(400, "Explode")
	b.reset(204, "ForceOff")
	b.reset(204, "On") // changes nothing: it is on still
	acts := b.Acts()
	if len(acts) != 3 || acts[0].Accepted() || !acts[1].Applied || acts[2].Applied || !acts[2].Accepted() || !slices.Equal(acts, hooked) {
		t.Errorf("acts: %+v, hooked %+v", acts, hooked)
	}
	b.Change("1", func(s *simulator.State) { s.Shown = new("On") })
	b.clock.Step(time.Minute)
	b.wantPower("On")
	if got := b.State("1").Power; got != "Off" {
		t.Errorf("in truth it is %s", got)
	}
	b.Change("1", func(s *simulator.State) { s.NullPower = true })
	b.wantPower(nil)
	b.Change("1", func(s *simulator.State) { s.NullPower, s.NoPower = false, true })
	if _, told := b.want(200, "GET", system, "")["PowerState"]; told {
		t.Error("PowerState is told")
	}
	b.reset(204, "On")
	b.Change("1", func(s *simulator.State) { s.NoPower, s.Shown, s.Power = false, nil, "On" })
	b.Change("1", func(s *simulator.State) { s.Power = "Off" })
	b.clock.Step(time.Minute)
	b.wantPower("Off")
	// What a test gets is its own.
	b.State("1").Images["CD1"] = "x"
	if len(b.State("1").Images) != 0 {
		t.Error("a copy of the state changes it")
	}
}
