package simulator

import (
	"net/http"
	"time"
)

// Profiles are all of them. Numbers of quirks are those of package fault's catalogue.
func Profiles() []Profile {
	return []Profile{
		IDRAC9(), IDRAC10(), ILO5(), ILO6(), SupermicroX12(), SupermicroH13(), LenovoXCC(), OpenBMC(), AMI(),
	}
}

// IDRAC9 is a Dell of the 14th to 16th generation: eight sessions and then RAC0218 (bb-Ricardo/check_redfish 198), no
// GracefulRestart (redhat-performance/badfish 118), an insert into an occupied slot is refused, and one within seconds
// of an eject fails (storyboard 2008504); a request for the power that is gets 409 (sushy, rn catch-redfish-409).
func IDRAC9() Profile {
	p := standard()
	p.Name, p.Manufacturer, p.Model, p.Firmware = "iDRAC9", "Dell Inc.", "PowerEdge R650", "7.00.30.00"
	p.Prefix = "IDRAC.2.8."
	p.SystemID, p.ManagerID = "System.Embedded.1", "iDRAC.Embedded.1"
	p.Session.Limit, p.Session.FullMessage = 8, "RAC0218"
	p.Reset.Types = []string{"On", "ForceOff", "ForceRestart", "GracefulShutdown", "PushPowerButton", "Nmi", "PowerCycle"}
	p.Reset.Already, p.Reset.AlreadyMessage = http.StatusConflict, "IDRAC.2.8.PSU501"
	p.ETag = ETagChecked
	p.Media.Slots = []Slot{
		{ID: "RemovableDisk", Types: []string{"Floppy", "USBStick"}}, {ID: "CD", Types: []string{"CD", "DVD"}},
	}
	p.Media.Occupied, p.Media.Ejecting = http.StatusInternalServerError, 3*time.Second
	p.Log.Service = "Sel"

	return p
}

// IDRAC10 is a Dell of the 17th generation: On is refused with 409 for 60 s after off (launchpad ironic 2162995), the
// boot override is read-only at the system and is set at Settings, which alone tells the targets (gofish 511; sushy, rn
// idrac10-settings-resource), and an If-Match with an action is refused (gofish 510).
func IDRAC10() Profile {
	p := IDRAC9()
	p.Name, p.Model, p.Firmware = "iDRAC10", "PowerEdge R470", "1.20.50.00"
	p.Reset.OnConflict = 60 * time.Second
	p.Reset.NoIfMatch = true
	p.Boot.At, p.Boot.Settings, p.Boot.TargetsAt = AtSettings, true, AtSettings

	return p
}

// ILO5 is an HPE of generation 10: 400 to a reset of a machine that is off already (apache/cloudstack 12921), 400
// InvalidOperationForSystemState soon after a change of power (sushy, rn retry-ilo-not-ready), the boot mode is not
// writable (community.general 3509), an eject needs the body {} (sushy, rn fix-eject-media-empty-dict).
func ILO5() Profile {
	p := standard()
	p.Name, p.Manufacturer, p.Model, p.Firmware = "iLO5", "HPE", "ProLiant DL380 Gen10", "iLO 5 v3.03"
	p.Prefix = "iLO.2.14."
	p.Reset.Types = []string{"On", "ForceOff", "GracefulShutdown", "ForceRestart", "Nmi", "PushPowerButton", "GracefulRestart"}
	p.Reset.Already, p.Reset.AlreadyMessage = http.StatusBadRequest, "iLO.2.14.InvalidOperationForSystemState"
	p.Reset.PostBusy = 5 * time.Second
	p.Reset.Status = http.StatusOK
	p.Boot.Mode = ModeReadOnly
	p.ETag = ETagWeak
	p.Media.Slots = []Slot{{ID: "1", Types: []string{"Floppy", "USBStick"}}, {ID: "2", Types: []string{"CD", "DVD"}}}
	p.Media.EjectBody = true
	p.Log.Under, p.Log.Service = AtSystem, "IML"

	return p
}

// ILO6 is an HPE of generation 11: as ILO5, with resets as tasks whose monitor is gone when they are done
// (ironcore-dev/metal-operator 668).
func ILO6() Profile {
	p := ILO5()
	p.Name, p.Model, p.Firmware = "iLO6", "ProLiant DL380 Gen11", "iLO 6 v1.62"
	p.Reset.Status = http.StatusAccepted
	p.Reset.Task = TaskRules{Runs: time.Second, Vanishes: true}

	return p
}

