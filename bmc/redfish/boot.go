package redfish

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	schemas "github.com/stmcginnis/gofish/redfish"

	"github.com/stayput-dev/stayput/bmc"
)

// bootProperties is property Boot of a system, or of its Settings resource.
type bootProperties struct {
	Target  string   `json:"BootSourceOverrideTarget"`
	Enabled string   `json:"BootSourceOverrideEnabled"`
	Mode    string   `json:"BootSourceOverrideMode"`
	Targets []string `json:"BootSourceOverrideTarget@Redfish.AllowableValues"`
	// Durations are the values that Enabled can have.
	Durations []string `json:"BootSourceOverrideEnabled@Redfish.AllowableValues"`
}

const (
	once       = string(schemas.OnceBootSourceOverrideEnabled)
	continuous = string(schemas.ContinuousBootSourceOverrideEnabled)
	disabled   = string(schemas.DisabledBootSourceOverrideEnabled)
)

// overrides tells whether it holds an override. One that names a target and no duration holds for one boot at least.
func (b bootProperties) overrides() bool {
	return b.Enabled != disabled && targetOf(b.Target) != bmc.BootNone
}

// exists tells whether a resource has the properties of an override; a Settings resource may have only the boot order.
func (b bootProperties) exists() bool {
	return b.Target != "" || b.Enabled != "" || b.Mode != "" || len(b.Targets) > 0
}

// bootResource is where a boot override is read and written.
type bootResource struct {
	path, etag string
	boot       bootProperties
}

// bootPlaces are the system's Settings resource, if it holds overrides, and the system. Writes go to the first: with
// iDRAC10 the system's are read-only, and the allowed targets are told in the Settings only.
func (m *machine) bootPlaces(now system) ([]bootResource, error) {
	places := []bootResource{{path: now.ODataID, etag: now.etag, boot: now.Boot}}
	uri := now.Settings.SettingsObject.String()
	if uri == "" || uri == now.ODataID {
		return places, nil
	}
	op := "reading the settings of system " + m.path
	var settings struct{ Boot bootProperties }
	got, err := m.send(request{op: op, method: http.MethodGet, uri: uri})
	switch status := statusOf(err); {
	case status == http.StatusNotFound || status == http.StatusMethodNotAllowed:
		return places, nil
	case err != nil:
		return nil, m.classify(op, false, err)
	}
	if err := decode(got.body, &settings); err != nil {
		return nil, m.classify(op, false, err)
	}
	if !settings.Boot.exists() {
		return places, nil
	}

	return append([]bootResource{{path: uri, etag: got.header.Get("ETag"), boot: settings.Boot}}, places...), nil
}

// Boot implements bmc.Machine. A target that bmc has no word for is given as the BMC calls it. What waits in the Settings
// resource for the next boot counts.
func (m *machine) Boot(ctx context.Context) (bmc.BootState, error) {
	leave, err := m.enter(ctx, "reading the boot override")
	if err != nil {
		return bmc.BootState{}, err
	}
	defer leave()
	places, err := m.readBoot()
	if err != nil {
		return bmc.BootState{}, err
	}

	return bootState(places), nil
}

func (m *machine) readBoot() ([]bootResource, error) {
	now, err := m.readSystem()
	if err != nil {
		return nil, err
	}

	return m.bootPlaces(now)
}

func bootState(places []bootResource) bmc.BootState {
	var state bmc.BootState
	state.Target = bmc.BootNone
	for _, place := range places {
		if place.boot.overrides() {
			state.Boot = bmc.Boot{Target: targetOf(place.boot.Target), Continuous: place.boot.Enabled == continuous}

			break
		}
	}
	for _, place := range places {
		if state.Mode == bmc.ModeUnknown {
			state.Mode = modeOf(place.boot.Mode)
		}
		for _, value := range place.boot.Targets {
			if target := targetOf(value); slices.Contains(bmc.BootTargets(), target) && !slices.Contains(state.Offered, target) {
				state.Offered = append(state.Offered, target)
			}
		}
	}

	return state
}

// targetValues are a target's names, the first one preferred. UsbCd is how Supermicro's BMCs call the virtual CD.
func targetValues(target bmc.BootTarget) []string {
	return map[bmc.BootTarget][]string{
		bmc.BootNone: {string(schemas.NoneBootSourceOverrideTarget)},
		bmc.BootPXE:  {string(schemas.PxeBootSourceOverrideTarget)},
		bmc.BootDisk: {string(schemas.HddBootSourceOverrideTarget)},
		bmc.BootCD:   {string(schemas.CdBootSourceOverrideTarget), "UsbCd"},
		bmc.BootUSB:  {string(schemas.UsbBootSourceOverrideTarget)},
		bmc.BootHTTP: {string(schemas.UefiHTTPBootSourceOverrideTarget)},
		bmc.BootBIOS: {string(schemas.BiosSetupBootSourceOverrideTarget)},
	}[target]
}

func targetOf(value string) bmc.BootTarget {
	for _, target := range bmc.BootTargets() {
		if slices.Contains(targetValues(target), value) {
			return target
		}
	}
	if value == "" {
		return bmc.BootNone
	}

	return bmc.BootTarget(bmc.OneLine(value))
}

func modeOf(value string) bmc.BootMode {
	switch schemas.BootSourceOverrideMode(value) {
	case schemas.UEFIBootSourceOverrideMode:
		return bmc.ModeUEFI
	case schemas.LegacyBootSourceOverrideMode:
		return bmc.ModeLegacy
	default:
		return bmc.ModeUnknown
	}
}

