package boot_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/stayput-dev/stayput/agent/boot"
)

func TestParseEntryName(t *testing.T) {
	t.Parallel()

	for file, want := range map[string]boot.EntryName{
		"labos_1.1.0.efi":            {ID: "labos_1.1.0", Ext: ".efi"},
		"labos_1.1.0+3.efi":          {ID: "labos_1.1.0", Ext: ".efi", Counted: true, Left: 3},
		"labos_1.1.0+2-1.efi":        {ID: "labos_1.1.0", Ext: ".efi", Counted: true, Left: 2, Done: 1},
		"labos_1.1.0+0-3.EFI":        {ID: "labos_1.1.0", Ext: ".EFI", Counted: true, Done: 3},
		"x+010-02.conf":              {ID: "x", Ext: ".conf", Counted: true, Left: 10, Done: 2},
		"1.0+5.efi":                  {ID: "1.0", Ext: ".efi", Counted: true, Left: 5},
		"1.0+5+3.efi":                {ID: "1.0+5", Ext: ".efi", Counted: true, Left: 3},
		"1.0+a.efi":                  {ID: "1.0+a", Ext: ".efi"},
		"1.0+3-.efi":                 {ID: "1.0+3-", Ext: ".efi"},
		"1.0+.efi":                   {ID: "1.0+", Ext: ".efi"},
		"1.0+-1.efi":                 {ID: "1.0+-1", Ext: ".efi"},
		"1.0+3.x.efi":                {ID: "1.0+3.x", Ext: ".efi"},
		"staged+3.tmp":               {ID: "staged+3.tmp"},
		".efi":                       {ID: ".efi"},
		"":                           {},
		"1+99999999999999999999.efi": {ID: "1+99999999999999999999", Ext: ".efi"},
	} {
		if got := boot.ParseEntryName(file); got != want {
			t.Errorf("ParseEntryName(%q) = %+v, want %+v", file, got, want)
		}
	}
}

func TestEntryNameRoundTrip(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		name := boot.EntryName{ID: rapid.StringMatching(`[a-z0-9._-]{1,20}`).Draw(t, "id"), Ext: ".efi"}
		if name.Counted = rapid.Bool().Draw(t, "counted"); name.Counted {
			name.Left = rapid.IntRange(0, 20).Draw(t, "left")
			name.Done = rapid.IntRange(0, 20).Draw(t, "done")
		}

		if got := boot.ParseEntryName(name.String()); got != name {
			t.Fatalf("%q is parsed as %+v, want %+v", name, got, name)
		}

		if !name.Uncounted().Same(name) {
			t.Fatalf("%q is another entry once it is blessed", name)
		}
	})
}

// The series of the specification: x+3, x+2-1, x+1-2, x+0-3.
func ExampleEntryName_String() {
	name := boot.ParseEntryName("x+3.efi")
	for range 3 {
		name.Left, name.Done = name.Left-1, name.Done+1
		fmt.Println(name)
	}
	// Output:
	// x+2-1.efi
	// x+1-2.efi
	// x+0-3.efi
}
