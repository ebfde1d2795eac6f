package redfish

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/common"

	"github.com/stayput-dev/stayput/bmc"
)

var _ bmc.Console = (*machine)(nil)

// hostLogger is the log in which OpenBMC, and what is derived from it, keep the console of the machine: an entry a line,
// oldest first, without a time (bmcweb, systems_logservices_hostlogger.hpp). Other BMCs are not known to keep it.
const hostLogger = "HostLogger"

// ConsoleTail implements bmc.Console.
func (m *machine) ConsoleTail(ctx context.Context, lines int) ([]string, error) {
	const op = "reading the console"
	leave, err := m.enter(ctx, op)
	if err != nil {
		return nil, err
	}
	defer leave()
	if lines <= 0 {
		return nil, nil
	}
	lines = min(lines, bmc.MaxConsoleLines)
	uri, err := m.consoleLog(op)
	if err != nil {
		return nil, err
	}
	members, err := m.endOfConsole(op, uri, lines)
	if err != nil {
		return nil, err
	}
	var tail []string
	for _, member := range members {
		var entry logEntry
		if err := decode(member, &entry); err != nil {
			return nil, m.classify(op, false, err)
		}
		shown := bmc.ConsoleLines(entry.Message)
		if len(shown) == 0 {
			// The machine printed an empty line.
			shown = []string{""}
		}
		for _, line := range shown {
			tail = append(tail, m.redact(line))
		}
	}

	return tail[max(0, len(tail)-lines):], nil
}

// consoleLog is the path of the console's entries.
func (m *machine) consoleLog(op string) (string, error) {
	now, err := m.readSystem()
	if err != nil {
		return "", err
	}
	var services struct{ Members common.Links }
	if _, err := m.getOptional(op, now.LogServices.String(), &services); err != nil {
		return "", err
	}
	for _, uri := range services.Members.ToStrings() {
		if !strings.EqualFold(path.Base(uri), hostLogger) {
			continue
		}
		var service struct{ Entries common.Link }
		if _, err := m.getOptional(op, uri, &service); err != nil {
			return "", err
		}
		if service.Entries != "" {
			return service.Entries.String(), nil
		}
	}

	return "", m.fail(bmc.Unsupported, op,
		"the BMC keeps no console log (LogService "+hostLogger+") for this account; look at the machine's console by Serial over LAN")
}

// endOfConsole gives the last entries, oldest first. The console is long and grows while the machine starts, so it is
// asked for its length, and then for its end: two small answers of a BMC that knows $skip and $top.
func (m *machine) endOfConsole(op, uri string, lines int) ([]json.RawMessage, error) {
	first, known, err := m.window(op, uri, 0, 1)
	if err != nil {
		return nil, err
	}
	if skip := first.Count - lines; known && skip > 0 {
		end, known, err := m.window(op, uri, skip, lines)
		if err != nil {
			return nil, err
		}
		// It is empty when the log was begun anew in between. A BMC that ignores the question gives its first page.
		if known && len(end.Members) > 0 && len(first.Members) > 0 && string(end.Members[0]) != string(first.Members[0]) {
			return end.Members[max(0, len(end.Members)-lines):], nil
		}
	}
	members, err := m.newest(op, uri, lines)
	slices.Reverse(members)

	return members, err
}

// window asks for some entries; known is false where the BMC refuses the question.
func (m *machine) window(op, uri string, skip, top int) (page logPage, known bool, err error) {
	got, err := m.send(request{op: op, method: http.MethodGet, uri: fmt.Sprintf("%s?$skip=%d&$top=%d", uri, skip, top)})
	switch statusOf(err) {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusNotImplemented:
		return page, false, nil
	}
	if err == nil {
		err = decode(got.body, &page)
	}
	if err != nil {
		return page, false, m.classify(op, false, err)
	}

	return page, true, nil
}
