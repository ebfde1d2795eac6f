package redfish

import (
	"net/http"

	"github.com/stmcginnis/gofish/common"
)

// manager is what is read of the BMC itself.
type manager struct {
	FirmwareVersion, DateTime string
	VirtualMedia, LogServices common.Link
}

// managers are the paths of the BMCs that manage a system. Huawei's 1288H names none; then there must be just one.
func (m *machine) managers(of system) ([]string, error) {
	if named := of.Links.ManagedBy.ToStrings(); len(named) > 0 {
		return named, nil
	}
	collection := m.root.Managers.String()
	if collection == "" {
		collection = defaultManagers
	}
	var all struct{ Members common.Links }
	found, err := m.getOptional("looking for the manager of system "+m.path, collection, &all)
	if err != nil || !found || len(all.Members) != 1 {
		return nil, err
	}

	return all.Members.ToStrings(), nil
}

// readManager reads the first manager of a system; what the BMC does not tell is empty.
func (m *machine) readManager(of system) (manager, error) {
	var found manager
	paths, err := m.managers(of)
	if err != nil || len(paths) == 0 {
		return found, err
	}
	_, err = m.getOptional("reading manager "+paths[0], paths[0], &found)

	return found, err
}

// getOptional reads a resource that BMCs may lack, or hide from this account.
func (m *machine) getOptional(op, uri string, into any) (found bool, err error) {
	if uri == "" {
		return false, nil
	}
	got, err := m.send(request{op: op, method: http.MethodGet, uri: uri})
	switch statusOf(err) {
	case http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return false, nil
	}
	if err != nil {
		return false, m.classify(op, false, err)
	}
	if err := decode(got.body, into); err != nil {
		return false, m.classify(op, false, err)
	}

	return true, nil
}
