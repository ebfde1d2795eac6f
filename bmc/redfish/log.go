package redfish

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/common"

	"github.com/stayput-dev/stayput/bmc"
)

const (
	// maxLogs is how many logs of one machine are read.
	maxLogs = 4
	// maxPages bounds the pages of one log; BMCs give 50 to 1,000 entries a page.
	maxPages = 20
	// maxSingles bounds the entries that are read one by one, where a page holds links only.
	maxSingles = 100
)

type logEntry struct {
	Created, Severity, Message, MessageID string

	ODataID string `json:"@odata.id"`
}

type logPage struct {
	Members []json.RawMessage
	Count   int    `json:"Members@odata.count"`
	Next    string `json:"Members@odata.nextLink"`
}

// Log implements bmc.Machine. The logs of the machine are put together by time; those of the BMC are read where the
// machine has none.
func (m *machine) Log(ctx context.Context, limit int) ([]bmc.LogEntry, error) {
	const op = "reading the log"
	leave, err := m.enter(ctx, op)
	if err != nil {
		return nil, err
	}
	defer leave()
	if limit <= 0 {
		return nil, nil
	}
	logs, err := m.logs()
	if err != nil {
		return nil, err
	}
	if len(logs) == 0 {
		return nil, m.fail(bmc.Unsupported, op, "the BMC offers no log to this account; read the event log in its web interface")
	}
	var entries []bmc.LogEntry
	for _, each := range logs {
		more, err := m.readLog(op, each, limit)
		if err != nil {
			return nil, err
		}
		entries = append(entries, more...)
	}
	// Stable: entries of one log with one time stay in its order.
	slices.SortStableFunc(entries, func(a, b bmc.LogEntry) int { return b.At.Compare(a.At) })

	return entries[:min(limit, len(entries))], nil
}

// logs are the paths of the entries to read.
func (m *machine) logs() ([]string, error) {
	now, err := m.readSystem()
	if err != nil {
		return nil, err
	}
	found, err := m.logsIn(now.LogServices.String())
	if err != nil || len(found) > 0 {
		return found, err
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
		more, err := m.logsIn(managed.LogServices.String())
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}

	return found[:min(maxLogs, len(found))], nil
}

func (m *machine) logsIn(collection string) ([]string, error) {
	const op = "looking for logs"
	var services struct{ Members common.Links }
	if _, err := m.getOptional(op, collection, &services); err != nil {
		return nil, err
	}
	var found []string
	for _, uri := range services.Members.ToStrings() {
		if len(found) == maxLogs {
			break
		}
		if isNoEventLog(uri) {
			continue
		}
		var service struct{ Entries common.Link }
		if _, err := m.getOptional(op, uri, &service); err != nil {
			return nil, err
		}
		if service.Entries != "" {
			found = append(found, service.Entries.String())
		}
	}

	return found, nil
}

// isNoEventLog knows logs that hold dumps, console output or boot codes (OpenBMC): large, and no events.
func isNoEventLog(uri string) bool {
	name := strings.ToLower(uri[strings.LastIndex(strings.TrimRight(uri, "/"), "/")+1:])

	return slices.ContainsFunc([]string{"dump", "crash", "hostlogger", "postcode", "journal", "faultlog"},
		func(part string) bool { return strings.Contains(name, part) })
}

// readLog gives the newest entries of a log, newest first.
func (m *machine) readLog(op, uri string, limit int) ([]bmc.LogEntry, error) {
	members, err := m.newest(op, uri, limit)
	if err != nil {
		return nil, err
	}

	return m.entries(op, members)
}

// newest gives the newest members of a log, newest first. Its pages may begin with the newest entry or with the oldest; a
// long one that begins with the oldest is asked for its end.
func (m *machine) newest(op, uri string, limit int) ([]json.RawMessage, error) {
	var first logPage
	if found, err := m.getOptional(op, uri, &first); err != nil || !found {
		return nil, err
	}
	members, next := first.Members, first.Next
	if next != "" && !m.newestFirst(op, members) {
		end, ok, err := m.endOfLog(op, uri, first, limit)
		if err != nil {
			return nil, err
		}
		if ok {
			members, next = end, ""
		}
	}
	newestFirst := m.newestFirst(op, members)
	for pages := 1; next != "" && (!newestFirst || len(members) < limit); pages++ {
		if pages == maxPages {
			if newestFirst {
				break
			}

			return nil, m.fail(bmc.Unsupported, op, fmt.Sprintf(
				"log %s begins with its oldest entry and has more than %d pages; clear it at the BMC", uri, maxPages))
		}
		var page logPage
		if _, err := m.get(op, next, &page); err != nil {
			return nil, err
		}
		members, next = append(members, page.Members...), page.Next
	}
	if !newestFirst {
		slices.Reverse(members)
	}

	return members[:min(limit, len(members))], nil
}

// endOfLog asks for the last entries by $skip; ok is false where the BMC does not know it.
func (m *machine) endOfLog(op, uri string, first logPage, limit int) (end []json.RawMessage, ok bool, err error) {
	skip := first.Count - limit
	if skip <= 0 || len(first.Members) == 0 {
		return nil, false, nil
	}
	var page logPage
	got, err := m.send(request{
		op: op, method: http.MethodGet, uri: uri + "?$skip=" + strconv.Itoa(skip) + "&$top=" + strconv.Itoa(limit),
	})
	if statusOf(err) != 0 {
		return nil, false, nil
	}
	if err == nil {
		err = decode(got.body, &page)
	}
	if err != nil {
		return nil, false, m.classify(op, false, err)
	}
	// A BMC that ignores the question gives its first page.
	ok = page.Next == "" && len(page.Members) > 0 && string(page.Members[0]) != string(first.Members[0])

	return page.Members, ok, nil
}

// newestFirst compares the first member with the last; where they do not tell their time, the specification's order,
// oldest first, is taken.
func (m *machine) newestFirst(op string, members []json.RawMessage) bool {
	if len(members) < 2 {
		return false
	}
	ends, err := m.entries(op, []json.RawMessage{members[0], members[len(members)-1]})

	return err == nil && len(ends) == 2 && ends[0].At.After(ends[1].At)
}

// entries reads members, following those that are links.
func (m *machine) entries(op string, members []json.RawMessage) ([]bmc.LogEntry, error) {
	entries := make([]bmc.LogEntry, 0, len(members))
	singles := 0
	for _, member := range members {
		var entry logEntry
		if err := decode(member, &entry); err != nil {
			return nil, m.classify(op, false, err)
		}
		if entry == (logEntry{ODataID: entry.ODataID}) && entry.ODataID != "" {
			if singles++; singles > maxSingles {
				break
			}
			if _, err := m.get(op, entry.ODataID, &entry); err != nil {
				return nil, err
			}
		}
		entries = append(entries, m.logEntry(entry))
	}

	return entries, nil
}

func (m *machine) logEntry(entry logEntry) bmc.LogEntry {
	text := entry.Message
	if text == "" {
		text = entry.MessageID
	}
	at, err := time.Parse(time.RFC3339, entry.Created)
	if err != nil {
		at = time.Time{}
	}

	return bmc.LogEntry{At: at, Severity: m.line(entry.Severity, maxDetail), Message: m.line(text, maxDetail)}
}