// SupermicroX12 reverts Enabled to Once unless it is sent (storyboard 2007547), flips the boot mode when a target is set
// without one (storyboard 2008252), boots virtual media only as UsbCd (sushy, rn supermicro-vmedia-dev-workaround), takes no Inserted
// with an insert (community.general 4839), and still tells the image after an eject (community.general 6969).
func SupermicroX12() Profile {
	p := standard()
	p.Name, p.Manufacturer, p.Model, p.Firmware = "SupermicroX12", "Supermicro", "SYS-120U-TNR", "01.04.06"
	p.Boot.RevertsToOnce, p.Boot.ModeFlips = true, true
	p.Boot.Targets = []string{"None", "Pxe", "Floppy", "Hdd", "Usb", "UsbCd", "UsbHdd", "BiosSetup", "UefiHttp"}
	p.Media.ReadOnlyFlags, p.Media.StaleImage = true, true
	p.Media.Slots = []Slot{{ID: "VirtualMedia1", Types: []string{"CD", "DVD"}}}
	p.Log.Service, p.Log.OldestFirst = "Log1", true

	return p
}

// SupermicroH13 is as SupermicroX12 but for the flipping mode, and tells its reset types in ActionInfo.
func SupermicroH13() Profile {
	p := SupermicroX12()
	p.Name, p.Model, p.Firmware = "SupermicroH13", "AS-1115CS-TNR", "01.03.22"
	p.Boot.ModeFlips = false
	p.Reset.TypesAt = ActionInfo

	return p
}

// LenovoXCC has slots without actions that take a PATCH (bmclib 438), demands If-Match (gofish 171, of an SR655), and
// ignores GracefulShutdown while no operating system runs (metal-operator 129); the simulated one has one that runs.
func LenovoXCC() Profile {
	p := standard()
	p.Name, p.Manufacturer, p.Model, p.Firmware = "LenovoXCC", "Lenovo", "ThinkSystem SR650 V3", "3.10"
	p.Prefix = "ExtendedError.1.2."
	p.Reset.Types = []string{"On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "Nmi", "ForceOn"}
	p.ETag = ETagRequired
	p.Media.Slots = []Slot{
		{ID: "EXT1", Types: []string{"CD", "DVD"}, Insert: ByPatch}, {ID: "Remote1", Types: []string{"CD", "DVD"}, Insert: NoInsert},
	}
	p.Log.Under, p.Log.Service = AtSystem, "PlatformLog"

	return p
}

// OpenBMC tells PoweringOn and PoweringOff (openbmc/bmcweb 12), its reset types in ActionInfo only and no ForceRestart
// (ibm-openbmc/bmcweb 157, 522), ignores a reset while the power changes (xcat-core 3966), has slots under the system of
// which one lacks InsertMedia (ironic, rn cisco-c845a-vmedia-fix), and keeps the console (bmcweb,
// systems_logservices_hostlogger.hpp).
func OpenBMC() Profile {
	p := standard()
	p.Name, p.Manufacturer, p.Model, p.Firmware = "OpenBMC", "OpenBMC", "witherspoon", "2.16.0"
	p.SystemID, p.ManagerID = "system", "bmc"
	p.Reset.Types = []string{"On", "ForceOff", "ForceOn", "GracefulShutdown", "GracefulRestart", "PowerCycle", "Nmi"}
	p.Reset.TypesAt = ActionInfo
	p.Reset.Transitions, p.Reset.IgnoreInTransition = true, true
	p.Media.Under = AtSystem
	p.Media.Slots = []Slot{
		{ID: "Slot_0", Types: []string{"CD", "USBStick"}, Insert: NoInsert}, {ID: "Slot_1", Types: []string{"CD", "USBStick"}},
	}
	p.Log.Under, p.Log.Service, p.Log.OldestFirst, p.Log.Page = AtSystem, "EventLog", true, 2
	p.Log.Console = true

	return p
}

// AMI is a MegaRAC: a boot override needs Mode, Enabled and Target (ironic, VENDORS_REQUIRING_FULL_BOOT_REQUEST), writes
// need If-Match (gofish 171), and resets are tasks.
func AMI() Profile {
	p := standard()
	p.Name, p.Manufacturer, p.Model, p.Firmware = "AMI", "American Megatrends", "MegaRAC SP-X", "13.6"
	p.SystemID, p.ManagerID = "Self", "Self"
	p.Session.Limit = 8
	p.Reset.Status, p.Reset.Task = http.StatusAccepted, TaskRules{Runs: time.Second}
	p.Reset.TypesAt = ActionInfo
	p.Boot.Full = true
	p.ETag = ETagRequired
	p.Media.TransferProtocol = true
	p.Log.Service = "SEL"

	return p
}
