package redfish

import (
	"context"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/common"
	schemas "github.com/stmcginnis/gofish/redfish"

	"github.com/stayput-dev/stayput/bmc"
)

// drive is what is read of a VirtualMedia.
type drive struct {
	ID           string `json:"Id"`
	MediaTypes   []string
	Image        string
	ConnectedVia string
	// Inserted is nil when the BMC does not say.
	Inserted *bool
	Actions  struct {
		Insert common.ActionTarget `json:"#VirtualMedia.InsertMedia"`
		Eject  common.ActionTarget `json:"#VirtualMedia.EjectMedia"`
	}

	path, etag string
	// noPatch tells that the BMC says that the resource cannot be changed.
	noPatch bool
}

// holds tells whether there is an image in it. Some BMCs keep Image, or Inserted, after an eject, and say so with
// ConnectedVia.
func (d drive) holds() bool {
	switch {
	case d.ConnectedVia == string(schemas.NotConnectedConnectedVia):
		return false
	case d.Inserted != nil:
		return *d.Inserted
	default:
		return d.Image != ""
	}
}

// takes tells whether an image can be inserted: by the action, or by PATCH where there are no actions at all (Lenovo's
// XCC). A drive with EjectMedia alone is one of the BMC's own (Cisco).
func (d drive) takes() bool {
	return d.Actions.Insert.Target != "" || d.Actions.Eject.Target == "" && !d.noPatch
}

// Media implements bmc.Machine.
func (m *machine) Media(ctx context.Context) ([]bmc.MediaSlot, error) {
	leave, err := m.enter(ctx, "listing virtual media")
	if err != nil {
		return nil, err
	}
	defer leave()
	drives, err := m.drives()
	if err != nil {
		return nil, err
	}

	return m.slots(drives), nil
}

func (m *machine) slots(drives []drive) []bmc.MediaSlot {
	slots := make([]bmc.MediaSlot, 0, len(drives))
	for i, each := range drives {
		types := make([]string, 0, len(each.MediaTypes))
		for _, name := range each.MediaTypes {
			types = append(types, bmc.OneLine(name))
		}
		slot := bmc.MediaSlot{
			ID: slotIDs(drives)[i], Types: types, Inserted: each.holds(), Insertable: each.takes(),
		}
		if slot.Inserted {
			slot.Image = m.line(withoutUser(each.Image), 0)
		}
		slots = append(slots, slot)
	}

	return slots
}

// slotIDs name drives by their Id, and by their path where two have the same.
func slotIDs(drives []drive) []string {
	count := map[string]int{}
	for _, each := range drives {
		count[each.ID]++
	}
	ids := make([]string, 0, len(drives))
	for _, each := range drives {
		if each.ID == "" || count[each.ID] > 1 {
			ids = append(ids, bmc.OneLine(each.path))
		} else {
			ids = append(ids, each.ID)
		}
	}

	return ids
}

// withoutUser takes a user name and password out of a URL, and gives "" for what is none.
func withoutUser(image string) string {
	parsed, err := url.Parse(image)
	if err != nil {
		return ""
	}
	parsed.User = nil

	return parsed.String()
}

// drives are those of the system; where it has none that takes an image, those of its managers too. A BMC may show one
// drive under both.
func (m *machine) drives() ([]drive, error) {
	now, err := m.readSystem()
	if err != nil {
		return nil, err
	}
	drives, err := m.drivesIn(now.VirtualMedia.String())
	if err != nil || slices.ContainsFunc(drives, drive.takes) {
		return drives, err
	}
	paths, err := m.managers(now)
	if err != nil {
		return nil, err
	}
	for _, each := range paths {
		var managed manager
		if _, err := m.getOptional("reading manager "+each, each, &managed); err != nil {
			return nil, err
		}
		if managed.VirtualMedia == now.VirtualMedia {
			continue
		}
		more, err := m.drivesIn(managed.VirtualMedia.String())
		if err != nil {
			return nil, err
		}
		drives = append(drives, more...)
	}

	return drives, nil
}

func (m *machine) drivesIn(collection string) ([]drive, error) {
	var all struct{ Members common.Links }
	if _, err := m.getOptional("listing virtual media", collection, &all); err != nil {
		return nil, err
	}
	drives := make([]drive, 0, len(all.Members))
	for _, member := range all.Members.ToStrings() {
		each, err := m.readDrive(member)
		if err != nil {
			return nil, err
		}
		drives = append(drives, each)
	}

	return drives, nil
}

func (m *machine) readDrive(uri string) (drive, error) {
	found := drive{path: uri}
	got, err := m.get("reading virtual media "+path.Base(uri), uri, &found)
	if err != nil {
		return drive{}, err
	}
	found.ID = bmc.OneLine(found.ID)
	found.etag = got.header.Get("ETag")
	allow := strings.Join(got.header.Values("Allow"), ",")
	found.noPatch = allow != "" && !strings.Contains(strings.ToUpper(allow), http.MethodPatch)

	return found, nil
}

// findDrive gives the drive that a slot's ID names.
func (m *machine) findDrive(op, slot string) (drive, error) {
	drives, err := m.drives()
	if err != nil {
		return drive{}, err
	}
	ids := slotIDs(drives)
	switch i := slices.Index(ids, slot); {
	case i >= 0:
		return drives[i], nil
	case len(ids) == 0:
		return drive{}, m.fail(bmc.Unsupported, op, "the BMC offers no virtual media; is there a licence for it?")
	default:
		return drive{}, m.fail(bmc.NotFound, op, "there is no such slot; the BMC has "+strings.Join(ids, ", "))
	}
}
