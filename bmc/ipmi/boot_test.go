package ipmi_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/bmc"
	lab "github.com/stayput-dev/stayput/test/lab/ipmi"
)

// setOptions are the requests Set System Boot Options since the last call.
func setOptions(t *testing.T, emulator *lab.BMC, skip int) []string {
	t.Helper()
	requests, err := emulator.Requests()
	if err != nil {
		t.Fatal(err)
	}

	return slices.DeleteFunc(slices.Clone(requests[skip:]), func(each string) bool { return !strings.HasPrefix(each, "0008") })
}

func count(t *testing.T, emulator *lab.BMC) int {
	t.Helper()
	requests, err := emulator.Requests()
	if err != nil {
		t.Fatal(err)
	}

	return len(requests)
}

func TestBootFlags(t *testing.T) {
	t.Parallel()
	type step struct {
		boot bmc.Boot
		wire string
	}
	for name, maker := range map[string]struct {
		manufacturer int
		steps        []step
	}{
		"any": {0, []step{
			{bmc.Boot{Target: bmc.BootPXE, Mode: bmc.ModeUEFI}, "0008 05a004000000"},
			{bmc.Boot{Target: bmc.BootPXE, Mode: bmc.ModeLegacy}, "0008 058004000000"},
			{bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeUEFI, Continuous: true}, "0008 05e008000000"},
			{bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeLegacy, Continuous: true}, "0008 05c008000000"},
			{bmc.Boot{Target: bmc.BootCD, Mode: bmc.ModeUEFI}, "0008 05a014000000"},
			{bmc.Boot{Target: bmc.BootUSB, Mode: bmc.ModeUEFI}, "0008 05a03c000000"},
			{bmc.Boot{Target: bmc.BootBIOS, Mode: bmc.ModeUEFI}, "0008 05a018000000"},
			{bmc.Boot{Target: bmc.BootNone}, "0008 050000000000"},
		}},
		"Supermicro": {10876, []step{
			{bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeUEFI}, "0008 05a024000000"},
			{bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeLegacy}, "0008 058008000000"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			emulator := start(t, lab.StartPyghmi, lab.Options{Manufacturer: maker.manufacturer})
			machine := open(t, options(t, emulator.Address()))
			for _, step := range maker.steps {
				before := count(t, emulator)
				if err := machine.SetBoot(t.Context(), step.boot); err != nil {
					t.Fatal(err)
				}
				if got, want := setOptions(t, emulator, before), []string{"0008 0308", step.wire}; !slices.Equal(got, want) {
					t.Errorf("%+v: the BMC got %q, want %q", step.boot, got, want)
				}
				state, err := machine.Boot(t.Context())
				if err != nil || state.Boot != step.boot || !slices.Contains(state.Offered, bmc.BootUSB) {
					t.Errorf("got %+v, %v, want %+v", state, err, step.boot)
				}
			}
		})
	}
}

func TestBootModeIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	emulator := start(t, lab.StartPyghmi, lab.Options{})
	machine := open(t, options(t, emulator.Address()))
	for _, step := range []struct {
		boot bmc.Boot
		wire string
	}{
		{bmc.Boot{Target: bmc.BootPXE}, "0008 05a004000000"}, // none was set: UEFI
		{bmc.Boot{Target: bmc.BootPXE, Mode: bmc.ModeLegacy}, "0008 058004000000"},
		{bmc.Boot{Target: bmc.BootCD}, "0008 058014000000"},
	} {
		before := count(t, emulator)
		if err := machine.SetBoot(t.Context(), step.boot); err != nil {
			t.Fatal(err)
		}
		if got, want := setOptions(t, emulator, before), []string{"0008 0308", step.wire}; !slices.Equal(got, want) {
			t.Errorf("%+v: the BMC got %q, want %q", step.boot, got, want)
		}
	}
}

func TestBootRefusals(t *testing.T) {
	t.Parallel()
	emulator := start(t, lab.StartPyghmi, lab.Options{})
	machine := open(t, options(t, emulator.Address()))
	boot := bmc.Boot{Target: bmc.BootPXE, Mode: bmc.ModeUEFI}
	for code, want := range map[string]bmc.Kind{
		"cc": bmc.Unsupported, "80": bmc.Unsupported, "81": bmc.Busy, "d4": bmc.Auth, "d2": bmc.Busy, "ff": bmc.Unknown,
	} {
		if err := emulator.SetFaults(map[string]string{"0008": code}); err != nil {
			t.Fatal(err)
		}
		wantKind(t, machine.SetBoot(t.Context(), boot), want, "rsp=0x"+code)
	}
}

// ipmi_sim takes the requests, and hands the target to its machine.
func TestBootOfSimulator(t *testing.T) {
	t.Parallel()
	emulator := start(t, lab.StartSimulator, lab.Options{})
	machine := open(t, options(t, emulator.Address()))
	if err := machine.SetBoot(t.Context(), bmc.Boot{Target: bmc.BootPXE, Mode: bmc.ModeUEFI}); err != nil {
		t.Fatal(err)
	}
	if told, err := emulator.Told(); err != nil || !slices.Equal(told, []string{"boot pxe"}) {
		t.Errorf("the machine was told %q, %v", told, err)
	}
}
