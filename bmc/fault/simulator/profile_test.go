package simulator_test

import (
	"slices"
	"testing"

	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

func TestProfilesAreWhole(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, p := range simulator.Profiles() {
		if names[p.Name] {
			t.Errorf("%s is there twice", p.Name)
		}
		names[p.Name] = true
		b := simulator.New(simulator.Options{Profile: p, Username: "admin", Password: "secret"})
		id := b.IDs()[0]
		if id != p.SystemID {
			t.Errorf("%s: system %s", p.Name, id)
		}
		bench := &bench{BMC: b, t: t}
		body := bench.want(200, "GET", simulator.Path(id), "")
		for _, property := range []string{"UUID", "SerialNumber", "Model", "Manufacturer", "PowerState", "Actions", "Boot"} {
			if body[property] == nil {
				t.Errorf("%s: %s is missing", p.Name, property)
			}
		}
		boot, _ := body["Boot"].(map[string]any)
		if _, told := boot["BootSourceOverrideTarget@Redfish.AllowableValues"]; told != (p.Boot.TargetsAt == simulator.AtSystem) {
			t.Errorf("%s: targets at the system: %t", p.Name, told)
		}
		if !slices.Contains(p.Reset.Types, "On") || !slices.Contains(p.Reset.Types, "ForceOff") {
			t.Errorf("%s offers %v", p.Name, p.Reset.Types)
		}
		// Configure leaves the profile of others alone.
		b.Configure(func(p *simulator.Profile) { p.Reset.Types[0] = "Changed" })
		b.Heal()
		if b.Profile().Reset.Types[0] == "Changed" {
			t.Errorf("%s: Heal does not give the types back", p.Name)
		}
	}
	if len(names) != 9 {
		t.Errorf("%d profiles, want 9", len(names))
	}
}
