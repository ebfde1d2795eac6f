package gardenlinux

import (
	"strings"
	"testing"
)

func TestParseCname(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		text, version string
		want          string // features | architecture | version | commit
	}{
		{"container", "", "container|||"},
		{"baremetal-gardener_prod", "1877.3", "_prod baremetal gardener|||"},
		{"baremetal-gardener_prod_usi", "1877.3", "_prod _usi baremetal gardener|||"},
		{"baremetal-gardener_usi_prod", "", "_prod _usi baremetal gardener|||"},
		{"baremetal-gardener_prod_usi-amd64", "1877.3", "_prod _usi baremetal gardener|amd64||"},
		{"baremetal-gardener_prod_usi-arm64-1877.3", "1877.3", "_prod _usi baremetal gardener|arm64|1877.3|"},
		{"baremetal-gardener_prod_usi-arm64-1877.3", "", "_prod _usi baremetal gardener|arm64|1877.3|"},
		{"aws-gardener_prod-amd64-1877.3-a1b2c3d4", "1877.3", "_prod aws gardener|amd64|1877.3|a1b2c3d4"},
		{"aws-gardener_prod-amd64-today-local", "today", "_prod aws gardener|amd64|today|local"},
		{"aws-gardener_prod-1877.3", "1877.3", "_prod aws gardener||1877.3|"},
		{"aws-gardener_prod-1877.3-a1b2c3d4", "1877.3", "_prod aws gardener||1877.3|a1b2c3d4"},
		{"baremetal_pxe", "", "_pxe baremetal|||"},
		{"aws-gardener_prod-amd64-1877.3", "1877.4", ""},
		{"aws-gardener_prod-amd64-1877.30", "1877.3", ""},
		{"aws-gardener_prod-amd64-1877.3-a1b2c3d4-extra", "1877.3", ""},
		{"aws-gardener_prod-1877.3", "", ""}, // a '.' is in no feature
		{"amd64", "", "amd64|||"},
		{"-amd64", "", ""},
		{"", "1877.3", ""},
		{"-", "", ""},
		{"_usi", "", ""},
		{"a--b", "", ""},
		{"aws/../x", "", ""},
		{"AWS", "", ""},
		{strings.Repeat("a", 1000), "", ""},
	} {
		got := ""
		if name, ok := parseCname(test.text, test.version); ok {
			got = strings.Join([]string{strings.Join(name.features, " "), name.architecture, name.version, name.commit}, "|")
		}

		if got != test.want {
			t.Errorf("%q of version %q: %q, want %q", test.text, test.version, got, test.want)
		}
	}
}

// A name that only begins like another is another.
func TestSame(t *testing.T) {
	t.Parallel()

	names := []string{"baremetal-gardener_prod", "baremetal-gardener_prod_usi", "baremetal-gardener", "baremetal"}

	for _, a := range names {
		for _, b := range names {
			left, _ := parseCname(a, "")
			right, _ := parseCname(b+"-amd64-1.0.0-abcdef12", "1.0.0")

			if left.same(right) != (a == b) {
				t.Errorf("%s and %s", a, b)
			}
		}
	}
}

func FuzzCname(f *testing.F) {
	f.Add("baremetal-gardener_prod_usi-amd64-1877.3-a1b2c3d4", "1877.3")
	f.Add("container", "")

	f.Fuzz(func(t *testing.T, text, version string) {
		name, ok := parseCname(text, version)
		if !ok {
			return
		}

		if len(name.features) == 0 {
			t.Error("no features")
		}

		for _, feature := range name.features {
			if strings.Trim(feature, "_abcdefghijklmnopqrstuvwxyz0123456789") != "" || feature == "" || feature == "_" {
				t.Errorf("feature %q", feature)
			}
		}
	})
}