// SetBoot implements bmc.Machine.
func (m *machine) SetBoot(ctx context.Context, boot bmc.Boot) error {
	op := fmt.Sprintf("setting the boot override of system %s to %s", m.path, boot.Target)
	leave, err := m.enter(ctx, op)
	if err != nil {
		return err
	}
	defer leave()
	now, err := m.readSystem()
	if err != nil {
		return err
	}
	if err := m.isExpected(now); err != nil {
		return err
	}
	places, err := m.bootPlaces(now)
	if err != nil {
		return err
	}
	wanted, err := m.wantedBoot(op, boot, now, places)
	if err != nil {
		return err
	}
	mode := string(bootState(places).Mode)
	for _, place := range places {
		place.boot.Mode = mode
		err = m.writeBoot(op, place, wanted)
		if !isReadOnly(err) {
			break
		}
	}
	if err == nil {
		return nil
	}

	return m.bootRefused(op, boot, err)
}

// isReadOnly tells that a resource does not take an override, so that the other one may.
func isReadOnly(err error) bool {
	return statusOf(err) == http.StatusMethodNotAllowed || statusOf(err) == http.StatusNotFound ||
		refused(err) && says(err, "PropertyNotWritable", "PropertyUnknown") && !mentions(err, "BootSourceOverrideMode")
}

// wantedBoot translates an override, and refuses what the BMC says that it does not offer, or must not get.
func (m *machine) wantedBoot(op string, boot bmc.Boot, now system, places []bootResource) (bootProperties, error) {
	wanted := bootProperties{Enabled: once, Mode: string(boot.Mode)}
	values := targetValues(boot.Target)
	if len(values) == 0 {
		return wanted, m.fail(bmc.Unsupported, op, fmt.Sprintf("there is no such target; use one of %v", bmc.BootTargets()))
	}
	var targets, durations []string
	for _, place := range places {
		targets = append(targets, place.boot.Targets...)
		durations = append(durations, place.boot.Durations...)
	}
	maker := strings.ToLower(now.Manufacturer)
	if strings.Contains(maker, "supermicro") {
		// X11 and X12 offer Cd too, and boot a virtual CD as UsbCd only (sushy).
		slices.Reverse(values)
	}
	wanted.Target = values[0]
	if i := slices.IndexFunc(values, func(value string) bool { return slices.Contains(targets, value) }); i >= 0 {
		wanted.Target = values[i]
	} else if len(targets) > 0 && boot.Target != bmc.BootNone {
		return wanted, m.fail(bmc.Unsupported, op, "the BMC offers only "+strings.Join(targets, ", "))
	}
	switch {
	case boot.Target == bmc.BootNone:
		wanted.Enabled, wanted.Mode = disabled, ""
	case !boot.Continuous:
	case len(durations) > 0 && !slices.Contains(durations, continuous):
		return wanted, m.fail(bmc.Unsupported, op, useOnce)
	case boot.Target == bmc.BootDisk && boot.Mode != bmc.ModeLegacy && strings.Contains(maker, "lenovo"):
		// SR645 V3 (launchpad ironic 2053064).
		return wanted, m.fail(bmc.Unsupported, op, "Lenovo's machines boot in a loop with a continuous override to Disk; "+useOnceInstead)
	default:
		wanted.Enabled = continuous
	}

	return wanted, nil
}

const (
	useOnceInstead = "set it for one boot, and again before each boot that needs it"
	useOnce        = "the BMC offers no continuous override; " + useOnceInstead
)

// writeBoot tries the forms of body until one is not refused as a form.
func (m *machine) writeBoot(op string, place bootResource, wanted bootProperties) error {
	var first error
	for _, body := range bootForms(place.boot, wanted) {
		err := m.patch(op, place.path, place.etag, map[string]any{"Boot": body})
		if first == nil || !refused(err) {
			first = err
		}
		if !refused(err) {
			break
		}
	}

	return first
}

// bootForms are the bodies to try. Enabled is always sent: Supermicro's BMCs make it Once otherwise. Mode is sent only
// when it must change: HPE's refuse it.
func bootForms(now, wanted bootProperties) []map[string]string {
	body := func(target, enabled, mode string) map[string]string {
		values := map[string]string{"Target": target, "Enabled": enabled, "Mode": mode}
		named := map[string]string{}
		for name, value := range values {
			if value != "" {
				named["BootSourceOverride"+name] = value
			}
		}

		return named
	}
	mode := wanted.Mode
	if mode == now.Mode {
		mode = ""
	}
	forms := []map[string]string{body(wanted.Target, wanted.Enabled, mode)}
	if wanted.Enabled == disabled {
		// Some have no target None.
		return append(forms, body("", wanted.Enabled, ""))
	}
	if mode == "" && now.Mode != "" {
		// AMI's and ASRockRack's want all three.
		forms = append(forms, body(wanted.Target, wanted.Enabled, now.Mode))
	}
	if now.Enabled == wanted.Enabled {
		// Others refuse a value that is the present one.
		forms = append(forms, body(wanted.Target, "", mode))
	}

	return forms
}

// bootRefused says what to do about a refusal.
func (m *machine) bootRefused(op string, boot bmc.Boot, err error) error {
	failed := m.classify(op, true, err)
	if !refused(err) {
		return failed
	}
	switch {
	case mentions(err, "BootSourceOverrideMode"):
		return m.fail(bmc.Unsupported, op, detailOf(failed)+"; leave the boot mode out, or set it in the firmware's set-up")
	case boot.Continuous:
		return m.fail(bmc.Unsupported, op, detailOf(failed)+"; if it has no continuous override, "+useOnceInstead)
	default:
		return failed
	}
}
