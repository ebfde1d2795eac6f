package fault

import (
	"net/http"
	"slices"
	"time"

	"github.com/stayput-dev/stayput/bmc/fault/proxy"
	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

// Faults of virtual media.
const (
	// EjectingBusy answers an insert with 500 for 5 s after an eject (storyboard 2008504), and the slots hold an image.
	EjectingBusy Kind = "EjectingBusy"
	// EjectingError does so with a message that says nothing of it, for 10 s.
	EjectingError Kind = "EjectingError"
	// EjectingForEver answers every insert so.
	EjectingForEver Kind = "EjectingForEver"
	// InsertDoneThough500 follows the first insert that it accepts and answers 500.
	InsertDoneThough500 Kind = "InsertDoneThough500"
	// InsertAnswerLost follows the first insert that it accepts and closes the connection without an answer.
	InsertAnswerLost Kind = "InsertAnswerLost"
	// InsertUnheard closes the connection of the first insert, and does not follow it.
	InsertUnheard Kind = "InsertUnheard"
	// Slot405 has slots whose InsertMedia is not allowed (ironic, rn cisco-c845a-vmedia-fix).
	Slot405 Kind = "Slot405"
	// Slot400 has slots that the console keeps for itself (launchpad ironic 2031595).
	Slot400 Kind = "Slot400"
	// SlotWithoutInsert has a first slot without InsertMedia, and a good second one.
	SlotWithoutInsert Kind = "SlotWithoutInsert"
	// ImageStays tells the image after an eject; ConnectedVia tells the truth (community.general 6969).
	ImageStays Kind = "ImageStays"
	// InsertedStays tells Inserted for 5 s after an eject (ironic, rn fix-redfish-vmedia-stale-insert-skip).
	InsertedStays Kind = "InsertedStays"
	// MediaUnderSystem lists slots under the system only (launchpad ironic 2039458).
	MediaUnderSystem Kind = "MediaUnderSystem"
	// MediaUnderManager lists slots under the manager only.
	MediaUnderManager Kind = "MediaUnderManager"
	// MediaByPatch has no actions: Image and Inserted are written (bmclib 438).
	MediaByPatch Kind = "MediaByPatch"
	// TransferProtocolRequired refuses an insert without TransferProtocolType (sushy, rn
	// retry-if-transferprototype-missing).
	TransferProtocolRequired Kind = "TransferProtocolRequired"
	// MediaFlagsRefused refuses an insert with Inserted or WriteProtected (sushy, rn fix-insert-media-payload).
	MediaFlagsRefused Kind = "MediaFlagsRefused"
	// MediaCredentialsRequired refuses an insert without UserName and Password (sushy, rn vmedia-blank-auth).
	MediaCredentialsRequired Kind = "MediaCredentialsRequired"
	// EjectWantsBody refuses an eject whose body is not {} (sushy, rn fix-eject-media-empty-dict).
	EjectWantsBody Kind = "EjectWantsBody"
	// OccupiedRefused refuses an insert into a slot that is not empty, and the slots hold another's image.
	OccupiedRefused Kind = "OccupiedRefused"
	// ManagedByMissing does not tell the system's manager (sushy, rn retry-on-missing-managedby).
	ManagedByMissing Kind = "ManagedByMissing"
	// OnlyDVD has slots of type DVD only (launchpad ironic 2039042).
	OnlyDVD Kind = "OnlyDVD"
	// NoMedia has no slots.
	NoMedia Kind = "NoMedia"
)

func mediaFaults() []Fault {
	type slots = *simulator.MediaRules
	media := func(change func(slots)) func(Target) error {
		return profile(func(p *simulator.Profile) { change(&p.Media) })
	}
	inserts := func(rule simulator.InsertRule) func(Target) error {
		return media(func(m slots) {
			m.Slots = slices.Clone(m.Slots)
			for i := range m.Slots {
				m.Slots[i].Insert = rule
			}
		})
	}
	occupied := func(change func(slots)) func(Target) error {
		return func(t Target) error {
			t.Simulator.Configure(func(p *simulator.Profile) { change(&p.Media) })
			all := t.Simulator.Profile().Media.Slots

			return state(func(s *simulator.State) {
				for _, slot := range all {
					s.Images[slot.ID] = "http://192.0.2.9/another.iso"
				}
			})(t)
		}
	}
	cd := []string{"CD", "DVD"}

	return []Fault{
		{Kind: EjectingBusy, Layer: Inside, Quirk: 41, inject: occupied(func(m slots) { m.Ejecting = 5 * time.Second })},
		{Kind: EjectingError, Layer: Inside, Quirk: 41, inject: occupied(func(m slots) {
			m.Ejecting, m.EjectingMessage = 10*time.Second, "Base.1.12.InternalError"
		})},
		{Kind: EjectingForEver, Layer: Inside, Quirk: 41, inject: occupied(func(m slots) { m.Ejecting = 24 * time.Hour })},
		{Kind: InsertDoneThough500, Layer: Wire, inject: acceptedInsert(
			proxy.Refuse(http.StatusInternalServerError, "Base.1.12.InternalError", "The request failed."))},
		{Kind: InsertAnswerLost, Layer: Wire, inject: acceptedInsert(proxy.Drop())},
		{Kind: InsertUnheard, Layer: Wire, inject: rules(insert(proxy.Rule{Times: 1, Effect: proxy.Drop()}))},
		{Kind: Slot405, Layer: Inside, Quirk: 44, inject: inserts(simulator.Refused405)},
		{Kind: Slot400, Layer: Inside, Quirk: 43, inject: inserts(simulator.Refused400)},
		{Kind: SlotWithoutInsert, Layer: Inside, Quirk: 44, inject: media(func(m slots) {
			m.Slots = []simulator.Slot{{ID: "Internal", Types: cd, Insert: simulator.NoInsert}, {ID: "External", Types: cd}}
		})},
		{Kind: ImageStays, Layer: Inside, Quirk: 51, inject: media(func(m slots) { m.StaleImage = true })},
		{Kind: InsertedStays, Layer: Inside, Quirk: 42, inject: media(func(m slots) { m.StaleInserted = 5 * time.Second })},
		{Kind: MediaUnderSystem, Layer: Inside, Quirk: 45, inject: media(func(m slots) { m.Under = simulator.AtSystem })},
		{Kind: MediaUnderManager, Layer: Inside, Quirk: 45, inject: media(func(m slots) { m.Under = simulator.AtManager })},
		{Kind: MediaByPatch, Layer: Inside, Quirk: 47, inject: inserts(simulator.ByPatch)},
		{Kind: TransferProtocolRequired, Layer: Inside, Quirk: 48, inject: media(func(m slots) { m.TransferProtocol = true })},
		{Kind: MediaFlagsRefused, Layer: Inside, Quirk: 46, inject: media(func(m slots) { m.ReadOnlyFlags = true })},
		{Kind: MediaCredentialsRequired, Layer: Inside, Quirk: 49, inject: media(func(m slots) { m.Credentials = true })},
		{Kind: EjectWantsBody, Layer: Inside, Quirk: 50, inject: media(func(m slots) { m.EjectBody = true })},
		{Kind: OccupiedRefused, Layer: Inside, inject: occupied(func(m slots) { m.Occupied = http.StatusInternalServerError })},
		{Kind: ManagedByMissing, Layer: Inside, Quirk: 54, inject: profile(func(p *simulator.Profile) { p.NoManagedBy = true })},
		{Kind: OnlyDVD, Layer: Inside, Quirk: 43, inject: media(func(m slots) {
			m.Slots = []simulator.Slot{{ID: "DVD", Types: []string{"DVD"}}}
		})},
		{Kind: NoMedia, Layer: Inside, inject: media(func(m slots) { m.Slots = nil })},
	}
}

// insert matches what inserts an image, by the action or by PATCH, and ejects by PATCH.
func insert(rule proxy.Rule) proxy.Rule {
	rule.Path, rule.Except = "/VirtualMedia/", []string{"EjectMedia"}
	rule.Match = func(r *http.Request) bool { return r.Method == http.MethodPost || r.Method == http.MethodPatch }

	return rule
}

// acceptedInsert plays an effect once, in place of the answer to an insert that was accepted.
func acceptedInsert(effect proxy.Effect) func(Target) error {
	return func(t Target) error {
		t.Proxy.Inject(insert(proxy.Rule{Apply: true, Effect: proxy.OnceAccepted(effect)}))

		return nil
	}
}
