package osbuild

import (
	"strings"
	"testing"

	"github.com/onsi/gomega"
)

func TestVariantValidate(t *testing.T) {
	t.Parallel()

	for _, test := range []struct {
		name    string
		variant Variant
		good    bool
	}{
		{"good", Variant{Version: "1.1.0"}, true},
		{"one number", Variant{Version: "7"}, true},
		{"with a fault", Variant{Version: "1.2.0", Fault: Panic}, true},
		{"no version", Variant{}, false},
		{"a word as version", Variant{Version: "latest"}, false},
		{"a path as version", Variant{Version: "../1.0"}, false},
		{"a fault in the version", Variant{Version: "1.2.0-panic"}, false},
		{"unknown fault", Variant{Version: "1.2.0", Fault: "fire"}, false},
		{"filled", Variant{Version: "1.1.0", FillMiB: 2048}, true},
		{"filled with more than a disk has", Variant{Version: "1.1.0", FillMiB: 1 << 50}, false},
		{"filled with less than nothing", Variant{Version: "1.1.0", FillMiB: -1}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			if err := test.variant.Validate(); (err == nil) != test.good {
				t.Errorf("Validate: %v, want success: %v", err, test.good)
			}
		})
	}
}

// TestVariantsDiffer: each fault must change what boots, and only that.
func TestVariantsDiffer(t *testing.T) {
	t.Parallel()
	g := gomega.NewWithT(t)

	good := Variant{Version: "1.2.0"}

	for _, fault := range Faults() {
		broken := Variant{Version: "1.2.0", Fault: fault}
		sameLine := broken.commandLine("h") == good.commandLine("h")
		sameFiles := len(broken.files()) == len(good.files())

		g.Expect(sameLine).NotTo(gomega.Equal(sameFiles), "fault %s must change one of command line and files", fault)
		g.Expect(broken.osRelease()).To(gomega.Equal(good.osRelease()))
		g.Expect(broken.String()).To(gomega.Equal("1.2.0-" + string(fault)))
	}
}

// TestCommandLineFallsBack: without these words a failed boot stops for ever instead of costing a try.
func TestCommandLineFallsBack(t *testing.T) {
	t.Parallel()
	g := gomega.NewWithT(t)

	hash := strings.Repeat("ab", 32)

	for _, variant := range []Variant{
		{Version: "1.0.0"}, {Version: "1.2.0", Fault: Hang}, {Version: "1.2.0", Fault: Panic},
	} {
		words := strings.Fields(variant.commandLine(hash))
		g.Expect(words).To(gomega.ContainElements("panic=5", "rd.emergency=reboot", "rd.shell=0", "usrhash="+hash))
		g.Expect(len(variant.commandLine(hash))).To(gomega.BeNumerically("<", 2048)) // COMMAND_LINE_SIZE of x86
	}
}

func TestOSReleaseSortsByImageVersion(t *testing.T) {
	t.Parallel()

	words := lines(Variant{Version: "1.3.0"}.osRelease())
	gomega.NewWithT(t).Expect(words).To(gomega.ContainElements("IMAGE_ID=labos", "IMAGE_VERSION=1.3.0"))
}
