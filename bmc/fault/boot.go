package fault

import (
	"net/http"

	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

// Faults of boot overrides, and of the ETags of their writes.
const (
	// ETagRefused answers 412 to every If-Match (gofish pull request 277).
	ETagRefused Kind = "ETagRefused"
	// ETagWeak tells a weak ETag and takes the strong one only (sushy).
	ETagWeak Kind = "ETagWeak"
	// ETagRequired refuses writes without If-Match with PreconditionHeaderMissing (gofish 171).
	ETagRequired Kind = "ETagRequired"
	// ETagEmpty tells an empty ETag, which matches nothing.
	ETagEmpty Kind = "ETagEmpty"
	// SettingsOnlyBoot takes the boot override at the Settings resource only (gofish pull request 511).
	SettingsOnlyBoot Kind = "SettingsOnlyBoot"
	// SettingsWithoutBoot has a Settings resource that does not take it (sushy, rn check-for-boot-attrs-in-settingsuri).
	SettingsWithoutBoot Kind = "SettingsWithoutBoot"
	// TargetsInSettings tells the boot targets in the Settings resource only (sushy, rn idrac10-settings-resource).
	TargetsInSettings Kind = "TargetsInSettings"
	// BootPending shows an override at Settings only, until the machine is started.
	BootPending Kind = "BootPending"
	// RevertsToOnce makes an override Once unless Enabled is sent (storyboard 2007547).
	RevertsToOnce Kind = "RevertsToOnce"
	// EqualEnabledRefused refuses Enabled when it is as it was (storyboard 2007355).
	EqualEnabledRefused Kind = "EqualEnabledRefused"
	// BootModeFlips sets Legacy whenever a target is set without a mode (storyboard 2008252).
	BootModeFlips Kind = "BootModeFlips"
	// ContinuousRefused takes overrides for one boot only (storyboard 2007733).
	ContinuousRefused Kind = "ContinuousRefused"
	// FullBootRequired refuses a body without Mode (ironic, rn redfish-full-boot-payload-asrockrack).
	FullBootRequired Kind = "FullBootRequired"
	// MinimalBootRequired refuses a body with more than Target and Enabled (bmclib, for an HPE DL160 Gen10).
	MinimalBootRequired Kind = "MinimalBootRequired"
	// BootModeReadOnly refuses a body with Mode (community.general 3509).
	BootModeReadOnly Kind = "BootModeReadOnly"
	// BootModeAbsent has no Mode (ironic, rn redfish-boot-mode-override-not-present).
	BootModeAbsent Kind = "BootModeAbsent"
	// OnceConsumed uses a Once up before it is read back, as somebody else's reset does.
	OnceConsumed Kind = "OnceConsumed"
	// BootIgnored accepts an override and does not keep it (metal-operator 80).
	BootIgnored Kind = "BootIgnored"
	// BootRefusedThoughKept keeps an override and answers 400 (community.general 5091).
	BootRefusedThoughKept Kind = "BootRefusedThoughKept"
	// OnlyUsbCd offers the virtual CD as UsbCd only (sushy, rn change-bootdev-smc).
	OnlyUsbCd Kind = "OnlyUsbCd"
	// NoCD offers no CD of any name.
	NoCD Kind = "NoCD"
)

func bootFaults() []Fault {
	type rules = *simulator.BootRules
	boot := func(change func(rules)) func(Target) error {
		return profile(func(p *simulator.Profile) { change(&p.Boot) })
	}
	etag := func(rule simulator.ETagRule) func(Target) error {
		return profile(func(p *simulator.Profile) { p.ETag = rule })
	}

	return []Fault{
		{Kind: ETagRefused, Layer: Inside, Quirk: 11, inject: etag(simulator.ETagRefused)},
		{Kind: ETagWeak, Layer: Inside, inject: etag(simulator.ETagWeak)},
		{Kind: ETagRequired, Layer: Inside, Quirk: 10, inject: etag(simulator.ETagRequired)},
		{Kind: ETagEmpty, Layer: Inside, inject: etag(simulator.ETagEmpty)},
		{Kind: SettingsOnlyBoot, Layer: Inside, Quirk: 13, inject: boot(func(b rules) { b.At, b.Settings = simulator.AtSettings, true })},
		{Kind: SettingsWithoutBoot, Layer: Inside, Quirk: 15, inject: boot(func(b rules) {
			b.At, b.Settings, b.TargetsAt = simulator.AtSystem, true, simulator.AtSystem
		})},
		{Kind: TargetsInSettings, Layer: Inside, Quirk: 16, inject: boot(func(b rules) {
			b.At, b.Settings, b.TargetsAt = simulator.AtSettings, true, simulator.AtSettings
		})},
		{Kind: BootPending, Layer: Inside, inject: boot(func(b rules) {
			b.At, b.Settings, b.Pending = simulator.AtSettings, true, true
		})},
		{Kind: RevertsToOnce, Layer: Inside, Quirk: 17, inject: boot(func(b rules) { b.RevertsToOnce = true })},
		{Kind: EqualEnabledRefused, Layer: Inside, Quirk: 18, inject: func(t Target) error {
			t.Simulator.Configure(func(p *simulator.Profile) { p.Boot.EqualRefused, p.Boot.Full = true, false })

			return state(func(s *simulator.State) { s.Boot.Target, s.Boot.Enabled = "Hdd", "Once" })(t)
		}},
		{Kind: BootModeFlips, Layer: Inside, Quirk: 19, inject: boot(func(b rules) { b.ModeFlips, b.Mode = true, simulator.ModeWritable })},
		{Kind: ContinuousRefused, Layer: Inside, Quirk: 20, inject: boot(func(b rules) { b.Continuous = false })},
		{Kind: FullBootRequired, Layer: Inside, Quirk: 21, inject: boot(func(b rules) {
			b.Full, b.Minimal, b.Mode = true, false, simulator.ModeWritable
		})},
		{Kind: MinimalBootRequired, Layer: Inside, Quirk: 22, inject: boot(func(b rules) { b.Minimal, b.Full = true, false })},
		{Kind: BootModeReadOnly, Layer: Inside, Quirk: 23, inject: boot(func(b rules) { b.Mode, b.Full = simulator.ModeReadOnly, false })},
		{Kind: BootModeAbsent, Layer: Inside, Quirk: 25, inject: boot(func(b rules) { b.Mode, b.Full = simulator.ModeAbsent, false })},
		{Kind: OnceConsumed, Layer: Inside, inject: boot(func(b rules) { b.UsedUp = true })},
		{Kind: BootIgnored, Layer: Inside, Quirk: 28, inject: boot(func(b rules) { b.Ignore = true })},
		{Kind: BootRefusedThoughKept, Layer: Inside, Quirk: 29, inject: boot(func(b rules) { b.LyingStatus = http.StatusBadRequest })},
		{Kind: OnlyUsbCd, Layer: Inside, Quirk: 26, inject: boot(func(b rules) {
			b.Targets = []string{"None", "Pxe", "Hdd", "Usb", "UsbCd", "BiosSetup"}
		})},
		{Kind: NoCD, Layer: Inside, inject: boot(func(b rules) { b.Targets = []string{"None", "Pxe", "Hdd", "BiosSetup"} })},
	}
}
