package bmc_test

import (
	"testing"

	"github.com/stayput-dev/stayput/bmc"
)

func TestCompareIdentity(t *testing.T) {
	t.Parallel()
	const zero = "00000000-0000-0000-0000-000000000000"
	const uuid, other = "27946b59-9e44-4fa7-8e91-f3527a1ef094", "27946b59-9e44-4fa7-8e91-f3527a1ef095"
	for name, c := range map[string]struct {
		got, want bmc.Identity
		likeness  bmc.Likeness
	}{
		"nothing is expected":         {bmc.Identity{UUID: uuid}, bmc.Identity{}, bmc.LikenessNone},
		"nothing is told":             {bmc.Identity{}, bmc.Identity{UUID: uuid, Serial: "S1"}, bmc.LikenessUnknown},
		"no UUID is told":             {bmc.Identity{Serial: "S1"}, bmc.Identity{UUID: uuid, Serial: "S1"}, bmc.LikenessUnknown},
		"a UUID that is none":         {bmc.Identity{UUID: zero}, bmc.Identity{UUID: uuid}, bmc.LikenessUnknown},
		"an expectation that is none": {bmc.Identity{UUID: uuid}, bmc.Identity{UUID: "27946b59"}, bmc.LikenessUnknown},
		"no serial is told":           {bmc.Identity{UUID: uuid, Serial: " "}, bmc.Identity{Serial: "S1"}, bmc.LikenessUnknown},
		"both":                        {bmc.Identity{UUID: uuid, Serial: "s1 "}, bmc.Identity{UUID: uuid, Serial: "S1"}, bmc.LikenessSame},
		"another UUID":                {bmc.Identity{UUID: other, Serial: "S1"}, bmc.Identity{UUID: uuid, Serial: "S1"}, bmc.LikenessOther},
		"another serial, no UUID":     {bmc.Identity{Serial: "S2"}, bmc.Identity{UUID: uuid, Serial: "S1"}, bmc.LikenessOther},
	} {
		likeness, why := bmc.CompareIdentity(c.got, c.want)
		if likeness != c.likeness || (why == "") != (likeness == bmc.LikenessNone || likeness == bmc.LikenessSame) {
			t.Errorf("%s: %s, %q", name, likeness, why)
		}
		checked, required := bmc.CheckIdentity(c.got, c.want), bmc.RequireIdentity(c.got, c.want)
		if (checked != nil) != (likeness == bmc.LikenessOther) ||
			(required != nil) != (likeness == bmc.LikenessOther || likeness == bmc.LikenessUnknown) {
			t.Errorf("%s: checked %v, required %v", name, checked, required)
		}
		if required != nil && bmc.KindOf(required) != bmc.Mismatch {
			t.Errorf("%s: %v", name, required)
		}
	}
}
